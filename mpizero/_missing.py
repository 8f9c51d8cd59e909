"""A Python without NumPy gets a sentence: entry points import NumPy before they can tell mistakes from bugs."""

from __future__ import annotations

import importlib.util
import platform
import sys
import time
from types import TracebackType

from mpizero.launcher import rank_on_machine

LET_FIRST_SPEAK = 2.0  # seconds: an mpirun may end all ranks when the first has left with an error


def explain_missing_numpy() -> None:
    """Where there is no NumPy, an import of it that nobody catches ends the process with that sentence and status 2."""
    if importlib.util.find_spec("numpy") is None:
        sys.excepthook = _explain


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, ImportError) or error.name != "numpy":
        return sys.__excepthook__(kind, error, trace)
    if rank_on_machine() in (None, 0):
        print(f"mpizero: error: NumPy is not installed for {sys.executable} on {platform.node()}: "
              f"{sys.executable} -m pip install numpy, or start the Python that mpizero was installed for",
              file=sys.stderr, flush=True)
    else:
        time.sleep(LET_FIRST_SPEAK)
    sys.exit(2)
