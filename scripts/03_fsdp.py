"""FSDP: flat parameters, the size of a unit, overlap and prefetch, hybrid sharding. On four ranks or more.

The last demo sums gradients, and trains, on a mesh of 2 x 2 real ranks. Its sum on 2 x 8 runs on ranks too if there are
16, else in one process that adds in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import claims
from claims import Claim, Demo, between, equal, holds, rounds_to
from overlap import overlap

import figures
from mpizero.layout import ParamSpec, flatten
from mpizero.machine import LECTURE, LECTURE_TOKENS, Machine
from mpizero.papers import sharding
from mpizero.papers.sizing import Sizing, choices, merged, sizing
from mpizero.planner import links, plan_memory, plan_traffic
from mpizero.planner.model import PlannedModel, blocks, gpt
from mpizero.schedule import Setup, StepSettings, set_up
from mpizero.schedule.actions import Unshard
from mpizero.text import in_units, table

EXAMPLE = "mpirun -n 4 python scripts/03_fsdp.py --json fsdp.json"
RANKS = 4
WORLD, HOST = 64, 8  # ranks of the lecture's 13B model, and those of a host
TOLERANCE = 2e-15  # of float64 sums in two orders, relative to the largest sum


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
        equal("A block of 12 x 5120^2 elements on 1000 ranks: elements of padding", source, 200, padding[1000]),
        holds("Padding is at most F - 1 elements: the block, every F from 1 to 1024", source, "at most F - 1",
              f"at most {max(padding.values())}, never more than F - 1",
              all(pad < ranks for ranks, pad in padding.items())),
        equal(f"The {len(unit.params)} tensors of a GPT-2 block: collectives to gather them, in forward and again in "
              "backward", source, 2, gathers, how="planned"),
    ], table(["unit", "ranks", "elements", "padding", "of each rank"], rows), data={"rows": rows})


def unit_size() -> Demo:
    """Demo 2."""
    step = _sharded(blocks(), WORLD)
    rows = choices([unit.numel for unit in step.wrapping.units], WORLD, 2, LECTURE)
    chosen = next(row for row in rows if row.units == len(step.wrapping.units))
    points = plan_memory(step.lists.step(), step.geometry).points
    peaks, counts = [row.peak_elements for row in rows], [row.collectives for row in rows]
    slower = 100 * (_gathered_in(32).seconds / _gathered_in(1).seconds - 1)
    source = "lecture 5.3; FSDP sec. 3.2.1"
    return Demo("How large should a unit be? 13B on 64 ranks", "5.3", [
        equal("Parameters: 40 blocks of 12 x 5120^2 and an embedding of 32,000 x 5120", "lecture 5.3", 12_746_752_000,
              step.wrapping.numel),
        equal("Peak of parameters when a unit is a block: sum(psi_i)/F + max psi_i", source, 2 * chosen.peak_elements,
              max(point.live["param"] + point.live["unsharded_param"] for point in points), "bytes", how="planned"),
        equal("Collectives of a step when a unit is a block: O(units), three each", source, 3 * chosen.units,
              len(plan_traffic(step.lists.step(), step.geometry)), how="planned"),
        holds("The smaller the units, the lower the peak", source, "falling",
              f"{in_units(2 * peaks[0])} to {in_units(2 * peaks[-1])}", peaks == sorted(peaks, reverse=True)),
        holds("The smaller the units, the more collectives", source, "rising", f"{counts[0]} to {counts[-1]:,}",
              counts == sorted(counts)),
        rounds_to("2^30 float32 elements gathered in pieces of 33 million take longer than in one by",
                  "lecture 5.3; FSDP fig. 2", "13", slower, "%"),
    ], table(["a unit is", "units", "peak of parameters", "collectives", "s, alone", "s, latency"],
             [[row.label.replace("stage", "segment"), row.units, in_units(2 * row.peak_elements), row.collectives,
               row.seconds, row.latency_seconds] for row in rows]),
        "seconds are those of the rings alone, on the machine of demo 3. The pieces: 8 ranks of a host at 450 GB/s, "
        "alpha 5 us; of these the lecture's text names alpha alone. As it says, small pieces cost less in this model "
        "than FSDP measured.",
        {"03-unit-size": lambda: figures.unit_size(rows, 2)}, {"rows": [vars(row) for row in rows]})


def _gathered_in(pieces: int) -> Sizing:
    """2^30 float32 elements."""
    machine = Machine(alpha=5e-6, inter_bandwidth=Machine().intra_bandwidth)
    return sizing("", merged([2**25] * 32, 32 // pieces), HOST, 4, machine)


def hybrid(world: Any) -> Demo:
    """Demo 4. On ranks."""
    psi, steps = blocks().spec.psi, {shards: _sharded(blocks(), WORLD, shards) for shards in (1, 2, 4, 8, 16, 32, 64)}
    size = 2 * psi
    placed = {shards: links.place(plan_traffic(step.lists.step(), step.geometry), step.geometry, HOST)
              for shards, step in steps.items()}
    kept = {shards: plan_memory(step.lists.step(), step.geometry).after_backward_bytes
            for shards, step in steps.items()}
    within, full = placed[HOST].inter_host_bytes, placed[WORLD].inter_host_bytes
    source, exercise = "lecture 5.5; FSDP sec. 3.2.2", "lecture 5.5, exercise 6; FSDP sec. 3.2.2"
    planned, rounds = partial(_planned, equal), partial(_planned, rounds_to)
    return Demo("Hybrid sharding: 13B on 8 hosts of 8, and real ranks", "5.5", [
        rounds("M, the model in float16", exercise, "25.5", size / 1e9, "GB"),
        rounds("Hybrid, F = 8: a rank sends to another host in a step", exercise, "5.58", within / 1e9, "GB"),
        planned("Hybrid: 2 M (W - F) / (F W), the ring's all-reduce of M/F over W/F replicas", exercise,
                sharding.hybrid_sharding(size, WORLD, HOST), within, "bytes"),
        rounds("Full sharding: a rank whose ring leaves the host there sends", exercise, "75.29", full / 1e9, "GB"),
        planned("Full sharding: 3 M (W - 1) / W", exercise, sharding.full_sharding(size, WORLD), full, "bytes"),
        rounds("Hybrid divides what leaves the host by about 13: by", source, "13.5", full / within),
        rounds("FSDP prints 2 M (W - 1) / (F W) for hybrid: more than the ring sends by a factor of", "FSDP sec. 3.2.2",
               "1.125", sharding.hybrid_sharding_printed(size, WORLD, HOST) / within),
        rounds("Full sharding's traffic at 50 GB/s takes", source, "1.51", full / LECTURE.inter_bandwidth, "s"),
        rounds("A step computes for", source, "2.53", LECTURE.compute_seconds(psi, LECTURE_TOKENS), "s"),
        planned("Hybrid keeps more model states on a rank, by a factor of", source, WORLD / HOST,
                kept[HOST] / kept[WORLD]),
        *_sums(world), *_training(world),
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


def _planned(make: Callable[..., Claim], *words: Any) -> Claim:
    return make(*words, how="planned")


def _sums(world: Any) -> list[Claim]:
    """FSDP's equation 1 in float64: inside shard groups, then across replicas."""
    from meshes import distance, gradients, sum_in_order, sum_on_ranks
    source, enough = "lecture 5.5; FSDP eq. 1", world.size >= 16
    ours, here = sum_on_ranks(world, RANKS, 2), sum_in_order(gradients(RANKS), 2)
    large = sum_on_ranks(world, 16, 8) if enough else sum_in_order(gradients(16), 8)
    same = bool((ours == here).all())
    return [
        between("2 x 2 ranks: the sum in two steps differs from the direct one, relative to the largest sum, by",
                source, None, TOLERANCE, distance(ours, gradients(RANKS)), how="measured"),
        holds("2 x 2: one process that adds in the order of the rings gets the ranks' bits", "ours", "the same bits",
              "the same bits" if same else "other bits", same, how="measured"),
        between(f"2 x 8, {'on ranks' if enough else 'in one process, in the order of the rings'}: the sum in two steps "
                "differs by", source, None, TOLERANCE, distance(large, gradients(16)), how="measured"),
    ]


