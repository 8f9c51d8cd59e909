"""Operations of a list: of its bytes, AIT as ZeRO-Infinity (arXiv:2104.07857), sec. 4, has it."""

from __future__ import annotations

from collections.abc import Iterable

from mpizero.layout import Geometry
from mpizero.planner.model import PlannedModel
from mpizero.schedule.actions import Action
from mpizero.schedule.effects import effect_of


def operations(actions: Iterable[Action], geometry: Geometry, model: PlannedModel, tokens: int) -> int:
    """Of forward, backward, and what is computed again, when a microbatch has `tokens` tokens on a rank."""
    per_token = {"forward": model.forward_flops, "recompute": model.forward_flops, "backward": model.backward_flops}
    works = [effect.work for action in actions if (effect := effect_of(action, geometry)).begins is None]
    return tokens * sum(per_token[work.kind][work.index] for work in works
                        if work is not None and work.kind in per_token)
