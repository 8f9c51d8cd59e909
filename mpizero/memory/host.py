"""How much memory this host has left. Beyond it the kernel kills a process without a word."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")
# (limit, in use) of a container: control groups of version 2 and 1, as they look from inside
CGROUPS = (("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
           ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"))


def available_bytes(root: Path = ROOT) -> int | None:
    """What new allocations may take: of the machine (MemAvailable, which counts what the kernel can drop) and of the
    container, the smaller one. None where nothing tells."""
    known = [_free_of_machine(root), *(_left_of_group(root / limit, root / used) for limit, used in CGROUPS)]
    return min((value for value in known if value is not None), default=None)


def limit_bytes(root: Path = ROOT) -> int | None:
    """What the container may take; None without a limit, or where it is not below the machine's memory."""
    told = [int(text) for text in (_read(root / limit).strip() for limit, _ in CGROUPS) if text.isdigit()]
    match = re.search(r"^MemTotal:\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    limit = min(told, default=None)
    return limit if limit is not None and match and limit < int(match[1]) * 1024 else None


def _free_of_machine(root: Path) -> int | None:
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _left_of_group(limit: Path, used: Path) -> int | None:
    """None without a limit, which version 2 writes as "max"."""
    most, now = _read(limit).strip(), _read(used).strip()
    return max(int(most) - int(now), 0) if most.isdigit() and now.isdigit() else None


def _read(path: Path) -> str:
    """"" where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
