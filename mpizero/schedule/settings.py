"""What shapes a step, as its user says it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, HOST, NVME, OWNED, REPLICATED, MeshShape, Placement, mesh_shape, parse_offload
from mpizero.schedule import passes
from mpizero.schedule.strategies import STRATEGIES

LEAST = {"accumulation": 1, "shard_size": 1, "tensor_size": 1, "limit_all_gathers": 1, "backward_prefetch": 0,
         "forward_prefetch": 0, "recompute_interval": 1, "delayed_update_after": 0}
LARGEST = 2**40  # beyond it no number of these means anything
MOST_MICROBATCHES = 4096  # each has its actions in the list, which is composed and validated in milliseconds a piece


@dataclass(frozen=True)
class StepSettings:
    """What shapes a step. stage: a key of `STRATEGIES`. shard_size: ranks that share one copy of the state; None: all.
    tensor_size: ranks that compute one batch together. accumulation: microbatches. no_sync: reduce gradients after the
    last of them only.

    The others are passes, `overlap` that of overlapped; a depth of 0, a limit or an offload of None leaves the list as
    it is. offload: as `layout.tiers.parse_offload` reads it. recompute_interval: segments in a row that `recompute`
    computes again from one input. delayed_update_after: number of steps after which each update goes on beside the next
    step; None: never. partition_activations: of each input that `recompute` keeps a tensor parallel rank keeps its part
    (P_a of ZeRO, sec. 6.1). bucket_size: as `passes.parse_bucket` reads it; None: each unit is reduced alone.
    allocator: by which buffers get addresses, one of `ALLOCATORS`; None: they have none.
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
    delayed_update_after: int | None = None
    bucket_size: str | None = None
    tensor_size: int = 1
    partition_activations: bool = False
    allocator: str | None = None

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
        if self.partition_activations and not (self.recompute and self.tensor_size > 1):
            raise ConfigError("`partition_activations` divides the inputs that `recompute` keeps among tensor parallel "
                              "ranks: add `recompute` and `tensor_size` 2 or more, or leave it out")
        self._check_bucket()
        self._check_offload()

    def _check_bucket(self) -> None:
        if self.bucket_size is not None:
            passes.parse_bucket(self.bucket_size)  # raises
            if self.placement.optim is OWNED:
                raise ConfigError(f"`bucket_size` has no meaning at `stage` {self.stage}: a gradient goes to the owner "
                                  "of its unit, and a bucket of several units has none; use `stage` 3, or leave it out")

    def _check_offload(self) -> None:
        optimizer = self.placement.tiers.optimizer  # raises
        if self.delayed_update_after is not None and optimizer is not HOST:
            raise ConfigError(f"`delayed_update_after` {self.delayed_update_after} lets an update of the host go on "
                              f"beside the device, but updates run {_WHERE[optimizer]}: use `offload` optimizer=cpu, "
                              "or leave it out")
        if self.placement.tiers.checkpoints is not DEVICE and not self.recompute:
            raise ConfigError(f"`offload` {self.offload} moves inputs that are kept to compute segments again, but "
                              "nothing is: add `recompute`, or leave checkpoints out")

    @property
    def placement(self) -> Placement:
        """Of the stage, with the tiers of the offload."""
        return replace(STRATEGIES[self.stage].placement, tiers=parse_offload(self.offload),
                       delayed=self.delayed_update_after is not None)

    @property
    def shards(self) -> bool:
        """Whether the stage divides anything among ranks: what is sharded at all has sharded optimizer states."""
        return STRATEGIES[self.stage].placement.optim is not REPLICATED

    def mesh(self, ranks: int) -> MeshShape:
        """Replicas, shards and tensor parallel ranks of `ranks` ranks. ConfigError where they do not divide so."""
        return mesh_shape(ranks, self.shard_size if self.shards else 1, self.tensor_size)


_WHERE = {DEVICE: "on the device", NVME: "on states in files"}
