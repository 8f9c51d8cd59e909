"""Causal multi-head attention.

Legend: B batch, T tokens, H heads, D features of a head, C = H * D. Scores exist for a few (batch, head) pairs at a time, never for all:
forward saves the log of each row's sum of exponentials, (B,H,T), and backward computes the probabilities again (FlashAttention's
saving, arXiv:2205.14135, sec. 3.1), so nothing of size T x T lives between forward and backward.
"""

from __future__ import annotations

import math

import numpy as np

from mpizero.memory import ACTIVATION, WORKSPACE, Allocator
from mpizero.nn.blocks import Array, commit, compute_dtype, read, spans, staging, target

SCORES = 65536  # elements of the scores that exist at a time, 256 KiB of float32
QUERIES = 64  # rows of queries that are handled together; keys after the last of them are skipped


def attention(qkv: Array, heads: int, mem: Allocator) -> tuple[Array, Array]:
    """softmax(q @ k.T / sqrt(D)) @ v over the keys not after the query. qkv (B,T,3C) -> y (B,T,C), lse (B,H,T) in the compute dtype."""
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    work = compute_dtype(qkv.dtype)
    y = mem.empty((batch, tokens, width), qkv.dtype, ACTIVATION)
    lse = mem.empty((batch, heads, tokens), work, ACTIVATION)
    group = _group(batch, heads, tokens)
    buffers = staging(qkv, group, mem), staging(y, group, mem)
    scores = _scores(group, heads, tokens, work, mem)
    mask = _mask(tokens, work)
    scale = work.type(1 / math.sqrt(width // heads))
    for samples in spans(batch, group):
        q, k, v = _heads(read(qkv[samples], buffers[0], mem), heads, 3)  # each (b,H,T,D)
        out = target(y[samples], buffers[1])
        (o,) = _heads(out, heads, 1)  # (b,H,T,D)
        for rows in spans(tokens, QUERIES):
            p = _view(scores, len(out), heads, rows)  # (b,H,t,S): t queries, S = rows.stop keys
            np.matmul(q[:, :, rows] * scale, k[:, :, : rows.stop].swapaxes(2, 3), out=p)
            p[..., rows] += mask[: p.shape[2], : p.shape[2]]
            top = p.max(axis=3)
            p -= top[..., None]
            np.exp(p, out=p)
            total = p.sum(axis=3)
            np.matmul(p, v[:, :, : rows.stop], out=o[:, :, rows])
            o[:, :, rows] /= total[..., None]
            np.log(total, out=total)
            np.add(total, top, out=lse[samples, :, rows])
        commit(out, y[samples], mem)
    return y, lse


def attention_backward(qkv: Array, y: Array, lse: Array, dy: Array, heads: int, mem: Allocator) -> Array:
    """Inverts y = softmax(q @ k.T / sqrt(D)) @ v. qkv (B,T,3C), y, dy (B,T,C), lse (B,H,T) -> dqkv (B,T,3C)."""
    batch, tokens = qkv.shape[:2]
    work = compute_dtype(qkv.dtype)
    dqkv = mem.empty(qkv.shape, qkv.dtype, ACTIVATION)
    group = _group(batch, heads, tokens)
    buffers = staging(qkv, group, mem), staging(y, group, mem), staging(dy, group, mem), staging(dqkv, group, mem)
    scores = _scores(group, heads, tokens, work, mem), _scores(group, heads, tokens, work, mem)
    for samples in spans(batch, group):
        block = read(qkv[samples], buffers[0], mem), read(y[samples], buffers[1], mem), read(dy[samples], buffers[2], mem)
        out = target(dqkv[samples], buffers[3])
        _backward_samples(*block, lse[samples], out, heads, scores)
        commit(out, dqkv[samples], mem)
    return dqkv


def _backward_samples(qkv: Array, y: Array, dy: Array, lse: Array, dqkv: Array, heads: int, scores: tuple[Array, Array]) -> None:
    """`attention_backward` of a few samples in the compute dtype, into dqkv (b,T,3C)."""
    tokens, scale = qkv.shape[1], qkv.dtype.type(1 / math.sqrt(qkv.shape[2] // 3 // heads))
    mask = _mask(tokens, qkv.dtype)
    (q, k, v), (dq, dk, dv) = _heads(qkv, heads, 3), _heads(dqkv, heads, 3)  # each (b,H,T,D)
    (o,), (do,) = _heads(y, heads, 1), _heads(dy, heads, 1)  # (b,H,T,D)
    delta = np.einsum("bhtd,bhtd->bht", o, do)  # sum over keys of p * dp = sum over D of o * do
    for rows in spans(tokens, QUERIES):
        keys = slice(0, rows.stop)
        p, dp = _view(scores[0], len(qkv), heads, rows), _view(scores[1], len(qkv), heads, rows)  # (b,H,t,S)
        q_rows = q[:, :, rows] * scale
        np.matmul(q_rows, k[:, :, keys].swapaxes(2, 3), out=p)
        p[..., rows] += mask[: p.shape[2], : p.shape[2]]
        p -= lse[:, :, rows, None]
        np.exp(p, out=p)  # p = softmax(q @ k.T * scale)
        _add_matmul(p.swapaxes(2, 3), do[:, :, rows], dv, rows)  # o = p @ v
        np.matmul(do[:, :, rows], v[:, :, keys].swapaxes(2, 3), out=dp)
        dp -= delta[:, :, rows, None]
        dp *= p  # through the softmax: p * (dp - sum(p * dp))
        np.matmul(dp, k[:, :, keys], out=dq[:, :, rows])  # scores = q @ k.T * scale
        dq[:, :, rows] *= scale
        _add_matmul(dp.swapaxes(2, 3), q_rows, dk, rows)


def _add_matmul(a: Array, b: Array, out: Array, rows: slice) -> None:
    """out (b,H,T,D)[:S] (+)= a (b,H,S,t) @ b (b,H,t,D), where keys from rows.start on are met for the first time."""
    if rows.start == 0:
        np.matmul(a, b, out=out[:, :, : rows.stop])
        return
    product = a @ b
    out[:, :, : rows.start] += product[:, :, : rows.start]
    out[:, :, rows] = product[:, :, rows]


def _heads(x: Array, heads: int, parts: int) -> tuple[Array, ...]:
    """Views (b,H,T,D) of the `parts` arrays that lie side by side in x (b,T,parts*C)."""
    split = x.reshape(x.shape[0], x.shape[1], parts, heads, x.shape[2] // parts // heads)
    return tuple(split[:, :, part].swapaxes(1, 2) for part in range(parts))


def _group(batch: int, heads: int, tokens: int) -> int:
    """How many samples are handled together."""
    return max(1, min(batch, SCORES // (heads * tokens * min(tokens, QUERIES))))


def _scores(group: int, heads: int, tokens: int, work: np.dtype, mem: Allocator) -> Array:
    return mem.empty(group * heads * min(tokens, QUERIES) * tokens, work, WORKSPACE)


def _view(scores: Array, samples: int, heads: int, rows: slice) -> Array:
    """The part of `scores` that holds these rows of queries against the keys up to the last of them: (b,H,t,S), contiguous."""
    shape = (samples, heads, rows.stop - rows.start, rows.stop)
    return scores[: math.prod(shape)].reshape(shape)


def _mask(tokens: int, work: np.dtype) -> Array:
    """0 on and below the diagonal, -inf above it: (t,t) for at most QUERIES queries."""
    side = min(tokens, QUERIES)
    return np.triu(np.full((side, side), -np.inf, work), 1)
