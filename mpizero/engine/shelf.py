"""A kept input off the device.

[Note: What another holds] A segment in front may have saved its output, which is this input: then the device has it all
the while. The copy is moved all the same, as the list says; but on its way back it finds its place still there, and
takes no other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import final

from mpizero.engine.moves import DOWN, UP
from mpizero.engine.pending import Pending
from mpizero.engine.rooms import Array
from mpizero.layout.links import Way
from mpizero.memory.kinds import KEPT_INPUT
from mpizero.memory.ledger import Ledger, owner_of
from mpizero.memory.links import Link


@final
class Shelf:
    """Room on another tier for `array`, and the way there and back."""

    def __init__(self, array: Array, ledger: Ledger):
        self._shape, self._dtype = array.shape, array.dtype
        self._device = weakref.ref(owner_of(array))  # see [Note: What another holds]
        self._there = ledger.empty(array.size, array.dtype, KEPT_INPUT)
        self._source: Array | None = array

    def fill(self, links: Mapping[Way, Link], name: str, done: Callable[[], object]) -> Pending:
        """Down. done: what frees it on the device."""
        source, self._source = self._source, None
        assert source is not None, "a kept input goes down once"
        return Pending(links[DOWN].move(source.reshape(-1), self._there, "kept", name), lambda: _nothing(done()))

    def room(self, ledger: Ledger) -> Array:
        """Where it comes back to."""
        here = self._device()
        if here is None:
            return ledger.empty(self._shape, self._dtype, KEPT_INPUT)
        return ledger.rekind(here, KEPT_INPUT).reshape(self._shape)

    def empty(self, links: Mapping[Way, Link], name: str, kept: Array) -> Pending:
        """Up."""
        return Pending(links[UP].move(self._there, kept.reshape(-1), "kept", name), lambda: None)


def _nothing(value: object) -> None:
    """For the sake of what made it."""
