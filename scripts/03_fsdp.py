"""FSDP: flat parameters, the size of a unit, overlap and prefetch, hybrid sharding. On four ranks or more.

The last demo sums gradients, and trains, on a mesh of 2 x 2 real ranks. Its sum on 2 x 8 runs on ranks too if there are
16, else in one process that adds in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import claims
from claims import Claim, Demo, between, equal, holds, of_kind, rounds_to
from overlap import BLOCK, overlap

import figures
from mpizero.layout import ParamSpec, flatten
from mpizero.machine import LECTURE, LECTURE_TOKENS, Machine
from mpizero.papers import sharding
from mpizero.papers.sizing import choices, sizing
from mpizero.planner import links, plan_memory, plan_traffic
from mpizero.planner.model import PlannedModel, blocks, flat, gpt
from mpizero.quantities import in_units
from mpizero.schedule import Setup, StepSettings, set_up
from mpizero.schedule.actions import Unshard
from mpizero.text import table

EXAMPLE = "mpirun -n 4 python scripts/03_fsdp.py --json fsdp.json"
RANKS = 4
WORLD, HOST = 64, 8  # ranks of the lecture's 13B model, and those of a host
TOLERANCE = 2e-15  # of float64 sums in two orders, relative to the largest sum
ALPHA = 5e-6  # seconds of a message, for pieces
# ranks, bytes a second: the first gives the lecture's 13 % of pieces
MACHINES = ((HOST, Machine().intra_bandwidth), (HOST, 50e9), (64, 50e9), (64, 450e9))


def flat_parameter() -> Demo:
    """Demo 1."""
    linear = flatten("Linear 4 x 3", [ParamSpec("weight", (4, 3)), ParamSpec("bias", (3,))], 16)
    block = flatten("block", [ParamSpec("weight", (12, 5120, 5120))], 1000)
    padding = {ranks: layout.padded_numel - layout.numel for ranks in range(1, 1025)
               for layout in [flatten("", block.params, ranks)]}
    step = _sharded(gpt(1, 1600, 25, 50_257), RANKS)
    index, unit = next((i, unit) for i, unit in enumerate(step.wrapping.units) if unit.name == "h.0")
    gathers = sum(action == Unshard(index) for action in step.lists.accumulate)
    figure, source = "lecture 5.2; FSDP fig. 3", "lecture 5.2; FSDP sec. 3.2.1"
    rows = [[layout.name, ranks, layout.numel, layout.padded_numel - layout.numel, layout.shard_numel(ranks)]
            for layout, ranks in ((linear, 16), (block, 1000))]
    return Demo("FlatParameter: flattened, padded, cut", "5.2", [
        equal("A Linear of 4 x 3 with bias: elements", figure, 15, linear.numel),
        equal("The Linear on 16 ranks: elements of padding", figure, 1, linear.padded_numel - linear.numel),
        equal("The Linear on 16 ranks: elements of each", figure, 1, linear.shard_numel(16)),
        holds("What the last of the 16 holds", figure, "the padding alone",
              f"element {linear.shard(15, 16).start}, where the last parameter is element {linear.numel - 1}",
              linear.shard(15, 16).start >= linear.numel),
        rounds_to("A block of 12 x 5120^2 elements: hundreds of millions", source, "3.1", block.numel / 1e8,
                  kind="planned"),
        equal("The block on 1000 ranks: elements of padding", source, 200, padding[1000]),
        holds("Padding is at most F - 1 elements: the block, every F from 1 to 1024", source, "at most F - 1",
              f"at most {max(padding.values())}, never more than F - 1",
              all(pad < ranks for ranks, pad in padding.items())),
        equal(f"The {len(unit.params)} tensors of a GPT-2 block: collectives to gather them, in forward and again in "
              "backward", source, 2, gathers, kind="planned"),
    ], table(["unit", "ranks", "elements", "padding", "of each rank"], rows), data={"rows": rows})


def unit_size() -> Demo:
    """Demo 2."""
    step = _sharded(blocks(), WORLD)
    rows = choices([unit.numel for unit in step.wrapping.units], WORLD, 2, LECTURE)
    chosen = next(row for row in rows if row.units == len(step.wrapping.units))
    walked = {count: _peak_and_collectives(flat(40 * BLOCK, count)) for count in (1, 2, 5, 10, 20, 40, 80)}
    peaks, counts = zip(*walked.values(), strict=True)
    closed = [sizing("", [40 * BLOCK // count] * count, WORLD, 2, LECTURE) for count in walked]
    source = "lecture 5.3; FSDP sec. 3.2.1"
    formula = f"formula of {source}"
    return Demo("How large should a unit be? 13B on 64 ranks", "5.3", [
        *of_kind("planned",
                 rounds_to("Parameters of the shape assumed: 40 blocks of 12 x 5120^2, an embedding of 32,000 x 5120",
                           "lecture 5.3", "13", step.wrapping.numel / 1e9, "billion"),
                 equal("Peak of parameters when a unit is a block: sum(psi_i)/F + max psi_i", formula,
                       2 * chosen.peak_elements, _peak_and_collectives(blocks())[0], "bytes"),
                 equal("Collectives of a step when a unit is a block: O(units), three each", formula, 3 * chosen.units,
                       _peak_and_collectives(blocks())[1]),
                 holds("The smaller the units, the lower the peak: 1 to 80 equal units", source, "falling",
                       f"{in_units(peaks[0])} to {in_units(peaks[-1])}",
                       all(after < before for before, after in pairwise(peaks))),
                 holds("The smaller the units, the more collectives", source, "rising", f"{counts[0]} to {counts[-1]}",
                       all(after > before for before, after in pairwise(counts))),
                 equal("Sizes at which the formulas for peak and collectives give another value than the walk", "ours",
                       0, sum((2 * row.peak_elements, row.collectives) != found
                              for row, found in zip(closed, walked.values(), strict=True)))),
        *_pieces(),
    ], table(["a unit is", "units", "peak of parameters", "collectives", "s, alone", "s, latency"],
             [[row.label.replace("stage", "segment"), row.units, in_units(2 * row.peak_elements), row.collectives,
               row.seconds, row.latency_seconds] for row in rows]),
        "the shape of 13B, which gives the lecture's M of 25.5 GB. Seconds are those of the rings alone, on the "
        "machine of demo 3. Of the machine for the pieces the lecture's text names alpha alone; 8 ranks at 450 GB/s "
        "are one that gives its 13 %, others give "
        + ", ".join(f"{_slower(*each):.3g} % ({each[0]} at {each[1] / 1e9:g} GB/s)" for each in MACHINES[1:])
        + ". As it says, small pieces cost less in this model than FSDP measured.",
        {"03-unit-size": lambda: figures.unit_size(rows, 2)}, {"rows": [vars(row) for row in rows]})


def _pieces() -> list[Claim]:
    """2^30 float32 elements gathered in pieces. FSDP's figure 2(b)."""
    source, thirty_three = "lecture 5.3; FSDP fig. 2", 2**25
    rising = [[_slower(*machine, pieces) for pieces in (2, 8, 32, 128, 512)] for machine in MACHINES]
    ranks, bandwidth = MACHINES[0]
    nbytes, alpha = 4 * thirty_three, ALPHA * (ranks - 1)
    formula = alpha * (1 - 1 / 32) / (nbytes * (ranks - 1) / ranks / bandwidth + alpha / 32)
    return [
        *of_kind("simulated",
                 rounds_to("2^30 float32 elements gathered in pieces of 33 million take longer than in one by", source,
                           "13", _slower(ranks, bandwidth), "%"),
                 rounds_to("That is alpha of 31 rings more, over the seconds of one, by hand", "ours",
                           f"{100 * formula:.6f}", _slower(ranks, bandwidth), "%"),
                 given="the machine assumed: 8 ranks at 450 GB/s, alpha 5 us"),
        *of_kind("simulated",
                 holds("The smaller the pieces, the longer it takes", source, "rising on each machine",
                       "rising on " + str(sum(row == sorted(row) and row[0] > 0 for row in rising)),
                       all(row == sorted(row) and row[0] > 0 for row in rising)),
                 between("The 13 % are of one machine: pieces of 33 million take longer by as little as", "ours", None,
                         5, min(_slower(*machine) for machine in MACHINES), "%"),
                 between("and by as much as", "ours", 50, None, max(_slower(*machine) for machine in MACHINES), "%"),
                 given=f"{len(MACHINES)} machines, alpha 5 us"),
    ]


