"""Does the model fit, at which stage and with which offload, what does a step send, how long might it take, and which
to choose. Every shard size that divides the ranks is tried, but for 1, which shards nothing, as stage 0 does.

Bytes are exact plans (offload: of actions that no run executes yet; recompute: an estimate); what operators hold while
they work is not in them. Seconds are an estimate: in each phase of a step the busiest resource counts, computing, links
or memories; so they compare rows rather than foretell a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from mpizero.errors import ConfigError
from mpizero.machine import LECTURE_TOKENS, Gpu
from mpizero.papers.compare import others
from mpizero.papers.states import stage_bytes
from mpizero.plan.memory import show_compare
from mpizero.plan.options import (
    DTYPES, RATES, Options, add_freeze, add_machine, add_model, add_ranks, argument_type, count, gpu_of, machine_of,
    model_of, spelled_text, wrapped,
)
from mpizero.planner.fit import Row, rows
from mpizero.planner.question import Question
from mpizero.planner.recommend import recommend, seconds
from mpizero.quantities import in_units, parse_memory
from mpizero.text import counted, table

HELP = "does it fit, and which stage, offload and shard size to choose"
EXAMPLE = "fit --gpt 40,5120,40,32000 --context 4096 --ranks 64 --gpu h100"
MEMORIES = {"device_memory": "device", "host_memory": "host", "nvme": "NVMe"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_freeze(parser)
    add_ranks(parser)
    for flag, default, letter, words in (
            ("ranks-per-host", 8, "G", "ranks fill hosts in order"),
            ("accumulation", 1, "A", "microbatches in a step"),
            ("batch-size", 1, "B", "samples of a rank in a microbatch, with --gpt or mlp")):
        parser.add_argument(f"--{flag}", type=argument_type(count), default=default, metavar=letter,
                            help=f"{words} ({default})")
    parser.add_argument("--tokens", type=argument_type(count), metavar="T",
                        help=f"of a rank in a microbatch, with other models ({LECTURE_TOKENS})")
    parser.add_argument("--shard-size", type=argument_type(count), metavar="F",
                        help="ranks among which state is sharded in stages 1 to 3 (every size is tried)")
    for flag, words in (("device-memory", "of a rank, as 80GB or 80GiB (of --gpu)"), ("host-memory", "of a host"),
                        ("nvme", "of a host"),
                        ("activations", "of a rank (--gpt, mlp: exact, from their shapes; else unknown)")):
        parser.add_argument(f"--{flag}", type=argument_type(parse_memory), metavar="SIZE", help=words)
    parser.add_argument("--recompute", action="store_true", help="a third more computing, one input a block kept")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="of parameters, gradients (float16)")
    parser.add_argument("--compare", action="store_true",
                        help="what DeepSpeed, Megatron, accelerate and the papers say, and why")
    add_machine(parser, *RATES)


def answer(options: Options) -> dict[str, Any]:
    """Keys rows, recommended (stage, offload and shard_size; null if nothing fits), reason, machine, and what was
    asked. A row is of the best shard size; seconds_by_size has them all."""
    gpu = gpu_of(options)
    question = _question(options, gpu)
    found = rows(question)
    advice = recommend(question, found)
    best = advice.row and {"stage": advice.row.stage, "offload": advice.row.offload,
                           "shard_size": advice.row.shard_size}
    repeated = ("ranks", "ranks_per_host", "dtype", "tokens", "accumulation", "recompute", *MEMORIES)
    result: dict[str, Any] = {
        "model": question.model.name, "psi": question.model.spec.psi, "frozen_psi": question.model.spec.frozen_psi,
        **{name: getattr(question, name) for name in repeated},
        "rows": [_plain(question, row) for row in found], "recommended": best, "reason": spelled_text(advice.reason),
        "machine": vars(question.machine), "peak_told": options["peak_flops"] is not None, "gpu": gpu and vars(gpu)}
    if options["compare"]:
        result["compare"] = {row.stage: _compared(question, row) for row in found if row.offload == "none"}
    return result


def _question(options: Options, gpu: Gpu | None) -> Question:
    model = model_of(options)
    known = model.spec.activations is not None
    if known and options["tokens"] is not None:
        raise ConfigError("--tokens is for models of which only a size is known; of this one say --batch-size, and "
                          "--context with --gpt")
    memory: int | None = options["device_memory"] or (None if gpu is None else gpu.memory)
    if memory is None:
        raise ConfigError("how much memory has a device? Add --device-memory, as in --device-memory 80GB, or --gpu, as "
                          "in --gpu h100")
    same = ("ranks", "ranks_per_host", "host_memory", "nvme", "batch_size", "accumulation", "dtype", "shard_size",
            "recompute", "activations")
    return Question(
        model, device_memory=memory, machine=machine_of(options), **{name: options[name] for name in same},
        tokens=options["batch_size"] * model.context if known else options["tokens"] or LECTURE_TOKENS)


def _plain(question: Question, row: Row) -> dict[str, Any]:
    left = None if row.activations is None else question.device_memory - row.device_bytes
    return {**vars(row), "lacks": list(row.lacks), "unknown": list(row.unknown), "fits": row.fits, "left_bytes": left}


def _compared(question: Question, row: Row) -> dict[str, Any]:
    model, psi = question.model, question.model.spec.psi
    found = others(psi, row.shard_size, row.stage, question.dtype, model.largest_leaf)
    return {"after_backward": stage_bytes(psi, row.stage, row.shard_size, question.dtype), "peak": row.peak["device"],
            "others": [vars(estimate) for estimate in found]}


# -- what people read -------------------------------------------------------------------------------------------------


def show(answer: dict[str, Any]) -> str:
    memory = ", ".join(f"{words} {in_units(answer[key])}" for key, words in MEMORIES.items()
                       if answer[key] is not None)
    frozen = f" ({answer['frozen_psi']:,} frozen)" if answer["frozen_psi"] else ""
    parts = [_wrapped(f"{answer['model']}, psi = {answer['psi']:,}{frozen}"),
             _wrapped(f"{answer['ranks']:,} ranks, {answer['ranks_per_host']:,} a host; {answer['dtype']}; "
                      f"{answer['tokens']:,} tokens x {answer['accumulation']} a rank and step; {memory}"),
             _show_rows(answer["rows"]), _wrapped(_legend(answer)), _wrapped(_machine(answer)),
             _wrapped(f"{'Recommended' if answer['recommended'] else 'No recommendation'}: {answer['reason']}.")]
    for stage, entry in answer.get("compare", {}).items():
        parts.append(f"stage {stage}\n" + show_compare(entry["others"], entry["after_backward"], entry["peak"]))
    return "\n\n".join(parts)


def _show_rows(found: list[dict[str, Any]]) -> str:
    fits = {True: "yes", False: "NO", None: "?"}
    body = [[row["stage"], row["offload"], f"{row['shard_size']:,}",
             in_units(row["device_bytes"]) + (" + ?" if row["activations"] is None else ""),
             _or_nothing(row["peak"]["host"]), _or_nothing(row["peak"]["nvme"]), _or_nothing(row["inter_host_bytes"]),
             *(seconds(row[key]) for key in ("compute_seconds", "exposed_seconds", "seconds")), fits[row["fits"]]]
            for row in found]
    names = ["stage", "offload", "F", "device", "host", "NVMe", "to hosts", "own s", "exposed s", "step s", "fits"]
    return table(names, body, right=names[2:-1])


def _or_nothing(nbytes: int) -> str:
    return in_units(nbytes) if nbytes else "-"


def _legend(answer: Mapping[str, Any]) -> str:
    sizes = list(dict.fromkeys(row["activations"] for row in answer["rows"]))
    kept = ("the states; + ?: activations, unknown for this model" if sizes == [None] else
            f"states and activations together ({', '.join(map(in_units, sizes))} of the latter"
            f"{', an estimate' if answer['recompute'] else ''})")
    tried = max(len(row["seconds_by_size"]) for row in answer["rows"])
    return (f"F: ranks that share one copy of the states, the best of {counted(tried, 'size')}. Device: the most on a "
            f"rank's, of {kept}; what operators hold while they work is not in it. Host, NVMe: peaks of "
            "a rank; the ranks of a host share its memory. To hosts: sent between hosts in a step by the rank that "
            "sends most there. Own: the device's own work, computing and update; exposed: what the step waits for "
            f"beyond it. Fits ?: depends on what was not told{_untold(answer)}. Offload: planned, from actions that no "
            "run executes yet.")


def _untold(answer: Mapping[str, Any]) -> str:
    flags = {"host": "--host-memory", "nvme": "--nvme", "activations": "--activations"}
    untold = {what for row in answer["rows"] if row["fits"] is None for what in row["unknown"]}
    return f" ({', '.join(flag for what, flag in flags.items() if what in untold)})" if untold else ""


def _machine(answer: Mapping[str, Any]) -> str:
    machine, gpu = answer["machine"], answer["gpu"]
    speeds = (("inter_bandwidth", "between hosts"), ("intra_bandwidth", "inside"),
              ("memory_bandwidth", "of device memory"), ("host_bandwidth", "to the host"),
              ("nvme_bandwidth", "to NVMe"))
    source = f" {gpu['name']} as in {gpu['source']}, where flags do not say otherwise." if gpu else ""
    return (f"Seconds are an estimate for {machine['peak_flops'] / 1e12:g} TFLOP/s at "
            f"{100 * machine['efficiency']:g} %, "
            + "".join(f"{in_units(machine[name])}/s {words}, " for name, words in speeds)
            + f"{1e6 * machine['alpha']:g} us a message, {machine['host_adam'] / 1e9:.2f}B parameters a second updated "
              f"by a host's CPUs.{source}{_of_16_bits(answer)}")


def _of_16_bits(answer: Mapping[str, Any]) -> str:
    known = answer["dtype"] != "float32" or answer["peak_told"]
    return "" if known else " The peak is of 16-bit operands: give --peak-flops of float32."


def _wrapped(text: str) -> str:
    return "\n".join(wrapped(text))
