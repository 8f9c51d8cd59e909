"""When each action would run on a device with a compute and a communication stream: forward and backward, fully sharded.

Durations by hand (the defaults are the example of the lecture, CMU 15-779 Fall 2025, lecture 13: four units, the last one kept between
forward and backward), or of a model on a machine: --model 13b --ranks 64.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from mpizero.errors import ConfigError
from mpizero.layout import Wrapping, wrap
from mpizero.plan.options import Options, add_machine, add_model, count, machine_of, model_of, said, wrapped
from mpizero.planner import Geometry
from mpizero.planner.costs import Costs, machine_costs
from mpizero.planner.machine import LECTURE_TOKENS
from mpizero.planner.model import GRAIN, flat
from mpizero.planner.timeline import LEGEND, Timeline, gantt, simulate
from mpizero.report.timeline import plot
from mpizero.schedule import STRATEGIES, training_lists

HELP = "when each action would run, with and without prefetch"
EXAMPLE = "timeline --units 4 --limit 2 --no-backward-prefetch"
BY_HAND = {"forward": 2.0, "backward": 4.0, "all_gather": 1.5, "reduce_scatter": 1.5}  # seconds of one unit
UNITS = 4
COLUMNS = 88  # of a chart's row
SCALE = 2  # columns a second, where they suffice
READABLE = 12  # units of which a chart can be read


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, required=False)
    for name, seconds in BY_HAND.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=said(_seconds), metavar="SECONDS", help=f"of one unit ({seconds:g})")
    parser.add_argument("--no-overlap", action="store_true", help="one stream for both")
    parser.add_argument("--no-backward-prefetch", action="store_true", help="gather for a backward only when the one before is reduced")
    parser.add_argument("--forward-prefetch", type=said(_depth), default=0, metavar="DEPTH", help="stages gathered ahead in forward (0)")
    parser.add_argument("--limit", type=said(count), metavar="K", help="gathered units that may hold memory at once (no limit)")
    parser.add_argument("--issue", type=said(_seconds), default=0.0, metavar="SECONDS", help="that the CPU takes to issue an action (0)")
    parser.add_argument("--ranks", type=said(count), metavar="N", help="with a model: ranks that share it")
    parser.add_argument("--tokens", type=said(count), default=LECTURE_TOKENS, metavar="T", help=f"with a model ({LECTURE_TOKENS})")
    parser.add_argument("--plot", metavar="FILE", help="draw it as .png or .svg (needs matplotlib: extra plot)")
    add_machine(parser, "peak_flops", "efficiency", "alpha", "inter_bandwidth")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no number of seconds: write one as in 1.5") from None
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{text} seconds are impossible: give a number of at least 0, as in 1.5")
    return value


def _depth(text: str) -> int:
    return 0 if text == "0" else count(text)


def answer(options: Options) -> dict[str, Any]:
    """Keys finish, compute, peak_gathered, events, gantt, and what was asked. Durations are null where a model gives them."""
    wrapping, ranks, costs, asked = _asked(options)
    actions = training_lists(STRATEGIES["3"], wrapping, 1, ranks, keep_last_unit=True, forward_prefetch=options["forward_prefetch"],
                             backward_prefetch=0 if options["no_overlap"] or options["no_backward_prefetch"] else 1).accumulate
    timeline = simulate(actions, costs, stages=wrapping.stages, limit=options["limit"], overlap=not options["no_overlap"],
                        issue_seconds=options["issue"])
    if options["plot"] is not None:
        plot(timeline, options["plot"])
    switches = ("limit", "issue", "no_overlap", "no_backward_prefetch", "forward_prefetch", "plot")
    return {**asked, **{name: options[name] for name in switches}, **timeline.data(), "gantt": _chart(timeline).splitlines()}


def _asked(options: Options) -> tuple[Wrapping, int, Costs, dict[str, Any]]:
    """What is wrapped for how many ranks, what it costs, and these in words."""
    by_hand = {name: options[name] for name in BY_HAND}
    if all(options[name] is None for name in ("params", "gpt", "model")):
        units, ranks = options["units"] or UNITS, 2
        seconds = {name: BY_HAND[name] if value is None else value for name, value in by_hand.items()}
        return wrap(flat(units * GRAIN, units).spec, ranks), ranks, Costs(**seconds), {"model": None, "units": units, **seconds}
    if options["ranks"] is None:
        raise ConfigError("a model's durations depend on how many ranks share it: add --ranks, as in --ranks 64")
    given = [name for name, value in by_hand.items() if value is not None]
    if given:
        raise ConfigError(f"--{given[0].replace('_', '-')} is for a timeline without a model, which brings its own: leave one out")
    model, ranks = model_of(options), options["ranks"]
    wrapping = wrap(model.spec, ranks)
    costs = machine_costs(Geometry(wrapping, STRATEGIES["3"].placement, 1, ranks, "float16"), machine_of(options), options["tokens"])
    asked = {"model": model.name, "units": len(wrapping.units), "ranks": ranks, "tokens": options["tokens"], **by_hand}
    return wrapping, ranks, costs, asked


def _chart(timeline: Timeline) -> str:
    columns = round(timeline.finish * SCALE)
    return gantt(timeline, columns, SCALE) if 0 < columns <= COLUMNS else gantt(timeline, COLUMNS)


def show(answer: dict[str, Any]) -> str:
    how = "no overlap" if answer["no_overlap"] else f"overlap, {'no ' if answer['no_backward_prefetch'] else ''}backward prefetch"
    limit = "no limit" if answer["limit"] is None else f"a limit of {answer['limit']}"
    what = (f"{answer['units']:,} units; " + ", ".join(f"{name.replace('_', '-')} {answer[name]:g} s" for name in BY_HAND)
            if answer["model"] is None else f"{answer['model']}; {answer['ranks']:,} ranks, {answer['tokens']:,} tokens each")
    chart = ["", *answer["gantt"], "", *wrapped(LEGEND)] if answer["units"] <= READABLE else []
    lines = [*wrapped(what), f"{how}; {limit} of gathered units", *chart, "",
             f"finish {answer['finish']:.4g} s, of which compute {answer['compute']:.4g} s; "
             f"at most {answer['peak_gathered']} units gathered at once"]
    return "\n".join(lines + ([f"drawn in {answer['plot']}"] if answer["plot"] else []))
