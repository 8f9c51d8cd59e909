"""Writes golden.json: training runs computed by PyTorch, with which test_runs.py compares the engine's. Not a test.

    python -m venv VENV && VENV/bin/pip install torch==2.13.0 numpy && VENV/bin/python -m tests.golden.make

Models, loss, gradients, clipping, loss scaling and optimizers are PyTorch's; the learning rates, the accumulation and
the mean over the global batch are written here. mpizero gives only the inputs, which these runs do not test: initial
weights by (seed, name) and samples by number. The defaults of options are stated here again, as `mpizero.train --help`
has them.

Everything is computed in float64, so what is kept is exact for the purpose and the same on every machine. For a half
type parameters are rounded to it before use, and gradients once they are complete; activations are not.

Legend: n samples, T tokens, C width, V vocabulary.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from mpizero.data import Dataset, TeacherTask
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.mlp import mlp
from tests.golden.text import FixedText

Params = dict[str, torch.Tensor]

FILE = Path(__file__).with_name("golden.json")
STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer")
SAMPLES = 12  # of a microbatch on all ranks together: 12, 6, 4, 3 on each of 1, 2, 3, 4

COMMON = {"dtype": "float16", "accumulation": 1, "clip": None, "seed": 0, "decay": "matrices", "freeze": []}
DEFAULTS: dict[str, dict[str, Any]] = {
    "mlp": COMMON | {"hidden": 96, "steps": 50, "warmup": 0, "optimizer": "adam"},
    "gpt": COMMON | {"layers": 4, "d_model": 128, "heads": 4, "context": 128, "steps": 300,
                     "optimizer": "adamw"},  # warmup: a tenth of the steps
}
ADAM = {"lr": {"mlp": 1e-2, "gpt": 2e-3}, "weight_decay": {"mlp": 0.0, "gpt": 0.01}, "betas": "0.9,0.999"}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": ADAM, "adamw": ADAM,
    "sgd": {"lr": {"mlp": 0.1, "gpt": 0.1}, "weight_decay": {"mlp": 0.0, "gpt": 0.0}, "momentum": 0.9},
}
SIZES = ("hidden", "layers", "d_model", "heads", "context")

MLP = {"model": "mlp", "hidden": 10, "steps": 5, "dtype": "float32"}
GPT = {"model": "gpt", "layers": 2, "d_model": 8, "heads": 2, "context": 6, "steps": 4, "dtype": "float32"}
# The seeds of the half types leave no activation so near 0 that rounding moves it across: behind a ReLU that adds or
# removes a sample of the twelve.
RUNS = {  # name -> fields of TrainConfig; what is left out has its default, there and here
    "mlp": {"model": "mlp", "steps": 4, "dtype": "float32"},
    "mlp adam decay": MLP | {"weight_decay": 0.3},
    "mlp adamw decay": MLP | {"optimizer": "adamw", "weight_decay": 0.3},
    "mlp adamw decay of all": MLP | {"optimizer": "adamw", "weight_decay": 0.3, "decay": "all", "betas": "0.8,0.95"},
    "mlp sgd": MLP | {"optimizer": "sgd"},
    "mlp sgd decay, no momentum": MLP | {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.3, "clip": 2.5},
    "mlp sgd float16": MLP | {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.3, "dtype": "float16"},
    "mlp clip": MLP | {"steps": 6, "clip": 3.5},
    "mlp accumulation": MLP | {"accumulation": 2},
    "mlp warmup": MLP | {"lr": 0.02, "warmup": 3},
    "mlp float16": MLP | {"dtype": "float16", "clip": 2.0, "seed": 11},
    # Largest scaled gradients of the steps, over float16's largest number: 3.52, 0.28, 1.74, 0.31, 0.32, 0.47.
    "mlp overflow": {"model": "mlp", "hidden": 10, "steps": 6, "lr": 1e-3, "warmup": 2, "seed": 1298},
    "mlp bfloat16": MLP | {"dtype": "bfloat16", "lr": 1e-3, "seed": 7},
    "gpt first gradient": GPT | {"steps": 1},
    "gpt": GPT | {"steps": 20, "clip": 1.0},
    "gpt accumulation": GPT | {"accumulation": 2, "lr": 0.01, "warmup": 2},
    "mlp frozen": MLP | {"freeze": ["layers.0.*", "layers.2.weight", "layers.4.bias"], "clip": 2.5},
    "gpt frozen": GPT | {"freeze": ["w?e.*", "h.0.*", "h.1.ln_2.*"], "weight_decay": 0.3, "accumulation": 2},
}


@dataclass(frozen=True)
class Settings:
    """A run's options, defaults filled in, under the names that `mpizero.train` gives them."""

    model: str
    dtype: str
    steps: int
    lr: float
    warmup: int
    optimizer: str
    weight_decay: float
    decay: str
    hyper: dict[str, Any]  # of the optimizer's own, under PyTorch's names
    clip: float | None
    accumulation: int
    seed: int
    freeze: list[str]
    sizes: dict[str, int]


