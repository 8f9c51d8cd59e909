"""All lists of a training step, put together and proven legal: the one place where a run and a plan get them from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mpizero.layout import Wrapping
from mpizero.schedule import passes
from mpizero.schedule.actions import Action
from mpizero.schedule.step import accumulate, evaluate, update, zero_grad
from mpizero.schedule.strategies import Strategy
from mpizero.schedule.validate import validate

Actions = list[Action]


@dataclass(frozen=True)
class Lists:
    """The actions of a step: gradients, then (unless it is skipped) the update, then the end; and those of an evaluation."""

    accumulate: Actions
    update: Actions
    zero_grad: Actions
    evaluate: Actions

    def step(self, skipped: bool = False) -> Actions:
        """A whole step, from rest to rest."""
        return [*self.accumulate, *([] if skipped else self.update), *self.zero_grad]


def training_lists(strategy: Strategy, wrapping: Wrapping, replicas: int, shards: int, *,
                   accumulation: int = 1, no_sync: bool = False, backward_prefetch: int = 0, forward_prefetch: int = 0,
                   keep_last_unit: bool = False, limit_all_gathers: int | None = None) -> Lists:
    """The lists of `strategy` for `accumulation` microbatches on a mesh of `replicas` x `shards` ranks, through the passes named."""
    units = len(wrapping.units)

    def passed(actions: Iterable[Action]) -> Actions:
        actions = passes.without_lone_collectives(actions, replicas, shards)
        if keep_last_unit:
            actions = passes.keep_last_unit(actions)
        actions = passes.forward_prefetch(passes.backward_prefetch(actions, backward_prefetch), forward_prefetch)
        return passes.limit_all_gathers(actions, limit_all_gathers, wrapping.stages) if limit_all_gathers else actions

    lists = Lists(passed(accumulate(strategy, wrapping.stages, units, accumulation, no_sync)), passed(update(strategy, units)),
                  list(zero_grad(units)), passed(passes.without_saving(evaluate(strategy, wrapping.stages))))
    for actions in (lists.step(), lists.step(skipped=True), lists.evaluate):
        validate(actions, wrapping, strategy.placement, replicas, shards, limit_all_gathers)
    return lists
