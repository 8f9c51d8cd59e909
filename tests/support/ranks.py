"""`mpirun -n 4 pytest --with-mpi`: four pytests that behave like one. A pytest plugin.

A test that asks for `world`, or for what stands on it, is a rank test (marker `mpi`). Rank tests run on all ranks,
which meet after each phase (setup, call, teardown): a failure on one rank is a failure on all, and rank 0, the only one
that writes to the terminal, reports the traceback of each failing rank. A rank that does not come to a meeting hangs in
MPI, most likely because another one has failed and left it alone: then the job is aborted with the stacks of all ranks.

All other tests run before them, each on one rank, one more at a time than there are cores; of those that start ranks of
their own, which wait for each other and for clocks, two at a time, one under Open MPI, whose jobs disturb each other.
Rank 0 reports them all.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

import pytest

from tests.support.load import scaled

if TYPE_CHECKING:
    from mpizero.comm import Group

NAME = "ranks"  # the plugin's
END = "\0end"  # the text of a rank that runs no more tests
# where a launcher writes which rank a process is
RANK_OF = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID",
           "SLURM_PROCID", "SLURM_LOCALID")
SEVERITY = ("passed", "skipped", "failed")
LAUNCHING = 2  # ranks that run tests which start ranks of their own
# of two jobs at a time Open MPI's daemons were seen not to report (across hosts), or to be unreachable, status 142
OPEN_MPI = "OMPI_COMM_WORLD_RANK"
LAUNCH = 50  # tests of one process take as long as one that starts ranks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("mpi_timeout", "seconds a rank waits for the others after each phase of a rank test", default="60")
    parser.addini("mpi_failed_timeout", "the same for a rank that has failed", default="10")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--with-mpi"):
        config.pluginmanager.register(RankPlugin(config), NAME)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "world" in fixtures:
            item.add_marker("mpi")
        if "launch" in fixtures:
            item.add_marker("launches")
    # what one process can test comes first: the other ranks wait once, not again and again
    items.sort(key=_is_rank_test)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Ranks outside the test's group do not run its body; they meet the others at its end."""
    outside = "group" in pyfuncitem.funcargs and pyfuncitem.funcargs["group"] is None
    return True if outside else None


@pytest.fixture(scope="session")
def world() -> Group:
    """The group of all ranks."""
    from mpizero.comm import start

    return start()


@pytest.fixture(params=[1, 2, 3, 4], ids="n={}".format)
def group(request: pytest.FixtureRequest, world: Group) -> Group | None:
    """The first n ranks with a traffic log of their own, for n = 1, 2, 3, 4; the body runs on these n ranks only.

    A fixture that uses it gets None on the other ranks and must let it through.
    """
    from mpizero.comm import TrafficLog

    if request.param > world.size:
        pytest.skip(f"needs {request.param} ranks, there are {world.size}")
    return world.subgroup(range(request.param), f"first {request.param}", log=TrafficLog())


@pytest.fixture
def shared_path(request: pytest.FixtureRequest, tmp_path: Path, world: Group) -> Path:
    """A temporary folder, the same on all ranks: rank 0's."""
    meeting = request.config.pluginmanager.getplugin(NAME).meeting
    return Path(meeting.share("a shared folder", str(tmp_path))[0])


