"""Why float32 master weights: 16-bit numbers swallow small updates. Demo 6 of 01_memory.py, without NumPy."""

from __future__ import annotations

import struct
from collections.abc import Callable

from claims import Demo, equal, rounds_to

from mpizero.text import table

WEIGHT, UPDATE, STEPS = 0.5, 1e-4, 1000
Round = Callable[[float], float]


def half(x: float) -> float:
    """The nearest float16."""
    return float(struct.unpack("<e", struct.pack("<e", x))[0])


def single(x: float) -> float:
    """The nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def brain(x: float) -> float:
    """The nearest bfloat16, ties to even: the upper half of a float32."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


def small_updates() -> Demo:
    """Demo 6 of 01_memory.py."""
    alone, master, kept = WEIGHT, WEIGHT, [WEIGHT]
    for _ in range(STEPS):
        alone, master = half(alone + UPDATE), single(master + UPDATE)
        kept.append(half(master))
    limit = max(k for k in range(1024) if half(WEIGHT + k * 2.0**-20) == WEIGHT) * 2.0**-20
    swallowed = {name: {orders: _swallowed(rounded, mantissa, 10.0**-orders) for orders in (3, 4)}
                 for name, (rounded, mantissa) in {"float16": (half, 10), "bfloat16": (brain, 7)}.items()}
    source, more = "lecture 2.2", "ours"
    return Demo("Small updates, with and without float32 master weights", "2.2", [
        equal("0.5 + 1e-4 in float16", source, 0.5, half(WEIGHT + UPDATE)),
        equal(f"{STEPS} such updates of a float16 weight", source, 0.5, alone),
        rounds_to(f"{STEPS} such updates of a float32 master weight, cast to float16 at the end of each: 0.5 + 0.1",
                  source, "0.600", kept[-1]),
        equal("The largest update of 0.5 that is swallowed, by search: half a step of 10 bits, 2^-12",
              f"formula of {source}", 2.0**-12, limit),
        equal("Updates 4 orders below the weight: of the 1024 float16 values from 0.5 to 1, those that swallow them",
              source, 1024, swallowed["float16"][4]),
        equal("Updates 3 orders below: no float16 value swallows them (they are rounded to whole steps)", more, 0,
              swallowed["float16"][3]),
        equal("3 and 4 orders below: of the 128 bfloat16 values from 0.5 to 1, those that swallow them", more,
              [128, 128], [swallowed["bfloat16"][orders] for orders in (3, 4)]),
    ], table(["after updates of 1e-4", "float16 alone", "float32 master", "its float16"],
             [[0, WEIGHT, WEIGHT, WEIGHT], [STEPS, alone, master, kept[-1]]]),
        "the weight and its update. The lecture says that updates are 3 to 4 orders of magnitude below: bfloat16 "
        "swallows all of these, float16 only those below 2^-12 of the weight's power of two, about 3.6 orders.",
        data={"swallowed": swallowed, "alone": alone, "master": master})


def _swallowed(rounded: Round, mantissa: int, relative: float) -> int:
    """How many of the 16-bit values from 0.5 to 1 stay as they are when `relative` of them is added."""
    values = [0.5 + k * 2.0 ** -(mantissa + 1) for k in range(2**mantissa)]
    return sum(rounded(value * (1 + relative)) == value for value in values)
