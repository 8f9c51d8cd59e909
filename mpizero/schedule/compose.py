"""From a model and the settings of a step to the lists of actions: the one place where a run and a plan get them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mpizero.dtypes import reduction
from mpizero.errors import ConfigError
from mpizero.layout import (
    ADAM,
    NVME,
    DEVICE,
    REPLICATED,
    Geometry,
    MeshShape,
    ModelSpec,
    OptimizerSpec,
    Placement,
    Policy,
    Wrapping,
    mesh_shape,
    parse_offload,
    require_elements,
    wrap,
)
from mpizero.schedule import passes
from mpizero.schedule.actions import Action
from mpizero.schedule.effects import effect_of
from mpizero.schedule.step import accumulate, evaluate, update, zero_grad
from mpizero.schedule.strategies import STRATEGIES, Strategy
from mpizero.schedule.validate import IllegalSchedule, validate

Actions = list[Action]
LEAST = {"accumulation": 1, "shard_size": 1, "limit_all_gathers": 1, "backward_prefetch": 0, "forward_prefetch": 0,
         "recompute_interval": 1}
LARGEST = 2**40  # beyond it no number of these means anything
MOST_MICROBATCHES = 4096  # each has its actions in the list, which is composed and validated in milliseconds a piece


@dataclass(frozen=True)
class StepSettings:
    """What shapes a step. stage: a key of `STRATEGIES`. shard_size: ranks that share one copy of the state; None: all.
    accumulation: microbatches. no_sync: reduce gradients after the last of them only.

    The others are passes, `overlap` that of overlapped; a depth of 0, a limit or an offload of None leaves the list as
    it is. offload: as `layout.tiers.parse_offload` reads it. recompute_interval: segments in a row that `recompute`
    computes again from one input.
    """

    stage: str = "2"
    shard_size: int | None = None
    accumulation: int = 1
    no_sync: bool = False
    backward_prefetch: int = 0
    forward_prefetch: int = 0
    keep_last_unit: bool = False
    limit_all_gathers: int | None = None
    overlap: bool = False
    offload: str | None = None
    recompute: bool = False
    recompute_interval: int = 1

    def __post_init__(self) -> None:
        """ConfigError for values that can never work."""
        if self.stage not in STRATEGIES:
            raise ConfigError(f"`stage` {self.stage!r} is none of {', '.join(STRATEGIES)}: use one of these")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < LARGEST:
                raise ConfigError(f"`{name}` {value} is impossible: it must be at least {least}, and below 2^40")
        if self.accumulation > MOST_MICROBATCHES:
            raise ConfigError(f"`accumulation` {self.accumulation} is too many: a step lists the actions of each "
                              f"microbatch, of which at most {MOST_MICROBATCHES:,}; use a larger `batch_size` instead")
        if self.recompute_interval != 1 and not self.recompute:
            raise ConfigError(f"`recompute_interval` {self.recompute_interval} says how many segments share the input "
                              "that `recompute` keeps: add that, or leave this out")
        if not self.shards and self.shard_size not in (None, 1):
            raise ConfigError(f"`stage` {self.stage} shards nothing, so `shard_size` {self.shard_size} has no meaning: "
                              "use `stage` 1, 2 or 3, or leave it out")
        if self.placement.tiers.checkpoints is not DEVICE and not self.recompute:
            raise ConfigError(f"`offload` {self.offload} moves inputs that are kept to compute segments again, but "
                              "nothing is: add `recompute`, or leave checkpoints out")

    @property
    def placement(self) -> Placement:
        """Of the stage, with the tiers of the offload."""
        return replace(STRATEGIES[self.stage].placement, tiers=parse_offload(self.offload))

    @property
    def shards(self) -> bool:
        """Whether the stage divides anything among ranks: what is sharded at all has sharded optimizer states."""
        return STRATEGIES[self.stage].placement.optim is not REPLICATED

    def mesh(self, ranks: int) -> MeshShape:
        """Replicas and shards of `ranks` ranks. ConfigError where they do not divide so."""
        return mesh_shape(ranks, self.shard_size or ranks if self.shards else 1)


@dataclass(frozen=True)
class Schedule:
    """The actions of a step: gradients, then (unless it is skipped) the update, then the end; and of an evaluation."""

    accumulate: Actions
    update: Actions
    zero_grad: Actions
    evaluate: Actions

    def step(self, skipped: bool = False) -> Actions:
        """A whole step, from rest to rest."""
        return [*self.accumulate, *([] if skipped else self.update), *self.zero_grad]


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
    mesh, strategy = settings.mesh(ranks), STRATEGIES[settings.stage]
    geometry = Geometry(wrap(spec, ranks, policy), settings.placement, mesh, dtype, optimizer, reduce_dtype,
                        sum_dtype)
    return Setup(settings, strategy, geometry, schedule(strategy, geometry, settings))


def schedule(strategy: Strategy, geometry: Geometry, settings: StepSettings) -> Schedule:
    """The lists of `strategy`, through the passes that `settings` name. IllegalSchedule unless each is proven legal."""
    wrapping, mesh, limit = geometry.wrapping, geometry.mesh, settings.limit_all_gathers

    def passed(actions: Iterable[Action]) -> Actions:
        actions = passes.gather_once(passes.without_lone_collectives(actions, mesh))
        if settings.recompute:
            actions = passes.recompute(actions, wrapping.segments, settings.recompute_interval)
        if settings.keep_last_unit:
            actions = passes.keep_last_unit(actions)
        actions = passes.backward_prefetch(actions, settings.backward_prefetch)
        actions = passes.forward_prefetch(actions, settings.forward_prefetch)
        if limit:
            actions = passes.limit_all_gathers(actions, limit, wrapping.segments)
        actions = passes.without_lone_collectives(passes.offloaded(actions, geometry.placement.tiers), mesh)
        if not settings.overlap:
            return actions
        if geometry.placement.tiers.params is NVME and not limit:  # a limit says how many may be in memory
            actions = passes.fetched_ahead(actions)
        return passes.overlapped(actions, geometry)

    lists = Schedule(passed(accumulate(strategy, wrapping, settings.accumulation, settings.no_sync)),
                     passed(update(strategy, wrapping)), list(zero_grad(wrapping)),
                     passed(passes.without_saving(evaluate(strategy, wrapping))))
    step, skipped = lists.step(), lists.step(skipped=True)
    # two steps in a row: one may leave behind what only the next one shows
    for actions in ([*step, *step], [*skipped, *step], lists.evaluate):
        validate(actions, geometry, limit)
    if wrapping.units and all(effect_of(action, geometry).updates is None for action in lists.update):
        raise IllegalSchedule("the list of updates has none: the model would never learn")
    return lists
