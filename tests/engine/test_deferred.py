"""A rank draws the elements that it keeps and no others, in blocks; they are those of a model that is drawn whole."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mpizero.comm import all_gather_values
from mpizero.data import TeacherTask
from mpizero.dtypes import numpy_dtype
from mpizero.engine.job import prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.task import Task, built_in_task
from mpizero.engine.trainer import run_steps
from mpizero.errors import OutOfDeviceMemory
from mpizero.layout import REPLICATED
from mpizero.memory.kinds import WORKSPACE
from mpizero.nn.init import Initial
from mpizero.nn.mlp import mlp
from mpizero.nn.model import DRAW_BLOCK
from mpizero.schedule import STRATEGIES
from tests.engine.runs import GPT, MLP, dealt

WRAPPINGS = {"a unit a segment": None, "one unit": lambda name: "all", "a unit a parameter": lambda name: name}


@dealt("stage, dtype", list(STRATEGIES), ["float16", "bfloat16", "float32"])
def test_equal_to_a_model_that_is_drawn_whole(group, stage, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for config, wrapping in ((MLP, "a unit a segment"), (replace(MLP, seed=3), "one unit"), (GPT, "one unit"),
                             (replace(GPT, freeze=("h.0.*",)), "a unit a parameter")):
        job = prepare(replace(config, stage=stage, dtype=dtype), group, policy=WRAPPINGS[wrapping])
        for unit in job.state.units:
            flat = np.zeros(unit.layout.padded_numel, np.float32)
            for name, view in unit.layout.views(flat).items():
                view[...] = job.task.model.initial(name, config.seed)
            rounded = flat.astype(numpy_dtype(dtype))
            assert unit.param.tobytes() == rounded[unit.range_of(unit.placement.params)].tobytes()
            masters = flat if unit.states["master"].dtype == np.float32 else rounded
            assert unit.states["master"].tobytes() == masters[unit.range_of(unit.placement.optim)].tobytes()


class Asked(Initial):
    """All 1; keeps of which elements it was asked for, and how many at once."""

    def __init__(self):
        self.elements, self.most = Counter(), 0

    def fill(self, seed, name, begin, out, mem):
        self.elements.update((name, begin + i) for i in range(out.size))
        self.most = max(self.most, out.size)
        out.fill(1)


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_a_rank_draws_what_it_keeps_once(group, stage):
    asked, model = Asked(), mlp(hidden=20)
    job = prepare(replace(MLP, hidden=20, stage=stage), group,
                  task=Task(replace(model, draw=lambda param: asked), TeacherTask(0)))
    kept = {(param.name, begin + i) for unit in job.state.units
            for param, where, _ in unit.layout.pieces(unit.range_of(unit.placement.params))
            for _, begin, length in where.runs() for i in range(length)}
    assert asked.elements == Counter(kept) and 0 < asked.most <= 660 // 16  # elements of the largest unit
    every = all_gather_values(group, np.array([float(len(kept))]))
    assert every.sum() == model.spec.psi * (1 if stage == "3" else group.size)


@pytest.mark.parametrize("config", [replace(MLP, hidden=1200), replace(MLP, hidden=90), replace(GPT, d_model=64)],
                         ids=["wide mlp", "mlp", "gpt"])
@pytest.mark.parametrize("stage", ["1", "3"])
def test_workspace_is_a_block(group, config, stage):
    """4 bytes an element and the 20 that normal numbers take, at most what the unit weighs in 16 bits."""
    job = prepare(replace(config, stage=stage), group)
    largest = max(unit.padded_numel for unit in job.wrapping.units)
    block = min(DRAW_BLOCK, largest // 16)
    assert 24 * block <= job.ledger.peak[WORKSPACE] <= 24 * block + 64
    assert job.ledger.peak_bytes - job.ledger.live_bytes <= min(2 * largest, 24 * DRAW_BLOCK) + 64


def test_weights_that_no_device_could_hold(group, few_held_out):
    """Whole float32 weights exceed every device. Shards of weights and gradients, 8 psi / N, fit from 3 ranks on."""
    config = replace(GPT, layers=12, d_model=32, heads=2, steps=2, batch_size=1, optimizer="sgd", momentum=0.0)
    psi = built_in_task(resolve(config)).model.spec.psi
    config = replace(config, device_memory=f"{4 * psi - 1}B")
    with pytest.raises(OutOfDeviceMemory, match="out of device memory: the run needs"):
        prepare(replace(config, stage="0"), group)
    if group.size >= 3:
        job = prepare(replace(config, stage="3"), group)
        assert all(unit.placement.params is not REPLICATED for unit in job.state.units)
        losses = [record.loss for record in run_steps(job).records]
        assert losses[1] != losses[0] and job.ledger.peak_bytes < 4 * psi


LIMITED = """
import resource
import mpizero
import numpy as np
from mpizero.comm import all_gather_values, run_main, start
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.errors import OutOfDeviceMemory
from mpizero.layout.models import GPTConfig
from mpizero.nn.gpt import gpt
from tests.golden.text import FixedText

def mapped():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

def main():
    world = start()
    used = all_gather_values(world, np.array([float(mapped())])).max()
    block = 4 * (12 * 512**2 + 13 * 512)
    model = gpt(GPTConfig(layers=int(2 * used / block) + 1, d_model=512, heads=8, context=16))
    weights, hard = 4 * model.spec.psi, resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = int(0.9 * weights)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    task = Task(model, FixedText(16, 0))
    job = prepare(TrainConfig(stage="3", **ARGUMENTS), world, task=task)
    kept = sum(unit.param.nbytes for unit in job.state.units)
    assert used < limit < weights <= world.size * kept and mapped() < limit
    assert 0 < job.state.units[1].param.std() < 0.04
    del job
    if world.rank == 0:
        try:
            whole = [model.initial(param.name, 0) for param in model.spec.params]
        except MemoryError:
            whole = print("no room for arrays of rank 0")
        assert whole is None
    try:
        prepare(TrainConfig(stage="0", **ARGUMENTS), world, task=task)
    except OutOfDeviceMemory:
        print("no room for stage 0", flush=True)
    return 0

ARGUMENTS = {"model": "gpt", "dtype": "float32", "optimizer": "sgd", "momentum": 0.0}
run_main(main)
"""


@pytest.mark.launches
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much is mapped, and limits it")
def test_a_real_limit_of_memory_below_the_weights(launch):
    """RLIMIT_AS, on all that a process maps: interpreter, libraries and MPI too. A model that is made whole fails."""
    end = launch(4, "-c", LIMITED, timeout=120)
    assert end.status == 0, end.output
    assert end.stdout.count("no room for stage 0") == 4 and "no room for arrays of rank 0" in end.stdout, end.output
