"""Every optimizer under every stage: the same bits, bytes as planned with its own K, and decay where it belongs."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine.export import sha256
from mpizero.engine.job import make_optimizer, prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.summary import summarise
from mpizero.engine.task import Task, built_in_task
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError
from mpizero.layout import stored_states
from mpizero.layout.flat import UPDATE_BLOCK
from mpizero.nn.init import Normal
from mpizero.optim import SGD, Adam, Lion
from mpizero.schedule import STRATEGIES
from tests.engine.plans import follows_its_plan
from tests.engine.runs import MLP, dealt, run

SMALL = replace(MLP, steps=2, lr=1e-2, weight_decay=0.1)
LION = {"optimizer": "lion", "betas": "0.8,0.9"}


@dealt("fields, dtype, alone, k", [
    ({"optimizer": "adamw"}, "float16", True, 8), (LION, "float16", False, 8), (LION, "bfloat16", True, 4),
    ({"optimizer": "sgd"}, "bfloat16", False, 8), ({"optimizer": "sgd"}, "float32", False, 4),
    ({"optimizer": "sgd", "momentum": 0}, "float16", True, 0),
])
def test_every_stage_computes_the_same_bits_as_planned(group, fields, dtype, alone, k):
    """alone: without master weights."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    outcomes = {}
    for stage in STRATEGIES:
        config = replace(SMALL, stage=stage, dtype=dtype, no_master_weights=alone, **fields)
        job, outcomes[stage] = run(config, group, policy=lambda name: "all")
        follows_its_plan(job)
    assert all(result == outcomes["0"] for result in outcomes.values())
    assert len(set(outcomes["0"].losses)) == SMALL.steps
    summary = summarise(job, run_steps(job, steps=1))
    assert all(row["after_backward"] == row["planned_after_backward"] == row["formula_after_backward"]
               and row["at_rest"] == row["planned_at_rest"] for row in summary["memory"])
    assert summary["optimizer_bytes"] == k and summary["replicas_equal"]
    digests = [key for key in summary if key.endswith("_sha256") and key != "weights_sha256"]
    assert digests == [f"{state.name}_sha256" for state in job.optimizer.spec.states]


