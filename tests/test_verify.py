"""The proof holds; and it says so only because it can also fail."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mpizero import verify
from mpizero.dist import reduce_scatter
from mpizero.engine.job import Lists
from mpizero.engine.unit import Unit

VERIFY = ("-m", "mpizero.verify")


def test_the_whole_proof(world):
    proof = verify.prove(verify.MODELS["mlp"], world)
    assert proof["holds"]
    if world.rank > 0:
        return  # rank 0 has all rows
    rows = proof["rows"]
    proven = {(row["ranks"], row["stage"]) for row in rows if row["row"] == "stage"}
    assert proven == {(ranks, stage) for ranks in (1, 2, 3, 4) for stage in ("0", "1", "1-allreduce", "2", "3")}
    hybrid = next(row for row in rows if row["row"] == "hybrid" and (row["ranks"], row["stage"], row["shard_size"]) == (4, "3", 2))
    assert (hybrid["sent"], hybrid["after_backward"]) == (130_624, 8 * 32_656)
    fault = rows[-1]
    assert fault["row"] == "fault" and fault["checksums_detect_it"]
    assert fault["loss"] > 1.5 * fault["right_loss"] and fault["largest_difference"] > 0.05


def test_the_command_for_a_gpt(launch, tmp_path):
    end = launch(2, *VERIFY, "--model", "gpt", "--json", tmp_path / "proof.json", timeout=240)
    assert end.status == 0 and "every claim holds" in end.stdout, end.output
    assert json.loads((tmp_path / "proof.json").read_text())["holds"]


@pytest.fixture
def quick(world):
    return replace(verify.MODELS["mlp"], steps=3, hidden=8), world


def broken(proof, *keys):
    """The named claims are false in some row, on rank 0, whose verdict counts."""
    return not proof["holds"] and all(any(row.get(key) is False for row in proof["rows"]) for key in keys)


def test_a_stage_that_forgets_to_reduce_does_not_pass(quick, monkeypatch, world):
    def forgetful(group, flat, out, *, unit, **more):
        out.fill(0) if unit == "layers.2" else reduce_scatter(group, flat, out, unit=unit, **more)

    monkeypatch.setattr("mpizero.engine.unit.reduce_scatter", forgetful)
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if world.rank == 0:
        assert broken(proof, "weights_equal_dp", "losses_equal_dp", "traffic_equals_plan")


def test_a_buffer_that_is_not_freed_does_not_pass(quick, monkeypatch, world):
    kept = []
    reshard = Unit.reshard

    def leaky(unit):
        kept.append(unit.whole_param)
        reshard(unit)

    monkeypatch.setattr(Unit, "reshard", leaky)
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if world.rank == 0:
        assert broken(proof, "bytes_equal_plan") and not any(row.get("weights_equal_dp") is False for row in proof["rows"])


def test_a_fault_that_is_not_injected_is_not_found(quick, monkeypatch, world):
    monkeypatch.setattr(verify, "replace", lambda thing, **changes: thing if isinstance(changes.get("lists"), Lists) else replace(thing, **changes))
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if world.rank == 0:
        assert broken(proof, "checksums_detect_it")
