"""Does the model fit, at which stage and with which offload, what does a step send, how long might it take, and which
to choose. Every shard size that divides the ranks is tried, but for 1, which shards nothing, as stage 0 does.

Bytes of states are exact plans of a step that gathers and reduces beside computing, as its seconds assume. Activations
are those of a program that is named. With mpizero's own, bytes are all that `mpizero.train` needs on a device, exact,
and no margin is kept free. PyTorch's are an estimate without what operators hold while they work; a margin is kept free
for it. Seconds are an estimate: in each phase of a step the busiest resource counts, computing, links or memories; so
they compare rows rather than foretell a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from mpizero.cli import FLAGS
from mpizero.dtypes import DTYPES, full_name, reduction
from mpizero.errors import ConfigError
from mpizero.layout import MASTER, optimizer_bytes, stored_states
from mpizero.papers.compare import others
from mpizero.papers.states import stage_bytes
from mpizero.plan.memory import show_compare
from mpizero.plan.options import (
    Options, add_batch, add_freeze, add_model, add_optimizer, add_ranks, argument_type, batch_of, count, k_text,
    model_of, optimizer_of, spelled_text, wrapped,
)
from mpizero.plan.rates import RATES, add_machine, facts, gpu_of, machine_of, rates_text
from mpizero.planner.fit import Row, rows
from mpizero.planner.model import PROGRAMS, PlannedModel
from mpizero.planner.question import AHEAD, SETTINGS, Question
from mpizero.planner.recommend import recommend, seconds
from mpizero.quantities import in_units, parse_margin, parse_memory
from mpizero.schedule import StepSettings
from mpizero.text import counted, precision, table

HELP = "does it fit, and which stage, offload and shard size to choose"
EXAMPLE = "fit --gpt 40,5120,40,32000 --context 4096 --ranks 64 --gpu h100"
MARGIN = 0.05
MARGIN_FOR = "the device's context, buffers of communication, operators at work and fragmentation"
_RECOMPUTE = ("--recompute takes its time here, and saves no bytes: of activations at most what --activations says is "
              "known, and that counts as it is")
MEMORIES = {"device_memory": "device", "host_memory": "host", "nvme": "NVMe"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_freeze(parser)
    add_ranks(parser)
    add_batch(parser)
    parser.add_argument("--accumulation", type=argument_type(count), default=1, metavar="A",
                        help="microbatches in a step (1)")
    parser.add_argument("--shard-size", type=argument_type(count), metavar="F",
                        help="ranks among which state is sharded in stages 1 to 3 (every size is tried)")
    for flag, words in (("device-memory", "of a rank, as 80GB or 80GiB (of --gpu)"), ("host-memory", "of a host"),
                        ("nvme", "of a host"),
                        ("activations", "of a rank (--gpt, mlp: from their shapes; else unknown)")):
        parser.add_argument(f"--{flag}", type=argument_type(parse_memory), metavar="SIZE", help=words)
    parser.add_argument("--activations-of", choices=list(PROGRAMS), metavar="PROGRAM", dest="program",
                        help="whose, of a --gpt: pytorch (default), with flash attention; pytorch-eager; mpizero")
    for name in ("recompute", "recompute-interval"):
        parser.add_argument(f"--{name}", default=FLAGS[name].default, **FLAGS[name].metadata)
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
    """Keys rows, recommended (stage, offload and shard_size; null if nothing fits), reason, machine, and what was
    asked. A row is of the best shard size; seconds_by_size has them all."""
    question = _question(options)
    found = rows(question)
    advice = recommend(question, found)
    best = advice.row and {"stage": advice.row.stage, "offload": advice.row.offload,
                           "shard_size": advice.row.shard_size}
    repeated = ("ranks", "ranks_per_host", "dtype", "reduce_dtype", "batch_size", "tokens", "accumulation", "recompute",
                "recompute_interval", "fused_loss", "margin", *MEMORIES)
    result: dict[str, Any] = {
        "model": question.model.name, "psi": question.model.spec.psi, "frozen_psi": question.model.spec.frozen_psi,
        **{name: getattr(question, name) for name in repeated}, "activations_of": _program(question),
        "exact": question.ours and not question.recompute, "train_flags": _train_flags(question),
        "terms": _terms(question), "attention_flops": question.model.gpt is not None,
        "optimizer": question.optimizer.name,
        "optimizer_bytes": optimizer_bytes(question.optimizer, question.dtype),
        "master_weights": MASTER in stored_states(question.optimizer, question.dtype),
        "rows": [_plain(question, row) for row in found], "recommended": best, "reason": spelled_text(advice.reason),
        **facts(options, *RATES)}
    if options["compare"]:
        result["compare"] = {row.stage: _compared(question, row) for row in found if row.offload == "none"}
    return result


def _question(options: Options) -> Question:
    model, gpu = model_of(options), gpu_of(options)
    reduction(options["dtype"], options["reduce_dtype"])  # raises, as the next line does
    StepSettings(recompute=options["recompute"], recompute_interval=options["recompute_interval"])
    memory: int | None = options["device_memory"] or (None if gpu is None else gpu.memory)
    if memory is None:
        raise ConfigError("how much memory has a device? Add --device-memory, as in --device-memory 80GB, or --gpu, as "
                          "in --gpu h100")
    _check_program(options, model)
    batch, tokens = batch_of(options, model)
    same = ("ranks", "ranks_per_host", "host_memory", "nvme", "accumulation", "dtype", "reduce_dtype", "shard_size",
            "recompute", "recompute_interval", "activations", "program", "fused_loss")
    question = Question(model, device_memory=memory, machine=machine_of(options), batch_size=batch, tokens=tokens,
                        optimizer=optimizer_of(options), **{name: options[name] for name in same})
    usual = 0.0 if question.ours else MARGIN  # of ours everything is planned
    return replace(question, margin=usual if options["margin"] is None else options["margin"])


def _check_program(options: Options, model: PlannedModel) -> None:
    program = options["program"]
    if program is not None and program not in model.programs:
        known = f"use {' or '.join(model.programs)}" if model.programs else "give its shapes by --gpt"
        raise ConfigError(f"--activations-of {program} is not known of {model.name}: {known}")


def _program(question: Question) -> str | None:
    """Whose activations the rows have; None: told, or unknown."""
    return None if question.table is None else question.whose


def _train_flags(question: Question) -> str | None:
    """With which, and those of a row, `mpizero.train` needs a row's bytes; None of another program."""
    overlap = "--overlap on" if SETTINGS["overlap"] else "--overlap off"
    return f"{overlap} --backward-prefetch {AHEAD} --forward-prefetch {AHEAD}" if question.ours else None


