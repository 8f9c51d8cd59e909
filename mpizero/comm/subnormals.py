"""Does arithmetic here keep subnormal numbers?

A processor can be told, thread by thread, to take numbers too small for a full significand for 0. A shared library
that was linked with -ffast-math does so to whatever thread loads it. float16 parameters and gradients then lose all
below 6.1e-5, and Adam's second moments what is below 1.2e-38: weights would differ from those of other ranks and runs.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from mpizero.half import narrow, widen

# What GCC's crtfastmath.o holds, as bytes of x86: an or with 0x8040 (flush to zero, denormals are zero), then ldmxcsr.
FAST_MATH = re.compile(rb"\x40\x80\x00\x00.{0,8}?\x0f\xae[\x10-\x17\x50-\x57\x90-\x97]", re.DOTALL)
SCANNED_BYTES = 64 * 2**20  # of a library; a larger one is passed over


def flushed() -> list[str]:
    """What this thread's arithmetic takes for 0 though it is not; [] where all is well."""
    smallest = np.full(32, 1, np.uint32).view(np.float32)  # 2^-149, as bits: a conversion would flush it already
    kept = (smallest * np.float32(1)).view(np.uint32).all()  # lost as an operand or as a result
    return ([] if kept else ["float32 below 1.2e-38"]) + ([] if _keeps_half() else ["float16 below 6.1e-5"])


def _keeps_half() -> bool:
    """Whether 3e-5 comes back from float16 to float32, in NumPy's casts and in ours."""
    half = np.full(32, 0x01F7, np.uint16).view(np.float16)
    wide, scratch, more, back = (*np.empty((3, 32), np.float32), np.empty(32, np.float16))
    widen(half, wide)
    narrow(wide, back, scratch, more)
    return bool((back == half).all() and half.astype(np.float32).all())


def trouble() -> str:
    """What this process loses, and which of its libraries may be the cause; "" where all is well."""
    lost = flushed()
    if not lost:
        return ""
    suspects = _suspects(Path("/proc/self/maps"))
    return " and ".join(lost) + (f" (suspected: {', '.join(suspects)})" if suspects else "")


def _suspects(maps: Path) -> list[str]:
    """Shared libraries of this process with the code that sets the processor so."""
    try:
        paths = dict.fromkeys(re.findall(r"/\S.*\.so\S*$", maps.read_text(), re.MULTILINE))
    except OSError:
        return []
    return [path for path in paths if _holds_fast_math(Path(path))]


def _holds_fast_math(path: Path) -> bool:
    try:
        return path.stat().st_size <= SCANNED_BYTES and FAST_MATH.search(path.read_bytes()) is not None
    except OSError:
        return False
