"""How the parts of a step follow each other: one generator for all strategies."""

from __future__ import annotations

from collections.abc import Iterator

from mpizero.layout.wrapping import Wrapping
from mpizero.schedule.actions import Action, Agree, FreeGrad, LoadBatch, Loss, LossBackward, Phase
from mpizero.schedule.passes import without_saving
from mpizero.schedule.strategies import Microbatch, Strategy


def accumulate(strategy: Strategy, wrapping: Wrapping, microbatches: int, no_sync: bool = False) -> Iterator[Action]:
    """Forward, backward and reduction of all microbatches of a step, and the agreement on what came out. Segments in
    front of the first that trains need no backward, so their forward keeps nothing for it.

    no_sync: reduce once, after the last microbatch: 1/microbatches of the gradient traffic for whole gradients in
    memory.
    """
    for i in range(microbatches):
        last = i == microbatches - 1
        mb = Microbatch(i, sync=last or not no_sync, last=last)
        yield Phase("forward", i)
        yield LoadBatch(i)
        for segment in wrapping.segments:
            actions = strategy.forward(segment, mb)
            yield from actions if segment.backward else without_saving(actions)
        yield Loss(i)
        yield Phase("backward", i)
        yield LossBackward(i)
        for segment in reversed(wrapping.segments):
            if segment.backward:
                yield from strategy.backward(segment, mb)
        # backward is over: where bytes "after backward" are counted, also where it has reduced already
        yield Phase("reduce", i)
        if mb.sync:
            for unit in reversed(wrapping.trained):
                yield from strategy.reduce(unit, mb)
    yield Agree()


def update(strategy: Strategy, wrapping: Wrapping) -> Iterator[Action]:
    """The update of all units that train: left out when the step is skipped."""
    yield Phase("update")
    for unit in wrapping.trained:
        yield from strategy.update(unit)


def zero_grad(wrapping: Wrapping) -> Iterator[Action]:
    """The end of every step."""
    yield Phase("zero_grad")
    for unit in wrapping.trained:
        yield FreeGrad(unit)


def evaluate(strategy: Strategy, wrapping: Wrapping) -> Iterator[Action]:
    """Forward of one batch. The actions still say `save`; the pass `without_saving` turns it off."""
    yield Phase("evaluate")
    yield LoadBatch(0)
    for segment in wrapping.segments:
        yield from strategy.forward(segment, Microbatch(0, sync=False, last=False))
    yield Loss(0)