def settings(config: dict[str, Any]) -> Settings:
    values = DEFAULTS[config["model"]] | config
    of_optimizer = {name: value[config["model"]] if isinstance(value, dict) else value
                    for name, value in OPTIMIZERS[values["optimizer"]].items()}
    values = of_optimizer | values
    values.setdefault("warmup", values["steps"] // 10)
    sizes = {name: values.pop(name) for name in SIZES if name in values}
    hyper = {name: values.pop(name) for name in ("betas", "momentum") if name in values}
    if "betas" in hyper:
        hyper["betas"] = tuple(map(float, hyper["betas"].split(",")))
    return Settings(**values, hyper=hyper, sizes=sizes)


# -- inputs, from mpizero ----------------------------------------------------------------------------------------------


def inputs(run: Settings) -> tuple[Params, Dataset]:
    """Initial weights, float64; and the samples."""
    model = mlp(hidden=run.sizes["hidden"]) if run.model == "mlp" else gpt(GPTConfig(**run.sizes))
    names = [param.name for param in model.spec.params]
    params = {name: torch.tensor(model.initial(name, run.seed), dtype=torch.float64) for name in names}
    return params, TeacherTask(run.seed) if run.model == "mlp" else FixedText(run.sizes["context"], run.seed)


def microbatches(run: Settings, data: Dataset, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What all ranks together see in a step: x (n, 32) and targets (n,), or both (n, T); n = SAMPLES."""
    first = step * run.accumulation * SAMPLES
    for samples in torch.arange(first, first + run.accumulation * SAMPLES).split(SAMPLES):
        x, targets = (torch.from_numpy(array) for array in data.train_batch(samples.numpy()))
        yield (x.double() if x.is_floating_point() else x), targets


# -- models ------------------------------------------------------------------------------------------------------------


def mlp_logits(p: Params, x: torch.Tensor) -> torch.Tensor:
    """x (n, 32) -> (n, 16): Linear, ReLU, Linear, ..., Linear; weights are (in, out)."""
    for i in range(5):
        x = F.linear(x, p[f"layers.{i}.weight"].T, p[f"layers.{i}.bias"])
        x = F.relu(x) if i < 4 else x
    return x


def gpt_logits(p: Params, tokens: torch.Tensor, layers: int, heads: int) -> torch.Tensor:
    """tokens (n, T) -> (n, T, V). GPT-2: pre-norm, GELU by tanh, wte at both ends; weights are (in, out)."""
    n, t = tokens.shape
    c = p["wte.weight"].shape[1]

    def affine(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, p[name + ".weight"].T, p[name + ".bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (c,), p[name + ".weight"], p[name + ".bias"], eps=1e-5)

    x = F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"][:t]  # (n,T,C)
    for h in (f"h.{i}" for i in range(layers)):
        qkv = affine(norm(x, h + ".ln_1"), h + ".attn.c_attn").chunk(3, dim=-1)  # three of (n,T,C)
        q, k, v = (part.view(n, t, heads, c // heads).transpose(1, 2) for part in qkv)  # (n,heads,T,C/heads)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, c)
        x = x + affine(a, h + ".attn.c_proj")
        x = x + affine(F.gelu(affine(norm(x, h + ".ln_2"), h + ".mlp.c_fc"), approximate="tanh"), h + ".mlp.c_proj")
    return F.linear(norm(x, "ln_f"), p["wte.weight"])


# -- training ----------------------------------------------------------------------------------------------------------


def rate(run: Settings, update: int) -> float:
    """Learning rate of an update, from 0 on: up in `warmup` equal steps, then half a cosine, to a tenth at `steps`."""
    if update < run.warmup:
        return run.lr * (update + 1) / run.warmup
    return run.lr * (0.55 + 0.45 * math.cos(math.pi * (update - run.warmup) / (run.steps - run.warmup)))


def rounded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The nearest numbers that a half type has, in float64; for float32 the tensor as it is."""
    return tensor if dtype == "float32" else tensor.to(getattr(torch, dtype)).double()


def backward(run: Settings, params: Params, data: Dataset, step: int, scaler: torch.amp.GradScaler) -> float:
    """Leaves the gradient of the step's mean loss, times the loss scale, in the parameters; returns the mean loss."""
    targets_in_step = run.accumulation * SAMPLES * run.sizes.get("context", 1)
    loss = 0.0
    for x, targets in microbatches(run, data, step):
        used = {name: p + (rounded(p, run.dtype) - p).detach() for name, p in params.items()}  # its gradient is p's
        if run.model == "mlp":
            logits = mlp_logits(used, rounded(x, run.dtype))
        else:
            logits = gpt_logits(used, x, run.sizes["layers"], run.sizes["heads"])
        summed = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
        scaler.scale(summed / targets_in_step).backward()
        loss += summed.item() / targets_in_step
    for p in params.values():
        if p.requires_grad:
            p.grad = rounded(p.grad, run.dtype)
    return loss


def train(run: Settings) -> dict[str, Any]:
    """A record for each step; at the end elements of parameters and moments; of a single step the gradient."""
    params, data = inputs(run)
    for name, p in params.items():
        p.requires_grad_(not any(fnmatch.fnmatchcase(name, pattern) for pattern in run.freeze))
    trained = [p for p in params.values() if p.requires_grad]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[run.optimizer]
    groups = [{"params": [p for p in trained if (p.dim() > 1 or run.decay == "all") is shrunk],
               "weight_decay": run.weight_decay if shrunk else 0.0} for shrunk in (True, False)]
    optimizer = kind([group for group in groups if group["params"]], lr=run.lr, **run.hyper)
    scaler = torch.amp.GradScaler("cpu", enabled=run.dtype == "float16")
    records: list[dict[str, Any]] = []
    updates = 0
    for step in range(run.steps):
        optimizer.zero_grad()
        lr, scale = rate(run, updates), scaler.get_scale()
        loss = backward(run, params, data, step, scaler)
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(trained, math.inf if run.clip is None else run.clip).item()
        for group in optimizer.param_groups:
            group["lr"] = lr
        scaler.step(optimizer)
        scaler.update()
        skipped = not math.isfinite(norm)
        updates += not skipped
        records.append({"loss": short(loss), "grad_norm": None if skipped else short(norm), "lr": lr,
                        "loss_scale": scale, "skipped": skipped})
    result = {"records": records, "state": {name: state(name, p, optimizer.state[p]) for name, p in params.items()}}
    if run.steps == 1:
        result["gradient"] = {name: gradient(name, p.grad) for name, p in params.items()}
    return result


# -- the file ----------------------------------------------------------------------------------------------------------


def short(value: float) -> float:
    """Nine digits: float32 has seven, and another machine's float64 may end otherwise."""
    return float(f"{value:.9g}")


def places(name: str, numel: int, count: int) -> list[int]:
    """Up to `count` elements of a flat parameter, evenly spread.

    None of a key's bias: one number more in all scores of a row changes no softmax, so its gradient is 0, of which
    rounding makes something tiny, and Adam a whole step.
    """
    spread = sorted({round(i * (numel - 1) / (count - 1)) for i in range(count)})
    return [i for i in spread if not (name.endswith("attn.c_attn.bias") and numel <= 3 * i < 2 * numel)]


def elements(array: torch.Tensor, at: list[int]) -> list[float]:
    return [short(value) for value in array.detach().flatten()[at].tolist()]


def state(name: str, p: torch.Tensor, kept: dict[str, torch.Tensor]) -> dict[str, list]:
    """The elements of the flat parameter that stand where `at` says, and what the optimizer keeps of them: nothing if
    it is frozen."""
    at = places(name, p.numel(), 8)
    buffers = {"master": p, **{key: kept[key] for key in STATES if kept.get(key) is not None}}
    return {"at": at} | {name: elements(buffer, at) for name, buffer in buffers.items()}


def gradient(name: str, grad: torch.Tensor) -> dict[str, Any]:
    """Its norm, and the elements that stand where `at` says."""
    at = places(name, grad.numel(), 16)
    return {"norm": short(grad.norm().item()), "at": at, "elements": elements(grad, at)}


def lines(value: Any) -> str:
    """JSON with a line for each record and each parameter: what holds a dict is broken."""
    items = value.values() if isinstance(value, dict) else value
    if not (isinstance(value, dict | list) and any(isinstance(item, dict) for item in items)):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(key)}:{lines(item)}" for key, item in value.items()) + "\n}"
    return "[\n" + ",\n".join(lines(item) for item in value) + "\n]"


if __name__ == "__main__":
    golden = {name: {"config": config, "samples": SAMPLES} | train(settings(config)) for name, config in RUNS.items()}
    FILE.write_text(lines(golden) + "\n")
