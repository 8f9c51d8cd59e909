"""When each action would run on a device with two streams, for compute and communication: fully sharded, no update.

Durations by hand (the defaults are the example of the lecture, CMU 15-779 Fall 2025, lecture 13: four units, the last
one kept between forward and backward), or of a model on a machine: --model 13b --ranks 64.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from mpizero.errors import ConfigError
from mpizero.machine import LECTURE_TOKENS
from mpizero.plan.options import Options, add_machine, add_model, argument_type, count, machine_of, model_of, wrapped
from mpizero.planner.costs import Costs, machine_costs
from mpizero.planner.model import GRAIN, PlannedModel, flat
from mpizero.planner.timeline import LEGEND, Timeline, gantt, simulate
from mpizero.quantities import parse_seconds
from mpizero.report.timeline import plot
from mpizero.schedule import StepSettings, set_up

HELP = "when each action would run, with and without prefetch"
EXAMPLE = "timeline --units 4 --limit 2 --no-backward-prefetch"
BY_HAND = {"forward": 2.0, "backward": 4.0, "all_gather": 1.5, "reduce_scatter": 1.5}  # seconds of one unit
UNITS, RANKS = 4, 2  # of a timeline by hand
COLUMNS = 88  # of a chart's row
HEAD = len("compute |")  # in front of it
MOST_COLUMNS = 10**5
MOST_ROWS = 12  # of a chart that is folded; of a longer one the first and the last are shown
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
    parser.add_argument("--limit", type=argument_type(count), metavar="K",
                        help="gathered units that may hold memory at once (no limit)")
    parser.add_argument("--issue", type=argument_type(parse_seconds), default=0.0, metavar="SECONDS",
                        help="that the CPU takes to issue an action (0)")
    parser.add_argument("--ranks", type=argument_type(count), metavar="N", help="with a model: ranks that share it")
    parser.add_argument("--tokens", type=argument_type(count), default=LECTURE_TOKENS, metavar="T",
                        help=f"with a model ({LECTURE_TOKENS})")
    parser.add_argument("--plot", metavar="FILE", help="draw it as .png or .svg (needs matplotlib: extra plot)")
    add_machine(parser, "peak_flops", "efficiency", "alpha", "inter_bandwidth")


def _depth(text: str) -> int:
    return 0 if text == "0" else count(text)


def answer(options: Options) -> dict[str, Any]:
    """Keys finish, compute, peak_gathered, events, gantt, and what was asked. Durations are null where a model gives
    them."""
    model, ranks, asked = _asked(options)
    ahead = 0 if options["no_overlap"] or options["no_backward_prefetch"] else 1
    settings = StepSettings("3", backward_prefetch=ahead, forward_prefetch=options["forward_prefetch"],
                            keep_last_unit=True)
    step = set_up(model.spec, ranks, settings)
    costs = (Costs(**{name: asked[name] for name in BY_HAND}) if asked["model"] is None
             else machine_costs(step.geometry, machine_of(options), options["tokens"]))
    timeline = simulate(step.lists.accumulate, step.geometry, costs, limit=options["limit"],
                        overlap=not options["no_overlap"], issue_seconds=options["issue"])
    if options["plot"] is not None:
        plot(timeline, options["plot"])
    switches = ("limit", "issue", "no_overlap", "no_backward_prefetch", "forward_prefetch", "plot")
    return {**asked, "units": len(step.wrapping.units), **{name: options[name] for name in switches},
            **timeline.data(), "gantt": _chart(timeline)}


def _asked(options: Options) -> tuple[PlannedModel, int, dict[str, Any]]:
    """What is played on how many ranks, and the same in words."""
    given = {name: options[name] for name in BY_HAND}
    if all(options[name] is None for name in ("params", "gpt", "model")):
        units = options["units"] or UNITS
        seconds = {name: BY_HAND[name] if value is None else value for name, value in given.items()}
        return flat(units * GRAIN, units), RANKS, {"model": None, **seconds}
    if options["ranks"] is None:
        raise ConfigError("a model's durations depend on how many ranks share it: add --ranks, as in --ranks 64")
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for a timeline without a model, which brings its own: "
                              "leave one out")
    model, ranks = model_of(options), options["ranks"]
    return model, ranks, {"model": model.name, "ranks": ranks, "tokens": options["tokens"], **given}


def _chart(timeline: Timeline) -> list[str]:
    """Rows of COLUMNS, one under the other like lines of a text, each with its seconds. Wide enough for labels."""
    lasting = sorted(event.end - event.start for event in timeline.events if event.end > event.start)
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
    limit = "no limit" if answer["limit"] is None else f"a limit of {answer['limit']}"
    if answer["model"] is None:
        seconds = ", ".join(f"{name.replace('_', '-')} {answer[name]:g} s" for name in BY_HAND)
        what = f"{answer['units']:,} units; {seconds}"
    else:
        what = f"{answer['model']}; {answer['ranks']:,} ranks, {answer['tokens']:,} tokens each"
    lines = [*wrapped(what), f"{how}; {limit} of gathered units", "", *answer["gantt"], "", *wrapped(LEGEND), "",
             f"finish {answer['finish']:.4g} s, of which compute {answer['compute']:.4g} s",
             *wrapped(_gathered(answer))]
    return "\n".join(lines + ([f"drawn in {answer['plot']}"] if answer["plot"] else []))


def _gathered(answer: dict[str, Any]) -> str:
    """More than there are units, where nothing limits how far the CPU runs ahead."""
    peak, units = answer["peak_gathered"], answer["units"]
    text = f"most gathered units that hold memory at once, counted from the issue of a gather: {peak}"
    if peak > units:
        text += (f" of {units} units, so some are there twice: nothing holds the CPU back (as --limit 2 would), which "
                 "issues gathers of backward while those of forward still wait to start")
    return text
