"""The command `mpizero`: one name in front of all entry points."""

from __future__ import annotations

import configparser
import importlib

import pytest

from mpizero.__main__ import COMMANDS
from tests.support.launch import ROOT


@pytest.mark.parametrize(("ranks", "words", "status", "once"), [
    (None, (), 0, "Each takes --help"), (None, ("--help",), 0, "mpirun -n 4 mpizero train --stage 2"),
    (2, ("--version",), 0, "numpy "), (2, ("trian",), 2, "no command 'trian': did you mean train?"),
    (None, ("xyz",), 2, "commands are train, verify"), (None, ("plan", "fit"), 2, "required"),
    (2, ("train", "--steps", "1"), 0, "replicas equal: yes"), (None, ("report", "nowhere"), 2, "does not exist"),
])
def test_command(launch, ranks, words, status, once):
    end = launch(ranks, "-m", "mpizero", *words)
    assert end.status == status and end.output.count(once) == 1 and "Traceback" not in end.output, end.output


def test_every_entry_point_has_a_name():
    modules = {path.name.removesuffix(".py") for path in (ROOT / "mpizero").glob("*.py")
               if "run_main(main)" in path.read_text()}
    packages = {path.parent.name for path in (ROOT / "mpizero").glob("*/__main__.py")}
    assert modules | packages == COMMANDS.keys()
    for module, _ in COMMANDS.values():
        assert callable(importlib.import_module(module).main)


def test_it_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    module, function = config["options.entry_points"]["console_scripts"].split("=")[1].strip().split(":")
    assert callable(getattr(importlib.import_module(module), function))
