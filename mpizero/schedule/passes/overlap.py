"""The pass that lets collectives and moves go on while the rank computes: each is begun where it stood, and ended
late."""

from __future__ import annotations

from collections.abc import Iterable

from mpizero.layout.geometry import Geometry
from mpizero.schedule.actions import Action, Begin, End, FetchParam, Going, Phase
from mpizero.schedule.effect import Effect
from mpizero.schedule.effects import effect_of


def overlapped(actions: Iterable[Action], geometry: Geometry) -> list[Action]:
    """Begin every collective and every move where it stands, and end it before the first action that needs its result,
    or changes what it reads.

    A reduction ends at the latest when the next one along its axis begins, so at most one whole gradient waits in
    memory while another is computed (as in PyTorch's FSDP2); and where the last backward is over, as there bytes are
    counted. A collective that needs the result of another one (the sum across replicas, of a shard that is still being
    reduced) begins when that one ends, so that the rank computes on meanwhile; but one that completes what was fetched
    a computation ago begins where it stands. Of moves at most one goes each way, so that at most one unit waits in
    memory for it.
    """
    actions, under_way = list(actions), _UnderWay(geometry)
    marks = [i for i, action in enumerate(actions) if isinstance(action, Phase) and action.name == "reduce"]
    for place, action in enumerate(actions):
        if isinstance(action, Going):
            under_way.come(action)
        else:
            under_way.make_way(effect_of(action, geometry), sums=place in marks[-1:])
            under_way.out.append(action)
    while under_way.open:
        under_way.end(next(iter(under_way.open)))
    return under_way.out


class _UnderWay:
    """What is open, or put off until an open one ends, with its effect."""

    def __init__(self, geometry: Geometry):
        self.geometry = geometry
        self.out: list[Action] = []
        self.open: dict[Going, Effect] = {}
        self.early: dict[Going, None] = {}  # of these, those beside which the rank has computed
        self.put_off: list[tuple[Going, Effect]] = []  # the same action may come twice

    def come(self, action: Going) -> None:
        """Begin it, or put it off."""
        effect = effect_of(action, self.geometry)
        for other in [other for other in self.early if isinstance(other, FetchParam)]:
            if self.open[other].meets(effect):
                self._close(other)
        self.put_off.append((action, effect))
        self._begin_ready()

    def make_way(self, effect: Effect, sums: bool) -> None:
        """End what must be over before an action; or all reductions, and what moves sums."""
        def first(other: Effect) -> bool:
            return other.meets(effect) or sums and bool(other.sums)

        while any(first(other) for _, other in self.put_off):
            self.end(next(iter(self.open)))
        while (going := next((going for going, other in self.open.items() if first(other)), None)) is not None:
            self.end(going)
        if effect.computes:
            self.early.update(dict.fromkeys(self.open))

    def end(self, action: Going) -> None:
        """And begin what was put off until now."""
        self._close(action)
        self._begin_ready()

    def _close(self, action: Going) -> None:
        del self.open[action]
        self.early.pop(action, None)
        self.out.append(End(action))

    def _begin_ready(self) -> None:
        """In order, whatever meets nothing that is open, or was put off before it."""
        while (place := self._ready()) is not None:
            action, effect = self.put_off[place]
            alike = [other for other, its in self.open.items() if _alike(its, effect)]
            for other in alike:  # then what they have held up, if it came before this one
                self._close(other)
            if not alike:
                del self.put_off[place]
                self.open[action] = effect
                self.out.append(Begin(action))

    def _ready(self) -> int | None:
        before = list(self.open.values())
        for place, (_, effect) in enumerate(self.put_off):
            if not any(other.meets(effect) for other in before):
                return place
            before.append(effect)
        return None


def _alike(one: Effect, other: Effect) -> bool:
    """Whether they are reductions along one axis, or move the same way."""
    if one.carries and other.carries:
        return one.carries[0][1:] == other.carries[0][1:]
    return bool(one.sums and other.sums and one.sums[0].axis is other.sums[0].axis)
