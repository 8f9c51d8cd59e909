"""What the kernel counts when memory is freed and taken again."""

from __future__ import annotations

import os

import pytest

from mpizero.memory.heap import keep_heap

GLIBC = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {}) and bool(os.confstr("CS_GNU_LIBC_VERSION"))

# after the first time glibc by itself maps none of these alone, but gives a heap's top of more than 24 MiB back
AGAIN = """
import resource
import numpy as np

def faults():
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [np.ones(12 << 20, np.uint8) for _ in range(4)]
    del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

BEFORE
faults(), faults()
print(faults())
"""
PREPARED = """
from mpizero.comm import start
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
job = prepare(TrainConfig(), start())
"""


@pytest.mark.launches
@pytest.mark.skipif(not GLIBC, reason="not glibc")
@pytest.mark.parametrize("env", [{}, {"MALLOC_MMAP_THRESHOLD_": "65536"}])
def test_a_run_keeps_its_memory_unless_told_otherwise(launch, env):
    """48 MiB are 24 pages where the kernel has pages of 2 MiB to give, and 12,288 otherwise."""
    end = launch(1, "-c", AGAIN.replace("BEFORE", PREPARED), env=env)
    assert end.status == 0, end.output
    assert (int(end.stdout) < 4) == (not env), end.output


@pytest.mark.parametrize("environ", [{"MALLOC_TRIM_THRESHOLD_": "1"},
                                     {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}])
def test_what_the_user_has_set_stays(environ):
    assert not keep_heap(environ)


@pytest.mark.parametrize("answer", [None, "", "musl 1.2.5", ValueError("unrecognized configuration name")])
def test_another_c_library_is_left_alone(monkeypatch, answer):
    def confstr(name):
        if isinstance(answer, ValueError):
            raise answer
        return answer

    monkeypatch.setattr(os, "confstr", confstr)
    monkeypatch.setattr("ctypes.CDLL", None)  # is not asked
    assert not keep_heap({})
