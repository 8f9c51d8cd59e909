"""A kept input off the device.

[Note: What another holds] A segment in front may have saved its output, which is this input: then the device has it all
the while. The copy is moved all the same, as the list says; but on its way back it finds its place still there, and
takes no other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import final

from mpizero.engine.moves import Links, bring_down, bring_up
from mpizero.engine.pending import Pending
from mpizero.engine.rooms import Array, Kept, Rooms
from mpizero.layout import Tier
from mpizero.layout.files import KEPT
from mpizero.memory.kinds import KEPT_INPUT
from mpizero.memory.ledger import Ledger, owner_of


@final
class Shelf:
    """Room on `tier` for `array`, the input of a segment with this number and name, and the way there and back."""

    def __init__(self, array: Array, rooms: Rooms, tier: Tier, segment: int, name: str):
        self._shape, self._dtype, self._name = array.shape, array.dtype, name
        self._device = weakref.ref(owner_of(array))  # see [Note: What another holds]
        self._there: Kept = rooms.empty(tier, segment, KEPT, name, array.size, array.dtype, KEPT_INPUT)
        self._source: Array | None = array

    def fill(self, links: Links, done: Callable[[], object]) -> Pending:
        """Down. done: what frees it on the device."""
        source, self._source = self._source, None
        assert source is not None, "a kept input goes down once"
        return Pending(bring_down(source.reshape(-1), self._there, links, KEPT, self._name), lambda: _nothing(done()))

    def room(self, ledger: Ledger) -> Array:
        """Where it comes back to."""
        here = self._device()
        if here is None:
            return ledger.empty(self._shape, self._dtype, KEPT_INPUT)
        return ledger.rekind(here, KEPT_INPUT).reshape(self._shape)

    def empty(self, links: Links, kept: Array) -> Pending:
        """Up. What it leaves lives until that is over."""
        there = self._there
        return Pending(bring_up(there, kept.reshape(-1), links, KEPT, self._name), lambda: _nothing(there))


def _nothing(value: object) -> None:
    """For the sake of what made it."""
