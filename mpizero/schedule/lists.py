"""All lists of a training step, put together and proven legal: the one place where a run and a plan get them from."""

from __future__ import annotations

from dataclasses import dataclass

from mpizero.layout import Wrapping
from mpizero.schedule.actions import Action
from mpizero.schedule.passes import without_lone_collectives, without_saving
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
                   accumulation: int = 1, no_sync: bool = False) -> Lists:
    """The lists of `strategy` for `accumulation` microbatches on a mesh of `replicas` x `shards` ranks."""
    units = len(wrapping.units)

    def lean(actions: Actions) -> Actions:
        return without_lone_collectives(actions, replicas, shards)

    lists = Lists(lean(list(accumulate(strategy, wrapping.stages, units, accumulation, no_sync))),
                  lean(list(update(strategy, units))), list(zero_grad(units)), without_saving(evaluate(strategy, wrapping.stages)))
    for actions in (lists.step(), lists.step(skipped=True), lists.evaluate):
        validate(actions, wrapping, strategy.placement, replicas, shards)
    return lists
