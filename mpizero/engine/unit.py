"""One unit (FlatParameter) on one rank: its buffers, and the operations that actions stand for.

[Note: What a rank keeps]
`param` is whole or a shard, by placement. The optimizer's range is whole or a shard too: `master` (float32), `exp_avg`, `exp_avg_sq`.
Float32 parameters are their own master weights: then `master` is a view of `param`, and K is 8 bytes, not 12.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from mpizero.dist import Group, Mesh, all_gather, all_reduce, reduce_scatter
from mpizero.dtypes import numpy_dtype
from mpizero.layout import REPLICATED, SHARDED, FlatLayout, Keep, Placement
from mpizero.memory import GRAD, OPTIM, PARAM, UNSHARDED_GRAD, UNSHARDED_PARAM, Ledger
from mpizero.nn.model import Model
from mpizero.optim import Adam, adam_update
from mpizero.schedule import Axis

Array = np.ndarray


class Params(Enum):
    """State of the parameters. KEPT: `param` alone. GATHERED: beside it padded_numel elements of unsharded_param."""

    KEPT = "kept"
    GATHERED = "gathered"


class Unit:
    """A FlatParameter with gradients and optimizer states. `phase` names the part of the step in traffic records.

    written: the parameters whose gradient an unsharded gradient holds already; one set for all units of a model.
    """

    def __init__(self, layout: FlatLayout, placement: Placement, mesh: Mesh, dtype: str, ledger: Ledger, written: set[str]):
        self.layout, self.placement, self.mesh, self.ledger = layout, placement, mesh, ledger
        self._written = written
        self.dtype = numpy_dtype(dtype)
        self.state = Params.KEPT
        self.shard = layout.shard(mesh.shard.rank, mesh.shard.size)
        self.phase = "start"
        self._unsharded_param: Array | None = None
        self._unsharded_grad: Array | None = None
        self._grad: Array | None = None

        ledger.at("init", layout.name)
        self.param = ledger.zeros(self._numel(placement.params), self.dtype, PARAM)
        master_numel = self._numel(placement.optim)
        self.master = self.updated_param if self.dtype == np.float32 else ledger.zeros(master_numel, np.float32, OPTIM)
        self.exp_avg = ledger.zeros(master_numel, np.float32, OPTIM)
        self.exp_avg_sq = ledger.zeros(master_numel, np.float32, OPTIM)

    # -- ranges -------------------------------------------------------------------------------------------------------

    def _numel(self, keep: Keep) -> int:
        return self.layout.padded_numel if keep is REPLICATED else self.layout.shard_numel(self.mesh.shard.size)

    def range_of(self, keep: Keep) -> slice:
        """The elements of the flat parameter that are kept."""
        return slice(0, self.layout.padded_numel) if keep is REPLICATED else self.shard

    def part_of(self, buffer: Array, wanted: slice) -> Array:
        """View of the elements `wanted` (of the flat parameter) in `buffer`, which holds all of them or this rank's shard."""
        start = 0 if buffer.size == self.layout.padded_numel else self.shard.start
        return buffer[wanted.start - start : wanted.stop - start]

    @property
    def updated_param(self) -> Array:
        """The part of `param` that this rank's optimizer writes."""
        return self.part_of(self.param, self.range_of(self.placement.optim))

    @property
    def owned(self) -> slice:
        """1/N of the flat parameter, padding left out, another part on every rank: what this rank counts in global sums."""
        piece = (self.shard.stop - self.shard.start) // self.mesh.replicate.size
        start = self.shard.start + piece * self.mesh.replicate.rank
        return slice(min(start, self.layout.numel), min(start + piece, self.layout.numel))

    def initialise(self, model: Model, seed: int) -> None:
        """Each parameter once, keyed by its name; only one whole parameter lives at a time."""
        for spec, offset in zip(self.layout.params, self.layout.offsets, strict=True):
            values = model.initial(spec.name, seed).reshape(-1)
            for buffer, keep in ((self.master, self.placement.optim), (self.param, self.placement.params)):
                kept = self.range_of(keep)
                low, high = max(kept.start, offset), min(kept.stop, offset + spec.numel)
                if low < high:
                    buffer[low - kept.start : high - kept.start] = values[low - offset : high - offset]

    # -- parameters ---------------------------------------------------------------------------------------------------

    @property
    def whole_param(self) -> Array:
        """(padded_numel,) in param_dtype; the unit must be gathered unless it is kept whole."""
        if self.placement.params is REPLICATED:
            return self.param
        assert self.state is Params.GATHERED and self._unsharded_param is not None, f"unit {self.layout.name} is not gathered"
        return self._unsharded_param

    def unshard(self) -> None:
        """All-gather the whole parameters from the shards."""
        assert self.state is Params.KEPT and self.placement.params is SHARDED
        whole = self.ledger.empty(self.layout.padded_numel, self.dtype, UNSHARDED_PARAM)
        whole[self.shard] = self.param
        all_gather(self.mesh.shard, whole, unit=self.layout.name, phase=self.phase)
        self._unsharded_param, self.state = whole, Params.GATHERED

    def reshard(self) -> None:
        """Free the whole parameters."""
        assert self.state is Params.GATHERED and self._unsharded_param is not None
        self.ledger.discard(self._unsharded_param)
        self._unsharded_param, self.state = None, Params.KEPT

    def all_gather_param(self) -> None:
        """Complete kept whole parameters from what each rank of the shard group updated."""
        all_gather(self.mesh.shard, self.param, unit=self.layout.name, phase=self.phase)

    # -- gradients ----------------------------------------------------------------------------------------------------

    @property
    def grad(self) -> Array:
        assert self._grad is not None, f"unit {self.layout.name} has no reduced gradient"
        return self._grad

    def open_grad(self) -> dict[str, Array]:
        """Name -> view of the unsharded gradient, to which a backward adds; it is made at the first call."""
        if self._unsharded_grad is None:
            self._unsharded_grad = self.ledger.empty(self.layout.padded_numel, self.dtype, UNSHARDED_GRAD)
            self._written.difference_update(param.name for param in self.layout.params)
        return self.layout.views(self._unsharded_grad)

    def _close_grad(self) -> Array:
        """The unsharded gradient, complete: zero for parameters that no stage touched, and in the padding (NaN in debug mode: nobody reads it)."""
        flat = self._unsharded_grad
        assert flat is not None, f"unit {self.layout.name} has no gradient to reduce"
        for name, view in self.layout.views(flat).items():
            if name not in self._written:
                view.fill(0)
        flat[self.layout.numel :] = np.nan if self.ledger.debug else 0
        self._unsharded_grad = None
        return flat

    def reduce_scatter_grad(self) -> None:
        """Sum over the shard group; the shard of the sum becomes, or is added to, the reduced gradient."""
        flat, first = self._close_grad(), self._grad is None
        if first:
            self._grad = self.ledger.empty(self._numel(SHARDED), self.dtype, GRAD)
        reduce_scatter(self.mesh.shard, flat, self.grad, accumulate=not first, unit=self.layout.name, phase=self.phase)
        self.ledger.discard(flat)

    def all_reduce_grad(self, axis: Axis) -> None:
        """Sum along the axis; the whole sum becomes, or is added to, the reduced gradient."""
        flat = self._close_grad()
        all_reduce(self._group(axis), flat, unit=self.layout.name, phase=self.phase)
        if self._grad is None:
            self._grad = self.ledger.rekind(flat, GRAD)
        else:
            np.add(self._grad, flat, out=self._grad)
            self.ledger.discard(flat)

    def all_reduce_shard(self) -> None:
        """Sum this rank's shard of the reduced gradient across the replicas."""
        all_reduce(self.mesh.replicate, self.part_of(self.grad, self.shard), unit=self.layout.name, phase=self.phase)

    def free_grad(self) -> None:
        self.ledger.discard(self.grad)
        self._grad = None

    def _group(self, axis: Axis) -> Group:
        return self.mesh.shard if axis is Axis.SHARD else self.mesh.replicate

    # -- update -------------------------------------------------------------------------------------------------------

    def optim_step(self, hyper: Adam, *, lr: float, step: int, factor: float) -> None:
        """Adam on this rank's range; the result is rounded into the parameters it keeps. factor: clip coefficient / loss scale."""
        grad = self.part_of(self.grad, self.range_of(self.placement.optim))
        out = None if self.dtype == np.float32 else self.updated_param
        adam_update(hyper, self.master, self.exp_avg, self.exp_avg_sq, grad, lr=lr, step=step, factor=factor, mem=self.ledger, out=out)