@final
class RankPlugin:
    """What one rank does so that all stay in step."""

    def __init__(self, config: pytest.Config) -> None:
        from tests.support.meeting import Meeting, OutOfStep

        self.out_of_step = OutOfStep
        self.patience = {outcome: float(config.getini("mpi_timeout")) for outcome in SEVERITY}
        self.patience["failed"] = float(config.getini("mpi_failed_timeout"))
        self.config, self.meeting = config, Meeting(os.dup(2))  # nothing is captured yet
        self.alone = True  # until the tests of one process are over
        self.reports: list[dict] = []  # of those that another rank than 0 has run
        self.told = {name: os.environ[name] for name in RANK_OF if name in os.environ}
        root = Path(tempfile.gettempdir()) / f"pytest-mpi-{getpass.getuser()}-rank{self.meeting.rank}"
        root.mkdir(mode=0o700, exist_ok=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(root)
        if self.meeting.rank > 0:
            config.pluginmanager.unregister(name="terminalreporter")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All ranks must have collected the same tests."""
        names = [item.nodeid for item in session.items]
        for rank, text in enumerate(self.meeting.share("collecting", "\n".join(names))):
            theirs = text.split("\n") if text else []
            if theirs != names:
                self.meeting.over = True
                odd = ", ".join(sorted(set(theirs) ^ set(names))[:5]) or "the same in another order"
                pytest.exit(f"ranks {self.meeting.rank} and {rank} collected different tests: {odd}",
                            pytest.ExitCode.USAGE_ERROR)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """With this rank's share of the tests of one process, which find themselves on rank 0 of the job."""
        cores = int(self.meeting.share("the number of cores", str(os.cpu_count() or 1))[0])
        launching = 1 if OPEN_MPI in os.environ else LAUNCHING
        share = dealt(session.items, min(cores + 1, self.meeting.size), launching)
        session.items[:] = [item for item in session.items
                            if _is_rank_test(item) or share[item.nodeid] == self.meeting.rank]
        os.environ.update(dict.fromkeys(self.told, "0"))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.alone and self.meeting.rank > 0:
            self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def end_alone(self) -> None:
        """Tests of one process are over: rank 0 takes the reports of the others for its own."""
        if not self.alone:
            return
        texts = self.meeting.share("end of the tests of one process", json.dumps(self.reports))
        self.alone = False
        os.environ.update(self.told)
        for data in (data for text in texts if self.meeting.rank == 0 for data in json.loads(text)):
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
            self.config.hook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """No rank begins a rank test before all do. Outermost, so that the clock of the test does not run meanwhile."""
        if _is_rank_test(item):
            self.end_alone()
            if item.session.shouldfail:
                raise item.session.Failed(item.session.shouldfail)
            try:
                self.meeting.share(f"start of {item.nodeid}")
            except self.out_of_step as odd:
                self.meeting.over = True
                raise item.session.Failed(f"rank {odd.args[0].index(END)} has ended its tests") from None
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        """The worst outcome of all ranks is everybody's. Outermost, so that xfail and the like have been applied."""
        report = yield
        if _is_rank_test(item):
            text = "" if report.passed else f"{report.outcome}\0{_details(report)}"
            seconds = scaled(self.patience[report.outcome])
            texts = self.meeting.share(f"{report.when} of {item.nodeid}", text, seconds=seconds)
            _merge(report, {rank: text.split("\0", 1) for rank, text in enumerate(texts) if text})
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """No rank ends before all do: one that waits inside MPI_Finalize would spin."""
        if not self.meeting.over:
            with contextlib.suppress(self.out_of_step):
                self.end_alone()
                self.meeting.share("end", END)
            self.meeting.over = True


def dealt(items: Sequence[pytest.Item], workers: int, launchers: int = LAUNCHING) -> dict[str, int]:
    """The rank that runs a test of one process, by its name. A file goes to one rank as a whole, large ones first; one
    with tests that start ranks to one of the first `launchers`."""
    alone = [item for item in items if not _is_rank_test(item)]
    files, launching, load = Counter[str](), set[str](), [0] * workers
    for item in alone:
        launches = item.get_closest_marker("launches") is not None
        files[str(item.path)] += LAUNCH if launches else 1
        launching |= {str(item.path)} if launches else set()
    rank_of = {}
    for file in sorted(files, key=lambda file: (-files[file], file)):
        ranks = range(min(workers, launchers) if file in launching else workers)
        rank_of[file] = min(ranks, key=lambda rank: (load[rank], rank))
        load[rank_of[file]] += files[file]
    return {item.nodeid: rank_of[str(item.path)] for item in alone}


def _is_rank_test(item: pytest.Item) -> bool:
    return item.get_closest_marker("mpi") is not None


def _details(report: pytest.TestReport) -> str:
    """The traceback, or the reason, and what the test printed."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    return "\n".join([report.longreprtext, *(f"--- {title}\n{content}" for title, content in report.sections)])


def _merge(report: pytest.TestReport, troubles: dict[int, list[str]]) -> None:
    """Give `report` the worst outcome of all ranks; `troubles` holds (outcome, details) of each rank that did not
    pass."""
    worst = max([outcome for outcome, _ in troubles.values()], key=SEVERITY.index, default="passed")
    if worst == report.outcome != "failed":
        return
    report.outcome = worst
    text = "\n".join(f"[rank {rank}] {details}" for rank, (outcome, details) in troubles.items() if outcome == worst)
    report.longrepr = (str(report.location[0]), report.location[1] or 0, text) if worst == "skipped" else text
