"""A rank of PyTorch on gloo, started with RANK and WORLD_SIZE set:
python -m scripts.beside_torch.theirs SYSTEM MODEL DTYPE STEPS DIR.

Tuned as its documentation advises for a CPU: the fused AdamW, gradients that are views of DDP's buckets, attention by
`scaled_dot_product_attention`. 16 bits: autocast for DDP and ZeroRedundancyOptimizer, a MixedPrecisionPolicy
(parameters and reductions) for FSDP2.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from mpizero.data import load
from mpizero.layout.models import GPTConfig
from mpizero.nn.gpt import gpt
from scripts.beside_torch.common import LR, MODELS, SEED, WARM_UP, WEIGHT_DECAY, resident, run


class Block(nn.Module):
    """GPT-2's: x + attention(ln_1(x)), then + mlp(ln_2(.))."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (part.view(n, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, c)
        x = x + self.c_proj(a)
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """tokens (n, T) and targets (n, T) -> mean loss. The output matrix is the token embedding."""

    def __init__(self, sizes: GPTConfig):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(sizes.vocab, sizes.d_model), nn.Embedding(sizes.context, sizes.d_model)
        self.h = nn.ModuleList(Block(sizes.d_model, sizes.heads) for _ in range(sizes.layers))
        self.ln_f = nn.LayerNorm(sizes.d_model)
        self.head = nn.Linear(sizes.d_model, sizes.vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


NAMES = {"attn.c_attn": "c_attn", "attn.c_proj": "c_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}


def initial(sizes: GPTConfig) -> GPT:
    """With the weights that mpizero starts from; its matrices are (in, out)."""
    ours, model = gpt(sizes), GPT(sizes)
    params = dict(model.named_parameters())
    for spec in ours.spec.params:
        name = spec.name
        for long, short in NAMES.items():
            name = name.replace(long, short)
        values = torch.from_numpy(ours.initial(spec.name, SEED))
        matrix = name.startswith("h.") and name.endswith("weight") and values.ndim == 2
        with torch.no_grad():
            params[name].copy_(values.T if matrix else values)
    return model


def shared(system: str, model: GPT, dtype: torch.dtype) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer as `system` shares them among the ranks."""
    options = {"lr": LR, "weight_decay": WEIGHT_DECAY, "fused": True}
    if system == "torch-fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
        for module in (*model.h, model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        return model, torch.optim.AdamW(model.parameters(), **options)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if system == "torch-zero1":
        return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, **options)
    return wrapped, torch.optim.AdamW(wrapped.parameters(), **options)


def main() -> None:
    system, name, dtype, steps, out = sys.argv[1:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=rank, world_size=world)
    sizes, batch = MODELS[name]
    kind, started = getattr(torch, dtype), resident()
    model, optimizer = shared(system, initial(sizes), kind)
    data = load("gpt", None, seed=SEED, context=sizes.context)
    cast = kind is not torch.float32 and system != "torch-fsdp2"
    position, learning = 0, learning_rates(int(steps))

    def step() -> float:
        nonlocal position
        samples = np.arange(position + rank * batch, position + (rank + 1) * batch)
        tokens, targets = (torch.from_numpy(array) for array in data.train_batch(samples))
        position += world * batch
        for group in optimizer.param_groups:
            group["lr"] = next(learning)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=kind) if cast else contextlib.nullcontext():
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean.item() / world

    run(step, int(steps), started, Path(out), rank)
    # gloo fails on a rank whose peer has closed its sockets already: leave when all have what they came for
    while not all((Path(out) / f"{other}.json").exists() for other in range(world)):
        time.sleep(0.01)
    # without PyTorch's own end: after FSDP2 a process now and then aborts there (2.13: "terminate called without an
    # active exception"), with its figures written
    sys.stdout.flush()
    os._exit(0)


def learning_rates(steps: int):
    """As mpizero's settings of `ours` have them."""
    from mpizero.optim import learning_rate
    return iter([learning_rate(i, base=LR, warmup=0, total=WARM_UP + steps) for i in range(WARM_UP + steps)])


if __name__ == "__main__":
    main()
