"""Activations in the papers' closed forms: ZeRO (arXiv:1910.02054) and ZeRO-Infinity (arXiv:2104.07857)."""

from __future__ import annotations

# ZeRO sec. 6.1, 100B parameters, MP 16: half of what its formula gives, without a derivation
PRINTED_100B_CHECKPOINTS, PRINTED_100B_PARTITIONED = 33 * 10**9, 2 * 10**9


def transformer_activations(hidden: int, batch: int, seq: int, layers: int) -> int:
    """Elements of all activations of a GPT-2: 12 hd batch seq layers. ZeRO sec. 3.2, footnote."""
    return 12 * hidden * batch * seq * layers


def recompute_checkpoints(hidden: int, batch: int, seq: int, layers: int, interval: int = 1) -> int:
    """Bytes of float16 activations kept when every `interval`-th block keeps its input alone and the rest is computed
    again: 2 bsz seq hd nl / ci. ZeRO-Infinity sec. 3, eq. 3."""
    return 2 * batch * seq * hidden * layers // interval


def recompute_working_memory(hidden: int, heads: int, batch: int, seq: int, interval: int = 1) -> int:
    """AWM, bytes between two checkpoints while they are computed again: bsz seq ci (16 hd + 2 heads seq).
    ZeRO-Infinity sec. 3, eq. 5."""
    return batch * seq * interval * (16 * hidden + 2 * heads * seq)


def partitioned(checkpoints: int, model_parallel: int) -> int | float:
    """P_a: the model-parallel devices compute the same samples, so each keeps 1/MP of the checkpoints.
    ZeRO sec. 6.1."""
    return checkpoints // model_parallel if checkpoints % model_parallel == 0 else checkpoints / model_parallel
