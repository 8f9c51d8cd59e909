"""Which optimizer trains and how, as a user says it: defaults that depend on it, and settings with all filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpizero.errors import ConfigError
from mpizero.layout import OPTIMIZERS, OptimizerSpec, optimizer_spec

# a dict: by model. Lion's steps are as long as lr whatever the gradient is, so its lr is a third of Adam's or less, and
# its weight decay, which is multiplied by lr, larger: arXiv:2302.06675, sec. 5
_ADAM = {"lr": {"mlp": 1e-2, "gpt": 2e-3}, "weight_decay": {"mlp": 0.0, "gpt": 0.01}, "betas": "0.9,0.999"}
BY_OPTIMIZER: Mapping[str, Mapping[str, Any]] = {
    "adam": _ADAM,
    "adamw": _ADAM,
    "sgd": {"lr": 0.1, "weight_decay": 0.0, "momentum": 0.9},
    "lion": {"lr": {"mlp": 3e-3, "gpt": 5e-4}, "weight_decay": {"mlp": 0.0, "gpt": 0.1}, "betas": "0.9,0.99"},
}
assert BY_OPTIMIZER.keys() == OPTIMIZERS.keys()


@dataclass(frozen=True)
class OptimSettings:
    """optimizer: a key of `OPTIMIZERS`. lr: the highest learning rate, after `warmup` steps; it falls to a tenth of
    that at the last step. clip: the largest global norm of a gradient; None: any. decay: a key of `DECAYS`. betas: as
    `parse_betas` reads them, one spelling for the same numbers. betas, momentum: None where the optimizer has none."""

    optimizer: str
    weight_decay: float
    lr: float
    warmup: int
    clip: float | None
    decay: str
    betas: str | None
    momentum: float | None
    no_master_weights: bool

    @property
    def spec(self) -> OptimizerSpec:
        """What is kept of each element."""
        return optimizer_spec(self.optimizer, self.momentum, master=not self.no_master_weights)


def defaults(optimizer: str, model: str) -> dict[str, Any]:
    """Of the fields that depend on it. ConfigError for an optimizer that there is not, or that cannot be sharded."""
    table = BY_OPTIMIZER[optimizer_spec(optimizer).name]
    return {name: value[model] if isinstance(value, dict) else value for name, value in table.items()}


def having(name: str) -> str:
    """The optimizers that have the setting: `adam or adamw`."""
    return " or ".join(optimizer for optimizer, table in BY_OPTIMIZER.items() if name in table)


def parse_betas(text: str) -> tuple[float, float]:
    """`0.9,0.95` -> (0.9, 0.95)."""
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        first = second = -1.0
    if not (0 <= first < 1 and 0 <= second < 1):
        raise ConfigError(f"`betas` {text!r} cannot be used: give two numbers, from 0 to below 1, as in 0.9,0.95")
    return first, second
