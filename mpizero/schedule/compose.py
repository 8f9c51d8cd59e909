"""From a model and the settings of a step to the lists of actions: the one place where a run and a plan get them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from mpizero.dtypes import reduction
from mpizero.errors import ConfigError
from mpizero.layout import (
    ADAM, DEVICE, NVME, Geometry, ModelSpec, OptimizerSpec, Policy, Wrapping, require_elements, wrap,
)
from mpizero.memory.addresses import ARENA
from mpizero.schedule import passes
from mpizero.schedule.actions import Action, Begin, DownloadKept
from mpizero.schedule.effects import effect_of
from mpizero.schedule.settings import LARGEST, StepSettings
from mpizero.schedule.step import accumulate, evaluate, update, zero_grad
from mpizero.schedule.strategies import STRATEGIES, Strategy
from mpizero.schedule.validate import IllegalSchedule, validate

Actions = list[Action]


class Course(NamedTuple):
    """What a step does with its gradients. updates: unless it is skipped. late: its update is begun alone. catches_up:
    before that, the one that is under way is ended."""

    updates: bool = True
    late: bool = False
    catches_up: bool = False


@dataclass(frozen=True)
class Schedule:
    """The actions of a step: gradients, then (unless it is skipped) the update, then the end; and of an evaluation.

    Of a delayed update, what begins it, in place of update and end; and what ends it, `catch_up`, after the gradients
    of the next step, or where somebody asks for all that is new. delay: steps before the first such update.
    """

    accumulate: Actions
    update: Actions
    zero_grad: Actions
    evaluate: Actions = field(default_factory=list)
    begin: Actions = field(default_factory=list)
    catch_up: Actions = field(default_factory=list)
    delay: int | None = None

    def step(self, skipped: bool = False) -> Actions:
        """A whole step, from rest to rest."""
        return self.along(Course(updates=not skipped))

    def along(self, course: Course) -> Actions:
        """A step that takes this course. It begins at rest unless it catches up, and ends there unless it is late."""
        end = self.zero_grad if not course.updates else self.begin if course.late else [*self.update, *self.zero_grad]
        return [*self.accumulate, *(self.catch_up if course.catches_up else []), *end]

    @property
    def shelved(self) -> dict[int, bool]:
        """The segments whose kept inputs leave the device; whether a rank's part of them alone does."""
        return shelved(self.accumulate)

    def before(self, course: Course) -> Actions:
        """From rest to where a step of this course begins."""
        return self.along(Course(late=True)) if course.catches_up else []

    def longest(self, steps: int = LARGEST) -> Actions:
        """What a run of so many steps comes to that is not interrupted, see `run`."""
        plain = steps if self.delay is None else min(steps, self.delay)
        courses = [Course()] if plain else []
        courses += [Course(late=True)] if steps > plain else []
        return self.run(courses + ([Course(late=True, catches_up=True)] if steps > plain + 1 else []))

    def run(self, courses: Collection[Course]) -> Actions:
        """From rest to rest, what a run comes to whose steps have taken these courses, in bytes at a time: a step of
        each, and what ends the last update."""
        delayed = [Course(late=True), *(course for course in courses if course.catches_up and course.late),
                   *(course for course in courses if course.catches_up and not course.late)]
        late = any(course.late for course in courses)
        steps = [*(course for course in courses if not course.late and not course.catches_up),
                 *(delayed if late else [])]
        ended = not late or not steps[-1].late
        return [action for course in steps for action in self.along(course)] + ([] if ended else self.catch_up)


def shelved(actions: Iterable[Action]) -> dict[int, bool]:
    """The segments whose kept inputs leave the device; whether a rank's part of them alone does."""
    going = (action.action if isinstance(action, Begin) else action for action in actions)
    return {action.segment: action.part for action in going if isinstance(action, DownloadKept)}


@dataclass(frozen=True)
class Setup:
    """A step that can be run or planned: the lists, and the geometry that they are about."""

    settings: StepSettings
    strategy: Strategy
    geometry: Geometry
    lists: Schedule

    @property
    def wrapping(self) -> Wrapping:
        return self.geometry.wrapping


def set_up(spec: ModelSpec, ranks: int, settings: StepSettings = StepSettings(), *, dtype: str = "float16",
           reduce_dtype: str | None = None, sum_dtype: str | None = None, optimizer: OptimizerSpec = ADAM,
           policy: Policy | None = None) -> Setup:
    """Mesh, units, placement and validated lists of `spec` on `ranks` ranks. reduce_dtype, sum_dtype: see
    `dtypes.reduction`. policy: see `layout.wrap`.

    ConfigError where ranks do not divide into shard groups, the policy misses a parameter, gradients cannot be sent or
    summed so, or the optimizer looks at more than elements, which is all that a shard of a flat parameter surely holds
    whole.
    """
    reduction(dtype, reduce_dtype, sum_dtype)
    require_elements(optimizer)
    if spec.tensor_size != settings.tensor_size:
        raise ConfigError(f"`tensor_size` {settings.tensor_size} needs a model of which every rank has a part, and "
                          f"this one is for `tensor_size` {spec.tensor_size}: use that, or one of the built-in models")
    mesh, strategy = settings.mesh(ranks), STRATEGIES[settings.stage]
    geometry = Geometry(wrap(spec, ranks, policy), settings.placement, mesh, dtype, optimizer, reduce_dtype,
                        sum_dtype)
    return _composed(strategy, geometry, settings)