def _training(world: Any) -> list[Claim]:
    """The 5-layer MLP trained on a mesh of 2 x 2."""
    from meshes import train
    found, source = train(world, RANKS, 2), "lecture 5.5; FSDP sec. 3.2.2"
    psi = found["padded_psi"]
    return [
        equal("2 x 2 ranks train the 5-layer MLP: model states of each after backward, 16 psi / F", source,
              [16 * psi // 2] * RANKS, found["after_backward"], "bytes", how="counted"),
        equal("2 x 2: each sends across replicas 2 M (W - F) / (F W)", source,
              [sharding.hybrid_sharding(2 * psi, RANKS, 2)] * RANKS, found["across_replicas"], "bytes", how="counted"),
        equal("2 x 2: each sends inside its shard group 3 M (F - 1) / F", source,
              [sharding.full_sharding(2 * psi, 2)] * RANKS, found["inside"], "bytes", how="counted"),
        holds("2 x 2: replicas hold the same bits", source, "equal",
              "equal" if found["replicas_equal"] else "different", found["replicas_equal"], how="counted"),
    ]


def _sharded(model: PlannedModel, ranks: int, shards: int | None = None, **passes: Any) -> Setup:
    """A step at stage 3 in float16. shards: all ranks unless given."""
    return set_up(model.spec, ranks, StepSettings("3", shards, **passes))


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every claim agrees, on every rank."""
    asked = claims.options(__doc__, EXAMPLE, 4, argv)
    from meshes import start_with, together, where
    world = start_with(RANKS, EXAMPLE)
    demos = (flat_parameter, unit_size, overlap, partial(hybrid, world))
    return together(world, claims.tell(asked, __doc__, demos, where(world), speaks=world.rank == 0))


if __name__ == "__main__":
    from mpizero.comm import run_main
    run_main(main)
