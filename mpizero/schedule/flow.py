"""Which values come and go, in the order in which storage is taken and given back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mpizero.layout.geometry import Geometry
from mpizero.schedule.actions import Action
from mpizero.schedule.effect import Effect
from mpizero.schedule.effects import effect_of
from mpizero.schedule.places import resting
from mpizero.schedule.values import Value


class Made(NamedTuple):
    """Storage is taken for it."""

    value: Value


class Freed(NamedTuple):
    """Its storage is given back."""

    value: Value


class Became(NamedTuple):
    """The same storage under another name."""

    value: Value
    new: Value


Change = Made | Freed | Became


def changes(effect: Effect, there: set[Value]) -> Iterator[Change]:
    """What comes and goes in an action that meets the values `there`, which are brought up to date. New storage is
    taken first."""
    for value in effect.during:
        yield Made(value)
    for value in (*effect.makes, *effect.adds):
        if value not in there:
            there.add(value)
            yield Made(value)
    for old, new in effect.becomes:
        there.discard(old)
        yield Freed(old) if new in there else Became(old, new)
        there.add(new)
    for value in effect.frees:
        there.discard(value)
        yield Freed(value)
    for value in effect.during:
        yield Freed(value)


def flow(actions: Iterable[Action], geometry: Geometry) -> Iterator[tuple[Action, Effect, list[Change]]]:
    """Each action with its effect and what comes and goes in it, from rest on."""
    there = set(resting(geometry))
    for action in actions:
        effect = effect_of(action, geometry)
        yield action, effect, list(changes(effect, there))
