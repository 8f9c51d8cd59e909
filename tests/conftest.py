"""What all tests share. How ranks run them as one, and the fixtures for that, stand in tests/support/ranks.py."""

from __future__ import annotations

import json

import mpizero  # noqa: F401  first of all: it sets the number of BLAS threads, which NumPy reads when it is loaded

import pytest
from hypothesis import settings

from mpizero.data import TeacherTask, text

from tests.support.launch import launch as launch_ranks

pytest_plugins = ["tests.support.ranks"]

# No deadline: a machine shared with others is slow now and then. The rest is hypothesis' choice (in CI: the same
# examples every time).
settings.register_profile("patient", parent=settings(), deadline=None)
settings.load_profile("patient")


@pytest.fixture
def launch():
    """launch(n, *python_arguments): start n ranks under mpirun; see tests/support/launch.py."""
    return launch_ranks


@pytest.fixture
def few_held_out(monkeypatch):
    """Evaluations are of 64 samples, or 16 windows of text: all of them, in small batches, cost far more than steps."""
    monkeypatch.setattr(TeacherTask, "eval_size", 64)
    monkeypatch.setattr(text, "EVAL_WINDOWS", 16)


@pytest.fixture
def plan(capsys, tmp_path):
    """plan("memory --params 7e9 ..."): (the JSON, what was printed). The command must succeed and print nothing too
    wide."""
    from mpizero.plan.__main__ import main

    def run(command):
        path = tmp_path / "answer.json"
        status = main([*command.split(), "--json", str(path)])
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 100, max(out.splitlines(), key=len)
        return json.loads(path.read_text()), out
    return run
