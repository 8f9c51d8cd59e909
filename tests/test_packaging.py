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
OPTIONAL = {"ml_dtypes", "matplotlib", "safetensors"}  # extras bf16, plot and checkpoint
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


@pytest.mark.parametrize("package", ["layout", "schedule", "papers", "planner"])
def test_pure_packages_load_neither_numpy_nor_mpi(launch, package):
    """import-linter forbids the imports written in the source; this is what really happens."""
    end = launch(None, "-c", BLOCK.format(blocked=["mpi4py", "numpy"]) + f"import mpizero.{package}")
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
