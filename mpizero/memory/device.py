"""A device whose buffers have addresses: one range of the process' memory, and every array a slice of it."""

from __future__ import annotations

import mmap
from collections.abc import Collection
from typing import final

import numpy as np

from mpizero.errors import OutOfDeviceMemory
from mpizero.memory.addresses import ARENA, Addresses
from mpizero.memory.kinds import GRAD, KEPT_INPUT, OPTIM, PARAM, UNSHARDED_GRAD
from mpizero.quantities import in_units

# what lives longer than a computation; and a whole gradient, which may become the reduced one where it lies
LASTING = (PARAM, OPTIM, GRAD, UNSHARDED_GRAD, KEPT_INPUT)


@final
class Device:
    """`capacity` bytes. The kernel gives pages as they are written. OutOfDeviceMemory where it gives none."""

    def __init__(self, capacity: int, lasting: Collection[str] = ()):
        self.addresses = Addresses(capacity, lasting)
        try:
            self._bytes = mmap.mmap(-1, max(capacity, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError):
            raise OutOfDeviceMemory(f"the host has no room for a device of {in_units(capacity)}, which `allocator` "
                                    "sets aside: use a smaller `device_memory`, or leave `allocator` out") from None

    def array(self, shape: int | tuple[int, ...], dtype: np.dtype, address: int) -> np.ndarray:
        """Uninitialised, of at least one element. The address stays taken for as long as the array lives."""
        return np.ndarray(shape, dtype, self._bytes, address)


def make_device(allocator: str | None, capacity: int | None) -> Device | None:
    """By one of the `ALLOCATORS`; None without."""
    if allocator is None:
        return None
    assert capacity is not None, "addresses need a device"
    return Device(capacity, LASTING if allocator == ARENA else ())
