"""What a training run is, as one frozen value. Every flag of `python -m mpizero.train` is a field here, and a key of its TOML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mpizero.errors import ConfigError
from mpizero.schedule import STRATEGIES

BY_MODEL: dict[str, dict[str, Any]] = {  # defaults that differ, and the sizes that a model has
    "mlp": {"hidden": 96, "steps": 50, "lr": 1e-2, "warmup": 0, "optimizer": "adam", "weight_decay": 0.0},
    "gpt": {"layers": 4, "d_model": 128, "heads": 4, "context": 128, "steps": 300, "lr": 2e-3, "optimizer": "adamw", "weight_decay": 0.01},
}
LIST_OPTIONS = ("accumulation", "no_sync", "backward_prefetch", "forward_prefetch", "keep_last_unit", "limit_all_gathers")
SIZES = ("hidden", "layers", "d_model", "heads", "context")


def _option(default: Any, help: str, **more: Any) -> Any:
    """A field that is a flag; `more` goes to argparse."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class TrainConfig:
    """None stands for a default that depends on the model (see BY_MODEL), or for `off`."""

    stage: str = _option("2", "what is sharded: 0 nothing (data parallel), 1 optimizer, 2 and gradients, 3 and parameters", choices=list(STRATEGIES))
    model: str = _option("mlp", "mlp: 5 Linear layers on a teacher's task; gpt: GPT-2's architecture on bytes of text", choices=list(BY_MODEL))
    hidden: int | None = _option(None, "width of the MLP's hidden layers (96)", type=int)
    layers: int | None = _option(None, "blocks of the GPT (4)", type=int)
    d_model: int | None = _option(None, "width of the GPT (128)", type=int)
    heads: int | None = _option(None, "attention heads of the GPT (4)", type=int)
    context: int | None = _option(None, "bytes of text that the GPT sees at once (128)", type=int)
    data: str | None = _option(None, "gpt: any file or folder, as bytes (the standard library's source); mlp: FILE.npz with x and y", metavar="PATH")
    steps: int | None = _option(None, "steps to train (mlp 50, gpt 300)", type=int)
    batch_size: int = _option(16, "samples of a rank in a microbatch", type=int)
    accumulation: int = _option(1, "microbatches in a step", type=int)
    no_sync: bool = _option(False, "reduce gradients once a step, not every microbatch: less traffic, whole gradients kept", action="store_true")
    shard_size: int | None = _option(None, "F: ranks that share one copy of the state (all; stages 1 to 3)", type=int, metavar="F")
    backward_prefetch: int = _option(0, "units gathered ahead in backward (0; --stage 3 alone gathers)", type=int, metavar="DEPTH")
    forward_prefetch: int = _option(0, "the same in forward (0)", type=int, metavar="DEPTH")
    keep_last_unit: bool = _option(False, "keep the last unit gathered between forward and backward", action="store_true")
    limit_all_gathers: int | None = _option(None, "units gathered at once, unless a stage needs more (no limit)", type=int, metavar="K")
    dtype: str = _option("float16", "of parameters, activations and gradients", choices=["float16", "bfloat16", "float32"])
    optimizer: str | None = _option(None, "adam adds weight decay to the gradient, adamw does not (mlp adam, gpt adamw)", choices=["adam", "adamw"])
    weight_decay: float | None = _option(None, "weight decay (mlp 0, gpt 0.01)", type=float)
    lr: float | None = _option(None, "peak learning rate; falls to a tenth along a cosine (mlp 1e-2, gpt 2e-3)", type=float)
    warmup: int | None = _option(None, "steps of linear warm-up (mlp 0, gpt a tenth of --steps)", type=int)
    clip: float | None = _option(None, "largest global norm of the gradient (no clipping)", type=float, metavar="NORM")
    seed: int = _option(0, "of weights, data and order", type=int)
    device_memory: str | None = _option(None, "capacity of each rank's device, as in 64MiB (unlimited)", metavar="SIZE")
    check_replicas: int = _option(0, "every K steps compare checksums of what ranks must keep alike (0: never)", type=int, metavar="K")
    print_actions: bool = _option(False, "print the list of actions that a step runs", action="store_true")
    log: str | None = _option(None, "write steps.jsonl, summary.json and trace.json (one step, timed) into this folder", metavar="DIR")
    json: str | None = _option(None, "write the summary to this file", metavar="FILE")

    def value(self, name: str) -> Any:
        """The field, or the model's default for it."""
        own = getattr(self, name)
        if own is None and name == "warmup" and self.model == "gpt":
            return self.value("steps") // 10
        return BY_MODEL[self.model].get(name) if own is None else own

    @property
    def list_options(self) -> dict[str, Any]:
        """What `schedule.training_lists` takes."""
        return {name: getattr(self, name) for name in LIST_OPTIONS}

    def check(self) -> TrainConfig:
        """Raise `ConfigError` for values that can never work; returns self."""
        for name in SIZES:
            if getattr(self, name) is not None and name not in BY_MODEL[self.model]:
                other = next(model for model, defaults in BY_MODEL.items() if name in defaults)
                raise ConfigError(f"{flag(name)} is a size of --model {other}, not of --model {self.model}: leave it out, or choose that model")
        for name, (holds, rule) in RULES.items():
            value = self.value(name)
            if value is not None and not (abs(value) < LARGEST and holds(value)):  # a NaN is not below
                raise ConfigError(f"{flag(name)} {value} is impossible: it must be {rule}, and below 2^40")
        if self.warmup is not None and self.warmup > self.value("steps"):
            raise ConfigError(f"--warmup {self.warmup} is longer than --steps {self.value('steps')}: shorten it")
        if self.stage == "0" and self.shard_size not in (None, 1):
            raise ConfigError(f"--stage 0 shards nothing, so --shard-size {self.shard_size} has no meaning: use --stage 1, 2 or 3, or leave it out")
        return self


def _at_least(bound: int) -> tuple[Callable[[float], bool], str]:
    return lambda value: value >= bound, f"at least {bound}"


_POSITIVE: tuple[Callable[[float], bool], str] = (lambda value: value > 0, "above 0")
LARGEST = 2**40  # beyond it no size, number of steps or rate means anything
RULES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    **{name: _at_least(1) for name in (*SIZES, "batch_size", "accumulation", "shard_size", "limit_all_gathers")},
    **{name: _at_least(0) for name in ("steps", "warmup", "weight_decay", "check_replicas", "seed")},
    **{name: _at_least(0) for name in ("backward_prefetch", "forward_prefetch")},
    "lr": _POSITIVE,
    "clip": _POSITIVE,
}


def flag(name: str) -> str:
    """`batch_size` -> `--batch-size`."""
    return "--" + name.replace("_", "-")


FLAGS = {field.name.replace("_", "-"): field for field in fields(TrainConfig)}
