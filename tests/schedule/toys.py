"""Small models without arrays, for lists of actions."""

from __future__ import annotations

from collections.abc import Iterable

from mpizero.layout import ADAM, Geometry, ModelSpec, OptimizerSpec, ParamSpec, Policy, SegmentSpec
from mpizero.schedule import Action, Setup, StepSettings, set_up, validate


def chain(sizes=(5, 7, 3)) -> ModelSpec:
    """A segment for each size, each with a parameter of its own."""
    return ModelSpec(tuple(ParamSpec(f"p{i}", (size,)) for i, size in enumerate(sizes)),
                     tuple(SegmentSpec(f"s{i}", (f"p{i}",)) for i in range(len(sizes))))


def tied() -> ModelSpec:
    """The last segment reads the first one's parameter again."""
    spec = chain()
    return ModelSpec(spec.params, (*spec.segments[:-1], SegmentSpec("head", ("p2", "p0"))))


def mlp5() -> ModelSpec:
    """The five-layer MLP of the golden numbers: units of 3168, 9312, 9312, 9312 and 1552 elements."""
    return chain((3168, 9312, 9312, 9312, 1552))


def setup(stage: str, spec: ModelSpec, ranks: int, shards: int | None = None, policy: Policy | None = None,
          dtype: str = "float16", sum_dtype: str | None = None, optimizer: OptimizerSpec = ADAM, **settings) -> Setup:
    """A step. shards: all ranks unless given; at stage 0 one."""
    chosen = StepSettings(stage, None if stage == "0" else shards, **settings)
    return set_up(spec, ranks, chosen, dtype=dtype, sum_dtype=sum_dtype, optimizer=optimizer, policy=policy)


def step(*arguments, **options) -> tuple[list[Action], Geometry]:
    """The actions of a whole step of `setup`, and what they are about."""
    made = setup(*arguments, **options)
    return made.lists.step(), made.geometry


def check(actions: Iterable[Action], geometry: Geometry, limit: int | None = None) -> None:
    """IllegalSchedule unless the validator accepts `actions`."""
    validate(actions, geometry, limit)
