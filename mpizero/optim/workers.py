"""Threads among which an update is divided. NumPy works on large blocks without holding the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import final

import numpy as np


@final
class Workers:
    """`number` threads, the caller's among them; no thread is started for one."""

    def __init__(self, number: int = 1):
        assert number >= 1, number
        self.number = number
        self._pool = ThreadPoolExecutor(number - 1, thread_name_prefix="update") if number > 1 else None

    def run(self, work: Callable[[int], None], lanes: int) -> None:
        """work(0) here, beside work(1) to work(lanes - 1) in other threads; lanes: at most `number`. What one of them
        raises is raised when all are over. How NumPy treats overflow is a thread's own affair: here all do as the
        caller."""
        assert 1 <= lanes <= self.number, (lanes, self.number)
        treatment = np.geterr()

        def beside(lane: int) -> None:
            with np.errstate(**treatment):
                work(lane)

        others = [] if self._pool is None else [self._pool.submit(beside, lane) for lane in range(1, lanes)]
        try:
            work(0)
        finally:
            failed = [other.exception() for other in others]  # waits
        for error in failed:
            if error is not None:
                raise error


ALONE = Workers()