def _terms(question: Question) -> dict[str, int] | None:
    """Of what activations consist, in bytes: blocks (all that they keep) and the end (last norm, logits, loss)."""
    table = question.table
    if table is None or question.model.gpt is None:
        return None
    block = next(each for each, after in pairwise(table.segments[1:]) if not after.part)  # its last part
    head = table.segments[-1]
    return {"blocks": question.model.gpt.layers, "input_of_a_block": block.output, "block": block.kept + block.output,
            "end": head.kept + head.output + table.loss_kept}


def _plain(question: Question, row: Row) -> dict[str, Any]:
    left = None if row.activations is None else question.room - row.device_bytes
    told = {name: value for name, value in vars(row).items() if name != "settings"}
    return {**told, "lacks": list(row.lacks), "unknown": list(row.unknown), "fits": row.fits, "left_bytes": left}


def _compared(question: Question, row: Row) -> dict[str, Any]:
    model, psi = question.model, question.model.spec.psi
    dtype, optimizer = question.dtype, question.optimizer
    found = others(psi, row.shard_size, row.stage, dtype, model.largest_leaf, model.largest_unit, optimizer)
    ours = stage_bytes(psi, row.stage, row.shard_size, dtype, question.reduce_dtype, optimizer)
    return {"after_backward": ours, "peak": row.peak["device"],
            "others": [vars(estimate) for estimate in found]}


# -- what people read -------------------------------------------------------------------------------------------------


def show(answer: dict[str, Any]) -> str:
    memory = ", ".join(f"{words} {in_units(answer[key])}" for key, words in MEMORIES.items()
                       if answer[key] is not None)
    frozen = f" ({answer['frozen_psi']:,} frozen)" if answer["frozen_psi"] else ""
    margin = (f"{100 * answer['margin']:g} % of a device ({in_units(answer['margin'] * answer['device_memory'])}) are "
              f"kept free, for {MARGIN_FOR}") if answer["margin"] else "no margin is kept free"
    parts = [_wrapped(f"{answer['model']}, psi = {answer['psi']:,}{frozen}"),
             _wrapped(f"{counted(answer['ranks'], 'rank')}, {answer['ranks_per_host']:,} a host; {_precision(answer)}, "
                      f"{k_text(answer)}; {answer['tokens']:,} tokens x {answer['accumulation']} a rank and step; "
                      f"{memory}; {margin}"),
             *([_wrapped(_activations(answer))] if answer["activations_of"] else
               [_wrapped(_RECOMPUTE)] if answer["recompute"] else []),
             _show_rows(answer["rows"]), _wrapped(_legend(answer)), _wrapped(_machine(answer)),
             _wrapped(f"{'Recommended' if answer['recommended'] else 'No recommendation'}: {answer['reason']}.")]
    for stage, entry in answer.get("compare", {}).items():
        parts.append(f"stage {stage}\n" + show_compare(entry["others"], entry["after_backward"], entry["peak"]))
    return "\n\n".join(parts)


