"""All that was seen, as the judges get it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mpizero.doctor.host import Host
from mpizero.doctor.launched import Started
from mpizero.doctor.rank import Rank


@dataclass(frozen=True)
class Facts:
    """ranks: of each rank, in order; hosts: by name, as hosts come; started: what rank 0 knows of its mpirun."""

    ranks: tuple[Rank, ...]
    hosts: Mapping[str, Host]
    started: Started

    @property
    def where(self) -> list[str]:
        """The host of each rank."""
        return [rank.host for rank in self.ranks]

    @property
    def per_host(self) -> Counter[str]:
        return Counter(self.where)

    def on(self, host: str) -> list[Rank]:
        return [rank for rank in self.ranks if rank.host == host]

    def cores(self, host: str) -> int:
        """That its ranks may use at a time, wherever they are bound."""
        ranks = self.on(host)
        used = len({core for rank in ranks for core in rank.cores})
        return min([used, *(rank.quota for rank in ranks if rank.quota is not None)])

    def is_crowded(self, host: str) -> bool:
        return self.per_host[host] > self.cores(host)

    @property
    def open_mpi(self) -> bool:
        return self.ranks[0].library.startswith("Open MPI")
