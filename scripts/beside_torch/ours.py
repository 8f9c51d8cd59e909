"""A rank of mpizero, started by mpirun: python -m scripts.beside_torch.ours STAGE MODEL DTYPE STEPS DIR."""

from __future__ import annotations

import sys
from pathlib import Path

from mpizero.comm import run_main, start
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from scripts.beside_torch.common import LR, MODELS, SEED, WARM_UP, WEIGHT_DECAY, resident, run


def main() -> None:
    stage, model, dtype, steps, out = sys.argv[1:]
    sizes, batch = MODELS[model]
    world, started = start(), resident()
    job = prepare(TrainConfig(model="gpt", layers=sizes.layers, d_model=sizes.d_model, heads=sizes.heads,
                              context=sizes.context, batch_size=batch, stage=stage, dtype=dtype, seed=SEED, lr=LR,
                              weight_decay=WEIGHT_DECAY, warmup=0, steps=WARM_UP + int(steps)), world)
    run(lambda: run_steps(job, steps=1).records[0].loss, int(steps), started, Path(out), world.rank)


if __name__ == "__main__":
    run_main(main)
