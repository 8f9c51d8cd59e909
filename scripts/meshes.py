"""What 02, 03 and 07 do on real ranks, beside what `mpizero.engine` does."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import claims  # noqa: F401  finds mpizero

import numpy as np

from mpizero.comm import Group, all_gather, all_gather_values, all_reduce, barrier, chunk, mesh, reduce_scatter, start
from mpizero.engine.config import TrainConfig
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job, prepare
from mpizero.engine.replicas import largest_difference
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from mpizero.errors import LaunchError
from mpizero.layout import Axis, MeshShape, Policy
from mpizero.memory.ledger import Uncounted
from mpizero.optim import SGD
from mpizero.schedule import Action, IllegalSchedule, validate

Array = np.ndarray
NUMEL = 16 * 500  # elements of a gradient that is summed
MLP = TrainConfig(model="mlp", steps=50)  # the lecture's: 5 Linears, float16, 16 samples a rank


def start_with(ranks: int, example: str) -> Group:
    """The group of all ranks; LaunchError if there are fewer than `ranks`."""
    world = start()
    if world.size < ranks:
        started = f"{world.size} {'was' if world.size == 1 else 'were'} started"
        raise LaunchError(f"this script needs {ranks} ranks, and {started}: {example.partition(' --')[0]}")
    return world


def where(world: Group) -> str:
    """`MPICH 5.0.2; 4 ranks: 4 on host0`."""
    hosts = ", ".join(f"{count} on {host}" for host, count in Counter(world.hosts).items())
    return f"{world.library}; {world.size} ranks: {hosts}"


def together(world: Group, status: int) -> int:
    """Rank 0's status on every rank."""
    return int(all_gather_values(world, np.array([status], dtype=np.float64))[0, 0])


# -- sums of gradients -------------------------------------------------------------------------------------------------


def gradients(ranks: int) -> Array:
    """float64 (ranks, NUMEL): what each rank would have."""
    return np.random.default_rng(13).standard_normal((ranks, NUMEL))


