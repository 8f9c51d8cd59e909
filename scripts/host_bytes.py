"""mpizero.train whose summary also tells what left each host, by the books and by the network interfaces.

`run_hosts.sh` starts it on every rank; on real hosts mpirun can, with the flags of mpizero.train. Then `--json FILE`
has more keys. Of each rank, in `traffic[]`:

  inter_host_bytes_per_step           what it sent to other hosts in the last step that updated, from its traffic log

and of each host, in `hosts[]`, its `name` and `ranks` and

  inter_host_bytes_per_step           the sum over its ranks
  planned_inter_host_bytes_per_step   the same, from the list of actions
  interface_bytes_per_step            what its interfaces (all but lo) sent from the first step's begin to the last
                                      one's end, by the kernel's counters, divided by the steps
  interface_payload_bytes_per_step    the same without 66 bytes a packet, the headers of Ethernet, IP and TCP: so
                                      acknowledgements count nothing

Beside what the books count, interfaces count the agreement on each step, MPI's own headers and handshakes, ssh's signs
of life, two barriers, evaluations between steps (`--eval-every`), and whatever else the host sends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpizero import train
from mpizero.comm import barrier, run_main
from mpizero.engine import summary
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job
from mpizero.engine.trainer import Progress, run_steps

HEADERS = 14 + 20 + 32  # Ethernet, IPv4, TCP with time stamps
COUNTED = Path("/proc/net/dev")  # of the network in which the process that reads it lives


def sent(text: str) -> tuple[int, int]:
    """Bytes and packets that have left, from the text of /proc/net/dev: per interface eight numbers of what was
    received (bytes, packets, ...), and eight of what was sent."""
    rows = [line.split(":") for line in text.splitlines() if ":" in line]
    columns = [numbers.split() for name, numbers in rows if name.strip() != "lo"]
    return sum(int(row[8]) for row in columns), sum(int(row[9]) for row in columns)


def with_hosts(told: dict[str, Any], counts: list[tuple[int, int]], names: list[str]) -> dict[str, Any]:
    """A summary `told` with the keys above. counts: of each rank, bytes and packets that have left its host during the
    steps; names: of its host."""
    traffic = [row | {"inter_host_bytes_per_step": row["between_hosts_bytes_per_step"]} for row in told["traffic"]]
    hosts, steps = [], max(len(told["losses"]), 1)
    for name in dict.fromkeys(names):
        ranks = [rank for rank, host in enumerate(names) if host == name]
        size, packets = counts[ranks[0]]
        hosts.append({
            "name": name, "ranks": ranks,
            "inter_host_bytes_per_step": sum(traffic[rank]["between_hosts_bytes_per_step"] for rank in ranks),
            "planned_inter_host_bytes_per_step":
                sum(traffic[rank]["planned_between_hosts_bytes_per_step"] for rank in ranks),
            "interface_bytes_per_step": size / steps,
            "interface_payload_bytes_per_step": (size - HEADERS * packets) / steps,
        })
    return told | {"traffic": traffic, "hosts": hosts}


def main() -> int:
    """Train; between the parts of it, read the counters."""
    counts: list[tuple[int, int]] = []

    def read(job: Job) -> None:
        """While no rank sends: all have come here, and none goes on before all have read."""
        barrier(job.world)
        counts.append(sent(COUNTED.read_text()))
        barrier(job.world)

    def counted_steps(job: Job, *args: Any, **kwargs: Any) -> Progress:
        read(job)
        progress = run_steps(job, *args, **kwargs)
        read(job)
        return progress

    def summarise(job: Job, progress: Progress) -> dict[str, Any]:
        before, after = counts
        grown = gather_data(job.world, (after[0] - before[0], after[1] - before[1]))
        return with_hosts(summary.summarise(job, progress), grown, list(job.world.hosts))

    train.run_steps, train.summarise = counted_steps, summarise
    return train.main()


if __name__ == "__main__":
    run_main(main)
