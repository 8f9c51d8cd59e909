"""What a computation in parts leaves after each of them. Pure."""

from __future__ import annotations

from dataclasses import replace

from mpizero.layout.spec import SegmentBytes
from mpizero.layout.tape import Give, Part, Tape, Take


def in_parts(whole: SegmentBytes, count: int = 1, inputs: int = 0) -> tuple[SegmentBytes, ...]:
    """`whole`, whose tapes say by `Part` where each of its parts begins, part by part.

    count: how many they are, where the tapes are not known: then the last takes all that is kept, an estimate.
    inputs: bytes of x, which a first part gives back unless backward reads it.
    """
    forward, backward = (_cut(tape) if tape else ((),) * count for tape in (whole.forward, whole.backward))
    taken = [0 if whole.keeps_input else inputs]
    for tape in forward:
        taken.append(taken[-1] + _left(tape))
    upstream = [whole.kept + whole.output + (whole.output if whole.keeps_output else 0)]
    for tape in backward:
        upstream.append(upstream[-1] + _left(tape))
    last, found = len(forward) - 1, []
    for part, (there, back) in enumerate(zip(forward, reversed(backward), strict=True)):
        found.append(replace(whole, part=part, forward=there, backward=back, kept=whole.kept if part == last else 0,
                             output=whole.output if part == last else taken[part + 1],
                             upstream=None if part == last else upstream[last - part]))
    return tuple(found)


def _cut(tape: Tape) -> tuple[Tape, ...]:
    """At each `Part`; what comes before the first belongs to it."""
    marks = [place for place, event in enumerate(tape) if isinstance(event, Part)]
    begins, ends = [0, *marks[1:]], [*marks[1:], len(tape)]
    return tuple(tuple(event for event in tape[begin:end] if not isinstance(event, Part))
                 for begin, end in zip(begins, ends, strict=True))


def _left(tape: Tape) -> int:
    """Bytes that live longer than the tape, below 0 where fewer do. Parts take nothing that depends on what trains."""
    return sum(event.nbytes * (isinstance(event, Take) - isinstance(event, Give)) for event in tape
               if isinstance(event, Take | Give))
