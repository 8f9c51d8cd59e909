"""The largest GPT of a family whose ranks fit on devices of one size, and what one more layer, or the next width, would
need.

Without a batch model states count alone, after backward, as in table 2 of ZeRO (arXiv:1910.02054); what is gathered on
the way comes on top, and is told. With --batch-size all counts that a run of mpizero.train needs on a device, exactly.
By default layers grow, of the width and heads of ZeRO's 100B model (its appendix), with GPT-2's vocabulary rounded up
to a multiple of 128.
"""

from __future__ import annotations

import argparse
from typing import Any

from mpizero.errors import ConfigError
from mpizero.layout import MASTER, Geometry, Tiers, named_policy, stored_states, wrap
from mpizero.layout.models import GPTConfig
from mpizero.papers.states import form_text, per_parameter
from mpizero.plan.command import is_made, train_flags
from mpizero.plan.options import Options, argument_type, count, part_of, wrapped
from mpizero.plan.rates import add_gpu, gpu_of
from mpizero.plan.steps import PRECISION, add_optimizer, add_step, k_text, optimizer_of, settings_of, step_with
from mpizero.planner import formula_after_backward, fullest_and_emptiest, plan_memory
from mpizero.planner.largest import Family, largest
from mpizero.planner.model import OURS, PlannedModel, frozen, gpt
from mpizero.planner.need import step_peak
from mpizero.quantities import in_units, parse_memory
from mpizero.schedule import STRATEGIES
from mpizero.schedule.compose import composed
from mpizero.text import counted, precision, table

HELP = "the largest model that fits on devices of one size"
EXAMPLE = "largest --device-memory 32GB --ranks 1024 --tensor-size 16 --stage 3"
ALONE = {"accumulation": 1, "no_sync": False, "recompute": False}  # where model states count alone
WIDTH, HEADS, LAYERS, VOCAB, CONTEXT, HEAD = 8192, 64, 48, 50_304, 1024, 64


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device-memory", type=argument_type(parse_memory), metavar="SIZE",
                        help="of a rank, as 32GB or 32GiB (of --gpu)")
    add_gpu(parser, "its memory, unless --device-memory says")
    family = parser.add_argument_group("the family")
    family.add_argument("--family", choices=["layers", "width"], default="layers", help="what grows (layers)")
    for name, words in (("layers", f"of --family width ({LAYERS})"),
                        ("d-model", f"width, of --family layers ({WIDTH})"),
                        ("heads", f"of --family layers ({HEADS}); of width each has {HEAD} features"),
                        ("vocab", f"tokens ({VOCAB})"), ("context", f"tokens of a sample ({CONTEXT})")):
        family.add_argument(f"--{name}", type=argument_type(count), metavar="N", help=words)
    parser.add_argument("--batch-size", type=argument_type(count), metavar="B",
                        help="samples of a rank in a microbatch: then all counts that a run needs")
    add_step(parser, hosts=False)
    add_optimizer(parser)


def answer(options: Options) -> dict[str, Any]:
    """Keys params, bytes (of a rank), layers, d_model, heads, context, vocab; next: the same of the next one; counts:
    what bytes are of; and what was asked. Without a batch also the peak of model states."""
    gpu = gpu_of(options)
    room: int | None = options["device_memory"] or (None if gpu is None else gpu.memory)
    if room is None:
        raise ConfigError("how much memory has a device? Add --device-memory, as in --device-memory 32GB, or --gpu, as "
                          "in --gpu v100")
    family, batch = _family(options), options["batch_size"]
    if batch is None:
        for name, usual in ALONE.items():
            if options[name] != usual:
                raise ConfigError(f"`{name}` says nothing of model states after backward: add `batch_size`, with which "
                                  "all counts, or leave it out")

    def needs(number: int) -> int:
        return _needs(_model(family, number, options), options, batch)

    found = largest(needs, room)
    model = _model(family, found.number, options)
    geometry, settings = _geometry(model, options), settings_of(options)
    shards = geometry.shards
    result = {**_told(family, found.number), "params": model.spec.psi, "own_params": geometry.wrapping.numel,
              "bytes": found.nbytes,
              "next": {**_told(family, found.number + 1), "params": _model(family, found.number + 1, options).spec.psi,
                       "bytes": found.next_bytes},
              "family": family.grows, "device_memory": room, "batch_size": batch, "counts": _counts(options),
              "ranks": options["ranks"], "replicas": geometry.replicas, "shard_size": shards, "stage": settings.stage,
              "tensor_size": settings.tensor_size, "dtype": geometry.dtype, "reduce_dtype": geometry.wire,
              "sum_dtype": geometry.sums, "recompute": settings.recompute, "offload": settings.offload,
              "partition_activations": settings.partition_activations,
              "optimizer": geometry.optimizer.name, "optimizer_bytes": geometry.optimizer_bytes,
              "master_weights": MASTER in stored_states(geometry.optimizer, geometry.dtype)}
    if batch is None:
        step = composed(STRATEGIES[settings.stage], geometry, settings).step()
        form = form_text(settings.stage, geometry.dtype, "F", geometry.sums, geometry.optimizer)
        of_papers = room / per_parameter(settings.stage, shards, geometry.dtype, geometry.sums, geometry.optimizer)
        return {**result, "peak": plan_memory(step, geometry).peak_bytes, "formula": form,
                "formula_params": float(settings.tensor_size * of_papers) if _as_papers(geometry) else None}
    return {**result, "made_by_train": is_made(model),
            "train": " ".join(train_flags(model, settings, options, batch))}


