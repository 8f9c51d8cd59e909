"""Model states off the device: which, at what bandwidth, how large a model, and how long a step.

ZeRO-Offload and ZeRO-Infinity. Without a flag all sections are answered. Bandwidths, loading and largest models are
the papers' own, of V100s; the seconds of a step are of --gpu and its flags.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import Any

from mpizero.papers import intensity, partition
from mpizero.papers.offload import PUBLISHED_DELAYED, PUBLISHED_PARAMS, PUBLISHED_UPDATE, V100, offload_step
from mpizero.plan.options import Options, argument_type, count, ignored, wrapped
from mpizero.plan.rates import add_machine, machine_of
from mpizero.quantities import in_units, parse_count
from mpizero.text import table

HELP = "which states may leave the device, and what bandwidth that takes"
EXAMPLE = "offload --partitions"
RATES = ("peak_flops", "efficiency", "host_bandwidth", "host_adam")
BATCHES = (1, 2, 4, 8, 16, 32)
RANKS = (1, 4, 8, 16, 64)
SECTIONS = {
    "partitions": "all 128 ways to split a step's data flow between device and host",
    "bandwidth": "efficiency at a bandwidth, and the reverse",
    "loading": "every rank's link together against an owner's broadcast",
    "largest": "the largest model of a GPU and of a node",
    "step": "seconds of a step on one GPU, with and without delayed update",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    for name, help_text in SECTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=help_text)
    parser.add_argument("--params", type=argument_type(parse_count), metavar="M",
                        help="of the model (partitions 1: bytes per parameter; step 10e9)")
    add_machine(parser, *RATES)
    parser.add_argument("--seq", type=argument_type(count), default=intensity.SEQ, metavar="T",
                        help=f"tokens of a sample, for --bandwidth and --step ({intensity.SEQ})")


def answer(options: Options) -> dict[str, Any]:
    """A key for each section. partitions: traffic and device_bytes for `params` parameters; host: nodes off the
    device."""
    wanted = [name for name in SECTIONS if options[name]] or list(SECTIONS)
    _check(options, wanted)
    makers: dict[str, Callable[[Options], dict[str, Any]]] = {
        "partitions": _partitions, "bandwidth": _bandwidth, "loading": _loading, "largest": _largest, "step": _step}
    found: dict[str, Any] = {}
    for name in wanted:
        found |= makers[name](options)
    return found


def _check(options: Options, wanted: Collection[str]) -> None:
    """ConfigError for what no section that is wanted takes."""
    if not {"partitions", "step"} & set(wanted):
        ignored(options, ("params",), "is for --partitions and --step alone")
    if not {"bandwidth", "step"} & set(wanted) and options["seq"] != intensity.SEQ:
        ignored(options, ("seq",), "is for --bandwidth and --step alone")
    if "step" not in wanted:
        ignored(options, ("gpu", "machine", *RATES), "is of the machine whose --step is timed")


def _partitions(options: Options) -> dict[str, Any]:
    params = options["params"] or 1
    rows = [{"traffic": row.traffic, "device_bytes": row.device_bytes, "host": list(row.host)}
            for row in partition.partitions(params)]
    rows.sort(key=lambda row: (row["traffic"], row["device_bytes"]))
    (best,) = partition.best(params)
    return {"params": params, "partitions": rows, "optimum": list(best.host),
            "infinity": list(partition.infinity(params).host)}


def _bandwidth(options: Options) -> dict[str, Any]:
    return {"peak_flops": intensity.PEAK, "seq": options["seq"],
            "bandwidth": [vars(need) for need in intensity.needs(options["seq"])]}


def _loading(options: Options) -> dict[str, Any]:
    return {"loading": [{"ranks": ranks, "owner_broadcast": intensity.owner_broadcast(),
                         **{tier: intensity.bandwidth_centric(ranks, tier) for tier in intensity.READ_TOGETHER}}
                        for ranks in RANKS]}


def _largest(options: Options) -> dict[str, Any]:
    return {"largest": [{**vars(row), "published": list(row.published), "bound": row.bound}
                        for row in intensity.largest_models()]}


def _step(options: Options) -> dict[str, Any]:
    machine = machine_of(options, V100)
    steps = [offload_step(options["params"] or PUBLISHED_PARAMS, batch, options["seq"], machine) for batch in BATCHES]
    return {"step": [{**vars(step), "seconds": step.seconds, "delayed_seconds": step.delayed_seconds,
                      "gain": step.gain} for step in steps], "machine": vars(machine),
            "published_update_seconds": PUBLISHED_UPDATE, "published_delayed_gain": list(PUBLISHED_DELAYED)}


def show(answer: dict[str, Any]) -> str:
    shows = {"partitions": _show_partitions, "bandwidth": _show_bandwidth, "loading": _show_loading,
             "largest": _show_largest, "step": _show_step}
    return "\n\n".join(shows[name](answer) for name in SECTIONS if name in answer)


def _show_partitions(answer: dict[str, Any]) -> str:
    rows, params = answer["partitions"], answer["params"]
    best, far = answer["optimum"], answer["infinity"]
    shown = [row for row in rows if row["traffic"] <= 6 * params]
    marks = {tuple(best): "unique optimum: ZeRO-Offload's", tuple(far): "ZeRO-Infinity's"}
    body = [[*(row[key] if params == 1 else in_units(row[key]) for key in ("traffic", "device_bytes")),
             " ".join(row["host"]) or "nothing", marks.get(tuple(row["host"]), "")] for row in shown]
    unit = "bytes per parameter" if params == 1 else f"for {params:,} parameters"
    return "\n".join([f"{len(rows)} partitions of the data flow, forward and backward on the device; {unit}",
                      table(["sent a step", "on the device", "off the device", ""], body),
                      f"and {len(rows) - len(shown)} that send more (--json has all)"])


def _show_bandwidth(answer: dict[str, Any]) -> str:
    rows = [[row["what"], row["ait"], f"{in_units(row['bandwidth'])}/s", f"{100 * row['efficiency']:.1f} %",
             row["given"]] for row in answer["bandwidth"]]
    what = f"at {answer['peak_flops'] / 1e12:g} TFLOP/s, sequence {answer['seq']}"
    return table([what, "flop/byte", "bandwidth", "efficiency", "given"], rows)


def _show_loading(answer: dict[str, Any]) -> str:
    rows = [[row["ranks"], *(f"{in_units(row[key])}/s" for key in ("cpu", "nvme", "owner_broadcast"))]
            for row in answer["loading"]]
    return (table(["ranks", "from CPU, all links", "from NVMe, all links", "owner's broadcast"], rows)
            + f"\ncapped by the links between GPUs, {in_units(intensity.GPU_LINK)}/s")


def _show_largest(answer: dict[str, Any]) -> str:
    rows = [[row["system"], row["where"], in_units(row["capacity"]), _billions(row["bound"]),
             " to ".join(_billions(value) for value in dict.fromkeys(row["published"]))] for row in answer["largest"]]
    return (table(["system", "states", "room", "bound", "published"], rows)
            + f"\nparameters; {in_units(intensity.ACTIVATIONS)} of a GPU kept for activations and working memory")


def _billions(value: float) -> str:
    return f"{value / 1e9:,.4g}B"


def _show_step(answer: dict[str, Any]) -> str:
    columns = ("batch", "forward", "backward", "down", "update", "up", "seconds", "delayed_seconds", "gain")
    rows = [[*(row[key] for key in columns), row["flops"] / row["seconds"] / 1e12] for row in answer["step"]]
    (low, high), machine = answer["published_delayed_gain"], answer["machine"]
    published = ", ".join(f"{name} {seconds:g} s" for name, seconds in answer["published_update_seconds"].items())
    return "\n".join([
        table(["batch", "forward", "backward", "down", "update", "up", "step", "delayed", "gain", "TFLOP/s"], rows),
        *wrapped(f"Seconds, an estimate: {answer['step'][0]['params'] / 1e9:g}B parameters with recompute, at "
                 f"{100 * machine['efficiency']:g} % of {machine['peak_flops'] / 1e12:g} TFLOP/s, PCIe "
                 f"{in_units(machine['host_bandwidth'])}/s, {machine['host_adam'] / 1e9:.2f}B parameters a second "
                 "updated by the CPUs (unless flags or --gpu say otherwise a V100 as the papers have it). "
                 f"Published for 10B on a V100: {published}; delayed update {low} to {high} times faster at batch 8.")])
