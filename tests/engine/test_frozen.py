"""Frozen parameters: stored and gathered, and nothing else; what trains is trained as if they were constants."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from mpizero.data import TeacherTask
from mpizero.engine.export import sha256, whole_state
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.engine.trainer import AGREEMENT_OPS, run_steps
from mpizero.errors import ConfigError
from mpizero.layout import freeze
from mpizero.memory.kinds import MODEL_STATE
from mpizero.nn.mlp import mlp
from mpizero.planner import formula_after_backward, formula_sent
from mpizero.schedule import STRATEGIES
from tests.engine.plans import follows_its_plan
from tests.engine.runs import GPT, MLP

SETS = [  # patterns; 0 to 4 are the MLP's layers
    (MLP, ("layers.0.*",)), (MLP, ("layers.4.*", "layers.2.weight")), (MLP, ("*.bias",)), (MLP, ("layers.[0-3].*",)),
    (replace(MLP, hidden=3), ("layers.1.bias", "layers.0.weight")),  # 3 elements on 4 ranks: one shard has none
    (GPT, ("wte.*",)), (GPT, ("w?e.*", "h.0.*")), (GPT, ("h.*.mlp.*", "*.bias")),
]
IDS = ["first", "last", "biases", "all but one", "small", "tied", "gpt front", "gpt parts"]


def states(job):
    """(state, parameter) -> bytes, of those that have the state. Collective."""
    found = {}
    for unit in job.state.units:
        for name in unit.states:
            flat = whole_state(unit, name)
            found |= {(name, key): view.tobytes() for key, view in unit.layout.views(flat).items()}
    return found


@pytest.mark.parametrize(("config", "patterns"), SETS, ids=IDS)
def test_every_stage_does_the_same_in_the_bytes_of_plan_and_formula(group, config, patterns):
    outcomes = []
    for stage in STRATEGIES:
        job = prepare(replace(config, stage=stage, freeze=patterns, steps=2, clip=0.5), group)
        before = states(job)
        progress = run_steps(job)
        after = states(job)
        outcomes.append((after, [(record.loss, record.grad_norm) for record in progress.records]))
        frozen = {param.name for param in job.task.model.spec.params if param.frozen}
        assert frozen and not any(state != "master" and name in frozen for state, name in after)
        for key, value in after.items():
            assert (value == before[key]) == (key[1] in frozen), key
        follows_its_plan(job)
        bytes_are_the_formulas(job, progress)
    assert all(outcome == outcomes[0] for outcome in outcomes)


def bytes_are_the_formulas(job, progress):
    """2 bytes (4 of float32) of what is frozen, whole or a shard; K, gradients and reductions of what trains alone."""
    (size, k), n, stage = ((4, 8) if job.settings.dtype == "float32" else (2, 12)), job.world.size, job.config.stage
    units, after, sent = job.wrapping.units, job.executor.after_backward, progress.sent
    if stage == "3-broadcast":
        return owned_bytes_are_the_formulas(job, progress, size, k)
    trained, frozen = (sum(unit.padded_numel for unit in units if unit.frozen is kind) for kind in (False, True))
    rest = {"0": (size + k) * trained + size * frozen, "1": size * trained + k * trained // n + size * frozen,
            "3": ((size + k) * trained + size * frozen) // n}[stage[0].replace("2", "1")]
    assert sum(progress.at_rest[kind] for kind in MODEL_STATE) == rest
    grads = {"0": trained, "1": trained}.get(stage[0], trained // n)
    assert sum(after[kind] for kind in MODEL_STATE) == rest + size * grads == formula_after_backward(job.geometry)
    reduced = sent.get("all_reduce", 0) // 2 + sent.get("reduce_scatter", 0)
    assert reduced == (n - 1) * (trained // n) * size
    assert sum(job.log.totals()[op].bytes_sent for op in job.log.totals() if op not in AGREEMENT_OPS) == (
        formula_sent(job.geometry, STRATEGIES[stage].volume))


def owned_bytes_are_the_formulas(job, progress, size, k):
    """The same of every n-th unit, all of it; what trains is summed once, and of the sum a part goes to each owner."""
    n, rank, units = job.world.size, job.world.rank, job.wrapping.units
    trained, own, frozen = (sum(unit.padded_numel for unit in some if unit.frozen is kind)
                            for some, kind in ((units, False), (units[rank::n], False), (units[rank::n], True)))
    assert sum(progress.at_rest[kind] for kind in MODEL_STATE) == (size + k) * own + size * frozen
    after = job.executor.after_backward
    assert sum(after[kind] for kind in MODEL_STATE) == (2 * size + k) * own + size * frozen
    assert formula_after_backward(job.geometry) == (2 * size + k) * own + size * frozen
    assert progress.sent["reduce"] == size * ((n - 1) * (trained // n) + (trained - own) // n)
    sent = sum(total.bytes_sent for op, total in job.log.totals().items() if op not in AGREEMENT_OPS)
    assert sent == formula_sent(job.geometry, 3)


@pytest.mark.parametrize("stage", ["0", "3"])
def test_what_trains_is_as_if_the_others_were_put_back_after_every_step(group, stage):
    """An oracle that freezes nothing: it trains all, and restores the frozen ones. In float32; on three ranks and more
    other units mean another order of additions."""
    for config, patterns in SETS[1:7:5]:
        config = replace(config, stage=stage, dtype="float32", accumulation=2)
        oracle = prepare(replace(config, stage="0"), group)
        still = {param.name for param in freeze(oracle.task.model.spec, patterns).params if param.frozen}
        kept = {unit.layout.name: unit.param.copy() for unit in oracle.state.units}

        def put_back(record, oracle=oracle, kept=kept, still=still):
            for unit in oracle.state.units:
                here, there = (unit.layout.views(flat) for flat in (unit.param, kept[unit.layout.name]))
                for name in still & set(here):
                    here[name][...] = there[name]

        losses = [record.loss for record in run_steps(oracle, put_back).records]
        job = prepare(replace(config, freeze=patterns), group)
        assert [record.loss for record in run_steps(job).records] == pytest.approx(losses, rel=1e-5)
        wanted = states(oracle)
        for key, value in states(job).items():
            here, there = (np.frombuffer(data, np.float32) for data in (value, wanted[key]))
            assert np.linalg.norm(here - there) <= 1e-5 * np.linalg.norm(there) + 1e-12, key
            assert group.size > 2 or value == wanted[key], key


@pytest.mark.parametrize("stage", ["1", "3"])
def test_hybrid_meshes(group, stage):
    if group.size % 2:
        pytest.skip("does not divide")
    follows_its_plan(prepare(replace(MLP, stage=stage, shard_size=group.size // 2, freeze=("layers.0.*", "*.bias"),
                                     accumulation=2), group))


def test_a_models_own_word(group):
    """Of a user's model, no flag: the same run."""
    model = mlp(hidden=10)
    own = Task(replace(model, spec=freeze(model.spec, ["layers.1.*"])), TeacherTask(MLP.seed))
    jobs = [prepare(replace(MLP, stage="3", freeze=freeze), group, task=task)
            for freeze, task in ((("layers.1.*",), None), ((), own))]
    for job in jobs:
        run_steps(job)
    assert states(jobs[0]) == states(jobs[1]) and jobs[1].wrapping.frozen_numel == 110


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_digests_are_of_what_there_is(group, dtype):
    """The same for every stage. Of frozen parameters the numbers are those that are stored, and nothing of moments."""
    found = []
    for stage in ("0", "3"):
        job = prepare(replace(MLP, stage=stage, dtype=dtype, freeze=("layers.0.*",)), group)
        found.append([sha256(job.task.model.spec, job.state.units, name) for name in ("master", "exp_avg")])
    values = states(job)
    for digest, name in zip(found[0], ("master", "exp_avg"), strict=True):
        names = [param.name for param in job.task.model.spec.params if (name, param.name) in values]
        assert digest == hashlib.sha256(b"".join(values[name, each] for each in names)).hexdigest()
    assert found[0] == found[1] and len(names) == 8


def test_debug_mode_reads_nothing_stale(group):
    for stage in ("1", "3"):
        config = replace(GPT, stage=stage, freeze=("w?e.*", "h.1.ln_1.*"), steps=1)
        plain, poisoned = (prepare(config, group, debug=debug) for debug in (False, True))
        run_steps(plain), run_steps(poisoned)
        assert states(plain) == states(poisoned)


def test_a_pattern_that_matches_nothing(world):
    with pytest.raises(ConfigError, match="`freeze` 'wte' matches no parameter of the model"):
        prepare(replace(MLP, freeze=("layers.0.*", "wte")), world)
    with pytest.raises(ConfigError, match="all 10 parameters are frozen"):
        prepare(replace(MLP, freeze=("layers.*",)), world)


def test_ranks_that_freeze_differently(group):
    """Here in the models that they bring, which no comparison of settings shows."""
    model = mlp(hidden=10)
    spec = freeze(model.spec, ["layers.1.*"]) if group.rank == group.size - 1 else model.spec
    task = Task(replace(model, spec=spec), TeacherTask(0))
    if group.size > 1:
        with pytest.raises(ConfigError, match=r"the model differs between ranks: unit 1 is layers\.1: .* on rank"):
            prepare(MLP, group, task=task)
