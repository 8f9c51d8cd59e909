"""Activations that are not counted here: the papers' closed forms, and what a GPT-2 leaves in PyTorch.

ZeRO (arXiv:1910.02054), ZeRO-Infinity (arXiv:2104.07857), Korthikanti et al. (arXiv:2205.05198).

[Note: What PyTorch keeps]
Bytes per token of a block of width h with `a` heads, sequences of s tokens, 16-bit numbers, as autograd keeps them
(tests/papers/golden_torch.py measures it):

    16 values of h      2 x 16 h   both norms' inputs and outputs 8, q k v 6, attention's output 2, the MLP's 4 h before
                                   and after GELU 16
    flash attention     4 a        a float32 for each row of scores, which are not kept
    eager attention     5 a s      softmax 2, its dropout's mask 1, what dropout leaves 2
    dropout (eager)     2 h        the masks behind attention and MLP
    statistics          16         mean and deviation of each norm, float32

so 32 h with flash attention and no dropout, and Korthikanti's 34 h + 5 a s (sec. 4.1) for eager with dropout. The head
keeps the last norm's output and the logits. The loss computes in float32, as Hugging Face and torchtitan do; when it is
differentiated it holds three float32 numbers a logit: log-probabilities and two gradients. A fused one (that of
flash-attention, Liger's, ours) writes the gradient over the logits.

Of T tensor parallel ranks each has 1/T of queries, keys, values, scores, attention's output, the MLP's 4 h and the
logits; both norms' inputs and outputs and the masks behind attention and MLP all have, so that eager attention with
dropout keeps 10 h + 24 h/T + 5 a s/T (Korthikanti sec. 4.2.1).
"""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import ActivationBytes, SegmentBytes
from mpizero.layout.models import INT64, GPTConfig

# ZeRO sec. 6.1, 100B parameters, MP 16: half of what its formula gives, without a derivation
PRINTED_100B_CHECKPOINTS, PRINTED_100B_PARTITIONED = 33 * 10**9, 2 * 10**9
FLOAT32 = 4


def pytorch(config: GPTConfig, shape: tuple[int, ...], dtype: str, *, eager: bool = False,
            fused_loss: bool = False, parts: int = 1) -> ActivationBytes:
    """Of a microbatch of `shape` (samples, tokens). eager: attention without flash, and dropout. parts: tensor parallel
    ranks, with both halves of a block apart. See [Note: What PyTorch keeps]."""
    (batch, seq), size = shape, ITEMSIZE[dtype]
    tokens, width, vocab = batch * seq, config.d_model, config.vocab // parts
    flow, own, heads, mask = tokens * width * size, tokens * width // parts * size, config.heads // parts, width * eager
    attention = heads * seq * (2 * size + 1) if eager else FLOAT32 * heads
    # each half keeps its input, which its norm reads, too; embedding's dropout keeps a mask as well
    halves = (SegmentBytes(flow, flow + 4 * own + tokens * (attention + mask + 2 * FLOAT32)),
              SegmentBytes(flow, flow + 8 * own + tokens * (mask + 2 * FLOAT32)))
    block = SegmentBytes(flow, sum(half.kept for half in halves) + flow)
    embedding = SegmentBytes(flow, tokens * mask)
    head = SegmentBytes(tokens * vocab * size, flow + tokens * 2 * FLOAT32)
    loss = 2 * FLOAT32 * tokens if fused_loss else 3 * FLOAT32 * tokens * vocab
    segments = (embedding, *((block,) if parts == 1 else halves) * config.layers, head)
    return ActivationBytes(INT64 * tokens, INT64 * tokens, segments, loss, ranks=parts,
                           loss_parts=3 * parts * FLOAT32 * tokens if parts > 1 else 0)


def transformer_activations(hidden: int, batch: int, seq: int, layers: int) -> int:
    """Elements of all activations of a GPT-2: 12 hd batch seq layers. ZeRO sec. 3.2, footnote."""
    return 12 * hidden * batch * seq * layers


def recompute_checkpoints(hidden: int, batch: int, seq: int, layers: int, interval: int = 1) -> int:
    """Bytes of float16 activations kept when every `interval`-th block keeps its input alone and the rest is computed
    again: 2 bsz seq hd nl / ci. ZeRO-Infinity sec. 3, eq. 3."""
    return 2 * batch * seq * hidden * layers // interval


def partitioned(checkpoints: int, model_parallel: int) -> int | float:
    """P_a: the model-parallel devices compute the same samples, so each keeps 1/MP of the checkpoints.
    ZeRO sec. 6.1."""
    return checkpoints // model_parallel if checkpoints % model_parallel == 0 else checkpoints / model_parallel
