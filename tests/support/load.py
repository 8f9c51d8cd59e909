"""Tests wait longer on a machine that does other things as well."""

from __future__ import annotations

import os

MOST = 10.0  # times; beyond it a wait is a hang


def scaled(seconds: float) -> float:
    """`seconds` on an idle machine, as long as that takes with the processes that now wait for each core."""
    cores = len(os.sched_getaffinity(0))
    return seconds * min(max(1.0, os.getloadavg()[0] / cores), MOST)
