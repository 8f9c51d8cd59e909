"""Updates that go on beside the next step: the bits of a serial delayed Adam, the planned bytes, and when they end."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine import beside, trainer, update
from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trace import trace
from mpizero.engine.trainer import catch_up, evaluate_loss, run_steps
from mpizero.engine.verdict import verdict
from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, HOST
from mpizero.optim import Adam
from mpizero.planner import plan_memory
from mpizero.schedule import Course, StepSettings
from tests.engine.plans import fits_its_host_exactly
from tests.engine.runs import GPT, MLP, dealt, outcome, run
from tests.engine.serial import Serial

CPU, ALL = "optimizer=cpu", "params=cpu,optimizer=cpu"
LATE = replace(MLP, steps=6, offload=CPU, delayed_update_after=2)
WAYS = {
    "0": {"stage": "0"}, "1": {"stage": "1", "overlap": "on"}, "1-allreduce": {"stage": "1-allreduce"},
    "2": {"stage": "2", "accumulation": 2, "overlap": "on"}, "3": {"stage": "3", "backward_prefetch": 1},
    "3 all": {"stage": "3", "offload": ALL, "accumulation": 2}, "3-broadcast": {"stage": "3-broadcast"},
    "recompute": {"stage": "3", "recompute": True, "overlap": "on"},
}
LATER, AGAIN = Course(late=True), Course(late=True, catches_up=True)


def same_as_serial(job, records, serial):
    """Losses to the last digits, which ranks add in another order; weights and moments bit for bit."""
    np.testing.assert_allclose([record.loss for record in records], serial.losses, rtol=1e-12)
    assert [record.step for record in records if record.skipped] == serial.skipped
    found = outcome(job, []).states
    for place, name in enumerate(("master", "exp_avg", "exp_avg_sq")):
        expected = b"".join(states[place][: unit.layout.numel].tobytes()
                            for states, unit in zip(serial.states, job.state.units, strict=True))
        assert found[name] == expected, name


@dealt("way, delay, dtype", [
    *((way, 2, "float16") for way in WAYS), *((way, 0, "float32") for way in ("0", "2", "3 all"))])
def test_bits_of_a_serial_delayed_adam(group, way, delay, dtype):
    job = prepare(replace(LATE, **WAYS[way], dtype=dtype, delayed_update_after=delay), group)
    serial = Serial(job, delay)
    serial.run(6)
    same_as_serial(job, run_steps(job).records, serial)


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_an_overflow_between_late_updates(group, stage):
    """The scale doubles until a gradient overflows: then the update before it ends, and none begins."""
    config = replace(LATE, stage=stage, steps=10, delayed_update_after=1, loss_scale=2.0**15, growth_interval=1)
    job = prepare(config, group)
    serial = Serial(job, 1)
    serial.run(10)
    assert serial.skipped and 2 <= serial.skipped[0] < 9, serial.skipped
    progress = run_steps(job)
    same_as_serial(job, progress.records, serial)
    assert Course(updates=False, catches_up=True) in progress.courses and progress.off_plan == 0
    if stage == "2":
        assert verdict(summarise(job, progress)) == ""


def test_the_reference_without_delay_is_a_run_without(group):
    """And with delay it is another."""
    job = prepare(replace(LATE, delayed_update_after=None), group)
    serial, late = Serial(job, None), Serial(job, 2)
    serial.run(6)
    late.run(6)
    same_as_serial(job, run_steps(job).records, serial)
    assert serial.losses[:3] == late.losses[:3] and serial.losses[3] != late.losses[3]


def test_stages_replicas_and_threads_have_the_same_bits(group, monkeypatch):
    """Of a GPT too, clipped, with weight decay."""
    monkeypatch.setattr(update, "THREADED", 1)
    config = replace(GPT, offload=CPU, delayed_update_after=1, clip=0.5)
    expected = run(replace(config, stage="2"), group)[1]
    for stage in ("0", "3"):
        assert run(replace(config, stage=stage, host_threads=2), group)[1] == expected
    if group.size == 4:
        halves = [run(replace(config, stage=stage, shard_size=2), group)[1] for stage in ("2", "3")]
        assert halves[0] == halves[1] and np.allclose(halves[0].losses, expected.losses)


@dealt("options", [
    {}, {"overlap": "on", "accumulation": 2}, {"stage": "3", "offload": ALL}, {"stage": "0"},
    {"stage": "3-broadcast", "overlap": "on"}, {"stage": "3", "no_master_weights": True, "offload": ALL},
    {"stage": "2", "dtype": "float32", "optimizer": "lion"}])
def test_planned_bytes_after_every_action(group, options):
    """A step, one that begins its update, one that ends it and begins its own, and the end."""
    job = prepare(replace(LATE, **{"stage": "2", **options}, steps=4, delayed_update_after=1), group)
    courses = [Course(), LATER, AGAIN, AGAIN]
    job.executor.timeline = []
    progress = run_steps(job)
    assert progress.off_plan == 0 and progress.courses == set(courses)
    lists, records = job.lists, job.executor.timeline
    actions = [action for course in courses for action in lists.along(course)] + lists.catch_up
    assert [record.action for record in records] == actions
    host = plan_memory(actions, job.geometry, tier=HOST)
    device = plan_memory(actions, job.geometry, job.activations())
    for record, there, here in zip(records, host.points, device.points, strict=True):
        live, peak = record.elsewhere[HOST]
        assert {kind: live[kind] for kind in there.live} == there.live, record.text
        assert peak == there.device_bytes, record.text
        assert {kind: record.live[kind] for kind in here.live} == here.live, record.text
    assert job.tiers[HOST].peak_bytes == host.device_peak_bytes
    if not options:  # and the second gradient is there
        assert verdict(summarise(job, progress)) == ""
        plain = plan_memory(lists.step(), job.geometry, tier=HOST)
        assert host.peak_by_kind["grad"] == 2 * plain.peak_by_kind["grad"] > 0


def test_a_run_fits_under_exactly_its_plan(group):
    fits_its_host_exactly(LATE, group)


def test_an_update_goes_on_beside_forward_and_backward(group, monkeypatch):
    """It waits for a loss of the next step, which would not come if that step waited for it."""
    losses, seen = threading.Semaphore(0), []

    class Waiting(Adam):
        def update_block(self, *arrays):
            if threading.current_thread() is not threading.main_thread() and not seen:
                seen.append(losses.acquire(timeout=60))
            super().update_block(*arrays)

    monkeypatch.setattr("mpizero.engine.job.Adam", Waiting)
    job = prepare(replace(LATE, delayed_update_after=0, steps=2, optimizer="adamw", host_threads=1), group)
    forward = type(job.task.loss).forward

    def loss(self, *arguments):
        if job.state.step == 1:
            losses.release()
        return forward(self, *arguments)

    monkeypatch.setattr(type(job.task.loss), "forward", loss)
    run_steps(job)
    assert seen == [True]


def test_what_an_update_raises_is_raised(group, monkeypatch):
    job = prepare(replace(LATE, delayed_update_after=0), group)

    def fail(self, *arrays):
        raise FloatingPointError("in the thread")

    monkeypatch.setattr(Adam, "update_block", fail)
    with pytest.raises(FloatingPointError, match="in the thread"):
        run_steps(job, steps=2)


@pytest.mark.parametrize("options", [{"eval_every": 2}, {"check_replicas": 2}])
def test_whoever_looks_ends_the_update(group, options):
    """So such a run is that of several calls, of which each ends the last update."""
    config = replace(LATE, delayed_update_after=0)
    whole, parts = prepare(replace(config, **options), group), prepare(config, group)
    records = run_steps(whole).records
    losses = [record.loss for _ in range(3) for record in run_steps(parts, steps=2).records]
    assert [record.loss for record in records] == losses != run(config, group)[1].losses
    assert outcome(whole, []).states == outcome(parts, []).states


def test_the_held_out_loss_is_of_all_updates(group):
    job = prepare(replace(LATE, delayed_update_after=0), group)
    serial = Serial(job, 0)
    trainer._one_step(job, trainer.Progress(), lambda: 0)
    assert job.executor.updating
    evaluate_loss(job)
    assert not job.executor.updating
    serial.run(1)
    serial.losses.clear()
    same_as_serial(job, [], serial)
    catch_up(job)  # nothing is left


def test_seconds_and_trace_tell_of_updates(group):
    job = prepare(replace(LATE, log="where actions are timed", delayed_update_after=1), group)
    found = run_steps(job).traced
    assert found.course == AGAIN and len(found.updates) == len(job.wrapping.trained)
    told = trace(job, *found)
    for rank in told["ranks"]:
        assert [each["unit"] for each in rank["updates"]] == [unit.name for unit in job.wrapping.units]
        assert all(0 <= each["exposed_s"] and each["begin_s"] <= each["end_s"] for each in rank["updates"])
        assert all(row["live"][kind] == row["planned_live"][kind] for row in rank["actions"]
                   for kind in row["planned_live"])
    streams = {event["stream"] for event in told["simulated"]["events"]}
    assert "host" in streams and told["simulated"]["seconds"] > 0


@pytest.mark.parametrize("change, words", [
    ({"offload": None}, "updates run on the device: use `offload` optimizer=cpu"),
    ({"offload": "optimizer=nvme"}, "updates run on states in files: use `offload` optimizer=cpu"),
    ({"stage": "3", "offload": "params=nvme,optimizer=nvme"}, "updates run on states in files: use `offload` opt"),
    ({"delayed_update_after": -1}, "`delayed_update_after` -1 is impossible: it must be at least 0"),
])
def test_what_cannot_be(change, words):
    with pytest.raises(ConfigError, match=words):
        StepSettings(**{"offload": CPU, "delayed_update_after": 0, **change})


def test_a_run_that_ends_before(group):
    """It is a run without."""
    config = replace(LATE, delayed_update_after=6)
    job, found = run(config, group)
    assert found == run(replace(config, delayed_update_after=None), group)[1]
    assert job.tiers[DEVICE].live_bytes > 0 and job.executor.host.records == []


def test_the_comparison_can_fail(group, monkeypatch):
    """An update that reads a gradient of the next step, and one that comes a step later still."""
    job = prepare(LATE, group)
    serial = Serial(job, 2)
    serial.run(6)
    monkeypatch.setattr(beside.Beside, "begin", lambda self: setattr(self, "_go", self._go))
    monkeypatch.setattr(beside.Beside, "finish", lambda self: None)
    with pytest.raises(AssertionError):
        same_as_serial(job, run_steps(job).records, serial)
