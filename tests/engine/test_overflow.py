"""One value that is not finite, anywhere, skips the step everywhere; and nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from mpizero.engine.unit import Unit
from mpizero.errors import DivergenceError, LossScaleError
from tests.engine.runs import MLP, outcome, run

CONFIG = replace(MLP, steps=2, warmup=2)


@pytest.fixture
def poison(monkeypatch):
    """poison(rank, unit, element, value, times): this rank's unreduced gradient holds `value` there, in the first
    `times` steps."""

    def poison(rank, unit_name, element, value=np.inf, times=1):
        close, left = Unit.close_grad, [times]

        def poisoned(unit):
            flat = close(unit)
            if unit.layout.name == unit_name and left[0]:
                left[0] -= 1
                if unit.mesh.world.rank == rank:
                    flat[element] = value
            return flat

        monkeypatch.setattr(Unit, "close_grad", poisoned)

    return poison


def places(group):
    """(rank, unit, element, value): in the rank's own shard, in another's, and the last element before padding."""
    return [(0, "layers.0", 0, np.inf), (group.size - 1, "layers.0", 0, np.nan), (0, "layers.4", -1, np.inf),
            (group.size - 1, "layers.2", 57, np.nan)]


@pytest.mark.parametrize("stage", ["0", "1", "1-allreduce", "2", "3"])
@pytest.mark.parametrize("place", range(4))
def test_the_step_is_skipped_by_all(group, poison, stage, place):
    rank, unit, element, value = places(group)[place]
    job = prepare(replace(CONFIG, stage=stage), group)
    if element == -1:
        element = next(u.layout.numel for u in job.state.units if u.layout.name == unit) - 1
    before = outcome(job, [])
    poison(rank, unit, element, value)
    states = []
    progress = run_steps(job, lambda record: states.append(outcome(job, [])))
    assert [record.skipped for record in progress.records] == [True, False]
    assert [record.loss_scale for record in progress.records] == [65536, 32768]
    assert states[0] == before and states[1] != before  # weights and moments are untouched by the skipped step
    assert progress.records[0].lr == progress.records[1].lr  # the schedule has not moved on
    assert (progress.updates, progress.skipped, progress.off_plan) == (1, 1, 0)


def test_a_skipped_step_leaves_the_run_as_if_it_had_not_been(group, poison):
    """Skip, then step, is the same bits as the step alone at the lower scale, on the same batch."""
    alone = prepare(replace(MLP, steps=1), group)
    alone.state.scaler.scale = 32768.0
    assert run_steps(alone).updates == 1
    poison(0, "layers.3", 1)
    job = prepare(replace(MLP, steps=2), group)
    again = lambda record: setattr(job.state, "position", 0)  # noqa: E731  the second step begins at the same sample
    assert (run_steps(job, again).updates, job.state.scaler.scale) == (1, 32768.0)
    assert outcome(job, []) == outcome(alone, [])


def test_endless_overflow_ends_with_the_units_name(group, poison):
    poison(0, "layers.1", 3, times=1000)
    with pytest.raises(LossScaleError, match="layers.1"):
        run_steps(prepare(replace(CONFIG, steps=40), group))


def test_float32_has_no_scale_to_lower(group, poison):
    poison(group.size - 1, "layers.2", 0, np.nan)
    with pytest.raises(DivergenceError, match="layers.2"):
        run_steps(prepare(replace(CONFIG, dtype="float32"), group))


def test_float16_learns_as_well_as_float32(group):
    """The five-layer MLP, 50 steps: the last ten losses within 5 %."""
    if group.size not in (1, 4):
        pytest.skip("one and four ranks suffice")
    config = replace(MLP, hidden=96, batch_size=16, steps=50)
    half, single = (np.mean(run(replace(config, dtype=dtype), group)[1].losses[-10:])
                    for dtype in ("float16", "float32"))
    assert abs(half / single - 1) < 0.05


def test_the_first_of_several_units_is_named(group, poison):
    for unit in ("layers.3", "layers.1", "layers.2"):
        poison(group.size - 1, unit, 0)
    with pytest.raises(DivergenceError, match="unit layers.1 "):
        run_steps(prepare(replace(CONFIG, dtype="float32"), group))


@pytest.mark.usefixtures("few_held_out")
@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_a_run_that_skips_every_step_is_as_planned(group, poison, stage):
    """Without the update, of which nothing was stored or sent."""
    poison(0, "layers.1", 3, times=1000)
    job = prepare(replace(CONFIG, stage=stage), group)
    progress = run_steps(job)
    summary = summarise(job, progress)
    assert (progress.updates, summary["skipped_steps"]) == (0, 2)
    for memory, traffic in zip(summary["memory"], summary["traffic"], strict=True):
        assert memory["peak"] == memory["planned_peak"]
        assert memory["after_backward"] == memory["planned_after_backward"]
        assert traffic["sent_bytes_per_step"] == traffic["planned_sent_bytes_per_step"]
        assert traffic["steps_off_plan"] == 0
