"""Activations: exact bytes over an action list, and the papers' closed forms.

[Note: What lives when]
A stage's forward leaves y and what its backward needs; the next stage's backward is the last to read y, unless the stage's own backward
needs it too (ReLU's does). A backward consumes what its forward left and gives dx, as large as the y of the stage before, which
the next action consumes. The loss keeps the logits (the last y), a few numbers a target, and the targets; its backward turns the logits
into their own gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpizero.dtypes import ITEMSIZE
from mpizero.schedule.actions import Action, Backward, Forward

# ZeRO sec. 6.1, 100B parameters, MP 16: half of what its formula gives, without a derivation
PRINTED_100B_CHECKPOINTS, PRINTED_100B_PARTITIONED = 33 * 10**9, 2 * 10**9
INT64 = 8  # int64 of a token or a target


@dataclass(frozen=True)
class StageBytes:
    """What a stage's forward allocates. saved: y and the rest, without x. output: y alone. holds_output: its own backward reads y."""

    saved: int
    output: int
    holds_output: bool = False


@dataclass(frozen=True)
class ModelBytes:
    """Activation bytes of a model for one microbatch. inputs_saved: the first stage keeps the data itself until its backward."""

    stages: Sequence[StageBytes]
    inputs: int
    inputs_saved: bool
    targets: int
    loss: int  # statistics that the loss keeps, beside the logits

    @property
    def after_forward(self) -> int:
        """All that lives between forward and backward."""
        return sum(stage.saved for stage in self.stages) + (self.inputs if self.inputs_saved else 0) + self.targets + self.loss


def plan_activations(actions: Iterable[Action], model: ModelBytes) -> list[int]:
    """Live activation bytes after every action of `actions`, as the ledger counts them. See [Note: What lives when]."""
    live, last, points = 0, len(model.stages) - 1, []
    for action in actions:
        match action:
            case Forward(stage, _, save):
                assert save, "an evaluation keeps nothing: there is nothing to plan"
                live += _forward(stage, last, model)
            case Backward(stage, _):
                live += _backward(stage, last, model)
        points.append(live)
    return points


def _forward(stage: int, last: int, model: ModelBytes) -> int:
    """Bytes that the forward of a stage adds."""
    data = (model.inputs if model.inputs_saved else 0) + model.targets if stage == 0 else 0
    return data + model.stages[stage].saved + (model.loss if stage == last else 0)


def _backward(stage: int, last: int, model: ModelBytes) -> int:
    """Bytes that the backward of a stage adds: less than none."""
    own = model.stages[stage]
    change = -own.saved  # with dy in the place of y: dlogits is the logits, any other dy was counted as it came
    if stage == last:
        change -= model.loss + model.targets
    elif own.holds_output:
        change -= own.output  # dy, beside the y that this context kept
    if stage == 0:
        return change - (model.inputs if model.inputs_saved else 0)
    before = model.stages[stage - 1]
    return change + (before.output if before.holds_output else 0)  # dx; where nobody else holds x, it dies for it


def mlp_bytes(hidden: int, layers: int, inputs: int, classes: int, samples: int, dtype: str) -> ModelBytes:
    """Of `nn.mlp`: ReLU works in place, and its backward reads what it left."""
    size = ITEMSIZE[dtype]
    widths = [*[hidden] * (layers - 1), classes]
    cast = samples * inputs * size if dtype != "float32" else 0  # the data is float32
    outputs = [samples * width * size for width in widths]
    stages = [StageBytes(output + (cast if i == 0 else 0), output, holds_output=i < layers - 1) for i, output in enumerate(outputs)]
    return ModelBytes(stages, 4 * samples * inputs, not cast, INT64 * samples, 2 * samples * max(size, 4))


def gpt_bytes(layers: int, d_model: int, heads: int, vocab: int, batch: int, seq: int, dtype: str) -> ModelBytes:
    """Of `nn.gpt`: a block saves 10 hd + heads + 4 numbers a token (the last two in float32 or wider)."""
    size, tokens = ITEMSIZE[dtype], batch * seq
    wide = max(size, 4)
    flow = tokens * d_model * size
    block = StageBytes(tokens * (10 * d_model * size + (heads + 4) * wide), flow)
    head = StageBytes(tokens * (vocab * size + 2 * wide), tokens * vocab * size)
    return ModelBytes([StageBytes(flow, flow), *[block] * layers, head], INT64 * tokens, True, INT64 * tokens, 2 * tokens * wide)


# -- closed forms -----------------------------------------------------------------------------------------------------


def transformer_activations(hidden: int, batch: int, seq: int, layers: int) -> int:
    """Elements of all activations of a GPT-2: 12 hd batch seq layers. ZeRO sec. 3.2, footnote."""
    return 12 * hidden * batch * seq * layers


def recompute_checkpoints(hidden: int, batch: int, seq: int, layers: int, interval: int = 1) -> int:
    """Bytes of float16 activations kept when every `interval`-th block keeps its input alone and the rest is computed again:
    2 bsz seq hd nl / ci. ZeRO-Infinity sec. 3, eq. 3."""
    return 2 * batch * seq * hidden * layers // interval


def recompute_working_memory(hidden: int, heads: int, batch: int, seq: int, interval: int = 1) -> int:
    """AWM, bytes between two checkpoints while they are computed again: bsz seq ci (16 hd + 2 heads seq). ZeRO-Infinity sec. 3, eq. 5."""
    return batch * seq * interval * (16 * hidden + 2 * heads * seq)


def partitioned(checkpoints: int, model_parallel: int) -> int | float:
    """P_a: the model-parallel devices compute the same samples, so each keeps 1/MP of the checkpoints. ZeRO sec. 6.1."""
    return checkpoints // model_parallel if checkpoints % model_parallel == 0 else checkpoints / model_parallel


def partitioned_traffic(seq: int, hidden: int) -> tuple[int, int]:
    """Elements sent a block and sample: by Megatron's six all-reduces of seq hd (two volumes each), and by P_a's one all-gather.
    ZeRO sec. 8."""
    return 12 * seq * hidden, seq * hidden
