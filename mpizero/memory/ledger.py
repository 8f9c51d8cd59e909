"""The memory ledger of one rank.

Buffers come from `Ledger.empty`, and leave the count when the array really dies (a weak reference tells), so a
forgotten reference shows up as bytes. Nothing is estimated.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mpizero.errors import Fragmented, OutOfDeviceMemory
from mpizero.memory.device import Device
from mpizero.memory.kinds import KINDS, MODEL_STATE
from mpizero.text import counted


Held = TypeVar("Held")


class Allocator(Protocol):
    """Where operators get their arrays from: a `Ledger`, or `Uncounted` where nobody asks."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, kind: str) -> np.ndarray: ...

    def adopt(self, array: np.ndarray, kind: str) -> np.ndarray: ...


class Uncounted:
    """Plain NumPy arrays: the allocator of references and benchmarks."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, kind: str) -> np.ndarray:
        return np.empty(shape, dtype)

    def adopt(self, array: np.ndarray, kind: str) -> np.ndarray:
        return array


class _Entry(weakref.ref):
    """A weak reference to what is counted that remembers what was counted."""

    __slots__ = ("kind", "unit", "nbytes", "key", "address")
    kind: str
    unit: str
    nbytes: int
    key: int
    address: int


class Ledger:
    """Counts the live bytes of one device by kind, and their peaks: `peak` of each kind, `peak_live` by kind at the
    moment of the highest `peak_bytes` of all; `action_peak_live` and `action_peak_bytes` are those within the action.

    capacity: bytes beyond which an allocation raises `OutOfDeviceMemory`; None for no limit. tier: whose bytes these
    are. device: where each buffer has its address, if it has one; what finds none raises `OutOfDeviceMemory` too.
    debug: fill new and discarded floating-point buffers with NaN, so that a read of stale storage shows.
    """

    def __init__(self, capacity: int | None = None, debug: bool = False, tier: str = "device",
                 device: Device | None = None):
        self.capacity, self.tier, self.device = capacity, tier, device
        self.debug = debug
        self.between: Callable[[], None] = lambda: None  # called where storage is asked for: an operator begins
        self.live = dict.fromkeys(KINDS, 0)
        self.live_bytes = 0
        self._entries: dict[int, _Entry] = {}
        self.at("start")
        self.reset_peaks()

    # -- buffers ------------------------------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, kind: str) -> np.ndarray:
        """A new uninitialised array, counted under `kind` and the current unit until it dies."""
        self.between()
        dtype = np.dtype(dtype)
        nbytes = (math.prod(shape) if isinstance(shape, tuple) else shape) * dtype.itemsize
        address = self._admit(nbytes, kind)
        try:
            array = (np.empty(shape, dtype) if self.device is None or not nbytes
                     else self.device.array(shape, dtype, address))
        except (MemoryError, ValueError, OverflowError):
            raise OutOfDeviceMemory(f"the host has no room for {shape} elements of {dtype} ({kind}): "
                                    "use a smaller model or batch") from None
        if self.debug:
            _poison(array)
        return self._count(array, nbytes, kind, address)

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, kind: str) -> np.ndarray:
        """As `empty`, filled with zeros."""
        array = self.empty(shape, dtype, kind)
        array.fill(0)
        return array

    def adopt(self, array: np.ndarray, kind: str) -> np.ndarray:
        """Count an array that was made elsewhere (a batch of data, random words). Views count as the array that owns
        their memory. On a device with addresses it takes a place like others, though its bytes stay where they
        are."""
        owner = owner_of(array)
        if id(owner) not in self._entries:
            self._count(owner, owner.nbytes, kind, self._admit(owner.nbytes, kind))
        return array

    def rekind(self, array: np.ndarray, kind: str) -> np.ndarray:
        """The same bytes under another name: an unsharded gradient becomes the reduced one without a copy. Of a view
        those of the array that owns its memory; one that is not counted stays so."""
        entry = self._entries.get(id(owner_of(array)))
        if entry is None:
            return array
        self.live[entry.kind] -= entry.nbytes
        self.live[kind] += entry.nbytes
        entry.kind = kind
        self._note_peaks(kind)
        return array

    def hold(self, holder: object, nbytes: int, kind: str) -> None:
        """Count `nbytes` of what is no array (a range of a file) until `holder` dies."""
        self._count(holder, nbytes, kind, self._admit(nbytes, kind))

    def discard(self, array: np.ndarray) -> None:
        """Say that `array` must not be read again; its owner drops its reference next. Poisons it in debug mode."""
        if self.debug:
            _poison(array)

    # -- what happens now ---------------------------------------------------------------------------------------------

    def at(self, action: str, unit: str = "") -> None:
        """Name the action and unit to which following allocations and peaks belong.

        Starts `action_peak_bytes` again.
        """
        self.action, self.unit = action, unit
        self.action_peak_bytes, self.action_peak_live = self.live_bytes, dict(self.live)

    def reset_peaks(self) -> None:
        """Start the peaks again from what is live."""
        self.peak = dict(self.live)
        self.peak_bytes, self.peak_action, self.peak_live = self.live_bytes, self.action, dict(self.live)
        self.peak_model_state_bytes, self.peak_model_state_action = self.model_state_bytes, self.action

    @property
    def model_state_bytes(self) -> int:
        return sum(self.live[kind] for kind in MODEL_STATE)

    def by_unit(self) -> dict[tuple[str, str], int]:
        """Live bytes by (kind, unit)."""
        table: dict[tuple[str, str], int] = defaultdict(int)
        for entry in self._entries.values():
            table[entry.kind, entry.unit] += entry.nbytes
        return dict(table)

    # -- inner --------------------------------------------------------------------------------------------------------

    def _admit(self, nbytes: int, kind: str) -> int:
        """Its address; 0 where there are none."""
        if self.capacity is not None and self.live_bytes + nbytes > self.capacity:
            raise OutOfDeviceMemory(self._full(nbytes, kind))
        address = 0 if self.device is None else self.device.addresses.take(nbytes, kind)
        if address is None:
            raise self._fragmented(nbytes, kind)
        return address

    def _count(self, holder: Held, nbytes: int, kind: str, address: int) -> Held:
        entry = _Entry(holder, self._forget)
        entry.kind, entry.unit, entry.nbytes, entry.key, entry.address = kind, self.unit, nbytes, id(holder), address
        self._entries[entry.key] = entry
        self.live[kind] += entry.nbytes
        self.live_bytes += entry.nbytes
        self._note_peaks(kind)
        return holder

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        self.live[entry.kind] -= entry.nbytes
        self.live_bytes -= entry.nbytes
        if self.device is not None:
            self.device.addresses.give(entry.address, entry.nbytes)

    def _note_peaks(self, kind: str) -> None:
        self.peak[kind] = max(self.peak[kind], self.live[kind])
        if self.live_bytes > self.action_peak_bytes:
            self.action_peak_bytes, self.action_peak_live = self.live_bytes, dict(self.live)
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_action, self.peak_live = self.live_bytes, self.action, dict(self.live)
        if kind in MODEL_STATE and self.model_state_bytes > self.peak_model_state_bytes:
            self.peak_model_state_bytes, self.peak_model_state_action = self.model_state_bytes, self.action

    def _fragmented(self, nbytes: int, kind: str) -> Fragmented:
        assert self.device is not None
        blocks = self.device.addresses.blocks
        holes, free, largest = len(blocks.holes()), blocks.free_size, blocks.largest_hole
        cure = "" if self.device.addresses.lasting else "`allocator` arena, or "
        return Fragmented(f"out of {self.tier} memory at {self.action}: {nbytes:,} bytes of {kind} asked for, and "
                          f"{free:,} of {blocks.capacity:,} bytes ({100 * free / blocks.capacity:.1f} %) are free, but "
                          f"in {counted(holes, 'hole')}, the largest of {largest:,}: use {cure}a larger "
                          f"`{self.tier}_memory`", nbytes, free, blocks.capacity, holes, largest)

    def _full(self, nbytes: int, kind: str) -> str:
        rows = sorted(self.by_unit().items(), key=lambda row: -row[1])
        table = "\n".join(f"  {kind:<16} {unit or '-':<16} {size:>16,} bytes" for (kind, unit), size in rows)
        return (f"out of {self.tier} memory at {self.action}: {nbytes:,} bytes of {kind} asked for, "
                f"{self.live_bytes:,} of {self.capacity:,} bytes in use. Use a higher `stage`, more ranks, a smaller "
                f"`batch_size`, or a larger `{self.tier}_memory`. Live now:\n{table}")


def owner_of(array: np.ndarray) -> np.ndarray:
    """The array whose memory it is."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _poison(array: np.ndarray) -> None:
    """Fill an array of any floating-point type, bfloat16 included, with NaN."""
    if np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16":
        array.fill(np.nan)
