"""Does the model fit, at which stage and with which offload, what does a step send, how long might it take, and which
to choose. Every shard size that divides the ranks is tried, but for 1, which shards nothing, as stage 0 does; and of a
model with shapes every number of tensor parallel ranks that divides it and goes into a host. These have a batch
together, so rows are compared by the seconds for as many samples.

Bytes of states are exact plans of a step that gathers and reduces beside computing, as its seconds assume. Activations
are those of a program that is named. With mpizero's own, bytes are all that `mpizero.train` needs on a device, exact,
and no margin is kept free. PyTorch's are an estimate without what operators hold while they work; a margin is kept free
for it. Seconds are an estimate: in each phase of a step the busiest resource counts, computing, links or memories; so
they compare rows rather than foretell a run.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import pairwise
from typing import Any

from mpizero.dtypes import DTYPES, full_name, reduction
from mpizero.errors import ConfigError
from mpizero.layout import MASTER, optimizer_bytes, stored_states
from mpizero.papers.compare import others
from mpizero.papers.states import stage_bytes
from mpizero.plan.command import is_made, train_flags
from mpizero.plan.options import (
    Options, add_as_train, add_batch, add_model, add_ranks, argument_type, batch_of, count, ignored, model_of,
    part_of, spelled_text,
)
from mpizero.plan.rates import RATES, add_machine, facts, gpu_of, machine_of
from mpizero.plan.show_fit import MARGIN_FOR, MEMORIES, show
from mpizero.plan.steps import add_optimizer, optimizer_of
from mpizero.planner.fit import Row, rows
from mpizero.planner.model import OURS, PROGRAMS, PlannedModel
from mpizero.planner.question import Question
from mpizero.planner.recommend import recommend
from mpizero.planner.tiers import NONE, offload_of
from mpizero.quantities import parse_margin, parse_memory

__all__ = ["EXAMPLE", "HELP", "add_flags", "answer", "show"]
HELP = "does it fit, and which stage, offload and shard size to choose"
EXAMPLE = "fit --gpt 40,5120,40,32000 --context 4096 --ranks 64 --gpu h100"
MARGIN = 0.05
BEST = ("stage", "offload", "tensor_size", "shard_size")


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_as_train(parser, "freeze")
    add_ranks(parser)
    add_batch(parser)
    parser.add_argument("--accumulation", type=argument_type(count), default=1, metavar="A",
                        help="microbatches in a step (1)")
    parser.add_argument("--shard-size", type=argument_type(count), metavar="F",
                        help="ranks among which state is sharded in stages 1 to 3 (every size is tried)")
    parser.add_argument("--tensor-size", type=argument_type(count), metavar="T",
                        help="ranks that compute one batch together (of a --gpt or mlp every size in a host is tried)")
    for flag, words in (("device-memory", "of a rank, as 80GB or 80GiB (of --gpu)"), ("host-memory", "of a host"),
                        ("nvme", "of a host"),
                        ("activations", "of a rank (--gpt, mlp: from their shapes; else unknown)")):
        parser.add_argument(f"--{flag}", type=argument_type(parse_memory), metavar="SIZE", help=words)
    parser.add_argument("--activations-of", choices=list(PROGRAMS), metavar="PROGRAM",
                        help="whose, of a --gpt: pytorch (default), with flash attention; pytorch-eager; mpizero")
    add_as_train(parser, "recompute", "recompute-interval", "partition-activations", "offload", "bucket-size")
    parser.add_argument("--fused-loss", action="store_true", help="its gradient takes the place of the logits")
    parser.add_argument("--margin", type=argument_type(parse_margin), metavar="SHARE",
                        help=f"of a device's memory to keep free ({MARGIN:.0%}; 0 with mpizero's activations), for "
                        f"{MARGIN_FOR}".replace("%", "%%"))
    parser.add_argument("--dtype", type=full_name, choices=DTYPES, default="float16",
                        help="of parameters, gradients (float16)")
    parser.add_argument("--reduce-dtype", type=full_name, choices=DTYPES,
                        help="what gradients are sent, summed and kept as once reduced (as --dtype)")
    add_optimizer(parser)
    parser.add_argument("--compare", action="store_true",
                        help="what FSDP2, DeepSpeed, Megatron, accelerate and the papers say, and why")
    add_machine(parser, *RATES)


def answer(options: Options) -> dict[str, Any]:
    """Keys rows, recommended (stage, offload, tensor_size and shard_size; null if nothing fits), reason, machine, and
    what was asked. A row is of the best tensor and shard sizes; seconds_by_size and by_tensor_size have them all."""
    question = _question(options)
    found = rows(question)
    advice = recommend(question, found)
    best = advice.row and {name: getattr(advice.row, name) for name in BEST}
    repeated = ("ranks", "ranks_per_host", "dtype", "reduce_dtype", "batch_size", "tokens", "accumulation", "recompute",
                "recompute_interval", "partition_activations", "fused_loss", "margin", *MEMORIES)
    result: dict[str, Any] = {
        "model": question.model.name, "psi": question.model.spec.psi, "frozen_psi": question.model.spec.frozen_psi,
        **{name: getattr(question, name) for name in repeated}, "activations_of": _program(question),
        "exact": question.ours, "made_by_train": question.ours and is_made(question.model),
        "terms": _terms(question), "attention_flops": question.model.gpt is not None,
        "optimizer": question.optimizer.name,
        "optimizer_bytes": optimizer_bytes(question.optimizer, question.dtype),
        "master_weights": MASTER in stored_states(question.optimizer, question.dtype),
        "rows": [_plain(options, question, row) for row in found], "recommended": best,
        "reason": spelled_text(advice.reason),
        **facts(options, *RATES)}
    if options["compare"]:
        result["compare"] = {row.stage: _compared(question, row) for row in found if row.offload == "none"}
    return result


def _question(options: Options) -> Question:
    model, gpu = model_of(options), gpu_of(options)
    reduction(options["dtype"], options["reduce_dtype"])  # raises, as the next line does
    memory: int | None = options["device_memory"] or (None if gpu is None else gpu.memory)
    if memory is None:
        raise ConfigError("how much memory has a device? Add --device-memory, as in --device-memory 80GB, or --gpu, as "
                          "in --gpu h100")
    _check(options, model)
    batch, tokens = batch_of(options, model)
    offload = None if options["offload"] is None else offload_of(options["offload"])
    same = ("ranks", "ranks_per_host", "host_memory", "nvme", "accumulation", "dtype", "reduce_dtype", "shard_size",
            "recompute", "recompute_interval", "bucket_size", "activations", "fused_loss", "tensor_size",
            "partition_activations")
    question = Question(model, device_memory=memory, machine=machine_of(options), batch_size=batch, tokens=tokens,
                        optimizer=optimizer_of(options), offload=offload, program=options["activations_of"],
                        **{name: options[name] for name in same})
    question.settings("3", offload or NONE, 1)  # raises
    part_of(model, options["tensor_size"] or 1)  # raises
    usual = 0.0 if question.ours else MARGIN  # of ours everything is planned
    return replace(question, margin=usual if options["margin"] is None else options["margin"])


def _check(options: Options, model: PlannedModel) -> None:
    """ConfigError for what would be ignored, or is not known."""
    if options["activations"] is not None:
        ignored(options, ("activations_of", "fused_loss"), "says what activations are, and `activations` tells them")
    if options["offload"] is not None:
        ignored(options, ("compare",), "is of states on the device, and `offload` takes some elsewhere")
    if not model.programs or OURS in (options["activations_of"], model.programs[0]):
        ignored(options, ("fused_loss",), "is of PyTorch's activations of a --gpt; mpizero's loss always is")
    program = options["activations_of"]
    if program is not None and program not in model.programs:
        known = f"use {' or '.join(model.programs)}" if model.programs else "give its shapes by --gpt"
        raise ConfigError(f"--activations-of {program} is not known of {model.name}: {known}")


def _program(question: Question) -> str | None:
    """Whose activations the rows have; None: told, or unknown."""
    return None if question.table is None else question.whose


def _terms(question: Question) -> dict[str, int] | None:
    """Of what activations consist, in bytes: blocks (all that they keep) and the end (last norm, logits, loss)."""
    question = question.parts[0]
    table = question.table
    if table is None or question.model.gpt is None:
        return None
    if table.ranks > 1:
        halves = table.segments[1:3]
        block, kept = halves[0], sum(half.kept + half.output for half in halves)
    else:
        block = next(each for each, after in pairwise(table.segments[1:]) if not after.part)  # its last part
        kept = block.kept + block.output
    head, parts = table.segments[-1], table.ranks if question.partition_activations else 1
    return {"tensor_size": table.ranks, "blocks": question.model.gpt.layers, "input_of_a_block": block.output // parts,
            "block": kept, "end": head.kept + head.output + table.loss_kept}


def _plain(options: Options, question: Question, row: Row) -> dict[str, Any]:
    """train: with what `mpizero.train` needs these bytes; null of another program."""
    left = None if row.activations is None else question.room - row.device_bytes
    flags = train_flags(question.model, row.settings, options, question.batch_size) if question.ours else None
    told = {name: value for name, value in vars(row).items() if name != "settings"}
    told["by_tensor_size"] = {size: each._asdict() for size, each in row.by_tensor_size.items()}
    return {**told, "paced": row.paced, "lacks": list(row.lacks), "unknown": list(row.unknown), "fits": row.fits,
            "left_bytes": left, "train": flags and " ".join(flags)}


def _compared(question: Question, row: Row) -> dict[str, Any]:
    model = question.divided(row.tensor_size).model if row.tensor_size > 1 else question.model
    psi = sum(param.numel for param in model.spec.params)
    dtype, optimizer = question.dtype, question.optimizer
    found = others(psi, row.shard_size, row.stage, dtype, model.largest_leaf, model.largest_unit, optimizer)
    ours = stage_bytes(psi, row.stage, row.shard_size, dtype, question.reduce_dtype, optimizer)
    return {"after_backward": ours, "peak": row.peak["device"],
            "others": [vars(estimate) for estimate in found]}