@lru_cache(maxsize=16)  # runs of one process often differ in what no list depends on
def _composed(strategy: Strategy, geometry: Geometry, settings: StepSettings) -> Setup:
    """Whoever asks for the same shares its lists, and what is known of its geometry."""
    return Setup(settings, strategy, geometry, schedule(strategy, geometry, settings))


def schedule(strategy: Strategy, geometry: Geometry, settings: StepSettings) -> Schedule:
    """The lists of `strategy`, through the passes that `settings` name. IllegalSchedule unless each is proven legal."""
    forward = passes.without_saving(evaluate(strategy, geometry.wrapping))
    lists = replace(composed(strategy, geometry, settings),
                    evaluate=_overlapped(_placed(forward, geometry, settings), geometry, settings))
    limit = settings.limit_all_gathers
    step, skipped = lists.step(), lists.step(skipped=True)
    # two steps in a row: one may leave behind what only the next one shows
    for actions in ([*step, *step], [*skipped, *step], lists.evaluate):
        validate(actions, geometry, limit)
    if geometry.placement.delayed:
        validate(_delayed(lists), geometry, limit, lag=1)
    if geometry.wrapping.units and all(effect_of(action, geometry).updates is None for action in lists.update):
        raise IllegalSchedule("the list of updates has none: the model would never learn")
    return lists


def composed(strategy: Strategy, geometry: Geometry, settings: StepSettings) -> Schedule:
    """The lists of a step as `schedule` has them, not proven. But for buckets they depend on which axes of the mesh
    are divided, not on how far."""
    wrapping = geometry.wrapping

    def placed(actions: Iterable[Action]) -> Actions:
        return _placed(actions, geometry, settings)

    def overlapped(actions: Actions) -> Actions:
        return _overlapped(actions, geometry, settings)

    updates = placed(update(strategy, wrapping))
    lists = Schedule(overlapped(placed(accumulate(strategy, wrapping, settings.accumulation, settings.no_sync))),
                     overlapped(updates), list(zero_grad(wrapping)))
    if not geometry.placement.delayed:
        return lists
    begin, end = passes.delayed(updates)
    return replace(lists, begin=begin, catch_up=overlapped(end), delay=settings.delayed_update_after)


def _placed(actions: Iterable[Action], geometry: Geometry, settings: StepSettings) -> Actions:
    """Through the passes that say what is kept, gathered, reduced together, and where it rests."""
    segments, mesh = geometry.wrapping.segments, geometry.mesh
    actions = passes.gather_once(passes.without_lone_collectives(actions, mesh))
    if settings.recompute:
        actions = passes.recompute(actions, segments, settings.recompute_interval)
    if settings.allocator == ARENA and geometry.placement.tiers.checkpoints is DEVICE:
        actions = passes.kept_apart(actions)
    if settings.keep_last_unit:
        actions = passes.keep_last_unit(actions)
    actions = passes.backward_prefetch(actions, settings.backward_prefetch)
    actions = passes.forward_prefetch(actions, settings.forward_prefetch)
    if settings.limit_all_gathers:
        actions = passes.limit_all_gathers(actions, settings.limit_all_gathers, segments)
    actions = passes.summed(actions, geometry.wrapping)
    if settings.partition_activations:
        actions = passes.partitioned(actions, segments)
    if settings.bucket_size is not None:
        actions = passes.bucketed(actions, geometry, passes.parse_bucket(settings.bucket_size))
    return passes.without_lone_collectives(passes.offloaded(actions, geometry.placement), mesh)


def _overlapped(actions: Actions, geometry: Geometry, settings: StepSettings) -> Actions:
    """Through those that say what goes on at a time."""
    if not settings.overlap:
        return actions
    if geometry.placement.tiers.params is NVME and not settings.limit_all_gathers:  # which may be in memory: no more
        actions = passes.fetched_ahead(actions)
    return passes.overlapped(actions, geometry)


def _delayed(lists: Schedule) -> Actions:
    """Steps of every course, in every order of two that can be."""
    late, again = Course(late=True), Course(late=True, catches_up=True)
    skipped, caught_up = Course(updates=False), Course(updates=False, catches_up=True)
    courses = [Course(), late, again, again, caught_up, skipped, late, caught_up, late]
    return [*(action for course in courses for action in lists.along(course)), *lists.catch_up, *lists.evaluate]
