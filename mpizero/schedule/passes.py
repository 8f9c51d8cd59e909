"""Passes: list of actions -> list of actions. A pass never names a strategy; where it finds nothing to change it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from mpizero.layout.units import StageUse
from mpizero.schedule.actions import Action, AllGatherParam, AllReduceShard, Backward, Forward, Phase, Reshard, Unshard


def without_saving(actions: Iterable[Action]) -> list[Action]:
    """Forward alone: nothing is kept for a backward that does not come."""
    return [replace(action, save=False) if isinstance(action, Forward) else action for action in actions]


def without_lone_collectives(actions: Iterable[Action], replicas: int, shards: int) -> list[Action]:
    """Drop the collectives in place that a group of one rank need not do."""
    return [action for action in actions
            if not (isinstance(action, AllReduceShard) and replicas == 1) and not (isinstance(action, AllGatherParam) and shards == 1)]


def backward_prefetch(actions: Iterable[Action], depth: int) -> list[Action]:
    """Gather for a backward before the `depth` backwards ahead of it, so before their reductions. FSDP (arXiv:2304.11277), sec. 3.3.2."""
    return _gather_earlier(actions, Backward, depth)


def forward_prefetch(actions: Iterable[Action], depth: int) -> list[Action]:
    """Gather for a forward before the `depth` forwards ahead of it. FSDP, sec. 3.3.3."""
    return _gather_earlier(actions, Forward, depth)


def _gather_earlier(actions: Iterable[Action], compute: type[Forward] | type[Backward], depth: int) -> list[Action]:
    """Each Unshard goes ahead of `depth` more computations, but not out of its phase, past another Unshard, or while its unit is gathered.

    So gathers keep their order, and a stage finds gathered, beside its own units, at most those of the next `depth` stages.
    """
    out: list[Action] = []
    for action in actions:
        places = [len(out)]
        if isinstance(action, Unshard):
            freed = Reshard(action.unit)
            behind = takewhile(lambda i: not isinstance(out[i], Unshard | Phase) and out[i] != freed, reversed(range(len(out))))
            places += [i for i in behind if isinstance(out[i], compute)]
        out.insert(places[:depth + 1][-1], action)
    return out


def keep_last_unit(actions: Iterable[Action]) -> list[Action]:
    """What the last forward frees and the first backward gathers again stays gathered between them."""
    out = list(actions)
    for turn in reversed([i for i, action in enumerate(out) if isinstance(action, Phase) and action.name == "backward"]):
        freed, again = _leading(Reshard, reversed(out[:turn])), _leading(Unshard, out[turn + 1:])
        kept = {action(unit) for unit in set(freed) & set(again) for action in (Reshard, Unshard)}
        begin, end = turn - len(freed), turn + 1 + len(again)
        out[begin:end] = [action for action in out[begin:end] if action not in kept]
    return out


def limit_all_gathers(actions: Iterable[Action], limit: int, stages: Sequence[StageUse]) -> list[Action]:
    """At most `limit` units gathered at once: a gather beyond that waits for a Reshard, or until a stage needs it. FSDP, sec. 3.4.2."""
    out: list[Action] = []
    waiting: list[Unshard] = []
    gathered = 0
    for action in actions:
        if isinstance(action, Unshard):
            waiting.append(action)
            continue
        needed = stages[action.stage].units if isinstance(action, Forward | Backward) else ()
        while waiting and (gathered < limit or any(gather.unit in needed for gather in waiting)):
            out.append(waiting.pop(0))
            gathered += 1
        out.append(action)
        gathered -= isinstance(action, Reshard)
    return out + waiting


def _leading(kind: type[Reshard] | type[Unshard], actions: Iterable[Action]) -> list[int]:
    """The units of the actions of one kind with which `actions` begins."""
    units = []
    for action in actions:
        if not isinstance(action, kind):
            break
        units.append(action.unit)
    return units
