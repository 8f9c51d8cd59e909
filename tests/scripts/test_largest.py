"""The script that measures table 2: it fails if a cell is not as planned."""

from __future__ import annotations

from itertools import accumulate

import pytest

from mpizero.engine.config import TrainConfig


@pytest.fixture
def script(load):
    return load("largest")


def row(script, cell, **changed):
    plan = script.predicted(cell, 1_000_000)
    return script._row(cell, plan, plan.number, plan.nbytes) | changed


def test_predictions_are_the_plan_command_s(script, plan):
    for cell in (script.Cell(1, 4, "2"), script.Cell(2, 2, "3"), script.Cell(4, 1, "0")):
        found, _ = plan(f"largest --device-memory 1MB --ranks {cell.ranks} --tensor-size {cell.tensor_size} --stage "
                        f"{cell.stage} --d-model 32 --heads 4 --vocab 256 --context 16 --batch-size 2 "
                        "--optimizer adamw")
        guess = script.predicted(cell, 1_000_000)
        assert (guess.number, guess.nbytes, guess.next_bytes) == (found["layers"], found["bytes"],
                                                                  found["next"]["bytes"])


def test_ranks_of_which_one_would_die_alone_are_known(script):
    """Of two places the first needs more at some action: with room for the second there, the first alone dies."""
    cell = script.Cell(2, 1, "0")
    most = script.needs(cell, 4)
    assert script.die_together(cell, 4, most // 2) and script.die_together(cell, 4, most)
    made = [script.planned(cell, 4, rank) for rank in range(2)]
    reached = [accumulate((point.device_bytes for point in
                           script.plan_memory(setup.lists.longest(), setup.geometry, activations).points), max)
               for setup, activations in made]
    room = next(second for first, second in zip(*reached, strict=True) if first > second)
    assert not script.die_together(cell, 4, room)
    assert script.common_room(10**6) == 990_000  # as docs/tensor.md says


@pytest.mark.parametrize("layers, trains, ends",
                         [(5, 5, (5, 500)), (5, 3, (3, 300)), (5, 7, (7, 700)), (1, 0, (0, 0))])
def test_what_is_found_is_found_by_running(script, monkeypatch, layers, trains, ends):
    monkeypatch.setattr(script, "run", lambda cell, layers, room, group: 100 * layers if layers <= trains else None)
    assert script.found(script.CELLS[0], layers, 1, None) == ends


@pytest.mark.parametrize("changed, status", [({}, 0), ({"equal": False}, 1)])
def test_a_cell_that_differs_is_an_error(script, monkeypatch, capsys, tmp_path, changed, status):
    class World:
        rank, size, hosts, library = 0, 4, ("a",) * 4, "MPI"

    monkeypatch.setattr(script, "start_with", lambda ranks, example: World)
    monkeypatch.setattr(script, "together", lambda world, status: status)
    monkeypatch.setattr(script, "common_room", lambda asked: asked)
    monkeypatch.setattr(script, "measured", lambda world, room: [row(script, script.CELLS[3]),
                                                                 row(script, script.CELLS[5], **changed)])
    assert script.main(["--json", str(tmp_path / "f")]) == status
    out = capsys.readouterr().out
    assert f"{2 - status} of 2 cells are as planned" in out and ("NO" in out) is bool(status)
    assert "121.6 | 122.3" in out and "2000 | 2048" in out and (tmp_path / "f").exists()


@pytest.mark.parametrize("group", [2], ids="n={}".format, indirect=True)
def test_a_cell_on_ranks(script, group, few_held_out):
    """The largest trains with as many bytes as planned, the next one runs out."""
    assert isinstance(script.CONFIG, TrainConfig)
    cell, room = script.Cell(2, 1, "3"), 600_000
    while not script.die_together(cell, script.predicted(cell, room).number + 1, room):
        room -= 3000
    guess = script.predicted(cell, room)
    assert script.found(cell, guess.number, room, group) == (guess.number, guess.nbytes)
