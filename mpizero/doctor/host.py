"""What a host says of itself, by /proc and /sys."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpizero.memory.host import limit_bytes

ROOT = Path("/")
SIOCGIFADDR = 0x8915  # ioctl: an interface's IPv4 address


@dataclass(frozen=True)
class Interface:
    """card: a device stands behind it. speed: bits a second that it states, None if it states none. sent: bytes since
    it came up."""

    name: str
    address: str
    state: str
    card: bool
    speed: float | None
    sent: int


@dataclass(frozen=True)
class Host:
    """cores: those that whoever started its ranks might give them. Sizes in bytes; limit: of the control group, None
    without one; governor and driver: of the first core's clock, "" where they are not told. route: interface of the
    default route."""

    processor: str
    cores: int
    memory: int
    limit: int | None
    swap_used: int
    shm_total: int | None
    shm_free: int | None
    governor: str
    driver: str
    route: str
    interfaces: tuple[Interface, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Host:
        return cls(**data | {"interfaces": tuple(Interface(**each) for each in data["interfaces"])})


def address_of(name: str) -> str:
    """An interface's IPv4 address, "" if it has none."""
    import fcntl  # not on every system

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def this_host(root: Path = ROOT, address: Callable[[str], str] = address_of) -> Host:
    """root: below which /proc and /sys stand."""
    memory, clock = _numbers(root / "proc/meminfo"), root / "sys/devices/system/cpu/cpu0/cpufreq"
    shm = _disk(root / "dev/shm")
    model = re.search(r"^model name\s*:\s*(.+)$", read(root / "proc/cpuinfo"), re.MULTILINE)
    return Host(
        processor=" ".join(model[1].split()) if model else "", cores=_cores(),
        memory=memory.get("MemTotal", 0), limit=limit_bytes(root),
        swap_used=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0), shm_total=shm and shm[0],
        shm_free=shm and shm[1], governor=read(clock / "scaling_governor").strip(),
        driver=read(clock / "scaling_driver").strip(), route=_route(read(root / "proc/net/route")),
        interfaces=interfaces(root, address))


def _cores() -> int:
    """More than this process may use where an mpirun has bound it: its parents, a shell perhaps between, are not."""
    own, parent = len(os.sched_getaffinity(0)), os.getppid()
    above = re.search(r"^PPid:\s*(\d+)$", read(ROOT / f"proc/{parent}/status"), re.MULTILINE)
    found = [own]
    for number in (parent, int(above[1]) if above else 0):
        if number > 1:
            with contextlib.suppress(OSError):  # it may end meanwhile
                found.append(len(os.sched_getaffinity(number)))
    return max(found)


def interfaces(root: Path = ROOT, address: Callable[[str], str] = address_of) -> tuple[Interface, ...]:
    """Of this process's network."""
    return tuple(Interface(name, address(name), read(root / f"sys/class/net/{name}/operstate").strip(),
                           (root / f"sys/class/net/{name}/device").exists(),
                           _speed(read(root / f"sys/class/net/{name}/speed")), sent)
                 for name, sent in sent_bytes(root).items())


def sent_bytes(root: Path = ROOT) -> dict[str, int]:
    """Of each interface, since it came up."""
    rows = re.findall(r"^\s*(\S+):\s*(.+)$", read(root / "proc/net/dev"), re.MULTILINE)
    return {name: int(numbers.split()[8]) for name, numbers in rows}


def _speed(text: str) -> float | None:
    """Bits a second, from 'millions of them'; -1 and nothing mean that it is not known."""
    return int(text) * 1e6 if text.strip().isdigit() and int(text) else None


def _route(text: str) -> str:
    """The interface whose destination and mask are 0."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return next((row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"), "")


def _numbers(path: Path) -> dict[str, int]:
    """`MemTotal:  1024 kB` -> {"MemTotal": 1048576}."""
    return {name: int(number) * 1024 for name, number in re.findall(r"^(\w+):\s+(\d+) kB$", read(path), re.MULTILINE)}


def _disk(path: Path) -> tuple[int, int] | None:
    """(all bytes, free bytes); None where there is none."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return usage.total, usage.free


def read(path: Path) -> str:
    """"" where it cannot be read, as many files of /sys cannot."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
