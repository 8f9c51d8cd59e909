"""Gradients that are sent and summed in other dtypes than they are made in: as planned, and the same bits at every
stage; and the loss scale as settings have it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mpizero.engine.executor import COLLECTIVES
from mpizero.engine.job import prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from mpizero.engine.unit import Unit
from mpizero.errors import ConfigError, LossScaleError
from mpizero.memory.kinds import GRAD
from mpizero.schedule import STRATEGIES
from mpizero.schedule.actions import ReduceScatterGrad
from tests.engine.plans import follows_its_plan
from tests.engine.runs import GPT, MLP, dealt, outcome, run

# of parameters, of messages, of sums (None: as before it)
PRECISIONS = [("float16", "float32", None), ("float16", None, "float32"), ("float16", "bfloat16", None),
              ("bfloat16", "float32", None), ("bfloat16", None, "float32"), ("float16", "bfloat16", "float32"),
              ("float32", "bfloat16", None), ("float32", "bfloat16", "float32")]


def named(precisions):
    return pytest.mark.parametrize("precision", precisions, ids=lambda names: "-".join(map(str, names)))


def configured(config, precision, **more):
    dtype, wire, sums = precision
    return replace(config, dtype=dtype, reduce_dtype=wire, sum_dtype=sums, **more)


@dealt("dtype, wire, sums", PRECISIONS)
def test_every_stage_computes_the_same_bits_as_planned(group, dtype, wire, sums):
    pytest.importorskip("ml_dtypes")
    same_at_every_stage(configured(MLP, (dtype, wire, sums), steps=2, accumulation=2, clip=0.5), group)


@dealt("dtype, wire, sums, accumulation, no_sync", PRECISIONS[:2], [(1, False), (4, False), (4, True)])
def test_accumulated_or_not(group, dtype, wire, sums, accumulation, no_sync):
    precision = dtype, wire, sums
    same_at_every_stage(configured(MLP, precision, steps=2, accumulation=accumulation, no_sync=no_sync), group)


def same_at_every_stage(config, group):
    outcomes = []
    for stage in STRATEGIES:
        job, result = run(replace(config, stage=stage), group)
        follows_its_plan(job)
        outcomes.append(result)
    assert all(result == outcomes[0] for result in outcomes)
    assert len(set(outcomes[0].losses)) == config.steps


@named([PRECISIONS[0], PRECISIONS[7]])
def test_a_gpt_whose_tied_unit_completes_late(group, precision):
    pytest.importorskip("ml_dtypes")
    outcomes = []
    for stage in ("0", "1", "3"):
        job, result = run(configured(GPT, precision, stage=stage, accumulation=2, steps=2), group)
        follows_its_plan(job)
        outcomes.append(result)
    assert all(result == outcomes[0] for result in outcomes)


@named([PRECISIONS[0], PRECISIONS[1], PRECISIONS[7]])
@pytest.mark.parametrize("stage", ["1-allreduce", "3"])
def test_hybrid_follows_its_plan(group, precision, stage):
    """On shard groups of one rank, what is sent across replicas is what stage 0 sends: the same bits."""
    pytest.importorskip("ml_dtypes")
    for shards in (f for f in range(1, group.size + 1) if group.size % f == 0):
        for accumulation in (1, 2):
            job = prepare(configured(MLP, precision, stage=stage, shard_size=shards, accumulation=accumulation), group)
            follows_its_plan(job)
            if shards == accumulation == 1:
                other = prepare(configured(MLP, precision, stage="0"), group)
                run_steps(other, steps=1)
                assert outcome(job, []) == outcome(other, [])


@pytest.mark.parametrize("stage", ["0", "2", "3"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_float32_wire_gives_the_bits_of_float32_sums_of_16_bits(group, stage, dtype):
    """Gradients have 16 bits when they are made, so nothing is lost on a wire of 16 bits; the other costs twice."""
    pytest.importorskip("ml_dtypes")
    config = replace(MLP, dtype=dtype, stage=stage, accumulation=2, steps=2)
    (wide, there), (sums, here) = (run(replace(config, **more), group)
                                   for more in ({"reduce_dtype": "float32"}, {"sum_dtype": "float32"}))
    plain, without = run(config, group)
    assert here == there
    assert here != without
    if group.size > 1 and stage in "123":
        sent = {name: job.log.totals()["reduce_scatter"].bytes_sent
                for name, job in (("wide", wide), ("sums", sums), ("plain", plain))}
        assert sent["wide"] == 2 * sent["sums"] == 2 * sent["plain"] > 0


# bytes of an element: sent in a step (times (N-1)/N), and held after backward: whole, of a shard. Parameters have 2,
# master weights and moments 12. By hand, as ZeRO sec. 5 and 7 count.
SUMS_BY_HAND = {"0": (2 + 4, 2 + 4 + 12, 0), "1": (2 + 2, 2 + 2, 12), "1-allreduce": (2 + 4 + 2, 2 + 2, 12),
                "2": (2 + 2, 2, 4 + 12), "3": (2 + 2 + 2, 0, 2 + 4 + 12)}
WIDE_BY_HAND = {"0": (4 + 4, 2 + 4 + 12, 0), "1": (4 + 2, 2 + 2, 12), "1-allreduce": (4 + 4 + 2, 2 + 2, 12),
                "2": (4 + 2, 2, 4 + 12), "3": (4 + 2 + 2, 0, 2 + 4 + 12)}


@pytest.mark.parametrize("stage", list(SUMS_BY_HAND))
@pytest.mark.parametrize("more, table", [({"sum_dtype": "float32"}, SUMS_BY_HAND),
                                         ({"reduce_dtype": "float32"}, WIDE_BY_HAND)], ids=["sums", "wire"])
def test_bytes_are_the_formulas(group, stage, more, table):
    job = prepare(replace(MLP, stage=stage, steps=1, loss_scale=1.0, **more), group)
    summary = summarise(job, run_steps(job))
    sent, whole, shard = table[stage]
    psi, n = summary["padded_psi"], group.size
    for memory, traffic in zip(summary["memory"], summary["traffic"], strict=True):
        assert (traffic["sent_bytes_per_step"] == traffic["planned_sent_bytes_per_step"]
                == traffic["formula_sent_bytes_per_step"] == sent * psi * (n - 1) // n)
        assert (memory["after_backward"] == memory["planned_after_backward"] == memory["formula_after_backward"]
                == whole * psi + shard * psi // n)
        assert memory["peak"] == memory["planned_peak"]
    assert (summary["reduce_dtype"], summary["sum_dtype"]) == (more.get("reduce_dtype", "float16"), "float32")


def test_formula_of_a_hybrid_mesh(group):
    """2 of parameters and 2 of gradients inside the shard group; across replicas 2 of them, rounded, and 4 of sums."""
    if group.size != 4:
        pytest.skip("needs 4 ranks")
    job = prepare(replace(MLP, stage="2", shard_size=2, steps=1, loss_scale=1.0, sum_dtype="float32"), group)
    traffic = summarise(job, run_steps(job))["traffic"][0]
    want = (2 + 2) * job.wrapping.padded_numel // 2 + (2 + 4) * job.wrapping.padded_numel // 2 // 2
    assert traffic["sent_bytes_per_step"] == traffic["formula_sent_bytes_per_step"] == want


def test_no_copy_of_gradients_in_another_dtype_lasts(group, monkeypatch):
    """What the reduction leaves is the shard of the sum alone, and of workspace nothing."""
    job = prepare(replace(MLP, hidden=96, stage="3", steps=1, reduce_dtype="float32", loss_scale=1.0), group)
    reduce, seen = COLLECTIVES[ReduceScatterGrad], []

    def noting(unit, axis):
        before = dict(job.ledger.live)
        reduce(unit, axis).finish()
        seen.append({kind: job.ledger.live[kind] - before[kind] for kind in before})
        assert unit.grad.dtype == np.float32
        return done

    done = SimpleNamespace(finish=lambda: None)
    monkeypatch.setitem(COLLECTIVES, ReduceScatterGrad, noting)
    run_steps(job)
    for unit, change in zip(reversed(job.state.units), seen, strict=True):
        assert change.pop(GRAD) == 4 * unit.layout.shard_numel(group.size)
        assert change.pop("unsharded_grad") == -2 * unit.layout.padded_numel
        assert not any(change.values())


# -- overflow: the decision is about the sums as they are kept --------------------------------------------------------


@pytest.fixture
def planted(monkeypatch):
    """planted(value, steps): every rank's unreduced gradient of layers.1 holds it at place 3, in the steps given, or
    with a `rank` on that rank alone."""

    def plant(value, steps=range(1000), rank=None):
        close, calls = Unit.close_grad, [0]

        def poisoned(unit):
            flat = close(unit)
            if unit.layout.name == "layers.1":
                if calls[0] in steps and rank in (None, unit.mesh.world.rank):
                    flat[3] = value
                calls[0] += 1
            return flat

        monkeypatch.setattr(Unit, "close_grad", poisoned)

    return plant


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_4e4_on_4_ranks(group, planted, stage):
    """The sum, 1.6e5 (of it the half, after the loss scale), overflows float16: a step skipped for nothing. Float32
    takes it, and so does the norm."""
    if group.size != 4:
        pytest.skip("needs 4 ranks")
    planted(4e4)
    config = replace(MLP, stage=stage, steps=1, loss_scale=2.0)
    assert run_steps(prepare(config, group)).skipped == 1
    for more in ({"sum_dtype": "float32"}, {"reduce_dtype": "float32"}, {"reduce_dtype": "bfloat16"}):
        (record,) = run_steps(prepare(replace(config, **more), group)).records
        assert not record.skipped
        assert record.grad_norm == pytest.approx(1.6e5 / 2, rel=2**-8)


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
@pytest.mark.parametrize("more", [{"sum_dtype": "float32"}, {"reduce_dtype": "float32"}], ids=["sums", "wire"])
def test_one_inf_on_one_rank_skips_the_step_of_all(group, planted, stage, more):
    """Widened, it is still infinite."""
    planted(np.inf, steps=[0], rank=group.size - 1)
    job = prepare(replace(MLP, stage=stage, steps=3, warmup=2, **more), group)
    before, states = outcome(job, []), []
    progress = run_steps(job, lambda record: states.append(outcome(job, [])))
    assert [record.skipped for record in progress.records] == [True, False, False]
    assert states[0] == before != states[1]
    assert (progress.skipped, progress.updates, job.state.updates, progress.off_plan) == (1, 2, 2, 0)


def test_scripted_overflows_move_the_scale_as_settings_say(group, planted):
    """Growth, backoff and the floor of a run. By hand: from 4, doubled after 2 good steps, halved at an overflow."""
    table = [(False, 4), (False, 4), (False, 8), (True, 8), (False, 4), (True, 4), (False, 2), (False, 2), (True, 4),
             (True, 2)]  # skipped, the scale that was in its gradients; then one at the floor of 1
    planted(np.inf, steps=[step for step, (skipped, _) in enumerate(table) if skipped] + [len(table)], rank=0)
    job, seen = prepare(replace(MLP, steps=20, loss_scale=4.0, growth_interval=2), group), []
    with pytest.raises(LossScaleError, match=r"unit layers\.1 is inf or NaN although .* floor of 1:"):
        run_steps(job, seen.append)
    assert [(record.skipped, record.loss_scale) for record in seen] == table
    assert job.state.updates == 6


def test_settings_of_the_scale():
    settings = resolve(MLP)
    assert (settings.loss_scale, settings.growth_interval) == (65536, 2000)
    settings = resolve(replace(MLP, dtype="bfloat16"))
    assert (settings.loss_scale, settings.growth_interval) == (None, None)
    for name, value in (("loss_scale", 0.5), ("loss_scale", float("inf")), ("growth_interval", 0)):
        with pytest.raises(ConfigError, match=f"`{name}` .* must be at least 1"):
            resolve(replace(MLP, **{name: value}))
    for name in ("loss_scale", "growth_interval"):
        with pytest.raises(ConfigError, match=f"`{name}` 8 has no meaning with `dtype` bfloat16"):
            resolve(replace(MLP, dtype="bfloat16", **{name: 8}))


def test_bfloat16_has_no_scaler(group):
    pytest.importorskip("ml_dtypes")
    job = prepare(replace(MLP, dtype="bfloat16", steps=2), group)
    assert {record.loss_scale for record in run_steps(job).records} == {1.0}
    assert not job.state.scaler.enabled


@pytest.mark.parametrize("dtype, wire, sums, words", [
    ("bfloat16", "float16", None, "`reduce_dtype` float16 cannot hold gradients of `dtype` bfloat16"),
    ("float32", "float16", "float32", "`reduce_dtype` float16 cannot hold gradients of `dtype` float32"),
    ("float16", "float32", "float16", "`sum_dtype` float16 cannot be used where gradients are sent as float32"),
    ("float16", None, "bfloat16", "`sum_dtype` bfloat16 cannot be used where gradients are sent as float16"),
    ("float16", "bfloat16", "float16", "`sum_dtype` float16 cannot be used where gradients are sent as bfloat16")])
def test_what_loses_more_than_it_saves_is_refused(dtype, wire, sums, words):
    with pytest.raises(ConfigError, match=words):
        resolve(configured(MLP, (dtype, wire, sums)))
