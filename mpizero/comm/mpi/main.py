"""The frame of every entry point."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import NoReturn

from mpizero.comm.mpi.failure import Ending, end, ending
from mpizero.comm.mpi.start import start


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run an entry point and end the process with the status it returns (None: 0), such that one failing rank ends all.

    A MpizeroError becomes one line on standard error and its exit status: rank 0's if all ranks raise the same class,
    else that of the rank that failed. Any other exception prints its traceback with its rank and ends the job with
    status 1. sys.exit is honoured.
    """
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            how = Ending(main() or 0)
        except SystemExit as error:
            how = ending(error)
        if sys.stdout is not None:
            sys.stdout.flush()  # here it can still be said that it cannot be written
    except BaseException as error:
        end(ending(error), start)  # in here the error keeps this rank's arrays alive: see [Note: leaving] in failure.py
    end(how, start)
