"""When each action would run on a device with two streams, for compute and communication.

Durations by hand, of forward and backward, fully sharded (the defaults are the example of the lecture, CMU 15-779 Fall
2025, lecture 13: four units, the last one kept between forward and backward); or a whole step of a model on a machine,
priced as `plan fit` prices it: --model 13b --ranks 64.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import Any

from mpizero.cli import FLAGS
from mpizero.dtypes import DTYPES, full_name
from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, NVME, Tiers, parse_offload
from mpizero.plan.options import (
    Options, add_as_train, add_batch, add_model, add_ranks, argument_type, batch_of, count, ignored, model_of, part_of,
    wrapped,
)
from mpizero.plan.rates import COMPUTE, LINKS, add_machine, facts, machine_of, rates_text
from mpizero.planner import fullest_and_emptiest
from mpizero.planner.costs import Costs, machine_costs
from mpizero.planner.model import GRAIN, OURS, flat
from mpizero.planner.timeline import LEGEND, Timeline, gantt, simulate
from mpizero.quantities import parse_seconds
from mpizero.report.timeline import plot
from mpizero.schedule import Setup, StepSettings, set_up
from mpizero.text import counted

HELP = "when each action would run, with and without prefetch"
EXAMPLE = "timeline --units 4 --limit 2 --no-backward-prefetch"
OF_THE_HOST = ("host_bandwidth", "host_adam")  # rates that count where something rests there
BY_HAND = {"forward": 2.0, "backward": 4.0, "all_gather": 1.5, "reduce_scatter": 1.5}  # seconds of one unit
OF_A_MODEL = {"tiles": 1, "stage": "3", "accumulation": 1, "tensor_size": 1, "dtype": "float16", **dict.fromkeys((
    "context", "ranks", "ranks_per_host", "batch_size", "tokens", "shard_size", "gpu", "machine", "nics", "rings",
    "offload", "partition_activations", *COMPUTE, *LINKS, *OF_THE_HOST))}  # flag -> what it is unless given
UNITS, RANKS = 4, 2  # of a timeline by hand
LIMIT = 2  # gathered units: one computes while the next is gathered, as FSDP's limit_all_gathers allows
STAGES = ("0", "1", "2", "3", "3-broadcast")
COLUMNS = 88  # of a chart's row
HEAD = len("compute |")  # in front of it
MOST_COLUMNS = 10**5
MOST_ROWS = 12  # of a chart that is folded; of a longer one the first and the last are shown
RATES = (*COMPUTE, *LINKS)
BRIEF = 0.1  # that share of the actions, the shortest, may be too short for their labels


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, required=False)
    for name, seconds in BY_HAND.items():
        parser.add_argument("--" + name.replace("_", "-"), type=argument_type(parse_seconds), metavar="SECONDS",
                            help=f"of one unit ({seconds:g})")
    parser.add_argument("--no-overlap", action="store_true", help="one stream for both")
    parser.add_argument("--no-backward-prefetch", action="store_true",
                        help="gather for a backward only when the one before is reduced")
    parser.add_argument("--forward-prefetch", type=argument_type(_depth), default=0, metavar="DEPTH",
                        help="segments gathered ahead in forward (0)")
    add_as_train(parser, "recompute", "recompute-interval", "bucket-size")
    parser.add_argument("--limit", type=argument_type(_depth), default=LIMIT, metavar="K",
                        help=f"gathered units that may hold memory at once ({LIMIT}, as FSDP's; 0: no limit)")
    parser.add_argument("--synchronous", action="store_true",
                        help="whoever issues an action computes it, as ranks of mpizero.train do; otherwise a CPU runs "
                             "ahead of its GPU")
    parser.add_argument("--issue", type=argument_type(parse_seconds), default=0.0, metavar="SECONDS",
                        help="that the CPU takes to issue an action (0)")
    for_model = parser.add_argument_group("with a model")
    add_ranks(for_model, required=False)
    add_batch(for_model)
    for_model.add_argument("--stage", choices=STAGES, default="3", help="what is sharded (3)")
    for_model.add_argument("--shard-size", type=argument_type(count), metavar="F",
                           help="ranks among which state is sharded (all)")
    add_as_train(for_model, "tensor-size", "partition-activations")
    for_model.add_argument("--accumulation", type=argument_type(count), default=1, metavar="A",
                           help="microbatches in a step (1)")
    for_model.add_argument("--dtype", type=full_name, choices=DTYPES, default="float16",
                           help="of parameters, gradients (float16)")
    for_model.add_argument("--offload", **{**FLAGS["offload"].metadata,
                                           "help": "what rests on the host, as optimizer=cpu (none)"})
    add_machine(for_model, *RATES, *OF_THE_HOST)
    parser.add_argument("--plot", metavar="FILE", help="draw it as .png or .svg (needs matplotlib: extra plot)")


def _depth(text: str) -> int:
    return 0 if text == "0" else count(text)


def answer(options: Options) -> dict[str, Any]:
    """Keys finish, compute, peak_gathered, events, gantt, and what was asked. Durations are null where a model gives
    them."""
    by_hand = all(options[name] is None for name in ("params", "gpt", "model"))
    step, costs, asked = (_by_hand if by_hand else _of_model)(options)
    # a step that is timed by hand ends with backward
    timeline = simulate(step.lists.accumulate if by_hand else step.lists.step(), step.geometry, costs,
                        ahead=not options["synchronous"], issue_seconds=options["issue"])
    if options["plot"] is not None:
        plot(timeline, options["plot"])
    switches = ("limit", "issue", "synchronous", "no_overlap", "no_backward_prefetch", "forward_prefetch", "recompute",
                "recompute_interval", "bucket_size", "plot")
    return {**asked, "units": len(step.wrapping.units), **{name: options[name] for name in switches},
            **timeline.data(), "gantt": _chart(timeline)}


def _settings(options: Options, **more: Any) -> StepSettings:
    ahead = 0 if options["no_overlap"] or options["no_backward_prefetch"] else 1
    return StepSettings(backward_prefetch=ahead, forward_prefetch=options["forward_prefetch"], keep_last_unit=True,
                        limit_all_gathers=options["limit"] or None, overlap=not options["no_overlap"],
                        recompute=options["recompute"], recompute_interval=options["recompute_interval"],
                        bucket_size=options["bucket_size"], **more)


def _by_hand(options: Options) -> tuple[Setup, Costs, dict[str, Any]]:
    """The step, its durations, and what was asked. ConfigError for what is of a model."""
    ignored(options, [name for name, usual in OF_A_MODEL.items() if options[name] != usual],
            "is of a model, and none is named (as by --gpt)")
    units = options["units"] or UNITS
    seconds: dict[str, Any] = {name: BY_HAND[name] if options[name] is None else options[name] for name in BY_HAND}
    return set_up(flat(units * GRAIN, units).spec, RANKS, _settings(options, stage="3")), Costs(**seconds), {
        "model": None, **seconds}


def _of_model(options: Options) -> tuple[Setup, Costs, dict[str, Any]]:
    """The same of a model."""
    if options["ranks"] is None:
        raise ConfigError("a model's durations depend on how many ranks share it: add --ranks, as in --ranks 64")
    for name in BY_HAND:
        if options[name] is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for a timeline without a model, which brings its own: "
                              "leave one out")
    tiers = parse_offload(options["offload"])
    if NVME in vars(tiers).values() or tiers.checkpoints is not DEVICE:
        raise ConfigError(f"`offload` {options['offload']} moves what a timeline has no seconds for: let params and "
                          "optimizer rest on cpu here, and ask `plan fit` for the others")
    if tiers == Tiers():
        ignored(options, OF_THE_HOST, "is of what rests on the host, and nothing does (as by `offload`)")
    model = part_of(model_of(options), options["tensor_size"])
    batch, tokens = batch_of(options, model)
    step = set_up(model.spec, options["ranks"], dtype=options["dtype"],
                  settings=_settings(options, stage=options["stage"], shard_size=options["shard_size"],
                                     accumulation=options["accumulation"], offload=options["offload"],
                                     tensor_size=options["tensor_size"],
                                     partition_activations=options["partition_activations"]))
    step = replace(step, geometry=fullest_and_emptiest(step.geometry)[0])  # whose update lasts longest
    known = model.activations(OURS, batch, options["dtype"]) if model.programs else None
    costs = machine_costs(model, step.geometry, machine_of(options), tokens, options["ranks_per_host"], known)
    same = ("ranks", "ranks_per_host", "stage", "tensor_size", "accumulation", "dtype", *BY_HAND)
    return step, costs, {"model": model.name, **{name: options[name] for name in same}, "tokens": tokens,
                         "shard_size": step.geometry.shards, "offload": options["offload"],
                         **facts(options, *RATES, *(() if tiers == Tiers() else OF_THE_HOST))}


def _chart(timeline: Timeline) -> list[str]:
    """Rows of COLUMNS, one under the other like lines of a text, each with its seconds. Wide enough for labels."""
    lasting = sorted(event.end - event.start for event in timeline.events  # an update is too short for any label
                     if event.end > event.start and event.work.kind != "optim_step")
    if not lasting:
        return gantt(timeline, COLUMNS).splitlines()
    label = 2 + len(str(max(event.work.index for event in timeline.events)))
    columns = min(math.ceil(timeline.finish * label / lasting[int(BRIEF * len(lasting))]), MOST_COLUMNS)
    scale = columns / timeline.finish
    streams = [(line[:HEAD], line[HEAD:-1]) for line in gantt(timeline, columns, scale).splitlines()]
    axis = ("seconds |", _axis(columns, scale))
    rows = [[f"{head}{cells[begin:begin + COLUMNS]}" + ("" if head == axis[0] else "|")
             for head, cells in (*streams, axis)] for begin in range(0, columns, COLUMNS)]
    if len(rows) > MOST_ROWS:
        left_out = [f"... {len(rows) - MOST_ROWS} rows; --plot draws them, --json lists every action"]
        rows = [*rows[:MOST_ROWS // 2], left_out, *rows[-MOST_ROWS // 2:]]
    return "\n\n".join("\n".join(line.rstrip() for line in row) for row in rows).splitlines()


def _axis(columns: int, scale: float) -> str:
    """A number of seconds where its first digit stands, every ten columns or a little more. None is cut by a fold."""
    step = next(step for power in range(-9, 19) for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                if step * scale >= 10)
    row = [" "] * (columns + 1)
    for tick in range(int(columns / (step * scale)) + 1):
        text, begin = f"{tick * step:.10g}", round(tick * step * scale)
        if begin % COLUMNS + len(text) <= COLUMNS and begin + len(text) <= columns + 1:
            row[begin:begin + len(text)] = text
    return "".join(row)


def show(answer: dict[str, Any]) -> str:
    prefetch = "no backward prefetch" if answer["no_backward_prefetch"] else "backward prefetch"
    how = "no overlap" if answer["no_overlap"] else f"overlap, {prefetch}"
    if answer["recompute"]:
        how += f", recompute of {counted(answer['recompute_interval'], 'segment')} at a time"
    how += f", offload {answer['offload']}" if answer.get("offload") else ""
    how += f", buckets of {answer['bucket_size']}" if answer["bucket_size"] else ""
    limit = f"a limit of {answer['limit']}" if answer["limit"] else "no limit"
    if answer["model"] is None:
        seconds = ", ".join(f"{name.replace('_', '-')} {answer[name]:g} s" for name in BY_HAND)
        what, rates = f"{counted(answer['units'], 'unit')}; {seconds}", []
    else:
        what = (f"{answer['model']}; stage {answer['stage']} in {answer['dtype']} on "
                f"{counted(answer['ranks'], 'rank')}, {answer['ranks_per_host']:,} a host, F {answer['shard_size']:,}, "
                f"T {answer['tensor_size']}; "
                f"{answer['tokens']:,} tokens x {answer['accumulation']} each")
        rates = ["", *wrapped(f"Seconds are an estimate. {rates_text(answer)}")]
    lines = [*wrapped(what), f"{how}; {limit} of gathered units", "", *answer["gantt"], "", *wrapped(LEGEND), "",
             f"finish {answer['finish']:.4g} s, of which compute {answer['compute']:.4g} s",
             *(wrapped(_gathered(answer)) if answer["peak_gathered"] else []), *rates]
    return "\n".join(lines + ([f"drawn in {answer['plot']}"] if answer["plot"] else []))


def _gathered(answer: dict[str, Any]) -> str:
    """More than there are units, where nothing limits how far the CPU runs ahead."""
    peak, units = answer["peak_gathered"], answer["units"]
    text = f"most gathered units that hold memory at once, counted from the issue of a gather: {peak}"
    if peak > units:
        text += (f" of {counted(units, 'unit')}, so some are there twice: nothing holds the CPU back (as --limit "
                 f"{LIMIT} would), which issues gathers of backward while those of forward still wait to start")
    return text