def sum_on_ranks(world: Group, ranks: int, shards: int) -> Array:
    """(NUMEL,), on every rank: reduce-scatter inside shard groups of `shards`, all-reduce across replicas, and a gather
    to look at it."""
    group = world.subgroup(range(ranks), f"sum of {ranks}")
    whole = np.zeros(NUMEL)
    if group is not None:
        grid = mesh(group, MeshShape(ranks // shards, shards))
        whole = gradients(ranks)[group.rank].copy()
        shard = np.empty(NUMEL // shards)
        reduce_scatter(grid.group(Axis.SHARD), whole, shard)
        all_reduce(grid.group(Axis.REPLICATE), shard)
        whole[chunk(NUMEL, grid.group(Axis.SHARD).rank, shards)] = shard
        all_gather(grid.group(Axis.SHARD), whole)
    barrier(world)
    return whole


def sum_in_order(values: Array, shards: int) -> Array:
    """The same in one process: values (ranks, NUMEL), added in the order of the rings."""
    groups = values.reshape(-1, shards, NUMEL)
    return _ring_sum(np.array([_ring_sum(group) for group in groups]), shards)


def _ring_sum(values: Array, outer: int = 1) -> Array:
    """((x[c+1] + x[c+2]) + ...) + x[c] for chunk c of each of `outer` equal parts: see [Note: ring] in comm/ring.py."""
    ranks, numel = values.shape
    total = np.empty(numel)
    for part in range(outer):
        for c in range(ranks):
            place, inner = chunk(numel, part, outer), chunk(numel // outer, c, ranks)
            at = slice(place.start + inner.start, place.start + inner.stop)
            partial = values[(c + 1) % ranks, at]
            for step in range(2, ranks + 1):
                partial = partial + values[(c + step) % ranks, at]
            total[at] = partial
    return total


def distance(ours: Array, values: Array) -> float:
    """Largest difference to the direct sum, over the largest sum."""
    direct = values.sum(axis=0)
    return float(np.abs(ours - direct).max() / np.abs(direct).max())


# -- training ----------------------------------------------------------------------------------------------------------


def summary_of(world: Group, ranks: int, stage: str, steps: int, policy: Policy | None = None) -> dict[str, Any]:
    """The summary of a run of the MLP on the first `ranks` ranks, on every rank."""
    group = world.subgroup(range(ranks), f"first {ranks}")
    summary = None
    if group is not None:
        job = prepare(replace(MLP, stage=stage, steps=steps), group, policy=policy)
        summary = summarise(job, run_steps(job))
    return gather_data(world, summary)[0]


def peak_of(world: Group, stage: str, action: Action) -> dict[str, int]:
    """Bytes by kind that this rank's ledger counts right after `action` in a step."""
    job = prepare(replace(MLP, stage=stage, steps=1), world)
    job.executor.timeline = []
    run_steps(job)
    return next(done.live for done in job.executor.timeline if done.action == action)


def run_without(world: Group, stage: str, steps: int, forgotten: type) -> dict[str, Any]:
    """A run that leaves out every action of a kind in the update, past the validator. stale: the share of each rank's
    parameters that keep their initial value, of those that other ranks own."""
    job = prepare(replace(MLP, stage=stage, steps=steps), world)
    lists = replace(job.lists, update=[action for action in job.lists.update if not isinstance(action, forgotten)])
    refused = ""
    try:
        validate(lists.step(), job.geometry)
    except IllegalSchedule as error:
        refused = str(error)
    job, before = replace(job, lists=lists), [unit.param.copy() for unit in job.state.units]
    summary = summarise(job, run_steps(job))
    stale = sum(int((unit.param == start).sum()) - int((unit.param == start)[unit.shard].sum())
                for unit, start in zip(job.state.units, before, strict=True)) / job.wrapping.padded_numel
    shares = [float(row[0]) for row in all_gather_values(world, np.array([stale]))]
    return {**summary, "refused": refused, "stale": shares,
            "largest_difference": largest_difference(world, job.state.units)}


def train(world: Group, ranks: int, shards: int) -> dict[str, Any]:
    """Ten steps of the MLP at stage 3 on a mesh of the first `ranks` ranks: what each kept and sent, on every rank."""
    group = world.subgroup(range(ranks), f"mesh of {ranks}")
    counted = None
    if group is not None:
        job = prepare(replace(MLP, steps=10, stage="3", shard_size=shards), group)
        summary = summarise(job, run_steps(job))
        by_op = [rank["by_op"] for rank in summary["traffic"]]
        counted = {"padded_psi": summary["padded_psi"], "replicas_equal": summary["replicas_equal"],
                   "after_backward": [rank["after_backward"] for rank in summary["memory"]],
                   "across_replicas": [ops["all_reduce"] for ops in by_op],
                   "inside": [ops["all_gather"] + ops["reduce_scatter"] for ops in by_op]}
    return gather_data(world, counted)[0]


def watch(world: Group, **fields: Any) -> dict[str, Any]:
    """A run of the MLP with these fields: losses, and the share of weights that each update left where they were. Of
    those that began above 0.25, and of the others, how many moved at all. The same on every rank."""
    job = prepare(replace(MLP, **fields), world)
    begun, unmoved, losses = _masters(job), [], []
    for _ in range(job.settings.steps):
        before = _masters(job)
        progress = run_steps(job, steps=1)
        losses.append(progress.records[0].loss)
        if progress.updates:
            unmoved.append(_sums(world, [(_masters(job) == before).sum()])[0] / job.wrapping.numel)
    large, moved = np.abs(begun) > 0.25, _masters(job) != begun
    total, large_moved, small_moved = map(int, _sums(world, [large.sum(), (large & moved).sum(),
                                                             (~large & moved).sum()]))
    summary = summarise(job, progress)
    return {"losses": losses, "unmoved": unmoved, "eval_loss": summary["eval_loss"], "k": summary["optimizer_bytes"],
            "after_backward": [rank["after_backward"] for rank in summary["memory"]],
            "large": total, "large_moved": large_moved, "small_moved": small_moved}


def _masters(job: Job) -> Array:
    """A copy of the weights that this rank owns, without padding."""
    return np.concatenate([unit.part_of(unit.states["master"], unit.owned).copy() for unit in job.state.units])


def _sums(world: Group, values: Sequence[float]) -> list[float]:
    """Over all ranks."""
    return all_gather_values(world, np.array(values, np.float64)).sum(axis=0).tolist()


def descend(weight: float, update: float, times: int, alone: bool) -> float:
    """A float16 weight after so many updates by SGD, each of which adds `update`. alone: without a master weight."""
    half, master, grad = np.full(1, weight, np.float16), np.full(1, weight, np.float32), np.full(1, -1, np.float16)
    for step in range(1, times + 1):
        SGD(momentum=0.0).update(half if alone else master, {}, grad, lr=update, step=step, factor=1.0,
                                 mem=Uncounted(), out=None if alone else half)
    return float(half[0])


def has_bfloat16() -> bool:
    """Whether ml_dtypes is installed."""
    return importlib.util.find_spec("ml_dtypes") is not None
