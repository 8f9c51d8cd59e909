"""Causal multi-head attention.

Legend: B batch, T tokens, H heads, D features of a head, C = H * D.

Scores exist for a few (batch, head) pairs and queries at a time, never for all: forward saves the log of each row's sum
of exponentials, (B,H,T), and backward computes the probabilities again (FlashAttention's saving, arXiv:2205.14135, sec.
3.1), so nothing of size T x T lives between forward and backward. Measured on one core, float32, C = 128: keeping the
probabilities would make attention 11 to 14 % faster (3 % of a GPT step at T = 128), for 4 C more numbers per token at
T = 128 and 32 C more at T = 1024, beside what a block saves (`layout.models.gpt_spec`).
"""

from __future__ import annotations

import math

import numpy as np

from mpizero.layout import sizes
from mpizero.layout.sizes import attention_group
from mpizero.memory.kinds import ACTIVATION, WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import Array, commit, compute_dtype, read, spans, staging, target


def attention(qkv: Array, heads: int, mem: Allocator) -> tuple[Array, Array]:
    """softmax(q @ k.T / sqrt(D)) @ v over the keys not after the query.

    qkv (B,T,3C) -> y (B,T,C), lse (B,H,T) in the compute dtype.
    """
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    work, group = compute_dtype(qkv.dtype), attention_group(batch, heads, tokens)
    y = mem.empty((batch, tokens, width), qkv.dtype, ACTIVATION)
    lse = mem.empty((batch, heads, tokens), work, ACTIVATION)
    buffers = staging(qkv, group, mem), staging(y, group, mem)
    scores, q_buffer = (mem.empty(group * heads * min(tokens, sizes.QUERIES) * side, work, WORKSPACE)
                        for side in (tokens, width // heads))
    mask, ones, scale = _mask(tokens, work), np.ones(tokens, work), work.type(1 / math.sqrt(width // heads))
    for samples in spans(batch, group):
        q, k, v = _heads(read(qkv[samples], buffers[0], mem), heads, 3)  # each (b,H,T,D)
        out = target(y[samples], buffers[1])
        (o,) = _heads(out, heads, 1)  # (b,H,T,D)
        for rows in spans(tokens, sizes.QUERIES):
            p = _shaped(scores, q[:, :, rows], rows.stop)  # (b,H,t,S): t queries, S = rows.stop keys
            q_rows = _shaped(q_buffer, q[:, :, rows], q.shape[3])  # (b,H,t,D)
            np.multiply(q[:, :, rows], scale, out=q_rows)
            np.matmul(q_rows, k[:, :, : rows.stop].swapaxes(2, 3), out=p)
            p[..., rows] += mask[: p.shape[2], : p.shape[2]]
            top = p.max(axis=3)  # (b,H,t)
            p -= top[..., None]
            np.exp(p, out=p)
            total = p @ ones[: rows.stop]  # (b,H,t). BLAS adds faster than p.sum
            np.matmul(p, v[:, :, : rows.stop], out=o[:, :, rows])
            o[:, :, rows] /= total[..., None]
            np.log(total, out=total)
            np.add(total, top, out=lse[samples, :, rows])
        commit(out, y[samples], mem)
    return y, lse


def attention_backward(qkv: Array, y: Array, lse: Array, dy: Array, heads: int, mem: Allocator) -> Array:
    """Inverts y = softmax(q @ k.T / sqrt(D)) @ v. qkv (B,T,3C), y, dy (B,T,C), lse (B,H,T) -> dqkv (B,T,3C)."""
    batch, tokens, width = y.shape
    work, group = compute_dtype(qkv.dtype), attention_group(batch, heads, tokens)
    dqkv = mem.empty(qkv.shape, qkv.dtype, ACTIVATION)
    buffers = [staging(array, group, mem) for array in (qkv, y, dy, dqkv)]
    scores, whole = group * heads * tokens * min(tokens, sizes.QUERIES), group * tokens * width
    scratch = tuple(mem.empty(count, work, WORKSPACE) for count in (scores, scores, whole, whole))
    for samples in spans(batch, group):
        block = [read(array[samples], buffer, mem) for array, buffer in zip((qkv, y, dy), buffers, strict=False)]
        out = target(dqkv[samples], buffers[3])
        _backward_samples(block[0], block[1], block[2], lse[samples], out, heads, scratch)
        commit(out, dqkv[samples], mem)
    return dqkv


def _backward_samples(qkv: Array, y: Array, dy: Array, lse: Array, dqkv: Array, heads: int,
                      scratch: tuple[Array, ...]) -> None:
    """`attention_backward` of a few samples in the compute dtype, into dqkv (b,T,3C). Block of keys by block of keys,
    for the queries not before it: so dk and dv of a block are one product each, and only dq is added up."""
    tokens, scale = qkv.shape[1], qkv.dtype.type(1 / math.sqrt(y.shape[2] // heads))
    mask = _mask(tokens, qkv.dtype)
    (q, k, v), (dq, dk, dv) = _heads(qkv, heads, 3), _heads(dqkv, heads, 3)  # each (b,H,T,D)
    (o,), (do,) = _heads(y, heads, 1), _heads(dy, heads, 1)  # (b,H,T,D)
    delta = np.einsum("bhtd,bhtd->bht", o, do)  # sum over keys of p * dp = sum over D of o * do
    q_scaled = _shaped(scratch[2], q, q.shape[3])  # (b,H,T,D)
    np.multiply(q, scale, out=q_scaled)
    for keys in spans(tokens, sizes.QUERIES):
        rows = slice(keys.start, tokens)  # the t queries that see these S keys
        p, dp = (_shaped(scratch[i], q[:, :, rows], keys.stop - keys.start) for i in (0, 1))  # (b,H,t,S)
        np.matmul(q_scaled[:, :, rows], k[:, :, keys].swapaxes(2, 3), out=p)
        p[:, :, : p.shape[3]] += mask[: p.shape[3], : p.shape[3]]
        p -= lse[:, :, rows, None]
        np.exp(p, out=p)  # p = softmax(q @ k.T * scale)
        np.matmul(p.swapaxes(2, 3), do[:, :, rows], out=dv[:, :, keys])  # o = p @ v
        np.matmul(do[:, :, rows], v[:, :, keys].swapaxes(2, 3), out=dp)
        dp -= delta[:, :, rows, None]
        dp *= p  # through the softmax: p * (dp - sum(p * dp))
        np.matmul(dp.swapaxes(2, 3), q_scaled[:, :, rows], out=dk[:, :, keys])  # scores = q @ k.T * scale
        if keys.start == 0:
            np.matmul(dp, k[:, :, keys], out=dq)
        else:
            product = _shaped(scratch[3], q[:, :, rows], q.shape[3])  # (b,H,t,D)
            np.matmul(dp, k[:, :, keys], out=product)
            dq[:, :, rows] += product
    dq *= scale


def _heads(x: Array, heads: int, parts: int) -> tuple[Array, ...]:
    """Views (b,H,T,D) of the `parts` arrays that lie side by side in x (b,T,parts*C)."""
    split = x.reshape(x.shape[0], x.shape[1], parts, heads, x.shape[2] // parts // heads)
    return tuple(split[:, :, part].swapaxes(1, 2) for part in range(parts))


def _shaped(buffer: Array, like: Array, last: int) -> Array:
    """The start of the flat `buffer` as a contiguous array of the shape of `like`, but for the last axis."""
    shape = (*like.shape[:3], last)
    return buffer[: math.prod(shape)].reshape(shape)


def _mask(tokens: int, work: np.dtype) -> Array:
    """0 on and below the diagonal, -inf above it: (t,t) for at most QUERIES queries."""
    side = min(tokens, sizes.QUERIES)
    return np.triu(np.full((side, side), -np.inf, work), 1)
