"""One unit (FlatParameter) on one rank: its buffers, and the operations that actions stand for.

[Note: What a rank keeps]
`param` is whole or a shard, by placement. The optimizer's range is whole or a shard too: `states` holds, by name, what
the optimizer declares, and the float32 "master" weights. Float32 parameters, and those that shall have no master
weights, are their own: then "master" is a view of `param`. So it is of a frozen unit, which keeps nothing else. Where
units have owners, the shard of the owner is all of the unit, and that of others is empty.

[Note: Where a rank keeps it] Each tier has its ledger. States off the device have the reduced gradient come to them
(`offloaded`), and give new parameters (`new`), which go back up; `moves` says how. Whoever reads or writes what is kept
asks for its `blocks`, and does not care where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from mpizero.comm import (Collective, Mesh, Stream, begin_all_gather, begin_all_reduce, begin_broadcast, begin_reduce,
                          begin_reduce_scatter)
from mpizero.dtypes import numpy_dtype
from mpizero.engine.beside import Beside, Host
from mpizero.engine.rooms import Array, Kept, Rooms, blocks
from mpizero.layout import DEVICE, MASTER, OWNED, REPLICATED, SHARDED, UPDATE_BLOCK, Axis, Geometry, Keep, Tier
from mpizero.memory.kinds import GRAD, OPTIM, PARAM, UNSHARDED_GRAD, UNSHARDED_PARAM
from mpizero.memory.links import Transfer
from mpizero.memory.regions import Block, Region
from mpizero.optim import ALONE, Optimizer, Workers
from mpizero.schedule import updates_on

THREADED = 2 * UPDATE_BLOCK  # elements; of fewer an update is over before threads are awake


@dataclass(frozen=True)
class Update:
    """What an update needs that only the whole job knows: decided when ranks agree, the same on every rank."""

    optimizer: Optimizer
    lr: float
    step: int  # of the optimizer, counted from 1: skipped steps do not count
    factor: float  # clip coefficient / loss scale
    workers: Workers = ALONE  # threads of this rank


@dataclass(frozen=True)
class Pending:
    """A collective, a move or a late update of a unit, not yet under way. done: what makes its result the unit's, once
    it is over."""

    going: Collective | Transfer | Beside
    done: Callable[[], None]

    def begin(self, stream: Stream) -> None:
        """Set it going; `stream` drives collectives."""
        if isinstance(self.going, Collective):
            stream.begin(self.going)
        else:
            self.going.begin()

    def end(self, stream: Stream) -> None:
        """Wait for what was begun."""
        if isinstance(self.going, Collective):
            stream.finish(self.going)
        else:
            self.going.finish()
        self.done()

    def finish(self) -> None:
        """Do it, alone."""
        self.going.finish()
        self.done()


class Unit:
    """A FlatParameter with gradients and optimizer states. `phase` names the part of the step in traffic records.

    written: the parameters whose gradient an unsharded gradient holds already; one set for all units of a model.
    """

    def __init__(self, index: int, geometry: Geometry, mesh: Mesh, rooms: Rooms, written: set[str]):
        """index: which of the units of `geometry`, which is of this rank's place. rooms: where it keeps what."""
        layout = self.layout = geometry.wrapping.units[index]
        self.placement, self.mesh, self.ledger = geometry.placement, mesh, rooms.ledgers[DEVICE]
        self.updating = rooms.ledgers[updates_on(geometry.placement)]  # of the tier on which updates run
        self._index, self._rooms, self._written = index, rooms, written
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

    @property
    def owned(self) -> slice:
        """1/N of the flat parameter, padding left out, another part on every rank: what this rank counts in global
        sums."""
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
        replicas = self.mesh.group(Axis.REPLICATE)
        piece = (part.stop - part.start) // replicas.size
        start = part.start + piece * replicas.rank
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

    def unshard(self, axis: Axis) -> Pending:
        """All-gather the whole parameters from the shards, or broadcast them from the owner."""
        assert self.placement.params is not REPLICATED and self._unsharded_param is None, \
            f"unit {self.layout.name} is whole"
        whole = self.open_param()
        assert not isinstance(self.param, Region), f"unit {self.layout.name} rests in a file"
        whole[self.shard] = self.param
        return Pending(self.begin_gather(whole, axis, self.phase), _nothing)

    def open_param(self) -> Array:
        """(padded_numel,) in `dtype`, to be filled."""
        self._unsharded_param = self.ledger.empty(self.layout.padded_numel, self.dtype, UNSHARDED_PARAM)
        return self._unsharded_param

    def begin_gather(self, whole: Array, axis: Axis, phase: str) -> Collective:
        """Complete `whole` (padded_numel,), in which each rank along the axis has what it keeps."""
        group, name = self.mesh.group(axis), self.layout.name
        if self.placement.params is OWNED:
            return begin_broadcast(group, whole, self.owner, unit=name, phase=phase)
        return begin_all_gather(group, whole, unit=name, phase=phase)

    def reshard(self) -> None:
        """Free the whole parameters."""
        assert self._unsharded_param is not None, f"unit {self.layout.name} is not gathered"
        self.ledger.discard(self._unsharded_param)
        self._unsharded_param = None

    def broadcast_param(self, axis: Axis) -> Pending:
        """Complete whole parameters from what the owner fetched."""
        return Pending(self.begin_gather(self.whole_param, axis, self.phase), _nothing)

    def all_gather_param(self, axis: Axis) -> Pending:
        """Complete whole parameters from what each rank along the axis updated, or fetched."""
        return Pending(begin_all_gather(self.mesh.group(axis), self.whole_param, unit=self.layout.name,
                                        phase=self.phase), _nothing)

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

    def reduce_scatter_grad(self, axis: Axis) -> Pending:
        """Sum along the axis; the shard of the sum becomes, or is added to, the reduced gradient."""
        return self._reduce(axis, begin_reduce_scatter)

    def reduce_grad(self, axis: Axis) -> Pending:
        """Sum along the axis; at the owner the whole sum becomes, or is added to, the reduced gradient."""
        return self._reduce(axis, partial(begin_reduce, root=self.owner))

    def _reduce(self, axis: Axis, begin: Callable[..., Collective]) -> Pending:
        """To what this rank keeps."""
        flat, first = self.close_grad(), self.reduced is None
        if first:
            self.reduced = self.ledger.empty(self.shard_numel, self.grad_dtype, GRAD)
        ring = begin(self.mesh.group(axis), flat, self.reduced, accumulate=not first, wire=self.wire,
                     unit=self.layout.name, phase=self.phase)
        return Pending(ring, lambda: self.ledger.discard(flat))

    def all_reduce_grad(self, axis: Axis) -> Pending:
        """Sum along the axis; the whole sum becomes, or is added to, the reduced gradient."""
        flat, first = self.close_grad(), self.reduced is None
        in_place = first and self.grad_dtype == self.dtype
        if first:
            self.reduced = flat if in_place else self.ledger.empty(flat.size, self.grad_dtype, GRAD)
        ring = begin_all_reduce(self.mesh.group(axis), flat, self.reduced, accumulate=not first, wire=self.wire,
                                unit=self.layout.name, phase=self.phase)

        def done() -> None:
            if in_place:
                self.ledger.rekind(flat, GRAD)
            else:
                self.ledger.discard(flat)

        return Pending(ring, done)

    def all_reduce_shard(self, axis: Axis) -> Pending:
        """Sum this rank's shard of the reduced gradient along the axis; at an owner, shard by shard, since the order of
        additions depends on where a ring cuts."""
        assert self.reduced is not None, f"unit {self.layout.name} has no reduced gradient on the device"
        part, parts = self.part_of(self.reduced, self.shard), 1
        if self.placement.optim is OWNED:
            parts = self.mesh.group(Axis.SHARD).size if part.size else 0
        return Pending(begin_all_reduce(self.mesh.group(axis), part, wire=self.wire, parts=parts, unit=self.layout.name,
                                        phase=self.phase), _nothing)

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

    # -- update -------------------------------------------------------------------------------------------------------

    def optim_step(self, update: Update) -> None:
        """The optimizer on this rank's range; the result is rounded into the parameters it keeps, or into `new` where
        these are not where the states are. Weight decay shrinks the elements of its own parameters alone, wherever the
        shard begins."""
        assert self._unsharded_param is None, f"unit {self.layout.name} is gathered: its whole parameters would be old"
        kept = self.range_of(self.placement.optim)
        streams = {"grad": self.blocks("grad", kept)}
        streams |= {name: self.blocks(name, kept, writes=True) for name in self.states}
        if self.placement.apart:
            self.new = self.updating.empty(kept.stop - kept.start, self.dtype, PARAM)
        elif self.has_master:
            streams["out"] = self.blocks("param", kept, reads=False, writes=True)
        for found in zip(*streams.values(), strict=True):
            arrays, part = {name: values for name, (_, values) in zip(streams, found, strict=True)}, found[0][0]
            out = arrays.get("out") if self.new is None else self.new[part.start - kept.start : part.stop - kept.start]
            self._prepared(update, arrays, part, out)()

    def late_step(self, update: Update, host: Host) -> Pending:
        """The same in the host's thread, of the gradient that is held. Its storage is taken now."""
        assert self.held is not None and self.placement.apart, f"unit {self.layout.name} holds no gradient"
        kept = self.range_of(self.placement.optim)
        arrays = {name: values for name in self.states for _, values in self.blocks(name, kept)}
        self.new = self.updating.empty(kept.stop - kept.start, self.dtype, PARAM)
        go = self._prepared(update, arrays | {"grad": self.held}, kept, self.new)
        return Pending(Beside(host, self.layout.name, go), _nothing)

    def _prepared(self, update: Update, arrays: Mapping[str, Array], part: slice,
                  out: Array | None) -> Callable[[], None]:
        """The update of the elements `part`, of which `arrays` holds gradient and states by name."""
        master = arrays[MASTER.name]
        return update.optimizer.prepared(master, arrays, arrays["grad"], lr=update.lr, step=update.step,
                                         factor=update.factor, mem=self.updating, out=out,
                                         decayed=self.layout.decayed(part),
                                         workers=update.workers if master.size >= THREADED else ALONE)

    def store_param(self) -> None:
        """What a late update gave, into the parameters that are kept on its tier."""
        assert self.new is not None, f"unit {self.layout.name} has no new parameters"
        np.copyto(self.updated_param, self.new)
        self.updating.discard(self.new)
        self.new = None


def _nothing() -> None:
    """Of a collective in place."""
