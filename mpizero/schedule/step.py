"""How the parts of a step follow each other: one generator for all strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpizero.layout.wrapping import SegmentUse
from mpizero.schedule.actions import Action, Agree, FreeGrad, LoadBatch, Loss, LossBackward, Phase
from mpizero.schedule.strategies import Microbatch, Strategy


def accumulate(strategy: Strategy, segments: Sequence[SegmentUse], units: int, microbatches: int,
               no_sync: bool = False) -> Iterator[Action]:
    """Forward, backward and reduction of all microbatches of a step, and the agreement on what came out.

    no_sync: reduce once, after the last microbatch: 1/microbatches of the gradient traffic for whole gradients in
    memory.
    """
    for i in range(microbatches):
        last = i == microbatches - 1
        mb = Microbatch(i, sync=last or not no_sync, last=last)
        yield Phase("forward", i)
        yield LoadBatch(i)
        for segment in segments:
            yield from strategy.forward(segment, mb)
        yield Loss(i)
        yield Phase("backward", i)
        yield LossBackward(i)
        for segment in reversed(segments):
            yield from strategy.backward(segment, mb)
        # backward is over: where bytes "after backward" are counted, also where it has reduced already
        yield Phase("reduce", i)
        if mb.sync:
            for unit in reversed(range(units)):
                yield from strategy.reduce(unit, mb)
    yield Agree()


def update(strategy: Strategy, units: int) -> Iterator[Action]:
    """The update of all units: left out when the step is skipped."""
    yield Phase("update")
    for unit in range(units):
        yield from strategy.update(unit)


def zero_grad(units: int) -> Iterator[Action]:
    """The end of every step."""
    yield Phase("zero_grad")
    for unit in range(units):
        yield FreeGrad(unit)


def evaluate(strategy: Strategy, segments: Sequence[SegmentUse]) -> Iterator[Action]:
    """Forward of one batch. The actions still say `save`; the pass `without_saving` turns it off."""
    yield Phase("evaluate")
    yield LoadBatch(0)
    for segment in segments:
        yield from strategy.forward(segment, Microbatch(0, sync=False, last=False))
    yield Loss(0)