def _slower(ranks: int, bandwidth: float, pieces: int = 32) -> float:
    """Percent that 2^30 float32 elements take longer in equal pieces than in one."""
    machine = Machine(alpha=ALPHA, inter_bandwidth=bandwidth)
    many, one = (sizing("", [2**30 // count] * count, ranks, 4, machine).seconds for count in (pieces, 1))
    return 100 * (many / one - 1)


def _peak_and_collectives(model: PlannedModel) -> tuple[int, int]:
    """Most bytes of parameters at an action, and collectives of a step on 64 ranks: by walking."""
    step = _sharded(model, WORLD)
    points = plan_memory(step.lists.step(), step.geometry).points
    return (max(point.live["param"] + point.live["unsharded_param"] for point in points),
            len(plan_traffic(step.lists.step(), step.geometry)))


def hybrid(world: Any) -> Demo:
    """Demo 4. On ranks."""
    psi, steps = blocks().spec.psi, {shards: _sharded(blocks(), WORLD, shards) for shards in (1, 2, 4, 8, 16, 32, 64)}
    size = 2 * psi
    placed = {shards: links.split({0: plan_traffic(step.lists.step(), step.geometry)}, step.geometry, HOST)
              for shards, step in steps.items()}
    kept = {shards: plan_memory(step.lists.step(), step.geometry).after_backward_bytes
            for shards, step in steps.items()}
    within, full = placed[HOST].inter_host_bytes, placed[WORLD].inter_host_bytes
    return Demo("Hybrid sharding: 13B on 8 hosts of 8, and real ranks", "5.5", [
        *_between_hosts(size, within, full), *_kept(kept), *_sums(world), *_training(world),
    ], table(["F", "states of a rank", "to other hosts: busiest rank", "whole host", "s at 50 GB/s"],
             [[shards, in_units(kept[shards]), in_units(each.inter_host_bytes), in_units(each.host_bytes),
               each.inter_host_bytes / LECTURE.inter_bandwidth] for shards, each in placed.items()]),
        "each rank has 50 GB/s of its own to other hosts, as the lecture counts. For a whole host the gain is smaller: "
        "a ring laid out host by host leaves each at one rank alone, so it is "
        f"{in_units(placed[WORLD].host_bytes)} against {in_units(placed[HOST].host_bytes)}, a factor of "
        f"{placed[WORLD].host_bytes / placed[HOST].host_bytes:.2f}.",
        {"03-hybrid": lambda: figures.hybrid({shards: each.inter_host_bytes for shards, each in placed.items()}, kept)},
        {"M": size, "inter_host_bytes": {shards: each.inter_host_bytes for shards, each in placed.items()},
         "states": kept})


def _between_hosts(size: int, within: int, full: int) -> list[Claim]:
    """size: M. within, full: bytes that a rank sends to another host, hybrid and fully sharded."""
    source, exercise = "lecture 5.5; FSDP sec. 3.2.2", "lecture 5.5, exercise 6; FSDP sec. 3.2.2"
    formula, psi, printed = f"formula of {exercise}", size // 2, sharding.hybrid_sharding_printed(size, WORLD, HOST)
    return [
        *of_kind("planned",
                 rounds_to("M, the model in float16", exercise, "25.5", size / 1e9, "GB"),
                 rounds_to("Hybrid, F = 8: a rank sends to another host in a step", exercise, "5.58", within / 1e9,
                           "GB"),
                 rounds_to("that is, over M", "lecture exercise 6", "0.22", within / size),
                 equal("Hybrid: 2 M (W - F) / (F W), the ring's all-reduce of M/F over W/F replicas", formula,
                       sharding.hybrid_sharding(size, WORLD, HOST), within, "bytes"),
                 rounds_to("Full sharding: a rank whose ring leaves the host there sends", exercise, "75.29",
                           full / 1e9, "GB"),
                 rounds_to("that is, over M", "lecture exercise 6", "2.95", full / size),
                 equal("Full sharding: 3 M (W - 1) / W", formula, sharding.full_sharding(size, WORLD), full, "bytes"),
                 between("Hybrid divides what leaves the host by about 13", source, 13, 14, full / within, "times"),
                 holds("FSDP prints 2 M (W - 1) / (F W) for hybrid: more than the ring sends", "ours",
                       "by (W - 1) / (W - F), 12.5 %", f"by {100 * (printed / within - 1):.4g} %",
                       within * (WORLD - 1) == printed * (WORLD - HOST))),
        *of_kind("simulated",
                 rounds_to("Full sharding's traffic takes", source, "1.51", full / LECTURE.inter_bandwidth, "s"),
                 rounds_to("A step computes for", source, "2.53", LECTURE.compute_seconds(psi, LECTURE_TOKENS), "s"),
                 given="the machine assumed: 50 GB/s, 989.4 TFLOP/s at 50 %, 16,384 tokens"),
        rounds_to("The lecture's 75.29 GB in 1.51 s are", "lecture 5.5, exercise 6", "50", 75.29 / 1.51, "GB/s",
                  kind="published"),
        rounds_to("The lecture's 2.53 s are 40 blocks of 20.8 + 41.7 ms, and an embedding by its share of parameters",
                  "lecture 5.4, 5.5", "2.53", 40 * (0.0208 + 0.0417) * psi / (40 * BLOCK), "s", kind="published"),
    ]


def _kept(kept: dict[int, int]) -> list[Claim]:
    """Model states of a rank by sharding factor."""
    whole = set_up(blocks().spec, WORLD, StepSettings("0"))
    plain = plan_memory(whole.lists.step(), whole.geometry).after_backward_bytes
    return of_kind(
        "planned",
        equal("F = 1 keeps on a rank what data parallelism keeps", "lecture 5.5", plain, kept[1], "bytes"),
        equal("F = 8 keeps more than full sharding, by a factor of W / F", "ours", 8.0, kept[HOST] / kept[WORLD]))


def _sums(world: Any) -> list[Claim]:
    """FSDP's equation 1 in float64: inside shard groups, then across replicas."""
    from meshes import distance, gradients, sum_in_order, sum_on_ranks
    source, enough = "lecture 5.5; FSDP eq. 1", world.size >= 16
    ours, here = sum_on_ranks(world, RANKS, 2), sum_in_order(gradients(RANKS), 2)
    large = sum_on_ranks(world, 16, 8) if enough else sum_in_order(gradients(16), 8)
    same = bool((ours == here).all())
    return [
        between("2 x 2 ranks: the sum in two steps differs from the direct one, relative to the largest sum, by",
                source, None, TOLERANCE, distance(ours, gradients(RANKS)), kind="measured"),
        holds("2 x 2: one process that adds in the order of the rings gets the ranks' bits", "ours", "the same bits",
              "the same bits" if same else "other bits", same, kind="measured"),
        between(f"2 x 8, {'on ranks' if enough else 'in one process, in the order of the rings'}: the sum in two steps "
                "differs by", source, None, TOLERANCE, distance(large, gradients(16)),
                kind="measured" if enough else "computed"),
    ]


def _training(world: Any) -> list[Claim]:
    """The 5-layer MLP trained on a mesh of 2 x 2."""
    from meshes import train
    found, source = train(world, RANKS, 2), "formula of lecture 5.5; FSDP sec. 3.2.2"
    psi = found["padded_psi"]
    return [
        equal("2 x 2 ranks train the 5-layer MLP: model states of each after backward, 16 psi / F", source,
              [16 * psi // 2] * RANKS, found["after_backward"], "bytes", kind="counted"),
        equal("2 x 2: each sends across replicas 2 M (W - F) / (F W)", source,
              [sharding.hybrid_sharding(2 * psi, RANKS, 2)] * RANKS, found["across_replicas"], "bytes", kind="counted"),
        equal("2 x 2: each sends inside its shard group 3 M (F - 1) / F", source,
              [sharding.full_sharding(2 * psi, 2)] * RANKS, found["inside"], "bytes", kind="counted"),
        holds("2 x 2: replicas hold the same bits", source, "equal",
              "equal" if found["replicas_equal"] else "different", found["replicas_equal"], kind="measured"),
    ]


def _sharded(model: PlannedModel, ranks: int, shards: int | None = None, **passes: Any) -> Setup:
    """A step at stage 3 in float16. shards: all ranks unless given."""
    return set_up(model.spec, ranks, StepSettings("3", shards, **passes))


def _by_one(world: Any, demo: Callable[[], Demo]) -> Demo:
    """A demo that needs no ranks: the others go on, and wait where they are needed."""
    return demo() if world.rank == 0 else Demo("", "", [])


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every claim agrees, on every rank."""
    asked = claims.options(__doc__, EXAMPLE, 4, argv)
    from meshes import start_with, together, where
    world = start_with(RANKS, EXAMPLE)
    demos = (*[partial(_by_one, world, demo) for demo in (flat_parameter, unit_size, overlap)], partial(hybrid, world))
    return together(world, claims.tell(asked, __doc__, demos, where(world), speaks=world.rank == 0))


if __name__ == "__main__":
    from mpizero.comm import run_main
    run_main(main)
