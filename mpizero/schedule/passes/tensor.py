"""The passes for tensor parallel ranks: what each of them has a summand of is summed (Megatron-LM, arXiv:1909.08053,
sec. 3; see [Note: Summands] in `layout.tensor`), and what all of them keep alike is kept in parts (ZeRO,
arXiv:1910.02054, sec. 6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mpizero.layout.mesh import Axis
from mpizero.layout.wrapping import SegmentUse, Wrapping
from mpizero.schedule.actions import (
    Action,
    AllGatherLoss,
    AllReduceActivation,
    AllReduceGrad,
    AllReduceInputGrad,
    AllReduceShard,
    Backward,
    Forward,
    GatherKept,
    Loss,
    LossPart,
    PartitionKept,
    Recompute,
    ReduceGrad,
    ReduceScatterGrad,
    Save,
)

Reduction = ReduceScatterGrad | ReduceGrad | AllReduceGrad | AllReduceShard


def summed(actions: Iterable[Action], wrapping: Wrapping) -> list[Action]:
    """With a sum after each computation that gives a summand, and one of the gradient of each unit that all ranks hold,
    once, when it is reduced for the last time. What is computed again, and goes no further, is not summed again."""
    actions = list(actions)
    copied = {unit for unit in wrapping.trained if wrapping.units[unit].copied}
    last = {action.unit: place for place, action in enumerate(actions)
            if isinstance(action, Reduction) and action.unit in copied}
    ends = {place: unit for unit, place in last.items()}
    out = list[Action]()
    for place, action in enumerate(actions):
        if isinstance(action, Loss) and wrapping.divided:
            out += [LossPart(action.mb), AllGatherLoss(action.mb)]
        out += [action, *_sums(action, wrapping)]
        if place in ends:
            out.append(AllReduceShard(ends[place], Axis.TENSOR))
    return out


def _sums(action: Action, wrapping: Wrapping) -> Iterator[Action]:
    segments = wrapping.segments
    match action:
        case Forward(segment, mb) if segments[segment].sums:
            yield AllReduceActivation(segment, mb)
        case Recompute(segment, mb, True) if segments[segment].sums:
            yield AllReduceActivation(segment, mb, again=True)
        case Backward(segment, mb) if segments[segment].sums_back and segment > 0 and segments[segment - 1].backward:
            yield AllReduceInputGrad(segment, mb)


def partitioned(actions: Iterable[Action], segments: Sequence[SegmentUse]) -> list[Action]:
    """Of each kept input that is a sum, and so alike on all ranks, each keeps a part, and gathers it before the segment
    is computed again."""
    out, parts = list[Action](), set[tuple[int, int]]()
    for action in actions:
        if isinstance(action, Recompute) and (action.segment, action.mb) in parts:
            out.append(GatherKept(action.segment, action.mb))
        out.append(action)
        if isinstance(action, Forward) and action.save in (Save.INPUT, Save.COPY) and segments[action.segment - 1].sums:
            out.append(PartitionKept(action.segment, action.mb))
            parts.add((action.segment, action.mb))
    return out
