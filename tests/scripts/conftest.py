"""What tests of the scripts share."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.scripts.written import SCRIPTS


@pytest.fixture
def load(monkeypatch):
    """A script, or a module beside it, imported."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def load(name: str):
        spec = importlib.util.spec_from_file_location(f"scripts_{name}", SCRIPTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look for it
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def no_matplotlib(tmp_path):
    """A folder for PYTHONPATH: figures are most of what a script takes."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "matplotlib.py").write_text("raise ImportError")
    return str(tmp_path / "blocked")