def _activations(answer: Mapping[str, Any]) -> str:
    """Whose they are, and of what they consist."""
    terms, interval = answer["terms"], answer["recompute_interval"]
    text = f"Activations are {PROGRAMS[answer['activations_of']]} (--activations-of {answer['activations_of']})"
    if terms is None:
        return f"{text}."
    blocks, loss = counted(terms["blocks"], "block"), "a fused loss" if answer["fused_loss"] else "loss"
    each = "each" if interval == 1 else f"every {interval} together"
    kept = (f"{blocks} keep an input of {in_units(terms['input_of_a_block'])} {each}, and as many are computed again "
            "at a time, of " if answer["recompute"] else f"{blocks} of ")
    return f"{text}: {kept}{in_units(terms['block'])}; last norm, logits and {loss} {in_units(terms['end'])}."


def _precision(answer: Mapping[str, Any]) -> str:
    wire = answer["reduce_dtype"] or answer["dtype"]
    return precision({"dtype": answer["dtype"], "reduce_dtype": wire, "sum_dtype": wire})


def _show_rows(found: list[dict[str, Any]]) -> str:
    fits = {True: "yes", False: "NO", None: "?"}
    body = [[row["stage"], row["offload"], f"{row['shard_size']:,}",
             in_units(row["device_bytes"]) + (" + ?" if row["activations"] is None else ""),
             _or_nothing(row["peak"]["host"]), _or_nothing(row["peak"]["nvme"]), _or_nothing(row["host_bytes"]),
             *(seconds(row[key]) for key in ("compute_seconds", "exposed_seconds", "seconds")), fits[row["fits"]]]
            for row in found]
    names = ["stage", "offload", "F", "device", "host", "NVMe", "out of host", "own s", "exposed s", "step s", "fits"]
    return table(names, body, right=names[2:-1])


def _or_nothing(nbytes: int) -> str:
    return in_units(nbytes) if nbytes else "-"


def _legend(answer: Mapping[str, Any]) -> str:
    sizes = list(dict.fromkeys(row["activations"] for row in answer["rows"]))
    kept = ("states, gathered one unit ahead; + ?: activations, unknown for this model" if sizes == [None] else
            f"states, gathered one unit ahead, and activations ({', '.join(map(in_units, sizes))} of the latter)")
    if answer["train_flags"]:
        kept = (f"all that mpizero.train needs there with {answer['train_flags']}, activations of "
                f"{', '.join(map(in_units, sizes))} included{', exact' if answer['exact'] else ', but for recompute'}")
    tried = max(len(row["seconds_by_size"]) for row in answer["rows"])
    return (f"F: ranks that share one copy of the states, the best of {counted(tried, 'size')}. Device: the most on a "
            f"rank's, of {kept}. Host, NVMe: peaks of a rank; the ranks of a host share its "
            "memory. Out of host: sent to other hosts in a step by the busiest host, all its ranks together. Own: the "
            "device's own work, computing and update; exposed: what the step waits for beyond it. "
            f"Fits ?: depends on what was not told{_untold(answer)}. Offload: cpu is mpizero.train's --offload "
            "optimizer=cpu, cpu+params adds params=cpu, nvme is both in files.")


def _untold(answer: Mapping[str, Any]) -> str:
    flags = {"host": "--host-memory", "nvme": "--nvme", "activations": "--activations"}
    untold = {what for row in answer["rows"] if row["fits"] is None for what in row["unknown"]}
    return f" ({', '.join(flag for what, flag in flags.items() if what in untold)})" if untold else ""


def _machine(answer: Mapping[str, Any]) -> str:
    work = ("6 psi + 12 L h s operations a token, attention's scores included" if answer["attention_flops"] else
            "6 psi operations a token; attention's scores, of which a bare size tells nothing, are left out")
    measured = answer["measured"]
    gpu = (f" on {answer['gpu']}" if answer["gpu"] else ", where flags say nothing of an H100" if measured is None else
           f" on the machine of {measured['file']}")
    wrong = (answer["dtype"] == "float32" and answer["sources"]["peak_flops"] != "flags"
             and not (measured and "float32" in measured["dtypes"]))
    of_16_bits = " The peak is of 16-bit operands: give --peak-flops of float32." if wrong else ""
    return f"Seconds are an estimate{gpu}: {work}. {rates_text(answer)}{of_16_bits}"


def _wrapped(text: str) -> str:
    return "\n".join(wrapped(text))
