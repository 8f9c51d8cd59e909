"""The proof holds; and it says so only because it can also fail."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mpizero import verify
from mpizero.comm import reduce_scatter
from mpizero.engine.unit import Unit
from mpizero.schedule import Schedule

VERIFY = ("-m", "mpizero.verify")


def test_the_whole_proof(world):
    if world.size != 4:
        pytest.skip(f"needs 4 ranks, there are {world.size}")
    proof = verify.prove(replace(verify.MODELS["mlp"], steps=12), world)  # .ci/run proves all 50
    assert proof["holds"]
    check_fault(proof["rows"][-1])
    if world.rank == 0:  # it alone is in every group
        check_groups(proof["rows"])


def check_groups(rows):
    proven = {(row["ranks"], row["stage"]) for row in rows if row["row"] == "stage"}
    assert proven == {(ranks, stage) for ranks in (1, 2, 3, 4) for stage in ("0", "1", "1-allreduce", "2", "3")}
    (hybrid,) = [row for row in rows if row["row"] == "hybrid"
                 and (row["ranks"], row["stage"], row["shard_size"]) == (4, "3", 2)]
    assert (hybrid["sent"], hybrid["after_backward"]) == (130_624, 8 * 32_656)


def check_fault(fault):
    assert fault["row"] == "fault" and fault["checksums_detect_it"]
    assert fault["loss"] > 1.1 * fault["right_loss"] and fault["largest_difference"] > 0.03


def test_the_command_for_a_gpt(launch, tmp_path):
    end = launch(2, *VERIFY, "--model", "gpt", "--json", tmp_path / "proof.json", timeout=240)
    assert end.status == 0 and "every claim holds" in end.stdout, end.output
    assert json.loads((tmp_path / "proof.json").read_text())["holds"]


TWO_RANKS = pytest.mark.parametrize("group", [2], ids=["n=2"], indirect=True)


@pytest.fixture
def quick(group):
    return replace(verify.MODELS["mlp"], steps=3, hidden=8), group


def broken(proof):
    """The claims that are false in some row."""
    return {claim for row in proof["rows"] for claim, holds in row.items() if holds is False}


@TWO_RANKS
def test_a_stage_that_forgets_to_reduce_does_not_pass(quick, monkeypatch, group):
    def forgetful(ring, flat, out, *, unit, **more):
        out.fill(0) if unit == "layers.2" else reduce_scatter(ring, flat, out, unit=unit, **more)

    monkeypatch.setattr("mpizero.engine.unit.reduce_scatter", forgetful)
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if group.rank == 0:
        assert broken(proof) >= {"weights_equal_dp", "losses_equal_dp", "traffic_equals_plan"}


@TWO_RANKS
def test_a_buffer_that_is_not_freed_does_not_pass(quick, monkeypatch, group):
    kept = []
    reshard = Unit.reshard

    def leaky(unit):
        kept.append(unit.whole_param)
        reshard(unit)

    monkeypatch.setattr(Unit, "reshard", leaky)
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if group.rank == 0:
        assert "bytes_equal_plan" in broken(proof) and "weights_equal_dp" not in broken(proof)


@pytest.mark.parametrize("loss, weight", [(1.001, 1.0), (1.0, 1.001), (np.nan, 1.0), (1.0, np.nan)])
def test_another_loss_or_state_is_not_equal_to_rounding(loss, weight):
    """Whatever the type of the numbers: a NumPy bool would count for nothing, as it is no `bool`."""
    row = verify._distance(([np.float64(loss)], [np.array([weight])]), ([np.float64(1.0)], [np.array([1.0])]))
    assert row["equal_to_rounding"] is False and not verify._all_true(row)


@TWO_RANKS
def test_a_fault_that_is_not_injected_is_not_found(quick, monkeypatch, group):
    def replaced(thing, **changes):
        return thing if isinstance(changes.get("lists"), Schedule) else replace(thing, **changes)

    monkeypatch.setattr(verify, "replace", replaced)
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if group.rank == 0:
        assert "checksums_detect_it" in broken(proof)


@pytest.mark.parametrize("holds", [True, False])
def test_the_verdict_is_the_exit_status(monkeypatch, world, holds):
    monkeypatch.setattr(verify, "prove", lambda config, world: {"holds": holds})
    assert verify.main([]) == (0 if holds else 1)


@pytest.mark.parametrize("other", ["weights", "moments", "losses"])
def test_whatever_differs_from_data_parallelism_is_said(other):
    dp = {"weights": "a", "moments": "b", "losses": [1.0]}
    row = dp | {other: "c"}
    verify._compare([row], dp)
    assert {what: row[f"{what}_equal_dp"] for what in dp} == {what: what != other for what in dp}
