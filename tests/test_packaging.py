"""What an installation promises: no MPI needed to import, nothing but NumPy and mpi4py needed to run, no pickle, no
eval."""

from __future__ import annotations

import ast
import configparser
import sys
from pathlib import Path

import pytest

from tests.support.launch import ROOT

SOURCES = sorted((ROOT / "mpizero").rglob("*.py"))
RUNTIME = {"numpy", "mpi4py"}
OPTIONAL = {"ml_dtypes", "matplotlib", "safetensors", "tensorboardX"}  # extras bf16, plot, checkpoint, tensorboard
PICKLING = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
# mpi4py's lower-case methods send pickles
PICKLING_METHODS = {"send", "recv", "isend", "irecv", "sendrecv", "bcast", "gather", "allgather", "scatter", "reduce",
                    "allreduce"}

BLOCK = """
import importlib, pkgutil, sys
for name in {blocked!r}:
    sys.modules[name] = None  # importing it raises ImportError
"""
ALL_MODULES = BLOCK + """
import mpizero
for module in pkgutil.walk_packages(mpizero.__path__, "mpizero."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def test_import_needs_no_mpi_and_loads_no_numpy(launch):
    end = launch(None, "-c", BLOCK.format(blocked=["mpi4py", "numpy"]) + "import mpizero")
    assert end.status == 0, end.output


def test_every_module_imports_without_mpi_and_optional_packages(launch):
    end = launch(None, "-c", ALL_MODULES.format(blocked=["mpi4py", *OPTIONAL]))
    assert end.status == 0, end.output


@pytest.mark.parametrize("command", ["train", "verify", "bench", "__main__"])
def test_a_python_without_numpy_gets_a_sentence(launch, command):
    run = f"import runpy; runpy.run_module('mpizero.{command}', run_name='__main__')"
    end = launch(None, "-c", BLOCK.format(blocked=["numpy"]) + "sys.argv[1:] = ['train']\n" + run)
    assert end.status == 2 and end.stdout == "" and len(end.stderr.splitlines()) == 1, end.output
    assert end.stderr.startswith(f"mpizero: error: NumPy is not installed for {sys.executable} on ")


def test_pure_packages_load_neither_numpy_nor_mpi(launch):
    """import-linter forbids the imports written in the source; this is what really happens."""
    end = launch(None, "-c", BLOCK.format(blocked=["mpi4py", "numpy"])
                 + "import mpizero.layout, mpizero.schedule, mpizero.papers, mpizero.planner")
    assert end.status == 0, end.output


def imports(tree: ast.AST) -> set[str]:
    """Top-level names of the packages that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 11))
    used = imports(tree)
    assert used <= set(sys.stdlib_module_names) | RUNTIME | OPTIONAL | {"mpizero"}
    assert not used & PICKLING
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not {"eval", "exec"} & {func.id for func in called if isinstance(func, ast.Name)}
    methods = {func for func in called if isinstance(func, ast.Attribute) and func.attr in PICKLING_METHODS}
    assert not [ast.unparse(func) for func in methods if "comm" in ast.unparse(func.value).lower()]


def test_every_folder_with_sources_is_installed():
    assert {path.parent for path in SOURCES} == {path.parent for path in SOURCES if path.name == "__init__.py"}


def test_dependencies():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    required = [line.split(">")[0] for line in config["options"]["install_requires"].split()]
    assert set(required) == RUNTIME
    assert "mpi-pytest" not in config["options.extras_require"]["test"].split()
    assert len((ROOT / "pyproject.toml").read_text().splitlines()) == 3


# How setuptools would make an editable install of this folder: _StaticPth puts the folder itself on sys.path
STRATEGY = """
from setuptools.command.editable_wheel import editable_wheel
from setuptools.dist import Distribution
project = Distribution()
project.parse_config_files()
command = editable_wheel(project)
command.ensure_finalized()
command.project_dir = "."
print(type(command._select_strategy("mpizero", "", "")).__name__)
"""


def test_an_editable_install_is_a_plain_path(launch):
    """Its other form, an import hook, comes after the current folder, and loses there against a clone."""
    pytest.importorskip("setuptools")
    end = launch(None, "-W", "ignore", "-c", STRATEGY)
    assert end.stdout.split() == ["_StaticPth"], end.output


@pytest.mark.launches
def test_a_command_runs_beside_a_clone(launch, tmp_path):
    """A clone's folder has the package's name and no __init__.py: a namespace package, of which a path has more."""
    (tmp_path / "mpizero" / "mpizero").mkdir(parents=True)
    (tmp_path / "mpizero" / "mpizero" / "__init__.py").touch()
    end = launch(None, "-m", "mpizero.train", "--steps", "1", cwd=tmp_path)
    assert end.status == 0, end.output
