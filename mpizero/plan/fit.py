"""Does the model fit, at which stage and with which offload, what does a step send, how long might it take, and which
to choose.

Bytes are exact plans (offload: of actions that no run executes yet). Seconds are an estimate: in each phase of a step
the busiest resource counts, computing, links or memories; so they compare rows rather than foretell a run.
"""

from __future__ import annotations

import argparse
from typing import Any

from mpizero.errors import ConfigError
from mpizero.machine import LECTURE_TOKENS
from mpizero.papers.compare import others
from mpizero.papers.states import stage_bytes
from mpizero.plan.memory import show_compare
from mpizero.plan.options import (
    DTYPES, RATES, Options, add_machine, add_model, add_ranks, argument_type, count, machine_of, model_of, wrapped,
)
from mpizero.planner.fit import Question, Row, rows
from mpizero.planner.recommend import recommend
from mpizero.text import in_units, parse_bytes, table

HELP = "does it fit, and which stage and offload to choose"
EXAMPLE = "fit --params 13e9 --ranks 64 --device-memory 80GB --host-memory 1TB"
RESERVE = "4GB"  # for activations where the model does not tell: as ZeRO-Infinity's comparison of systems keeps

LEGEND = ("Bytes of a rank. At rest: states on the device. Device: the most of states and activations together ({} of "
          "the latter). Host, NVMe: peaks; the ranks of a host share its memory. Sent: in a step; to hosts: the part "
          "between hosts, by the rank that sends most there. ?: depends on memory that was not told. Offload: planned, "
          "from actions that no run executes yet.")


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
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
                        help="ranks among which state is sharded in stages 1 to 3 (all)")
    for flag, words in (("device-memory", "of a rank, as 80GB or 80GiB"), ("host-memory", "of a host"),
                        ("nvme", "of a host"),
                        ("activation-memory", f"set aside on the device ({RESERVE}; --gpt, mlp: exact)")):
        parser.add_argument(f"--{flag}", type=argument_type(parse_bytes), required=flag == "device-memory",
                            metavar="SIZE", help=words)
    parser.add_argument("--recompute", action="store_true", help="a third more computing, one input a block kept")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="of parameters, gradients (float16)")
    parser.add_argument("--compare", action="store_true",
                        help="what DeepSpeed, Megatron, accelerate and the papers say, and why")
    add_machine(parser, *RATES)


def answer(options: Options) -> dict[str, Any]:
    """Keys rows, recommended (stage and offload; null if nothing fits), reason, machine, and what was asked."""
    question = _question(options)
    found = rows(question)
    advice = recommend(question, found)
    best = advice.row and {"stage": advice.row.stage, "offload": advice.row.offload,
                           "shard_size": advice.row.shard_size}
    repeated = ("ranks", "ranks_per_host", "dtype", "tokens", "accumulation", "recompute", "device_memory",
                "host_memory", "nvme")
    result: dict[str, Any] = {
        "model": question.model.name, "psi": question.model.spec.psi,
        **{name: getattr(question, name) for name in repeated},
        "rows": [_plain(row) for row in found], "recommended": best, "reason": advice.reason,
        "machine": vars(question.machine)}
    if options["compare"]:
        result["compare"] = {row.stage: _compared(question, row) for row in found if row.offload == "none"}
    return result


def _question(options: Options) -> Question:
    model = model_of(options)
    known = model.spec.activations is not None
    if known and options["tokens"] is not None:
        raise ConfigError("--tokens is for models of which only a size is known; of this one say --batch-size, and "
                          "--context with --gpt")
    kept = options["activation_memory"]
    same = ("ranks", "ranks_per_host", "device_memory", "host_memory", "nvme", "batch_size", "accumulation", "dtype",
            "shard_size", "recompute")
    return Question(
        model, machine=machine_of(options), **{name: options[name] for name in same},
        tokens=options["batch_size"] * model.context if known else options["tokens"] or LECTURE_TOKENS,
        activations=kept if kept is not None or known else parse_bytes(RESERVE))


def _plain(row: Row) -> dict[str, Any]:
    return {**vars(row), "lacks": list(row.lacks)}


def _compared(question: Question, row: Row) -> dict[str, Any]:
    model, psi = question.model, question.model.spec.psi
    found = others(psi, row.shard_size, row.stage, question.dtype, model.largest_leaf)
    return {"after_backward": stage_bytes(psi, row.stage, row.shard_size, question.dtype), "peak": row.peak["device"],
            "others": [vars(estimate) for estimate in found]}


def show(answer: dict[str, Any]) -> str:
    memories = (("device_memory", "device"), ("host_memory", "host"), ("nvme", "NVMe"))
    memory = ", ".join(f"{words} {in_units(answer[key])}" for key, words in memories if answer[key] is not None)
    activations = ", ".join(map(in_units, dict.fromkeys(row["activations"] for row in answer["rows"])))
    parts = [f"{answer['model']}, psi = {answer['psi']:,}",
             _wrapped(f"{answer['ranks']:,} ranks, {answer['ranks_per_host']:,} a host; {answer['dtype']}; "
                      f"{answer['tokens']:,} tokens x {answer['accumulation']} a rank and step; {memory}"),
             _show_rows(answer["rows"]),
             _wrapped(LEGEND.format(activations)),
             _wrapped(f"Seconds are an estimate for {_machine(answer['machine'])}."),
             _wrapped(f"{'Recommended' if answer['recommended'] else 'No recommendation'}: {answer['reason']}.")]
    for stage, entry in answer.get("compare", {}).items():
        parts.append(f"stage {stage}\n" + show_compare(entry["others"], entry["after_backward"], entry["peak"]))
    return "\n\n".join(parts)


def _show_rows(found: list[dict[str, Any]]) -> str:
    fits = {True: "yes", False: "NO", None: "?"}
    body = [[row["stage"], row["offload"], in_units(row["at_rest"]["device"]), in_units(row["device_bytes"]),
             in_units(row["peak"]["host"]), in_units(row["peak"]["nvme"]), in_units(row["sent_bytes"]),
             in_units(row["inter_host_bytes"]), f"{row['seconds']:.3g}", row["bound_by"], fits[row["fits"]]]
            for row in found]
    return table(["stage", "offload", "at rest", "device", "host", "NVMe", "sent", "to hosts", "s/step", "bound by",
                  "fits"], body)


def _machine(machine: dict[str, float]) -> str:
    speeds = (("inter_bandwidth", "between hosts"), ("intra_bandwidth", "inside"),
              ("memory_bandwidth", "of device memory"), ("host_bandwidth", "to the host"),
              ("nvme_bandwidth", "to NVMe"))
    return (f"{machine['peak_flops'] / 1e12:g} TFLOP/s at {100 * machine['efficiency']:g} %, "
            + "".join(f"{in_units(machine[name])}/s {words}, " for name, words in speeds)
            + f"{1e6 * machine['alpha']:g} us a message, "
              f"{machine['host_adam'] / 1e9:.2f}B parameters a second updated by a host's CPUs")


def _wrapped(text: str) -> str:
    return "\n".join(wrapped(text))
