"""Small models without arrays, for lists of actions."""

from __future__ import annotations

from mpizero.layout import ModelSpec, ParamSpec, StageSpec, Wrapping, wrap
from mpizero.schedule import STRATEGIES, Action, accumulate, update, without_lone_collectives, zero_grad


def chain(sizes=(5, 7, 3)) -> ModelSpec:
    """A stage for each size, each with a parameter of its own."""
    return ModelSpec(tuple(ParamSpec(f"p{i}", (size,)) for i, size in enumerate(sizes)),
                     tuple(StageSpec(f"s{i}", (f"p{i}",)) for i in range(len(sizes))))


def tied() -> ModelSpec:
    """The last stage reads the first one's parameter again."""
    spec = chain()
    return ModelSpec(spec.params, (*spec.stages[:-1], StageSpec("head", ("p2", "p0"))))


def mlp5() -> ModelSpec:
    """The five-layer MLP of the golden numbers: units of 3168, 9312, 9312, 9312 and 1552 elements."""
    return chain((3168, 9312, 9312, 9312, 1552))


def step(stage: str, spec: ModelSpec, ranks: int, shards: int | None = None, microbatches: int = 1, no_sync: bool = False,
         policy=None) -> tuple[list[Action], Wrapping, int, int]:
    """A whole step, its wrapping, replicas and shards."""
    shards = 1 if stage == "0" else shards or ranks
    wrapping, strategy = wrap(spec, ranks, policy), STRATEGIES[stage]
    units = len(wrapping.units)
    actions = [*accumulate(strategy, wrapping.stages, units, microbatches, no_sync), *update(strategy, units), *zero_grad(units)]
    return without_lone_collectives(actions, ranks // shards, shards), wrapping, ranks // shards, shards
