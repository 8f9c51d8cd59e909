"""What the kernel's files say about free memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpizero.memory.host import CGROUPS, available_bytes

MEMINFO = "MemTotal:       24683652 kB\nMemFree:         1879404 kB\nMemAvailable:    2048 kB\nSwapFree: 9 kB\n"


def root(folder: Path, **files: str) -> Path:
    names = {"meminfo": "proc/meminfo", "limit2": CGROUPS[0][0], "used2": CGROUPS[0][1], "limit1": CGROUPS[1][0],
             "used1": CGROUPS[1][1]}
    for key, text in files.items():
        path = folder / names[key]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(("files", "expected"), [
    ({}, None),
    ({"meminfo": MEMINFO}, 2 << 20),
    ({"meminfo": MEMINFO, "limit2": "max\n", "used2": "5\n"}, 2 << 20),
    ({"meminfo": MEMINFO, "limit2": "1000\n", "used2": "400\n"}, 600),
    ({"meminfo": MEMINFO, "limit1": "1000\n", "used1": "1400\n"}, 0),
    ({"meminfo": MEMINFO, "limit1": "9223372036854771712\n", "used1": "1400\n"}, 2 << 20),
    ({"meminfo": "nothing of the kind", "limit2": "1000\n"}, None),
])
def test_the_smaller_of_machine_and_container(tmp_path, files, expected):
    assert available_bytes(root(tmp_path, **files)) == expected


def test_this_machine():
    """Against the C library's own count of free pages, which leaves out what the kernel could drop."""
    import os

    free, total = (os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    found = available_bytes()
    assert found is not None and 0 < found <= total
    if not any((Path("/") / limit).exists() for limit, _ in CGROUPS):
        assert found > free / 4