def _family(options: Options) -> Family:
    """ConfigError for a size that it does not have."""
    grows = options["family"]
    for name in ("layers",) if grows == "layers" else ("d_model", "heads"):
        if options[name] is not None:
            raise ConfigError(f"`{name}` is what grows with `family` {grows}, or follows from that: leave it out")
    rest = options["context"] or CONTEXT, options["vocab"] or VOCAB
    if grows == "layers":
        width = options["d_model"] or WIDTH
        heads = options["heads"] or max(each for each in range(1, HEADS + 1) if width % each == 0)
        return Family(grows, GPTConfig(1, width, heads, *rest))
    heads = max(options["tensor_size"], 1)  # of the first, so that they divide
    return Family(grows, GPTConfig(options["layers"] or LAYERS, heads * HEAD, heads, *rest))


def _told(family: Family, number: int) -> dict[str, int]:
    sizes = family.member(number)
    return {name: getattr(sizes, name) for name in ("layers", "d_model", "heads", "context", "vocab")}


def _model(family: Family, number: int, options: Options) -> PlannedModel:
    """What the first tensor parallel rank has of the member."""
    sizes = family.member(number)
    whole = gpt(sizes.layers, sizes.d_model, sizes.heads, sizes.vocab, sizes.context)
    return part_of(frozen(whole, options["freeze"]) if options["freeze"] else whole, options["tensor_size"])


def _geometry(model: PlannedModel, options: Options) -> Geometry:
    """Of the rank that keeps most."""
    settings = settings_of(options)
    wrapping = wrap(model.spec, options["ranks"], named_policy(options["wrap"], model.spec, options["dtype"]))
    dtype, wire, sums = (options[name] for name in PRECISION)
    return fullest_and_emptiest(Geometry(wrapping, settings.placement, settings.mesh(options["ranks"]), dtype,
                                         optimizer_of(options), wire, sums))[0]


def _needs(model: PlannedModel, options: Options, batch: int | None) -> int:
    """Bytes of a rank."""
    if batch is None:
        return formula_after_backward(_geometry(model, options))
    return step_peak(step_with(model, options), model.activations(OURS, batch, options["dtype"])).nbytes


def _as_papers(geometry: Geometry) -> bool:
    """Whether table 2 of ZeRO is about it."""
    return geometry.placement.tiers == Tiers() and not geometry.wrapping.frozen_numel


def _counts(options: Options) -> str:
    return ("model states after backward" if options["batch_size"] is None else
            "all that a run of mpizero.train needs on a device")


def show(answer: dict[str, Any]) -> str:
    mesh = f"{answer['replicas']:,} x {answer['shard_size']:,} x {answer['tensor_size']:,} (replicas x shards x tensor)"
    head = (f"{counted(answer['ranks'], 'rank')} = {mesh} of {in_units(answer['device_memory'])}; stage "
            f"{answer['stage']} in {precision(answer)}, {k_text(answer)}")
    rows = [[words, *(each[name] for name in ("layers", "d_model", "heads", "params", "bytes"))]
            for words, each in (("largest", answer), ("the next one", answer["next"]))]
    return "\n\n".join(["\n".join(wrapped(head)),
                        table(["", "layers", "width", "heads", "parameters", "bytes of a rank"], rows),
                        "\n".join(wrapped(_words(answer)))])


def _words(answer: dict[str, Any]) -> str:
    over = in_units(answer["next"]["bytes"] - answer["device_memory"])
    text = (f"Bytes are {answer['counts']}; the next one lacks {over}. GPTs of {answer['vocab']:,} tokens, texts of "
            f"{answer['context']:,}; {answer['family']} grow{'s' if answer['family'] == 'width' else ''}.")
    if answer["batch_size"] is not None:
        made = "" if answer["made_by_train"] else ", with a model of your own"
        return f"{text} The run{made}: mpizero.train {answer['train']}"
    if answer["formula_params"]:
        text += (f" By the closed form, {answer['formula']} of the psi/T that a rank has, they would fill a device at "
                 f"psi = {answer['formula_params'] / 1e9:,.5g}B.")
    return (f"{text} While it computes model states alone come to {in_units(answer['peak'])}; activations come on top "
            "(--batch-size).")
