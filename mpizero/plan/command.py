"""The flags of `mpizero.train` for the run that a plan is of."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mpizero.cli import FLAGS
from mpizero.layout import NVME
from mpizero.layout.models import GPTConfig
from mpizero.plan.options import Options
from mpizero.planner.model import PlannedModel, mlp
from mpizero.schedule import StepSettings

# told even where they are what a run takes without them: from another model or machine they may not be
ALWAYS = ("model", "stage", "shard_size", "batch_size", "optimizer", "overlap")
SAME = ("dtype", "reduce_dtype", "sum_dtype", "optimizer", "momentum", "no_master_weights", "freeze", "tiles", "wrap")


def train_flags(model: PlannedModel, settings: StepSettings, options: Options, batch_size: int | None) -> list[str]:
    """Each flag with its value, as `--stage 3`. The flags of the model, unless it is none that `train` makes; `--nvme
    DIR` for a folder of one's own. batch_size: None: whatever a run takes."""
    told = {name: options[name] for name in SAME if name in options} | asdict(settings) | (_model(model) or {})
    told |= {"overlap": "on" if settings.overlap else "off", "batch_size": batch_size}
    if NVME in vars(settings.placement.tiers).values():
        told["nvme"] = "DIR"
    found = []
    for flag, field in FLAGS.items():
        value, usual = told.get(field.name), getattr(StepSettings, field.name, field.default)
        if value is not None and (value != usual or field.name in ALWAYS):
            found += _spelled(flag, value)
    return found


def _spelled(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{flag}"] if value else []
    several = value if isinstance(value, list | tuple) else [value]
    return [f"--{flag} {shlex.quote(str(each))}" for each in several]


def _model(model: PlannedModel) -> dict[str, Any] | None:
    """How `train` names the model, which may be cut or have frozen parameters. None where it makes no such model."""
    if model.gpt is not None:
        sizes = {name: getattr(model.gpt, name) for name in ("layers", "d_model", "heads", "context")}
        return {"model": "gpt", **sizes} if model.gpt == GPTConfig(**sizes) else None
    shapes = [(param.name, param.shape) for param in mlp().spec.params]
    whole = [(param.name, (param.whole or param).shape) for param in model.spec.params]
    return {"model": "mlp"} if whole == shapes else None


def is_made(model: PlannedModel) -> bool:
    """Whether `train` makes such a model."""
    return _model(model) is not None


def in_common(rows: Sequence[Sequence[str]]) -> list[str]:
    """The flags that all rows have, in their order."""
    return [flag for flag in rows[0] if all(flag in row for row in rows)]
