"""Token and position embedding.

Legend: B batch, T tokens, C features, V vocabulary, n = B * T.
"""

from __future__ import annotations

import numpy as np

from mpizero.errors import DataError
from mpizero.layout.sizes import row_step
from mpizero.memory.kinds import ACTIVATION, WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import (
    Array,
    commit,
    compute_dtype,
    read,
    spans,
    staging,
)
from mpizero.nn.ops.casts import cast_scratch
from mpizero.nn.ops.gradients import Gradients, add_rows


def embedding(tokens: Array, wte: Array, wpe: Array, mem: Allocator, first: int = 0, vocab: int | None = None,
              adds: bool = True) -> Array:
    """y = wte[token] + wpe[position]. tokens (B,T) int64, wte (V,C), wpe (context,C) -> y (B,T,C).

    first, vocab: wte has the rows from `first` on of so many, and others count as 0. adds: whether positions are added.
    """
    check_range("token", tokens, 0, len(wte) if vocab is None else vocab)
    batch, length = tokens.shape
    if length > len(wpe):
        raise DataError(f"{length} tokens in a row, but the model has {len(wpe)} positions: use shorter rows or a "
                        "larger `context`")
    y = mem.empty((batch, length, wte.shape[1]), wte.dtype, ACTIVATION)
    for sample in range(batch):
        here = tokens[sample] - first
        np.take(wte, here, axis=0, out=y[sample], mode="clip")  # other modes copy the output
        if vocab is not None:
            y[sample][(here < 0) | (here >= len(wte))] = 0
    if not adds:
        return y
    buffers = staging(y[0] if batch else y, length, mem), staging(wpe[:length], length, mem)
    position = read(wpe[:length], buffers[1], mem)
    for sample in range(batch):
        out = read(y[sample], buffers[0], mem)
        out += position
        commit(out, y[sample], mem)
    return y


def embedding_backward(tokens: Array, dy: Array, grads: Gradients, mem: Allocator, first: int = 0,
                       adds: bool = True) -> None:
    """Inverts y = wte[token] + wpe[position].

    tokens (B,T), dy (B,T,C) -> adds dwte (V,C) and dwpe (context,C) into `grads`. first, adds: as of `embedding`.
    """
    batch, length, width = dy.shape
    if adds and grads.wants("wpe.weight"):
        _add_over_batch(dy, grads.zeroed("wpe.weight")[:length], mem)  # dwpe[t] = sum over B of dy[:, t]
    if grads.wants("wte.weight"):
        scatter_add(tokens.reshape(-1), dy.reshape(batch * length, width), grads.zeroed("wte.weight"), mem, first)


def _add_over_batch(dy: Array, out: Array, mem: Allocator) -> None:
    """out (T,C) += sum over B of dy (B,T,C)."""
    total = mem.empty(dy.shape[1:], compute_dtype(dy.dtype), WORKSPACE)
    total.fill(0)
    buffer = staging(dy[0] if len(dy) else total, len(total), mem)
    for sample in dy:
        total += read(sample, buffer, mem)
    add_rows(out, total, mem)


def scatter_add(index: Array, values: Array, out: Array, mem: Allocator, first: int = 0) -> None:
    """out[index[i] - first] += values[i] for all i for which there is such a row. index (n,) int64; values (n,C), out
    (V,C), of one dtype.

    Rows of equal index are brought together by a stable sort and added in their order in the compute dtype, so the
    result is deterministic and each row of `out` is rounded once. Several times faster than np.add.at. Workspace is of
    whole blocks, however many indices are equal.
    """
    order = np.argsort(index, kind="stable")
    order = order[slice(*np.searchsorted(index, [first, first + len(out)], sorter=order))]
    index = index[order] - first  # (n,) integers: one number per row
    step = row_step(values.shape[1])
    work = compute_dtype(values.dtype)
    stored = mem.empty((min(step, len(values)), values.shape[1]), values.dtype, WORKSPACE)
    buffer, sum_buffer = staging(stored, step, mem), mem.empty(stored.shape, work, WORKSPACE)
    scratch = cast_scratch(stored.size, work, out.dtype, mem)
    carry = np.zeros(values.shape[1], work)  # the sum so far of an index that continues in the next block. Tiny
    for span in spans(len(index), step):
        here = index[span]
        np.take(values, order[span], axis=0, out=stored[: len(here)], mode="clip")
        block = read(stored[: len(here)], buffer, mem)
        starts = np.flatnonzero(np.concatenate(([True], here[1:] != here[:-1])))
        block[0] += carry
        sums = np.add.reduceat(block, starts, axis=0, out=sum_buffer[: len(starts)])
        goes_on = span.stop < len(index) and index[span.stop] == here[-1]
        carry = sums[-1].copy() if goes_on else np.zeros_like(carry)
        done = len(starts) - goes_on
        # out[index] = round(out[index] + sums), no index twice, in the storage of the rows that are summed now
        index_done, held = here[starts[:done]], stored[:done]
        np.take(out, index_done, axis=0, out=held, mode="clip")
        total = read(held, buffer, mem)
        total += sums[:done]
        commit(total, held, mem, scratch)
        out[index_done] = held


def check_range(what: str, values: Array, low: int | None, high: int) -> None:
    """Raise DataError unless low <= values < high; low None: no lower bound."""
    if values.size and (values.max() >= high or (low is not None and values.min() < low)):
        bad = values.max() if values.max() >= high else values.min()
        raise DataError(f"{what} {bad} in the data is outside 0..{high - 1}, all that the model knows: use other data, "
                        "or a model with more of them")
