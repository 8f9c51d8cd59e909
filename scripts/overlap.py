"""Overlap, prefetch and the rate limiter: when the actions of forward and backward would run, fully sharded."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial, reduce
from typing import Any

from claims import Claim, Demo, between, equal, holds, of_kind, quoted, rounds_to

import figures
from mpizero.machine import LECTURE, LECTURE_TOKENS, Machine
from mpizero.planner.costs import Costs, machine_costs
from mpizero.planner.model import blocks, flat
from mpizero.planner.timeline import LEGEND, Timeline, gantt, simulate
from mpizero.schedule import Setup, StepSettings, set_up
from mpizero.schedule.effect import Work

BLOCK = 12 * 5120**2  # parameters of a block of the lecture's 13B model, of 40 blocks and an embedding
BLOCKS, WORLD, HOST = 40, 64, 8  # its blocks, its ranks and those of a host
ASSUMED = "the machine assumed"
SPEEDS = (10e9, 20e9, 50e9, 100e9, 400e9)  # bytes a second between hosts: around the 50 GB/s that are assumed
ISSUES = (0.0, 1e-3, 5e-3, 15e-3, 30e-3)  # seconds that the CPU takes for an action
CHARTS = {  # the lecture's, two columns a second: passes, overlap, seconds, collectives exposed, rows of both streams
    "no overlap": ({}, False, 40.5, 11, (
        "compute |   F0FF   F1FF   F2FF   F3FFB3BBBBBB      B2BBBBBB      B1BBBBBB      B0|",
        "comm    |A0A    A1A    A2A    A3A            R3RA2A        R2RA1A        R1RA0A  |")),
    "overlap, no backward prefetch": ({}, True, 36.0, 8, (
        "compute |   F0FFF1FFF2FFF3FFB3BBBBBB      B2BBBBBB      B1BBBBBB      B0BBBBBB   |",
        "comm    |A0AA1A A2A A3A             R3RA2A        R2RA1A        R1RA0A        R0R|")),
    "overlap and backward prefetch": ({"backward_prefetch": 1}, True, 27.0, 2, (
        "compute |   F0FFF1FFF2FFF3FFB3BBBBBBB2BBBBBBB1BBBBBBB0BBBBBB                     |",
        "comm    |A0AA1A A2A A3A A2A         R3RA1A  R2RA0A  R1R     R0R                  |")),
}


def overlap() -> Demo:
    """Demo 3 of 03_fsdp.py."""
    costs = Costs(forward=2, backward=4, all_gather=1.5, reduce_scatter=1.5)
    played = {name: _played(4, 1024, costs, limit=2, overlap=both, **passes)
              for name, (passes, both, *_) in CHARTS.items()}
    found: list[Claim] = []
    for name, (*_, seconds, exposed, rows) in CHARTS.items():
        same = gantt(played[name], scale=2).splitlines() == list(rows)
        found += [equal(f"4 units, {name}: forward and backward take", "lecture 5.4", seconds, played[name].finish,
                        "s"),
                  holds(f"4 units, {name}: the lecture's chart", "lecture 5.4", "the same, character by character",
                        "the same" if same else "another", same),
                  equal(f"4 units, {name}: that is 24 s and {exposed} collectives of 1.5 s which nothing hides", "ours",
                        24 + exposed * 1.5, played[name].finish, "s")]
    found.append(equal("4 units: of which compute", "lecture 5.4", 24.0, played["no overlap"].compute, "s"))
    drawn = "\n\n".join(f"{name}: {each.finish:g} s\n{gantt(each, scale=2)}" for name, each in played.items())
    return Demo("Overlap, prefetch and the rate limiter", "5.4",
                [*of_kind("simulated", *found, given="the seconds of the charts"), *_large()],
                f"{drawn}\n\n{_legend()}",
                "4 units with F = 2, B = 4, A = R = 1.5 s, the last one kept between forward and backward, at most two "
                "gathered: what the charts show. 13B: 40 blocks, 989.4 TFLOP/s at 50 %, 50 GB/s a rank, alpha 10 us, "
                "16,384 tokens a rank, and a CPU that issues in no time: a machine chosen for the lecture's seconds of "
                "a block, so that these three come out says little. The factor 1.40 was not chosen for. Seconds of "
                "whole steps are ours.",
                {f"03-timeline-{i}": partial(_draw, name, each) for i, (name, each) in enumerate(played.items(), 1)},
                {name: each.data() for name, each in played.items()})


def _legend() -> str:
    """Of what is drawn here alone."""
    nothing = (", S all-reduce, U update", ", C computed again", ", v to the host, ^ from it")
    return reduce(lambda text, unused: text.replace(unused, ""), nothing, LEGEND)


def _draw(name: str, timeline: Timeline) -> Any:
    return figures.timeline(name, timeline)


def _played(units: int, numel: int, costs: Costs, *, limit: int | None = None, overlap: bool = True, issue: float = 0.0,
            **prefetch: Any) -> Timeline:
    """Forward and backward of equal units on 64 ranks, the last one kept between them."""
    step = _step(units, numel, StepSettings("3", keep_last_unit=True, limit_all_gathers=limit, overlap=overlap,
                                            **prefetch))
    return simulate(step.lists.accumulate, step.geometry, costs, issue_seconds=issue)


@cache
def _step(units: int, numel: int, settings: StepSettings) -> Setup:
    return set_up(flat(units * numel, units).spec, WORLD, settings)


def _play(machine: Machine | None = None, **settings: Any) -> Timeline:
    """The same of the 13B model's blocks, on the lecture's machine unless another is given."""
    return _played(BLOCKS, BLOCK, _costs(machine or LECTURE), **settings)


def _costs(machine: Machine) -> Costs:
    geometry = _step(BLOCKS, BLOCK, StepSettings("3")).geometry
    return machine_costs(flat(BLOCKS * BLOCK, BLOCKS), geometry, machine, LECTURE_TOKENS, HOST)


def _large() -> list[Claim]:
    """The 13B model, of 40 blocks on 64 ranks."""
    seconds = {kind: _costs(LECTURE).of(Work(kind, 0)) for kind in ("forward", "backward", "all_gather")}
    compute, ring = BLOCKS * (seconds["forward"] + seconds["backward"]), seconds["all_gather"]
    without, ahead, limited = _play(), _play(backward_prefetch=1), _play(limit=2, backward_prefetch=1)
    prefetch, limiter = "lecture 5.4; FSDP sec. 3.3.2", "lecture 5.4; FSDP sec. 3.4.2"
    return [
        *of_kind("simulated", *[
            rounds_to(f"13B: {kind.replace('_', '-')} of a block", "lecture 5.4", printed, 1e3 * seconds[kind], "ms")
            for kind, printed in (("forward", "20.8"), ("backward", "41.7"), ("all_gather", "13.0"))],
            holds("13B without backward prefetch: all computation, two collectives a block", "ours",
                  f"{compute + 2 * BLOCKS * ring:.4f} s", f"{without.finish:.4f} s",
                  math.isclose(without.finish, compute + 2 * BLOCKS * ring)),
            holds("13B with backward prefetch: all computation, the first gather and the last reduce-scatter", "ours",
                  f"{compute + 2 * ring:.4f} s", f"{ahead.finish:.4f} s",
                  math.isclose(ahead.finish, compute + 2 * ring)),
            rounds_to("13B: with backward prefetch faster by a factor of", prefetch, "1.40",
                      without.finish / ahead.finish),
            equal("13B: blocks whose buffers are allocated at once without the rate limiter, 40 in forward and 39 in "
                  "backward", limiter, 79, ahead.peak_gathered),
            rounds_to("13B: these are as large as the float16 model, times about", limiter, "2",
                      ahead.peak_gathered * BLOCK / blocks().spec.psi),
            equal("13B: the same with at most two all-gathers in flight", limiter, 2, limited.peak_gathered),
            equal("13B: the limiter makes the step longer by", limiter, 0.0, limited.finish - ahead.finish, "s"),
            given=ASSUMED),
        *_other_machines(), *_slow_cpu(ahead.finish),
        rounds_to("The lecture's backward of a block, 41.7 ms, over its forward, 20.8 ms", "lecture 5.4", "2.0",
                  41.7 / 20.8, kind="published"),
        quoted("FSDP measured of backward prefetch, on GPT-175B, about", "lecture 5.4; FSDP sec. 5", 18, "% faster"),
    ]


def _other_machines() -> list[Claim]:
    """What does not depend on the network that is assumed."""
    machines = [replace(LECTURE, inter_bandwidth=speed) for speed in SPEEDS]
    runs = [(_play(each), _play(each, backward_prefetch=1), _play(each, limit=2, backward_prefetch=1))
            for each in machines]
    gains, delays = [a.finish / b.finish for a, b, _ in runs], [c.finish / b.finish - 1 for _, b, c in runs]
    words = "5 networks of 10 to 400 GB/s"
    return of_kind(
        "simulated",
        between("13B: backward prefetch is faster on each, by a factor of at least", "lecture 5.4", 1.01, None,
                min(gains)),
        between("13B: and by how much depends on it, at most", "ours", 1.2, 2, max(gains)),
        equal("13B: buffers without the limiter on each", "lecture 5.4", [79] * len(runs),
              [b.peak_gathered for _, b, _ in runs]),
        between("13B: the limiter makes no step longer, with a CPU that issues in no time", "lecture 5.4", None, 1e-9,
                max(delays)), given=words)


def _slow_cpu(fast: float) -> list[Claim]:
    """What depends on the CPU."""
    gains = [1 - _play(issue=issue, backward_prefetch=1, forward_prefetch=1).finish
             / _play(issue=issue, backward_prefetch=1).finish for issue in ISSUES]
    slow, limited = _play(issue=1e-3, backward_prefetch=1), _play(issue=1e-3, limit=2, backward_prefetch=1)
    late = _play(issue=15e-3, backward_prefetch=1)
    return of_kind(
        "simulated",
        between("13B: forward prefetch, no limiter: gains or loses next to nothing, the CPU at 0 to 30 ms an action",
                "lecture 5.4; FSDP sec. 3.3.3", None, 0.5, 100 * max(map(abs, gains)), "%"),
        between("13B: the limiter costs time when the CPU takes 1 ms an action, for it waits", "ours", 1, 5,
                100 * (limited.finish / slow.finish - 1), "%"),
        between("13B: without the limiter a CPU of 15 ms an action runs less far ahead than 79 blocks", "ours", 1, 10,
                late.peak_gathered, "blocks"),
        between("13B: and makes the step longer", "ours", fast, None, late.finish, "s"),
        given=f"{ASSUMED}, its CPU slower")
