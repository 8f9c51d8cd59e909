"""What an action can set going, and wait for: a collective, a move or a late update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpizero.comm import Collective, Stream
from mpizero.engine.beside import Beside
from mpizero.memory.links import Transfer


def nothing() -> None:
    """Of what leaves its result in place."""


@dataclass(frozen=True)
class Pending:
    """A collective, a move or a late update of a unit, not yet under way. done: what makes its result the unit's, once
    it is over."""

    going: Collective | Transfer | Beside
    done: Callable[[], None] = nothing

    def begin(self, stream: Stream) -> None:
        """Set it going; `stream` drives collectives."""
        if isinstance(self.going, Collective):
            stream.begin(self.going)
        else:
            self.going.begin()

    def end(self, stream: Stream) -> None:
        """Wait for what was begun."""
        if isinstance(self.going, Collective):
            stream.finish(self.going)
        else:
            self.going.finish()
        self.done()

    def finish(self) -> None:
        """Do it, alone."""
        self.going.finish()
        self.done()
