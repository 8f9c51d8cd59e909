"""What an optimizer keeps of each parameter, said once: memory, plans, checksums and checkpoints read it here. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from mpizero.dtypes import ITEMSIZE
from mpizero.errors import ConfigError


class Sees(Enum):
    """What one update looks at. A shard of a flat parameter has whole elements, but not whole rows or matrices."""

    ELEMENT = "element"
    ROW = "row"
    MATRIX = "matrix"
    TENSOR = "tensor"


@dataclass(frozen=True)
class StateSpec:
    """One number an element."""

    name: str
    dtype: str = "float32"


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer as memory sees it: its states beside the master weights, and what its update looks at.

    master: whether 16-bit parameters have float32 master weights; without, the update rounds into the parameters.
    why: what a sentence says of one that looks at more than elements.
    """

    name: str
    states: tuple[StateSpec, ...]
    sees: Sees = Sees.ELEMENT
    master: bool = True
    why: str = ""


MASTER = StateSpec("master")  # float32 weights that are updated: ZeRO (arXiv:1910.02054) sec. 3.1
EXP_AVG, EXP_AVG_SQ, MOMENTUM = StateSpec("exp_avg"), StateSpec("exp_avg_sq"), StateSpec("momentum_buffer")
ADAM = OptimizerSpec("adam", (EXP_AVG, EXP_AVG_SQ))
ADAMW = OptimizerSpec("adamw", (EXP_AVG, EXP_AVG_SQ))
SGD = OptimizerSpec("sgd", (MOMENTUM,))
LION = OptimizerSpec("lion", (EXP_AVG,))
OPTIMIZERS = {spec.name: spec for spec in (ADAM, ADAMW, SGD, LION)}
UNSHARDABLE = {spec.name: spec for spec in (
    OptimizerSpec("lamb", (EXP_AVG, EXP_AVG_SQ), Sees.TENSOR, why="it scales each by its norm"),  # arXiv:1904.00962
    OptimizerSpec("lars", (MOMENTUM,), Sees.TENSOR, why="it scales each by its norm"),  # arXiv:1708.03888
    OptimizerSpec("adafactor", (), Sees.ROW, why="it keeps means of rows and columns"),  # arXiv:1804.04235
    OptimizerSpec("shampoo", (), Sees.MATRIX, why="it multiplies by roots of matrices"),  # arXiv:1802.09568
    OptimizerSpec("muon", (MOMENTUM,), Sees.MATRIX, why="it makes each orthogonal"),  # Jordan et al. 2024
)}


def optimizer_spec(name: str, momentum: float | None = None, master: bool = True) -> OptimizerSpec:
    """The declaration of `name`. momentum: of SGD, which without it keeps nothing. ConfigError for a name that is none,
    or of one that cannot be sharded, or has no momentum."""
    known = OPTIMIZERS | UNSHARDABLE
    if name not in known:
        raise ConfigError(f"`optimizer` {name!r} is none of {', '.join(OPTIMIZERS)}: use one of these")
    require_elements(known[name])
    if momentum is not None and name != SGD.name:
        raise ConfigError(f"`momentum` is a setting of `optimizer` {SGD.name}, not of {name}: leave it out, or choose "
                          "that optimizer")
    if momentum is not None and not 0 <= momentum < 1:
        raise ConfigError(f"`momentum` {momentum} is impossible: it must be at least 0, and below 1")
    return replace(known[name], states=() if momentum == 0 else known[name].states, master=master)


def require_narrow(param_dtype: str) -> None:
    """ConfigError where parameters are their own master weights anyway: for those who want none."""
    if param_dtype == MASTER.dtype:
        raise ConfigError(f"`no_master_weights` means nothing with `dtype` {param_dtype}, whose parameters are their "
                          "own master weights: leave it out, or use `dtype` float16 or bfloat16")


def require_elements(optimizer: OptimizerSpec) -> None:
    """ConfigError where it looks at more than elements, which is all that a shard of a flat parameter surely holds
    whole."""
    if optimizer.sees is not Sees.ELEMENT:
        why = f" ({optimizer.why})" if optimizer.why else ""
        raise ConfigError(f"`optimizer` {optimizer.name} updates a {optimizer.sees.value} at a time{why}, but a rank's "
                          "shard holds parts of them: use one that updates element by element, such as adamw")


def stored_states(optimizer: OptimizerSpec, param_dtype: str) -> tuple[StateSpec, ...]:
    """What is stored beside the parameters. Parameters of the master weights' dtype are their own master weights."""
    own = param_dtype == MASTER.dtype or not optimizer.master
    return optimizer.states if own else (MASTER, *optimizer.states)


def optimizer_bytes(optimizer: OptimizerSpec, param_dtype: str) -> int:
    """K: bytes an element. Adam's is 12 (ZeRO sec. 3.1), or 8 beside float32 parameters; SGD's with momentum and Lion's
    8, or 4; SGD's without 4, or 0. Without master weights 4 less beside 16-bit parameters."""
    return sum(ITEMSIZE[state.dtype] for state in stored_states(optimizer, param_dtype))
