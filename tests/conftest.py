"""Fixtures of all tests; how ranks run them together stands in tests/support/ranks.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mpizero  # noqa: F401  first of all: it sets the number of BLAS threads, which NumPy reads when it is loaded

import pytest
from hypothesis import settings

from tests.support.launch import launch as launch_ranks
from tests.support.ranks import RankPlugin, add_options

if TYPE_CHECKING:
    from mpizero.dist import Group

# No deadline: a machine shared with others is slow now and then. The rest is hypothesis' choice (in CI: the same examples every time).
settings.register_profile("patient", parent=settings(), deadline=None)
settings.load_profile("patient")


def pytest_addoption(parser):
    add_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if config.getoption("--with-mpi"):
        config.pluginmanager.register(RankPlugin(config), "ranks")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """A test that asks for `world` (or what stands on it) is a rank test, one that asks for `launch` starts its own ranks."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "world" in fixtures:
            item.add_marker("mpi")
        if "launch" in fixtures:
            item.add_marker("launches")
    # What one process can test comes first: the other ranks wait once, not again and again.
    items.sort(key=lambda item: item.get_closest_marker("mpi") is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Ranks outside the test's group do not run its body; they meet the others at its end."""
    if "group" in pyfuncitem.funcargs and pyfuncitem.funcargs["group"] is None:
        return True
    return None


@pytest.fixture(scope="session")
def world():
    """The group of all ranks."""
    from mpizero.dist import start

    return start()


@pytest.fixture(scope="session")
def groups(world) -> dict[int, Group | None]:
    """{n: group of the first n ranks, None on the others}. Made once: communicators are few."""
    return {n: world.subgroup(range(n), f"first {n}") for n in range(1, world.size + 1)}


@pytest.fixture(params=[1, 2, 3, 4], ids="n={}".format)
def group(request, groups) -> Group | None:
    """The group of the first n ranks with a traffic log of its own, for n = 1, 2, 3, 4; the body runs on these n ranks only.

    A fixture that uses it gets None on the other ranks and must let it through.
    """
    from mpizero.dist import TrafficLog

    if request.param not in groups:
        pytest.skip(f"needs {request.param} ranks, there are {len(groups)}")
    chosen = groups[request.param]
    return None if chosen is None else chosen.using(log=TrafficLog())


@pytest.fixture
def shared_path(request, tmp_path, world):
    """A temporary folder, the same on all ranks."""
    return request.config.pluginmanager.getplugin("ranks").shared_path(tmp_path)


@pytest.fixture
def launch():
    """launch(n, *python_arguments): start n ranks under mpirun; see tests/support/launch.py."""
    return launch_ranks
