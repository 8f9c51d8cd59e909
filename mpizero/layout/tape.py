"""What a computation takes and gives back, in order: from it follows the most that it holds at a time.

A segment's forward and backward have a tape each (`layout.models`), made of those of the operators (`nn.ops`) that they
call. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Take(NamedTuple):
    """An array that lives on."""

    nbytes: int


class Give(NamedTuple):
    """An array that dies: one that was taken, or that was handed over."""

    nbytes: int


class Work(NamedTuple):
    """The most that an operator holds at a time beyond what it was given and gives, and that is gone when it ends."""

    nbytes: int


class Add(NamedTuple):
    """As `Work`, of an operator that adds to the gradient of `param`: where it is the first to do so, and where not.
    Of a frozen parameter nothing."""

    param: str
    first: int
    more: int


class Wanted(NamedTuple):
    """What is done only if one of `params` trains."""

    params: tuple[str, ...]
    tape: Tape


class Part(NamedTuple):
    """A part of a computation begins (`layout.parts`); it takes nothing."""


Tape = tuple[Take | Give | Work | Add | Wanted | Part, ...]


def most(tape: Tape, written: set[str], frozen: Collection[str] = ()) -> int:
    """The most bytes at a time, beyond what lives before. written: the parameters whose gradient holds something
    already; those that the tape adds to are added to it. frozen: those that get no gradient."""
    return _play(tape, 0, written, frozen)[1]


def _play(tape: Tape, live: int, written: set[str], frozen: Collection[str]) -> tuple[int, int]:
    """What lives after, and the most on the way."""
    peak = live
    for event in tape:
        match event:
            case Take(nbytes):
                live += nbytes
            case Give(nbytes):
                live -= nbytes
            case Work(nbytes):
                peak = max(peak, live + nbytes)
            case Add(param, first, more) if param not in frozen:
                peak = max(peak, live + (more if param in written else first))
                written.add(param)
            case Wanted(params, inner) if any(param not in frozen for param in params):
                live, reached = _play(inner, live, written, frozen)
                peak = max(peak, reached)
        peak = max(peak, live)
    return live, peak
