"""Tensor parallel ranks compute what one process does, whatever the run: losses, norms and every state, to rounding."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pytest

from mpizero.data import load
from mpizero.data.text import Text
from mpizero.engine.export import whole_params
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.engine.trainer import evaluate_loss, run_steps
from mpizero.errors import ConfigError
from mpizero.layout.models import GPTConfig
from mpizero.layout.tensor import TensorPlace
from mpizero.nn.gpt import gpt
from mpizero.nn.losses import DividedCrossEntropy
from mpizero.schedule import STRATEGIES
from tests.engine.plans import follows_its_plan
from tests.engine.runs import GPT, MLP

TEXTS = replace(GPT, heads=4, steps=2)
SIZES = GPTConfig(layers=2, d_model=12, heads=12, context=6, vocab=264, tied=False)  # 2, 3 and 4 divide them
PARTS = {"recompute": True, "partition_activations": True}
# on one process the same with that batch; 4 samples a step
CASES = {
    "plain": TEXTS,
    "pads": replace(TEXTS, global_batch=3, clip=0.5),
    "microbatches": replace(TEXTS, batch_size=1, global_batch=4, no_sync=True),
    "frozen": replace(TEXTS, freeze=("h.0.*", "wpe*", "ln_f.bias"), batch_size=2, **PARTS),
    "decay": replace(TEXTS, optimizer="adamw", weight_decay=3.0, lr=0.02, warmup=0),
    "decay of all": replace(TEXTS, optimizer="sgd", weight_decay=3.0, decay="all", lr=0.02, warmup=0),
    "tiny": replace(MLP, hidden=4, dtype="float32", steps=2),  # a rank's bias has one element, and its shards none
}


class Masked(Text):
    """Every other target, and all of each third sample, do not count."""

    def train(self, samples):
        inputs, targets = super().train(samples)
        targets = targets.copy()
        targets[:, ::2] = -1
        targets[samples % 3 == 2] = -1
        return inputs, targets

    def count(self, samples):
        return int(np.count_nonzero((samples >= 0) & (samples % 3 != 2))) * (SIZES.context // 2)


def own(size, rank):
    """A task of a user's own, as `rank` has its part of it."""
    place, data = TensorPlace(rank % size, size), load("gpt", argparse.__file__, seed=0, context=SIZES.context)
    data.__class__ = Masked
    return Task(gpt(SIZES, place=place), data, target="token", divided=DividedCrossEntropy(place))


def trained(config, group, task=None):
    """Losses, norms, and states in the model's order, of a run that does what is planned."""
    job = prepare(config, group, task=task)
    records = run_steps(job, steps=config.steps - 1).records + follows_its_plan(job).records
    spec, units = job.task.model.spec, job.state.units
    found = {name: np.concatenate([whole.ravel() for whole in whole_params(spec, units, name)])
             for name in ("master", *(state.name for state in job.optimizer.spec.states))}
    return [record.loss for record in records], [record.grad_norm for record in records], found


def assert_near(found, expected):
    """Float32 adds in another order (seen: 4e-7 of losses and norms, 2e-5 of states, that of the largest of each)."""
    np.testing.assert_allclose(found[:2], expected[:2], rtol=5e-6)
    for name, values in expected[2].items():
        difference = np.linalg.norm(found[2][name] - values) / np.linalg.norm(values)
        assert difference < 2e-4, (name, difference)


def one_process(config, group, task=None):
    """The concatenated batch, in so many microbatches. On rank 0 alone, else None."""
    alone = group.subgroup([0], "one")
    return None if alone is None else trained(replace(config, tensor_size=1), alone, task)


@pytest.mark.parametrize("group", [4], ids=["n=4"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_whatever_the_run(group, name):
    config = CASES[name]
    total = config.global_batch or 4
    expected = one_process(replace(config, batch_size=total, partition_activations=False, global_batch=None), group)
    for size, stage, shard_size in ((2, "3", None), (2, "1", 1), (4, "2", None)):
        mine = replace(config, tensor_size=size, stage=stage, shard_size=shard_size)
        if config.global_batch is None:
            mine = replace(mine, batch_size=size)
        found = trained(mine, group)
        if expected is not None:
            assert_near(found, expected)


@pytest.mark.parametrize("group", [3, 4], ids="n={}".format, indirect=True)
def test_a_task_of_ones_own_at_every_stage(group):
    """With masks, an untied output matrix, and three or four tensor parallel ranks."""
    config = replace(GPT, context=SIZES.context, batch_size=4, steps=2, tensor_size=group.size)
    task = own(group.size, group.rank)
    first, *others = (trained(replace(config, stage=stage, **options), group, task)
                      for stage in (STRATEGIES if group.size == 3 else "3") for options in ({}, PARTS))
    for found in others:
        assert found[:2] == first[:2]
        assert {name: values.tobytes() for name, values in found[2].items()} == {
            name: values.tobytes() for name, values in first[2].items()}
    expected = one_process(config, group, own(1, 0))
    if expected is not None:
        assert_near(first, expected)


@pytest.mark.parametrize("group", [4], ids=["n=4"], indirect=True)
def test_what_is_held_out(group, few_held_out):
    """16 windows, in batches of 3: the last is not full, and of one data rank empty."""
    found = [evaluate_loss(prepare(replace(TEXTS, batch_size=3, tensor_size=size), group)) for size in (1, 2, 4)]
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


@pytest.mark.parametrize("group", [2, 4], ids="n={}".format, indirect=True)
def test_a_model_that_is_another_ranks_part(group):
    """Without a word it would train something else."""
    config = replace(GPT, context=SIZES.context, tensor_size=2)
    with pytest.raises(ConfigError, match=r"rank 1 has part 0 of the model, but among 2 .* place=TensorPlace\(1, 2\)"):
        prepare(config, group, task=own(2, 0))
    with pytest.raises(ConfigError, match="no loss for that: give it `divided`"):
        prepare(config, group, task=replace(own(2, group.rank), divided=None))


EIGHT = """
import sys
from dataclasses import replace
from mpizero.comm import run_main, start
from tests.engine.test_tensor_alone import TEXTS, assert_near, one_process, trained

def main():
    world = start()
    config = replace(TEXTS, tensor_size=2, shard_size=2, stage="3", clip=0.5, steps=1)
    found = [trained(replace(config, **more), world)
             for more in ({"batch_size": 1}, {"batch_size": 1, "tensor_size": 4, "global_batch": 4})]
    expected = one_process(replace(config, batch_size=4, shard_size=None), world)
    for each in found if expected is not None else ():
        assert_near(each, expected)
    if world.rank == 0:
        print("near")

run_main(main)
"""


@pytest.mark.launches
def test_eight_ranks_along_three_axes(launch):
    """2 x 2 x 2, and 1 x 2 x 4."""
    end = launch(8, "-c", EIGHT)
    assert (end.status, end.stdout) == (0, "near\n"), end.output
