"""Operations of a list for each byte that it moves over a link: AIT, as ZeRO-Infinity (arXiv:2104.07857), sec. 4, has
it, of what really is in the list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from mpizero.layout import ActivationBytes, Geometry
from mpizero.planner.model import PlannedModel
from mpizero.planner.tiers import link_name, plan_tiers
from mpizero.schedule.actions import Action
from mpizero.schedule.effects import effect_of


def operations(actions: Iterable[Action], geometry: Geometry, model: PlannedModel, tokens: int) -> int:
    """Of forward, backward, and what is computed again, when a microbatch has `tokens` tokens on a rank."""
    per_token = {"forward": model.forward_flops, "recompute": model.forward_flops, "backward": model.backward_flops}
    works = [effect.work for action in actions if (effect := effect_of(action, geometry)).begins is None]
    return tokens * sum(per_token[work.kind][work.index] for work in works
                        if work is not None and work.kind in per_token)


def serial_bytes(actions: Sequence[Action], geometry: Geometry, link: str,
                 activations: ActivationBytes | None = None) -> int:
    """Bytes that a step waits for if nothing overlaps, of a whole step over the link `link` (`device-host`): both ways
    go on at a time, so of an action that moves both ways, as an update that reads and writes files, the busier one
    counts."""
    by_action: dict[int, dict[object, int]] = defaultdict(lambda: defaultdict(int))
    for move in plan_tiers(actions, geometry, activations).moves:
        if link_name(move.way) == link:
            by_action[move.place][move.way] += move.nbytes
    return sum(max(ways.values()) for ways in by_action.values())
