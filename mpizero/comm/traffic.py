"""What a rank sent: one record per collective, as data."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Message:
    """One message, as one of its ends saw it.

    peer: the group rank of the other end; time_s: perf_counter when its send began, or when it had arrived.
    """

    peer: int
    nbytes: int
    time_s: float


@final
@dataclass(frozen=True, slots=True)
class Record:
    """One collective, as one rank saw it.

    Bytes are payload; messages are those really sent; seconds are from its first message to its last.
    begin_s: perf_counter when they began. sends, arrivals: each message, where the log is `timed`. bytes_between: of
    the bytes sent, those that left the host. exposed: seconds in which this rank only waited for it, of which `waited`
    until the first message was there.
    """

    op: str
    unit: str
    phase: str
    group: str
    dtype: str
    numel: int
    bytes_sent: int
    bytes_received: int
    messages: int
    seconds: float
    begin_s: float = 0.0
    sends: tuple[Message, ...] = ()
    arrivals: tuple[Message, ...] = ()
    bytes_between: int = 0
    waited: float = 0.0
    exposed: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the records of one op."""

    calls: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0
    seconds: float = 0.0
    bytes_between: int = 0


@final
@dataclass
class TrafficLog:
    """Every collective of one rank in the order of calls. Logging never changes what is sent.

    timed: note each message as well.
    """

    records: list[Record] = field(default_factory=list)
    timed: bool = False

    def append(self, record: Record) -> None:
        self.records.append(record)

    def clear(self) -> None:
        self.records.clear()

    def totals(self) -> dict[str, Totals]:
        """{op: sums over its records}, in the order in which the ops first appeared."""
        groups: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            groups[record.op].append(record)
        return {op: _sum(records) for op, records in groups.items()}


def _sum(records: list[Record]) -> Totals:
    return Totals(len(records), sum(r.bytes_sent for r in records), sum(r.bytes_received for r in records),
                  sum(r.messages for r in records), sum(r.seconds for r in records),
                  sum(r.bytes_between for r in records))
