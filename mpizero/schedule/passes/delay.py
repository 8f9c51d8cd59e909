"""The pass that lets an update go on beside the next step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mpizero.schedule.actions import Action, Begin, End, FreeGrad, HoldGrad, OptimStep, Phase


def delayed(update: Iterable[Action]) -> tuple[list[Action], list[Action]]:
    """An update off the device in two: what begins it, and what ends it and brings its parameters to where they are
    used. Between the two a step may come, which reads parameters of one update less.

    Each update holds its gradient, so that the next step can make another one.
    """
    begin: list[Action] = []
    end: list[Action] = []
    for action in update:
        if isinstance(action, OptimStep):
            late = replace(action, late=True)
            begin += [HoldGrad(action.unit), Begin(late)]
            end += [End(late), FreeGrad(action.unit, late=True)]
            continue
        end.append(action)
        if isinstance(action, Phase):
            begin.append(action)
    return begin, end
