"""What an optimizer is: states that it declares, and an update of flat slices, block by block.

[Note: blocks] One pass over memory. Slices are taken in blocks so small that a block of weights, states, gradient and
one temporary stays in the core's L2 cache while about fifteen elementwise passes run over it. Passes over the whole
array would go to memory each time.

[Note: elementwise] Every operation is elementwise and correctly rounded (+, -, *, /, sqrt, sign, conversions), and
scalars are rounded to float32 once. An element's result therefore depends on its own inputs only: any split of a flat
range into shards, blocks or threads gives the same bits, whoever takes which. Weight decay, which is not for every
element, is taken on the ranges that are told, wherever these begin inside a block.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpizero.errors import ConfigError
from mpizero.half import narrow, widen
from mpizero.layout.flat import UPDATE_BLOCK
from mpizero.layout.states import OptimizerSpec
from mpizero.memory.kinds import GRAD_FP32, WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.optim.workers import ALONE, Workers

Array = np.ndarray
Ranges = Sequence[tuple[int, int]]  # (begin, end), sorted and apart


class Optimizer(ABC):
    """Updates weights element by element, in float32.

    decoupled: weight decay shrinks the weights directly; otherwise it is added to the gradient (L2).
    """

    weight_decay: float
    decoupled: bool

    @property
    @abstractmethod
    def spec(self) -> OptimizerSpec:
        """What it keeps: memory, plans, checksums and checkpoints read it."""

    @abstractmethod
    def scalars(self, lr: float, step: int) -> Any:
        """A step's constants for `update_block`, each by `scalar`."""

    @abstractmethod
    def update_block(self, c: Any, w: Array, states: Sequence[Array], g: Array, t: Array) -> None:
        """All arrays float32 (block,): weights and states, in the order of `spec`, are changed in place; the gradient g
        and t are destroyed. Weight decay is done already."""

    def update(self, master: Array, states: Mapping[str, Array], grad: Array, **options: Any) -> None:
        """One step in place: `prepared`, done at once."""
        self.prepared(master, states, grad, **options)()

    def prepared(self, master: Array, states: Mapping[str, Array], grad: Array, *, lr: float, step: int, factor: float,
                 mem: Allocator, out: Array | None = None, decayed: Ranges | None = None,
                 block: int = UPDATE_BLOCK, workers: Workers = ALONE) -> Callable[[], None]:
        """One step in place on flat arrays of equal size (n,), master and each state that `spec` names: what does it
        when it is called. Memory is taken now, so that any thread may call.

        master: float32; or without master weights the 16-bit parameters, which take part as float32 and are rounded to
        nearest even afterwards. grad: any float type, not changed; the gradient used is float32(grad) * factor
        (clipping coefficient over loss scale). step: this update's number, from 1; skipped steps do not count. out:
        receives the new weights, rounded to its type. decayed: the elements that weight decay shrinks; None: all.
        workers: threads that divide n among them; see [Note: elementwise].
        Memory, of all threads together: one float32 block of the gradient (`GRAD_FP32`) of `update_block_numel(n)`
        elements, and one like it (`WORKSPACE`), or two without master weights.
        """
        assert step >= 1 and block >= 1, (step, block)
        kept = [states[state.name] for state in self.spec.states]
        assert all(array.shape == (master.size,) and array.dtype == np.float32 for array in kept), self.spec
        assert grad.shape == master.shape and (out is None or out.shape == master.shape)
        size = min(block, master.size)
        kinds = (GRAD_FP32, WORKSPACE) if master.dtype == np.float32 else (GRAD_FP32, WORKSPACE, WORKSPACE)
        blocks = [mem.empty(size, np.float32, kind) for kind in kinds]
        lanes = max(min(workers.number, size), 1)
        width = max(size // lanes, 1)
        arrays = _Arrays(master, kept, grad, out, [(0, master.size)] if decayed is None else decayed)
        constants = _Constants(self.scalars(lr, step), scalar(factor), self._decay(lr))

        def go() -> None:
            starts = iter(range(0, master.size, width))  # whoever is free takes the next

            def work(lane: int) -> None:
                mine = [each[lane * width : (lane + 1) * width] for each in blocks]
                # where a gradient's square overflows, the moment is infinite and the update 0, as in PyTorch
                with np.errstate(over="ignore"):
                    for start in starts:
                        self._update_part(arrays, slice(start, min(start + width, master.size)), constants, mine)

            workers.run(work, lanes)

        return go

    def _update_part(self, arrays: _Arrays, part: slice, c: _Constants, blocks: Sequence[Array]) -> None:
        """blocks: float32, of at least the part's size, destroyed: for gradient and temporary, and for weights that are
        not float32."""
        master, out = arrays.master, arrays.out
        g, t, *wide = (each[: part.stop - part.start] for each in blocks)
        np.multiply(_as_float32(arrays.grad[part], g), c.factor, out=g)
        w = _as_float32(master[part], wide[0] if wide else master[part])
        if self.weight_decay:
            _shrink(w, g, t, c.decay, self.decoupled, within(arrays.decayed, part))
        self.update_block(c.scalars, w, [state[part] for state in arrays.states], g, t)
        for target in (master if wide else None, out):
            if target is not None:
                _round(w, target[part], g, t)

    def _decay(self, lr: float) -> Array:
        return scalar(1.0 - lr * self.weight_decay if self.decoupled else self.weight_decay)


class _Arrays(NamedTuple):
    """As `prepared` takes them; states in the order of the spec."""

    master: Array
    states: Sequence[Array]
    grad: Array
    out: Array | None
    decayed: Ranges


class _Constants(NamedTuple):
    """Of a step."""

    scalars: Any
    factor: Array
    decay: Array


def scalar(value: float) -> Array:
    """A constant, computed in Python floats (float64) and rounded to float32 once: (), NumPy's fastest operand."""
    return np.array(value, np.float32)


def within(ranges: Ranges, part: slice) -> Iterator[slice]:
    """What of `ranges` lies in `part`, counted from its start."""
    for index in range(bisect_right(ranges, part.start, key=lambda each: each[1]), len(ranges)):
        begin, end = ranges[index]
        if begin >= part.stop:
            return
        yield slice(max(begin, part.start) - part.start, min(end, part.stop) - part.start)


def _shrink(w: Array, g: Array, t: Array, decay: Array, decoupled: bool, pieces: Iterator[slice]) -> None:
    for piece in pieces:
        if decoupled:
            np.multiply(w[piece], decay, out=w[piece])
        else:
            np.multiply(w[piece], decay, out=t[piece])
            np.add(g[piece], t[piece], out=g[piece])


def _as_float32(values: Array, block: Array) -> Array:
    """`values` themselves where they are float32, else `block`, which receives them."""
    if values.dtype == np.float32:
        return values
    if values.dtype == np.float16:
        widen(values, block)
    else:
        np.copyto(block, values, casting="unsafe")  # same_kind does not know bfloat16
    return block


def _round(w: Array, out: Array, scratch: Array, more: Array) -> None:
    """out = w, rounded to nearest even."""
    if out.dtype == np.float16:
        narrow(w, out, scratch, more)
    else:
        np.copyto(out, w, casting="unsafe")


# -- hyperparameters ---------------------------------------------------------------------------------------------------


def check_parts(name: str, *parts: float) -> None:
    """ConfigError unless each can be the part of an average that is kept."""
    if not all(0 <= part < 1 for part in parts):
        value = parts[0] if len(parts) == 1 else parts
        raise ConfigError(f"`{name}` {value} cannot be used: it is the part of an average that is kept per step, from "
                          f"0 to below 1; try {0.9 if len(parts) == 1 else '0.9,0.99'}")


def check_weight_decay(value: float) -> None:
    """ConfigError for one that cannot be."""
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"`weight_decay` {value} cannot be used: it must be finite and at least 0; try 0.01, or 0 "
                          "for none")
