"""One unit (FlatParameter) on one rank: its buffers. `collectives`, `moves`, `bucket` and `update` act on them.

[Note: What a rank keeps]
`param` is whole or a shard, by placement. The optimizer's range is whole or a shard too: `states` holds, by name, what
the optimizer declares, and the float32 "master" weights. Float32 parameters, and those that shall have no master
weights, are their own: then "master" is a view of `param`. So it is of a frozen unit, which keeps nothing else. Where
units have owners, the shard of the owner is all of the unit, and that of others is empty.

[Note: Where a rank keeps it] Each tier has its ledger. States off the device have the reduced gradient come to them
(`offloaded`), and give new parameters (`new`), which go back up. Whoever reads or writes what is kept
asks for its `blocks`, and does not care where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpizero.comm import Mesh
from mpizero.dtypes import numpy_dtype
from mpizero.engine.rooms import Array, Kept, Rooms, blocks
from mpizero.layout import DEVICE, MASTER, OWNED, REPLICATED, SHARDED, Axis, Geometry, Keep, Tier
from mpizero.memory.kinds import GRAD, OPTIM, PARAM, UNSHARDED_GRAD, UNSHARDED_PARAM
from mpizero.memory.regions import Block, Region
from mpizero.schedule import updates_on


class Unit:
    """A FlatParameter with gradients and optimizer states. `phase` names the part of the step in traffic records.

    written: the parameters whose gradient an unsharded gradient holds already; one set for all units of a model.
    """

    def __init__(self, index: int, geometry: Geometry, mesh: Mesh, rooms: Rooms, written: set[str]):
        """index: which of the units of `geometry`, which is of this rank's place. rooms: where it keeps what."""
        layout = self.layout = geometry.wrapping.units[index]
        self.placement, self.mesh, self.ledger = geometry.placement, mesh, rooms.ledgers[DEVICE]
        self.updating = rooms.ledgers[updates_on(geometry.placement)]  # of the tier on which updates run
        self._index, self._geometry, self._rooms, self._written = index, geometry, rooms, written
        self.dtype = numpy_dtype(geometry.dtype)
        self.wire, self.grad_dtype = numpy_dtype(geometry.wire), numpy_dtype(geometry.sums)
        shards = mesh.group(Axis.SHARD)
        self.owner = geometry.owner(index)  # its place in the shard group, where units have owners
        self.shard = layout.shard(shards.rank, shards.size)
        if self.placement.params is OWNED:
            self.shard = slice(0, geometry.kept(index, OWNED))
        self.phase = "start"
        self._unsharded_param: Array | None = None  # (padded_numel,) where parameters are sharded, while gathered
        self.offloaded: Kept | None = None  # this rank's part of the reduced gradient, off the device
        self.held: Array | None = None  # that of an earlier step, for a late update
        self.new: Array | None = None  # what an update off the device gave, in `dtype`
        # (padded_numel,) in `dtype`, from the first backward to the reduction
        self._unsharded_grad: Array | None = None
        self.reduced: Array | None = None  # gradient, in `grad_dtype`: whole or a shard, as the reduction leaves it
        # the whole gradient of which pieces are summed, and whether the sum is added to an earlier one: see `bucket`
        self.summing: Array | None = None
        self.adds = False

        for each in rooms.ledgers.values():
            each.at("init", layout.name)
        tiers = self.placement.tiers
        self.param = self._zeros(tiers.params, "param", self._numel(self.placement.params), self.dtype, PARAM)
        stored = () if layout.frozen else geometry.stored
        numel = self._numel(self.placement.optim)
        self.has_master = any(state.name == MASTER.name for state in stored)  # apart from the parameters
        self.states: dict[str, Kept] = {} if self.has_master else {
            MASTER.name: self.param if isinstance(self.param, Region) else self.updated_param}
        self.states |= {state.name: self._zeros(tiers.optimizer, state.name, numel, numpy_dtype(state.dtype), OPTIM)
                        for state in stored}

    def _room(self, tier: Tier, name: str, numel: int, dtype: np.dtype, kind: str) -> Kept:
        return self._rooms.empty(tier, self._index, name, self.layout.name, numel, dtype, kind)

    def _zeros(self, tier: Tier, name: str, numel: int, dtype: np.dtype, kind: str) -> Kept:
        """A file is full of zeros at first."""
        kept = self._room(tier, name, numel, dtype, kind)
        if not isinstance(kept, Region):
            kept.fill(0)
        return kept

    # -- ranges -------------------------------------------------------------------------------------------------------

    def _numel(self, keep: Keep) -> int:
        kept = self.range_of(keep)
        return kept.stop - kept.start

    def range_of(self, keep: Keep) -> slice:
        """The elements of the flat parameter that are kept."""
        return slice(0, self.layout.padded_numel) if keep is REPLICATED else self.shard

    def part_of(self, buffer: Array, wanted: slice) -> Array:
        """View of the elements `wanted` (of the flat parameter) in `buffer`, which holds all elements or this rank's
        shard."""
        start = self._start_of(buffer)
        return buffer[wanted.start - start : wanted.stop - start]

    def _start_of(self, kept: Kept) -> int:
        """The first of its elements."""
        return 0 if kept.size == self.layout.padded_numel else self.shard.start

    def blocks(self, name: str, part: slice | None = None, *, reads: bool = True,
               writes: bool = False) -> Iterator[Block]:
        """What is kept as `name` (param, grad, or a state) of the elements `part` of the flat parameter; None: all that
        is kept. Which elements, and these: one view where it is an array, else what a file has, block by block; ask
        until there are no more. writes: what is changed in a block is kept. reads: False if all of it is."""
        kept = self.param if name == "param" else self.grad if name == "grad" else self.states[name]
        start = self._start_of(kept)
        part = slice(start, start + kept.size) if part is None else part
        return blocks(kept, start, part, reads=reads, writes=writes)

    @property
    def shard_numel(self) -> int:
        """Elements of what this rank keeps of a sharded buffer."""
        return self._numel(SHARDED)

    @property
    def updated_param(self) -> Array:
        """The part of `param`, an array, that this rank's optimizer writes."""
        assert not isinstance(self.param, Region), f"unit {self.layout.name} rests in a file"
        return self.part_of(self.param, self.range_of(self.placement.optim))

    def rings(self, axis: Axis) -> int:
        """In how many the reduced gradient is summed along `axis`."""
        return self._geometry.rings(self._index, OWNED if self.placement.optim is OWNED else SHARDED, axis)

    @property
    def owned(self) -> slice:
        """1/N of the flat parameter, padding left out, another part on every rank that has it: what this rank counts in
        global sums, and saves."""
        return self._of_replica(self.shard)

    @property
    def counted(self) -> list[slice]:
        """`owned`, in the parts of which sums are made: the owner of a whole unit has a part for each rank of its shard
        group, other ranks as many empty ones."""
        shards = self.mesh.group(Axis.SHARD)
        if self.placement.params is not OWNED:
            return [self.owned]
        return [self._of_replica(self.layout.shard(place, shards.size)) if self.shard.stop else self.shard
                for place in range(shards.size)]

    def _of_replica(self, part: slice) -> slice:
        """Of what all replicas keep of `part`, the share of this one, without padding."""
        replicas, tensor = self.mesh.group(Axis.REPLICATE), self.mesh.group(Axis.TENSOR)
        count, index = replicas.size, replicas.rank
        if self.layout.copied:
            count, index = count * tensor.size, index * tensor.size + tensor.rank
        piece = (part.stop - part.start) // count
        start = part.start + piece * index
        return slice(min(start, self.layout.numel), min(start + piece, self.layout.numel))

    def kept(self) -> Iterator[tuple[str, Kept, Keep]]:
        """(name, room, how it is kept) of everything that rests between steps."""
        yield "param", self.param, self.placement.params
        for name, room in self.states.items():
            yield name, room, self.placement.optim

    # -- parameters ---------------------------------------------------------------------------------------------------

    @property
    def whole_param(self) -> Array:
        """(padded_numel,) in `dtype`; the unit must be gathered unless it is kept whole."""
        if self.placement.params is REPLICATED:
            assert not isinstance(self.param, Region), "what is kept whole rests on the device"
            return self.param
        assert self._unsharded_param is not None, f"unit {self.layout.name} is not gathered"
        return self._unsharded_param

    @property
    def gathered(self) -> bool:
        """Whether parameters that are kept in parts are whole."""
        return self._unsharded_param is not None

    def open_param(self) -> Array:
        """(padded_numel,) in `dtype`, to be filled."""
        self._unsharded_param = self.ledger.empty(self.layout.padded_numel, self.dtype, UNSHARDED_PARAM)
        return self._unsharded_param

    def reshard(self) -> None:
        """Free the whole parameters."""
        assert self._unsharded_param is not None, f"unit {self.layout.name} is not gathered"
        self.ledger.discard(self._unsharded_param)
        self._unsharded_param = None

    # -- gradients ----------------------------------------------------------------------------------------------------

    @property
    def grad(self) -> Kept:
        """The reduced gradient, wherever it is."""
        found = self.offloaded if self.reduced is None else self.reduced
        assert found is not None, f"unit {self.layout.name} has no reduced gradient"
        return found

    def open_grad(self) -> dict[str, Array]:
        """Name -> view of the unsharded gradient, to which a backward adds; it is made at the first call."""
        if self._unsharded_grad is None:
            self._unsharded_grad = self.ledger.empty(self.layout.padded_numel, self.dtype, UNSHARDED_GRAD)
            self._written.difference_update(param.name for param in self.layout.params)
        return self.layout.views(self._unsharded_grad)

    def close_grad(self) -> Array:
        """The unsharded gradient, complete: zero for parameters that no segment touched, and in the padding (NaN in
        debug mode: nobody reads it)."""
        flat = self._unsharded_grad
        assert flat is not None, f"unit {self.layout.name} has no gradient to reduce"
        for name, view in self.layout.views(flat).items():
            if name not in self._written:
                view.fill(0)
        flat[self.layout.numel :] = np.nan if self.ledger.debug else 0
        self._unsharded_grad = None
        return flat

    def free_grad(self, late: bool = False) -> None:
        """Free the reduced gradient, or the one that was held for a late update."""
        if late:
            assert self.held is not None, f"unit {self.layout.name} holds no gradient"
            self.updating.discard(self.held)
            self.held = None
            return
        self.discard(self.grad)
        self.reduced = self.offloaded = None

    def hold_grad(self) -> None:
        """Keep the gradient off the device for a late update."""
        assert self.held is None, f"unit {self.layout.name} holds a gradient"
        assert not isinstance(self.offloaded, Region), "a gradient in a file is not held"
        self.held, self.offloaded = self.offloaded, None

    def room_for_grad(self, like: Array) -> Kept:
        """Where this rank's part of the reduced gradient goes off the device."""
        return self._room(self.placement.tiers.optimizer, "grad", like.size, like.dtype, GRAD)

    def discard(self, kept: Kept) -> None:
        """Say that it must not be read again. What is in a file cannot be."""
        if not isinstance(kept, Region):
            self.ledger.discard(kept)
