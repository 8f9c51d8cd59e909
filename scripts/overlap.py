"""Overlap, prefetch and the rate limiter: when the actions of forward and backward would run, fully sharded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from claims import Claim, Demo, between, equal, holds, rounds_to

import figures
from mpizero.machine import LECTURE, LECTURE_TOKENS
from mpizero.planner.costs import Costs, machine_costs
from mpizero.planner.model import flat
from mpizero.planner.timeline import LEGEND, Timeline, gantt, simulate
from mpizero.schedule import StepSettings, set_up
from mpizero.schedule.effects import Work

BLOCK = 12 * 5120**2  # parameters of a block of the lecture's 13B model, of 40 blocks and an embedding
WORLD = 64  # its ranks
CHARTS = {  # the lecture's, two columns a second: passes, overlap, seconds, rows of both streams
    "no overlap": ({}, False, 40.5, (
        "compute |   F0FF   F1FF   F2FF   F3FFB3BBBBBB      B2BBBBBB      B1BBBBBB      B0|",
        "comm    |A0A    A1A    A2A    A3A            R3RA2A        R2RA1A        R1RA0A  |")),
    "overlap, no backward prefetch": ({}, True, 36.0, (
        "compute |   F0FFF1FFF2FFF3FFB3BBBBBB      B2BBBBBB      B1BBBBBB      B0BBBBBB   |",
        "comm    |A0AA1A A2A A3A             R3RA2A        R2RA1A        R1RA0A        R0R|")),
    "overlap and backward prefetch": ({"backward_prefetch": 1}, True, 27.0, (
        "compute |   F0FFF1FFF2FFF3FFB3BBBBBBB2BBBBBBB1BBBBBBB0BBBBBB                     |",
        "comm    |A0AA1A A2A A3A A2A         R3RA1A  R2RA0A  R1R     R0R                  |")),
}


def overlap() -> Demo:
    """Demo 3 of 03_fsdp.py."""
    costs = Costs(forward=2, backward=4, all_gather=1.5, reduce_scatter=1.5)
    played = {name: _played(4, 1024, costs, limit=2, overlap=both, **passes)
              for name, (passes, both, *_) in CHARTS.items()}
    found: list[Claim] = []
    for name, (*_, seconds, rows) in CHARTS.items():
        same = gantt(played[name], scale=2).splitlines() == list(rows)
        found += [equal(f"4 units, {name}: forward and backward take", "lecture 5.4", seconds, played[name].finish, "s",
                        how="simulated"),
                  holds(f"4 units, {name}: the lecture's chart", "lecture 5.4", "the same, character by character",
                        "the same" if same else "another", same, how="simulated")]
    found.append(equal("4 units: of which compute", "lecture 5.4", 24.0, played["no overlap"].compute, "s",
                       how="simulated"))
    drawn = "\n\n".join(f"{name}: {each.finish:g} s\n{gantt(each, scale=2)}" for name, each in played.items())
    return Demo("Overlap, prefetch and the rate limiter", "5.4", [*found, *_large()],
                f"{drawn}\n\n{LEGEND.replace(', S all-reduce, U update', '')}",
                "4 units with F = 2, B = 4, A = R = 1.5 s, the last one kept between forward and backward, at most two "
                "gathered: what the charts show. 13B: 40 blocks, 989.4 TFLOP/s at 50 %, 50 GB/s a rank, alpha 10 us, "
                "16,384 tokens a rank: what the lecture's seconds of a block give.",
                {f"03-timeline-{i}": partial(_draw, name, each) for i, (name, each) in enumerate(played.items(), 1)},
                {name: each.data() for name, each in played.items()})


def _draw(name: str, timeline: Timeline) -> Any:
    return figures.timeline(name, timeline)


def _played(units: int, numel: int, costs: Costs, *, limit: int | None = None, overlap: bool = True, issue: float = 0.0,
            **passes: Any) -> Timeline:
    """Forward and backward of equal units on 64 ranks, the last one kept between them."""
    step = set_up(flat(units * numel, units).spec, WORLD, StepSettings("3", keep_last_unit=True, **passes))
    return simulate(step.lists.accumulate, step.geometry, costs, limit=limit, overlap=overlap, issue_seconds=issue)


def _large() -> list[Claim]:
    """The 13B model, of 40 blocks on 64 ranks."""
    geometry = set_up(flat(40 * BLOCK, 40).spec, WORLD, StepSettings("3")).geometry
    costs = machine_costs(geometry, LECTURE, LECTURE_TOKENS)

    def play(limit: int | None = None, issue: float = 0.0, **passes: Any) -> Timeline:
        return _played(40, BLOCK, costs, limit=limit, issue=issue, **passes)

    without, ahead, limited = play(), play(backward_prefetch=1), play(2, backward_prefetch=1)
    gains = [1 - (play(2, issue, backward_prefetch=1, forward_prefetch=1).finish
                  / play(2, issue, backward_prefetch=1).finish)
             for issue in (0.0, 1e-3, 5e-3, 15e-3, 30e-3)]
    prefetch, limiter = "lecture 5.4; FSDP sec. 3.3.2", "lecture 5.4; FSDP sec. 3.4.2"
    rounds, same = partial(_simulated, rounds_to), partial(_simulated, equal)
    return [
        *[rounds(f"13B: {kind.replace('_', '-')} of a block", "lecture 5.4", printed,
                 1e3 * costs.of(Work(kind, 0)), "ms")
          for kind, printed in (("forward", "20.8"), ("backward", "41.7"), ("all_gather", "13.0"))],
        rounds("13B: forward and backward without backward prefetch", prefetch, "3.54", without.finish, "s"),
        rounds("13B: with backward prefetch", prefetch, "2.53", ahead.finish, "s"),
        rounds("13B: with backward prefetch faster by a factor of", prefetch, "1.40", without.finish / ahead.finish),
        same("13B: blocks whose buffers are allocated at once without the rate limiter, 40 in forward and 39 in "
             "backward", limiter, 79, ahead.peak_gathered),
        same("13B: the same with at most two all-gathers in flight", limiter, 2, limited.peak_gathered),
        same("13B: the limiter costs no time", limiter, ahead.finish, limited.finish, "s"),
        between("13B: forward prefetch gains next to nothing, though the CPU take up to 30 ms an action",
                "lecture 5.4; FSDP sec. 3.3.3", None, 0.5, 100 * max(gains), "%", how="simulated"),
    ]


def _simulated(make: Callable[..., Claim], *words: Any) -> Claim:
    return make(*words, how="simulated")
