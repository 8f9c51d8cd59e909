"""The pass that lets collectives go on while the rank computes: each is begun where it stood, and ended late."""

from __future__ import annotations

from collections.abc import Iterable

from mpizero.layout.geometry import Geometry
from mpizero.schedule.actions import Action, Begin, Collective, End, Phase
from mpizero.schedule.effects import Effect, effect_of


def overlapped(actions: Iterable[Action], geometry: Geometry) -> list[Action]:
    """Begin every collective where it stands, and end it before the first action that needs its result, or changes what
    it reads.

    A reduction ends at the latest when the next one along its axis begins, so at most one whole gradient waits in
    memory while another is computed (as in PyTorch's FSDP2); and where the last backward is over, as there bytes are
    counted. A collective that needs the result of another one (the sum across replicas, of a shard that is still being
    reduced) begins when that one ends, so that the rank computes on meanwhile.
    """
    actions, under_way = list(actions), _UnderWay(geometry)
    marks = [i for i, action in enumerate(actions) if isinstance(action, Phase) and action.name == "reduce"]
    for place, action in enumerate(actions):
        if isinstance(action, Collective):
            under_way.come(action)
        else:
            under_way.make_way(effect_of(action, geometry), sums=place in marks[-1:])
            under_way.out.append(action)
    while under_way.open:
        under_way.end(next(iter(under_way.open)))
    return under_way.out


class _UnderWay:
    """The collectives that are open, or put off until an open one ends, with their effects."""

    def __init__(self, geometry: Geometry):
        self.geometry = geometry
        self.out: list[Action] = []
        self.open: dict[Collective, Effect] = {}
        self.put_off: dict[Collective, Effect] = {}

    def come(self, action: Collective) -> None:
        """Begin it, or put it off."""
        effect = effect_of(action, self.geometry)
        if any(other.meets(effect) for other in (*self.open.values(), *self.put_off.values())):
            self.put_off[action] = effect
        else:
            self._begin(action, effect)

    def make_way(self, effect: Effect, sums: bool) -> None:
        """End what must be over before an action; or all reductions."""
        def first(other: Effect) -> bool:
            return other.meets(effect) or sums and other.sums is not None

        while any(map(first, self.put_off.values())):
            self.end(next(iter(self.open)))
        for collective in [collective for collective, other in self.open.items() if first(other)]:
            self.end(collective)

    def end(self, action: Collective) -> None:
        """And begin what was put off until now."""
        del self.open[action]
        self.out.append(End(action))
        while (ready := self._ready()) is not None:
            self._begin(ready, self.put_off.pop(ready))

    def _ready(self) -> Collective | None:
        return next((action for action, effect in self.put_off.items()
                     if not any(other.meets(effect) for other in self.open.values())), None)

    def _begin(self, action: Collective, effect: Effect) -> None:
        if effect.sums is not None:
            for other in [other for other, its in self.open.items() if its.sums and its.sums.axis == effect.sums.axis]:
                self.end(other)
        self.open[action] = effect
        self.out.append(Begin(action))
