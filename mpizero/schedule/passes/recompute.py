"""The pass that trades computing for memory: what a forward has saved is computed again when its backward comes.

The field calls the inputs that stay activation checkpoints. Chen et al., "Training Deep Nets with Sublinear Memory
Cost" (arXiv:1604.06174); ZeRO-Infinity (arXiv:2104.07857), sec. 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mpizero.layout.wrapping import SegmentUse
from mpizero.schedule.actions import Action, Backward, Forward, Gather, Recompute, Reshard, Save

Group = list[int]  # segments that follow one another, of which the first alone keeps its input


def recompute(actions: Iterable[Action], segments: Sequence[SegmentUse], interval: int = 1) -> list[Action]:
    """Of `interval` segments in a row the first keeps its input, and the others nothing; before the first of their
    backwards all are computed again, in order.

    The first segment of a model and the last stay as they are: the input of the one is the batch, and the backward of
    the other begins where its forward has ended. A unit is still gathered once in backward, for both, so those of
    `interval` segments are gathered at once. Goes before passes that move gathers.
    """
    between = [segment.index for segment in segments[1:-1] if segment.backward]
    groups = [between[i:i + interval] for i in range(0, len(between), interval)]
    keeps = {segment: Save.INPUT if segment == group[0] else Save.NOTHING for group in groups for segment in group}
    begun = {group[-1]: group for group in groups}  # by the segment whose backward comes first
    actions, out, again = list(actions), list[Action](), set[tuple[int, int]]()
    place = 0
    while place < len(actions):
        action = actions[place]
        place += 1
        if isinstance(action, Forward) and action.segment in keeps and action.save is Save.ALL:
            again.add((action.segment, action.mb))
            action = replace(action, save=keeps[action.segment])
        if isinstance(action, Backward) and action.segment in begun and (action.segment, action.mb) in again:
            group = begun[action.segment]
            end = actions.index(Backward(group[0], action.mb), place - 1) + 1
            out = _computed_again(out, actions[place - 1:end], group, segments, action.mb)
            place = end
        else:
            out.append(action)
    return out


def _computed_again(before: list[Action], backwards: list[Action], group: Group, segments: Sequence[SegmentUse],
                    mb: int) -> list[Action]:
    """`before`, then the recompute of a group and its `backwards`, whose gathers go in front of the Recompute that
    first reads the unit. What one backward frees and a later one gathers anew stays gathered."""
    reader = {unit: segment for segment in reversed(group) for unit in segments[segment].units}
    ahead = len(before)
    while ahead and isinstance(before[ahead - 1], Gather):
        ahead -= 1
    out, rest, gathers = before[:ahead], list[Action](), list[Gather]()
    for action in before[ahead:]:
        if isinstance(action, Gather) and action.unit in reader:
            gathers.append(action)
        else:
            out.append(action)
    for action in backwards:
        if isinstance(action, Gather) and action.unit in reader:
            if Reshard(action.unit) in rest:
                rest.remove(Reshard(action.unit))
            else:
                gathers.append(action)
        else:
            rest.append(action)
    for segment in group:
        out += [gather for gather in gathers if reader[gather.unit] == segment]
        out.append(Recompute(segment, mb, onward=segment != group[-1]))
    return out + rest
