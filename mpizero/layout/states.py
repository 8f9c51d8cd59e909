"""What an optimizer keeps of each parameter, said once: memory, plans, checksums and checkpoints read it here. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mpizero.dtypes import ITEMSIZE


class Sees(Enum):
    """What one update looks at. A shard of a flat parameter has whole elements, but not whole rows or matrices."""

    ELEMENT = "element"
    ROW = "row"
    MATRIX = "matrix"


@dataclass(frozen=True)
class StateSpec:
    """One number an element."""

    name: str
    dtype: str = "float32"


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer as memory sees it: its states beside the master weights, and what its update looks at."""

    name: str
    states: tuple[StateSpec, ...]
    sees: Sees = Sees.ELEMENT


MASTER = StateSpec("master")  # float32 weights that are updated: ZeRO (arXiv:1910.02054) sec. 3.1
MOMENTS = (StateSpec("exp_avg"), StateSpec("exp_avg_sq"))
ADAM = OptimizerSpec("adam", MOMENTS)
ADAMW = OptimizerSpec("adamw", MOMENTS)
OPTIMIZERS = {spec.name: spec for spec in (ADAM, ADAMW)}


def stored_states(optimizer: OptimizerSpec, param_dtype: str) -> tuple[StateSpec, ...]:
    """What is stored beside the parameters. Parameters of the master weights' dtype are their own master weights."""
    return optimizer.states if param_dtype == MASTER.dtype else (MASTER, *optimizer.states)


def optimizer_bytes(optimizer: OptimizerSpec, param_dtype: str) -> int:
    """K: bytes an element. Adam's is 12 (ZeRO sec. 3.1), or 8 beside float32 parameters."""
    return sum(ITEMSIZE[state.dtype] for state in stored_states(optimizer, param_dtype))
