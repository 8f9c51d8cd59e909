"""Process groups: who takes part in a collective."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

from mpizero.comm.traffic import TrafficLog
from mpizero.comm.wait import gave_up, wait
from mpizero.errors import ConfigError
from mpizero.memory.ledger import Allocator, Uncounted


@final
class Group:
    """Some ranks and their own communicator, so that nobody else's messages can be mistaken for ours.

    rank, size: this process among the group's; ranks: world rank of each; hosts: of each a name that is the same for
    two ranks if they share a host ('node', and of another host so named 'node#2'); log: receives one
    record per collective; mem: where rings take their workspace from; checked: ranks compare what they call first, see
    `checked`. Made by `start`, `subgroup` and `mesh`.
    """

    def __init__(self, mpi: Any, comm: Any, ranks: Sequence[int], hosts: Sequence[str], name: str, tests: int):
        self._mpi = mpi  # the module mpi4py.MPI, which only `start` loads
        self._comm = comm  # an mpi4py.MPI.Intracomm
        self._shared = _Shared()
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.ranks = tuple(ranks)
        self.hosts = tuple(hosts)
        self.name = name
        self.tests = tests  # see wait.tests; of the world, since ranks outside the group want their cores too
        self.log = TrafficLog()
        self.mem: Allocator = Uncounted()
        self.checked = False

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"

    def where(self, rank: int) -> str:
        """For people: `rank 3 on host1`, as the world counts; rank: of this group."""
        return f"rank {self.ranks[rank]} on {self.hosts[rank]}"

    @property
    def library(self) -> str:
        """Name and version of the MPI library: 'Open MPI v5.0.11', 'MPICH 5.0.2'."""
        return library_name(self._mpi)

    @property
    def thread_level(self) -> str:
        """What MPI provides: 'MULTIPLE' where any thread may call it, else 'SERIALIZED', 'FUNNELED' or 'SINGLE'."""
        levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
        provided = self._mpi.Query_thread()
        return next(name for name in levels if getattr(self._mpi, f"THREAD_{name}") == provided)

    def using(self, log: TrafficLog | None = None, mem: Allocator | None = None, checked: bool | None = None) -> Group:
        """The same group and communicator with other books."""
        group = copy.copy(self)
        group.log = self.log if log is None else log
        group.mem = self.mem if mem is None else mem
        group.checked = self.checked if checked is None else checked
        return group

    def subgroup(self, ranks: Sequence[int], name: str, log: TrafficLog | None = None) -> Group | None:
        """A group of some of this group's ranks with its own communicator.

        ranks: numbered as in this group, in the order given. Collective: every rank of this group calls it with the
        same arguments; ranks outside get None. Asked again for the same ranks and name, it returns the same
        communicator, of which MPI libraries have only some thousand. ConfigError for ranks that are unknown or given
        twice, CommunicationError where ranks do not come in time.
        """
        ranks = tuple(ranks)
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks):
            raise ConfigError(f"group {name!r}: ranks {ranks} must be different and lie in 0..{self.size - 1}")
        if (ranks, name) not in self._shared.subgroups:
            self._shared.subgroups[ranks, name] = self._split(ranks, name)
        group = self._shared.subgroups[ranks, name]
        return group and group.using(self.log if log is None else log, self.mem, self.checked)

    def _split(self, ranks: tuple[int, ...], name: str) -> Group | None:
        """MPI's own call would wait for ever for a rank that does not come, so all meet first."""
        lack = f"group {name!r} cannot be made: not all ranks of group {self.name!r} have come"
        if not wait(self._comm.Ibarrier().Test, tests=self.tests, lack=lambda: lack):
            raise gave_up(lack)
        inside = self.rank in ranks
        comm = self._comm.Split(0 if inside else self._mpi.UNDEFINED, ranks.index(self.rank) if inside else 0)
        if not inside:
            return None
        return Group(self._mpi, comm, [self.ranks[r] for r in ranks], [self.hosts[r] for r in ranks], name, self.tests)

    def _next_call(self) -> int:
        """Running number of a collective on this communicator."""
        self._shared.calls += 1
        return self._shared.calls


def library_name(mpi: Any) -> str:
    """Of the module mpi4py.MPI: 'Open MPI v5.0.11', 'MPICH 5.0.2'. MPI need not have started."""
    line = mpi.Get_library_version().replace("\0", "").split("\n")[0]
    words = line.replace(",", " ").replace("Version:", " ").split()
    return " ".join(words[:3] if words[0] == "Open" else words[:2])


@final
class _Shared:
    """What all views of one communicator have in common."""

    def __init__(self) -> None:
        self.calls = 0
        self.subgroups: dict[tuple[tuple[int, ...], str], Group | None] = {}
