"""The script that trains larger models: it fails if a run ends otherwise than its table says."""

from __future__ import annotations

import pytest

DIED = "mpizero.train: error: out of {} memory: the run needs 1,234 bytes on a rank (at rest), and ..."


@pytest.fixture
def script(load):
    return load("larger_models")


def summary(losses=(2.0, 1.0), planned=7):
    row = {key: 7 for tier in ("device", "host", "nvme") for key in (f"{tier}_peak", f"planned_{tier}_peak")}
    return {"losses": list(losses), "memory": [row, row | {"planned_host_peak": planned}]}


def as_expected(script, cell):
    if cell.ends == script.TRAINS:
        return script.Ended(0, "", summary())
    return script.Ended(2, DIED.format("device" if cell.ends == script.DEVICE else "host"), None)


def test_models_are_of_one_family_and_so_many_times_larger(script):
    small, middle, large = sorted({cell.psi for cell in script.CELLS})
    assert 4 * small <= middle < 4.2 * small and 16 * small <= large < 16.2 * small


def test_what_only_offload_and_only_files_can_train(script):
    trains = {(cell.layers, cell.stage, cell.offload) for cell in script.CELLS if cell.ends == script.TRAINS}
    assert trains == {(4, "3", None), (17, "3", script.CPU), (17, "3", script.ALL_CPU), (67, "3", script.ALL_NVME)}


@pytest.mark.parametrize("number, status", [(None, 0), (0, 1), (3, 1), (9, 1)])
def test_a_cell_that_ends_otherwise_is_an_error(script, monkeypatch, capsys, number, status):
    """Also one that dies of the other memory."""
    other = script.Ended(2, DIED.format("device"), None)

    def run(cell, folder, limit):
        odd = number is not None and cell is script.CELLS[number]
        return (script.Ended(0, "", summary()) if number == 0 else other) if odd else as_expected(script, cell)

    monkeypatch.setattr(script, "run", run)
    assert script.main([]) == status
    assert ("it should be" in capsys.readouterr().out) is bool(status)


@pytest.mark.parametrize("ended, words", [
    ((0, "", summary()), "trains"), ((0, "", None), "status 0: "), ((1, "x", summary()), "status 1: x"),
    ((0, "", summary([2.0])), r"losses [2.0]"), ((0, "", summary([2.0, None])), "losses [2.0, None]"),
    ((0, "", summary(planned=8)), "host_peak off its plan"), ((2, "error: no such file", None), "error: no such file"),
    ((2, DIED.format("host"), None), "out of host memory"),
], ids=["trains", "no summary", "status", "a step", "not finite", "plan", "another mistake", "host"])
def test_how_a_run_ended(script, ended, words):
    assert script.judge(script.CELLS[3], script.Ended(*ended)) == words


def test_what_a_run_needs(script):
    assert script.needs(script.Ended(2, DIED.format("host"), None)) == ["-", 1234, "-"]
    assert script.needs(script.Ended(0, "", summary())) == [7, 7, 7]
