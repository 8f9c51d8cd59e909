"""Stage x offload x accumulation x recompute: same bits; on device, host and files and between them the planned bytes.

The whole grid on one rank, of which each that there is walks a share by itself; on several ranks a part of it, of each
stage and accumulation a cell or two, of each number of ranks others.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from mpizero.data import TeacherTask
from mpizero.engine.task import Task
from mpizero.layout import NVME, parse_offload
from mpizero.nn.mlp import mlp
from mpizero.schedule import STRATEGIES
from tests.engine.plans import run_as_planned
from tests.engine.runs import MLP, run

SMALL = replace(MLP, batch_size=2, steps=2, clip=0.5)
TASK = Task(mlp(hidden=5, layers=4), TeacherTask(SMALL.seed))  # of which two layers can be computed again
MICROBATCHES = [1, 2, 4]
WHOLE = ["0", "1", "1-allreduce", "2"]  # stages that keep whole parameters on the device
PART = 29  # of so many cells several ranks walk one


def offloads(stage, recompute):
    """Every place of states, with every place of kept inputs if there are some."""
    states = ["optimizer=none", "optimizer=cpu", "optimizer=nvme"]
    if stage not in WHOLE:
        states += ["params=cpu,optimizer=cpu", "params=nvme,optimizer=nvme"]
    return [f"{one},checkpoints={place}" for one, place in
            product(states, ("none", "cpu", "nvme") if recompute else ("none",))]


CELLS = [(stage, accumulation, recompute, offload)
         for stage, accumulation, recompute in product(STRATEGIES, MICROBATCHES, (False, True))
         for offload in offloads(stage, recompute)]


def expected(group, accumulation):
    """Data parallelism, with nothing offloaded or recomputed."""
    return run(replace(SMALL, stage="0", accumulation=accumulation), group, task=TASK)[1]


def walk(number, group, folder):
    """What a cell computes; the others differ in what changes no bit either: overlap, and segments an input."""
    stage, accumulation, recompute, offload = CELLS[number]
    config = replace(SMALL, stage=stage, accumulation=accumulation, offload=offload, recompute=recompute,
                     overlap="on" if number % 2 else "off", recompute_interval=1 + number // 2 % 2 if recompute else 1)
    if NVME in vars(parse_offload(offload)).values():
        config = replace(config, nvme=str(folder))
    return run_as_planned(config, group, task=TASK)[1]


def test_all_cells_are_there():
    assert len(CELLS) == 3 * (4 * (3 + 9) + 2 * (5 + 15)) == len(set(CELLS))
    for size in (2, 3, 4):
        part = {CELLS[number][:2] for number in range(size, len(CELLS), PART)}
        assert {stage for stage, _ in part} == set(STRATEGIES) and {each for _, each in part} == set(MICROBATCHES)


@pytest.mark.parametrize("accumulation", MICROBATCHES)
def test_the_whole_grid_on_one_rank(world, tmp_path, accumulation):
    alone = [world.subgroup([rank], f"rank {rank} alone") for rank in range(world.size)][world.rank]
    right = expected(alone, accumulation)
    numbers = [number for number, cell in enumerate(CELLS) if cell[1] == accumulation]
    for number in numbers[world.rank::world.size]:
        same = walk(number, alone, tmp_path) == right
        assert same, CELLS[number]


def test_a_part_of_it_on_several(group, tmp_path):
    if group.size == 1:
        pytest.skip("one rank walks the whole grid above")
    right = {accumulation: expected(group, accumulation) for accumulation in MICROBATCHES}
    for number in range(group.size, len(CELLS), PART):
        same = walk(number, group, tmp_path) == right[CELLS[number][1]]
        assert same, CELLS[number]