def test_without_master_weights_the_parameters_are_what_is_updated(group):
    """`master` is a view of what is kept; with them it is another array."""
    for stage in ("0", "1", "3"):
        for alone in (False, True):
            job = prepare(replace(SMALL, stage=stage, no_master_weights=alone), group)
            for unit in job.state.units:
                master = unit.states["master"]
                assert np.shares_memory(master, unit.param) is alone and master.size == unit.states["exp_avg"].size
                assert master.dtype == (np.float16 if alone else np.float32)
            run_steps(job, steps=1)
            stored = stored_states(job.geometry.optimizer, "float16")
            assert set(job.state.units[0].states) == {"master", *(state.name for state in stored)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_digest_is_of_the_stored_numbers(group, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    job = prepare(replace(SMALL, stage="2", dtype=dtype, no_master_weights=True, steps=0), group)
    whole = b"".join(unit.param[: unit.layout.numel].tobytes() for unit in job.state.units)
    assert sys.byteorder == "big" or sha256(job.task.model.spec, job.state.units, "master") == (
        hashlib.sha256(whole).hexdigest())


# -- decay -------------------------------------------------------------------------------------------------------------


def masters(config, group, **options) -> dict[str, np.ndarray]:
    """Parameter -> its weights after a step."""
    job, result = run(config, group, **options)
    whole, found = result.arrays("master"), {}
    for unit in job.wrapping.units:
        found |= unit.views(whole[: unit.numel])
        whole = whole[unit.numel :]
    return found


def random_task(config) -> Task:
    """The MLP's, with biases that are not 0."""
    task = built_in_task(resolve(config))
    return Task(replace(task.model, draw=lambda param: Normal(0.1)), task.data)


@pytest.mark.parametrize("stage", ["1", "3"])
@pytest.mark.parametrize("policy", [None, lambda name: "all"], ids=["a unit a segment", "one"])
def test_boundaries_of_decay_inside_shards_and_blocks(group, policy, stage):
    """Of AdamW a step with decay is the same without, on weights that were multiplied before. Matrices alone: so biases
    keep every bit; and what is computed is what one rank computes, whatever the shards hold of both."""
    config = replace(MLP, hidden=200, steps=1, dtype="float32", optimizer="adamw", lr=1e-2, weight_decay=0.0,
                     stage=stage)
    assert 3 * 200 * 200 > 2 * UPDATE_BLOCK > 200 * 200
    task = random_task(config)
    plain = masters(config, group, task=task, policy=policy)
    for decay in ("matrices", "all"):
        shrunk = masters(replace(config, weight_decay=5.0, decay=decay), group, task=task, policy=policy)
        for name, weights in shrunk.items():
            if decay == "all" or weights.ndim > 1:
                initial = task.model.initial(name, config.seed)
                np.testing.assert_allclose(plain[name] - weights, 1e-2 * 5.0 * initial, rtol=0, atol=1e-6)
            else:
                assert weights.tobytes() == plain[name].tobytes()
                continue
            assert weights.tobytes() != plain[name].tobytes()


def test_a_parameter_may_say_itself_whether_it_decays(group):
    """A user's model: the rule is for those that say nothing."""
    config = replace(MLP, steps=1, dtype="float32", optimizer="adamw", lr=1e-2, weight_decay=5.0)
    task = random_task(config)
    said = {"layers.0.weight": False, "layers.1.bias": True}
    spec = replace(task.model.spec, params=tuple(replace(param, decay=said.get(param.name))
                                                 for param in task.model.spec.params))
    other = masters(config, group, task=Task(replace(task.model, spec=spec), task.data))
    every, none = (masters(replace(config, weight_decay=weight_decay, decay="all"), group, task=task)
                   for weight_decay in (5.0, 0.0))
    for name, weights in other.items():
        right = every if said.get(name, weights.ndim > 1) else none
        assert weights.tobytes() == right[name].tobytes() and every[name].tobytes() != none[name].tobytes()


@pytest.mark.parametrize("name", ["lamb", "lars", "adafactor", "muon", "shampoo"])
def test_optimizers_that_see_more_than_elements(name):
    with pytest.raises(ConfigError, match=rf"^`optimizer` {name} updates a \w+ at a time \(it .*\), but a rank's shard "
                                          "holds parts of them: use one that updates element by element, such as"):
        resolve(replace(MLP, optimizer=name))


@pytest.mark.parametrize("fields, says", [
    ({"optimizer": "adagrad"}, "`optimizer` 'adagrad' is none of adam, adamw, sgd, lion: use one of these"),
    ({"momentum": 0.9}, "`momentum` is a setting of `optimizer` sgd, not of adam"),
    ({"optimizer": "sgd", "momentum": 1.0}, "`momentum` 1.0 is impossible: it must be at least 0, and below 1"),
    ({"optimizer": "sgd", "betas": "0.9,0.99"}, "`betas` are a setting of `optimizer` adam or adamw or lion, not of"),
    ({"betas": "0.9"}, "`betas` '0.9' cannot be used: give two numbers"),
    ({"betas": "0.9,x"}, "`betas` '0.9,x' cannot be used"), ({"betas": "0.9,1"}, "`betas` '0.9,1' cannot be used"),
    ({"dtype": "float32", "no_master_weights": True}, "`no_master_weights` means nothing with `dtype` float32"),
    ({"decay": "some"}, "`decay` 'some' is none of matrices, all"),
])
def test_settings_that_mean_nothing(fields, says):
    with pytest.raises(ConfigError) as error:
        resolve(replace(MLP, **fields))
    assert says in str(error.value)


@pytest.mark.parametrize("fields, lr, decay, betas, momentum", [
    ({}, 1e-2, 0.0, "0.9,0.999", None), ({"optimizer": "lion"}, 3e-3, 0.0, "0.9,0.99", None),
    ({"optimizer": "sgd"}, 0.1, 0.0, None, 0.9), ({"optimizer": "sgd", "momentum": 0}, 0.1, 0.0, None, 0.0),
    ({"model": "gpt", "hidden": None}, 2e-3, 0.01, "0.9,0.999", None),
    ({"model": "gpt", "hidden": None, "optimizer": "lion", "betas": "0.950, .98"}, 5e-4, 0.1, "0.95,0.98", None),
])
def test_defaults_follow_the_optimizer(fields, lr, decay, betas, momentum):
    optim = resolve(replace(MLP, **fields)).optim
    assert (optim.lr, optim.weight_decay, optim.betas, optim.momentum) == (lr, decay, betas, momentum)
    assert optim.decay == "matrices"


@pytest.mark.parametrize("fields, made", [
    ({}, Adam(decoupled=False)), ({"optimizer": "adamw", "betas": "0.8,0.9", "weight_decay": 0.2},
                                  Adam((0.8, 0.9), weight_decay=0.2)),
    ({"optimizer": "lion", "betas": "0.8,0.9", "weight_decay": 0.2}, Lion((0.8, 0.9), 0.2)),
    ({"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.2}, SGD(0.5, 0.2)),
    ({"optimizer": "sgd", "momentum": 0}, SGD(0.0)),
])
def test_the_optimizer_that_is_made(fields, made):
    optim = resolve(replace(MLP, **fields)).optim
    assert make_optimizer(optim) == made and optim.spec == made.spec


@pytest.mark.launches
def test_with_and_without_master_weights_in_one_report(launch, tmp_path):
    """Two logs, one page; a name for each that says what differs."""
    for name, flags in (("with", ()), ("without", ("--no-master-weights",))):
        end = launch(2, "-m", "mpizero.train", "--steps", "3", "--lr", "1e-4", *flags, "--log", tmp_path / name)
        assert end.status == 0, end.output
    end = launch(None, "-m", "mpizero.report", tmp_path / "with", tmp_path / "without", "--out", tmp_path / "report")
    assert end.status == 0 and "no master weights trains something else than with master weights" in (
        " ".join(end.output.split())), end.output
