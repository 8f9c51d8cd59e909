"""Passes that move gathers of whole parameters: away, earlier, or apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile

from mpizero.layout.wrapping import SegmentUse
from mpizero.schedule.actions import Action, AwaitFree, Backward, Forward, Gather, Phase, Recompute, Reshard


def gather_once(actions: Iterable[Action]) -> list[Action]:
    """A unit that the next segment reads as well stays gathered between them, instead of being freed and gathered anew.
    So a unit of several segments is gathered once in forward and once in backward."""
    out: list[Action] = []
    for action in actions:
        if isinstance(action, Gather):
            since = takewhile(lambda i: not isinstance(out[i], Forward | Backward | Phase), reversed(range(len(out))))
            freed = [i for i in since if out[i] == Reshard(action.unit)]
            if freed:
                del out[freed[0]]
                continue
        out.append(action)
    return out


def backward_prefetch(actions: Iterable[Action], depth: int) -> list[Action]:
    """Gather for a backward before the `depth` backwards ahead of it, so before their reductions.

    FSDP (arXiv:2304.11277), sec. 3.3.2.
    """
    return _gather_earlier(actions, Backward, depth)


def forward_prefetch(actions: Iterable[Action], depth: int) -> list[Action]:
    """Gather for a forward before the `depth` forwards ahead of it. FSDP, sec. 3.3.3."""
    return _gather_earlier(actions, Forward, depth)


def _gather_earlier(actions: Iterable[Action], compute: type[Forward] | type[Backward], depth: int) -> list[Action]:
    """Each gather goes ahead of `depth` more computations, but not out of its phase, past another gather, or while
    its unit is gathered.

    So gathers keep their order, and a segment finds gathered, beside its own units, at most those of the next `depth`
    segments.
    """
    out: list[Action] = []
    for action in actions:
        places = [len(out)]
        if isinstance(action, Gather):
            freed = Reshard(action.unit)
            behind = takewhile(lambda i: not isinstance(out[i], Gather | Phase) and out[i] != freed,
                               reversed(range(len(out))))
            places += [i for i in behind if isinstance(out[i], compute)]
        out.insert(places[:depth + 1][-1], action)
    return out


def keep_last_unit(actions: Iterable[Action]) -> list[Action]:
    """What the last forward frees and the first backward gathers again stays gathered between them."""
    out = list(actions)
    turns = [i for i, action in enumerate(out) if isinstance(action, Phase) and action.name == "backward"]
    for turn in reversed(turns):
        begin = turn - len(list(takewhile(lambda action: not isinstance(action, Forward), reversed(out[:turn]))))
        end = turn + len(list(takewhile(lambda action: not isinstance(action, Backward), out[turn:])))
        freed = {action.unit for action in out[begin:turn] if isinstance(action, Reshard)}
        again = {action.unit for action in out[turn:end] if isinstance(action, Gather)}
        out[begin:end] = [action for action in out[begin:end]
                          if not (isinstance(action, Reshard | Gather) and action.unit in freed & again)]
    return out


def limit_all_gathers(actions: Iterable[Action], limit: int, segments: Sequence[SegmentUse]) -> list[Action]:
    """At most `limit` units gathered at once: a gather beyond that waits for a Reshard, or until a segment needs it; so
    there are more where a segment, or those that are computed again together, read more.

    And since a host may run ahead of its device: before a gather it waits until so few of the units that are freed
    still hold their memory. FSDP, sec. 3.4.2.
    """
    out: list[Action] = []
    waiting: list[Gather] = []
    gathered, leaving = 0, deque[int]()  # units freed, for whose memory nobody has waited
    for action in (action for action in actions if not isinstance(action, AwaitFree)):
        if isinstance(action, Gather):
            waiting.append(action)
            continue
        needed = segments[action.segment].units if isinstance(action, Forward | Recompute | Backward) else ()
        while waiting and (gathered < limit or any(gather.unit in needed for gather in waiting)):
            while leaving and gathered + len(leaving) >= limit:
                out.append(AwaitFree(leaving.popleft()))
            out.append(waiting.pop(0))
            gathered += 1
        out.append(action)
        if isinstance(action, Reshard):
            gathered -= 1
            leaving.append(action.unit)
    return out + waiting
