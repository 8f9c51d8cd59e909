"""A task of one's own: a model, its data and its loss, trained under every stage of ZeRO, with the same bits.

    mpirun -n 4 python scripts/05_own_task.py
"""

import mpizero  # noqa: F401  before NumPy: it sets the number of BLAS threads

import numpy as np

from mpizero.comm import run_main, start
from mpizero.data import Batch, Dataset
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec
from mpizero.nn.init import Normal
from mpizero.nn.model import Loss, Model, Segment
from mpizero.schedule import STRATEGIES
from mpizero.text import table

SPEC = ModelSpec((ParamSpec("w0", (1, 64)), ParamSpec("w1", (64, 1))),
                 (SegmentSpec("inner", ("w0",)), SegmentSpec("outer", ("w1",))))  # and the parameters that each reads


class Sine(Segment):
    """y = sin(x @ w). Arrays that the ledger should count would come from mem.empty(shape, dtype, kind)."""

    def __init__(self, name):
        self.name = name

    def forward(self, params, x, mem):
        z = x @ params[self.name]
        return np.sin(z), (x, z)  # y, and what backward needs

    def backward(self, params, context, dy, grads, mem):
        x, z = context
        dz = dy * np.cos(z)
        grads.add(self.name, x.T @ dz)
        return dz @ params[self.name].T


class Wave(Dataset):
    """y = sin(3 x) / 2 for x between -1 and 1. A sample depends on its number alone, never on the rank."""

    eval_size, fingerprint = 64, 1  # held-out samples; a hash of the content, the same on all ranks

    def describe(self):
        return "a wave"

    def train(self, samples):
        x = np.cos(samples)[:, None].astype(np.float32)
        return Batch(x, np.sin(3 * x) / 2)

    def held_out(self, samples):
        return self.train(samples + 0.5)  # numbers that training never sees


class SquaredError(Loss):
    """The sum of (output - target)^2. Pads, which fill up batches, have NaN for a target and do not count."""

    def forward(self, outputs, targets, mem):
        counts = np.isfinite(targets)
        off = np.where(counts, outputs - targets, 0)
        return float((off * off).sum()), int(counts.sum()), (off,)

    def backward(self, context, scale, mem):
        (off,) = context
        return 2 * scale * off  # the gradient of `scale` times the sum


def draw(param):
    """What a parameter starts from. Only described: each rank then makes the values that it keeps."""
    return Normal(std=param.shape[0] ** -0.5)


def main():
    """0 if all stages end with the same weights, and have learnt."""
    world, rows = start(), []
    task = Task(Model("sines", SPEC, (Sine("w0"), Sine("w1")), draw), Wave(), SquaredError())
    for stage in STRATEGIES:
        job = prepare(TrainConfig(stage=stage, dtype="float32", steps=300, lr=1e-2), world, task=task)
        summary = summarise(job, run_steps(job))
        rows.append([stage, summary["losses"][0], summary["eval_loss"], summary["weights_sha256"][:16]])
    if world.rank == 0:
        print(table(["stage", "first loss", "held-out loss", "weights, sha256"], rows))
        if world.size == 1:
            print("1 rank: nothing is sharded or sent, so equal weights say little; start several with mpirun -n 4")
    _, first, held_out, _ = rows[0]
    return 0 if held_out < 0.01 < first and len({weights for *_, weights in rows}) == 1 else 1


if __name__ == "__main__":
    run_main(main)
