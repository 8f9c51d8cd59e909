"""The actions of which every training step consists: intent only. Who acts on them stands elsewhere.

A *unit* is what is gathered (a FlatParameter), a *stage* what is computed; both are named by index. An action costs:

    action                     memory on the rank                          sent by the rank, n = size of the group
    Unshard(unit)              + unsharded_param                           (n-1)/n of the unit, all-gather in the shard group
    Reshard(unit)              - unsharded_param
    Forward(stage, mb)         + activations
    Backward(stage, mb)        + unsharded_grad of its units, - activations
    ReduceScatterGrad(unit)    + grad (a shard), - unsharded_grad          (n-1)/n, reduce-scatter in the shard group
    AllReduceGrad(unit, axis)  unsharded_grad becomes grad (whole)         2(n-1)/n, all-reduce along the axis
    AllReduceShard(unit)                                                   2(n-1)/n of the shard, all-reduce across replicas
    OptimStep(unit)            + grad_fp32 of one block, for its time
    AllGatherParam(unit)                                                   (n-1)/n, all-gather in the shard group
    FreeGrad(unit)             - grad
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Axis(Enum):
    """The two axes of the mesh."""

    REPLICATE = "replicate"
    SHARD = "shard"


@dataclass(frozen=True, slots=True)
class Phase:
    """A mark: what follows belongs to this part of the step (forward, backward, reduce, update, zero_grad, evaluate)."""

    name: str
    mb: int = 0


@dataclass(frozen=True, slots=True)
class Unshard:
    """Gather the whole parameters of the unit from the shards."""

    unit: int


@dataclass(frozen=True, slots=True)
class Reshard:
    """Free the whole parameters of the unit; the shard stays."""

    unit: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute the stage; keep what its backward needs if `save`."""

    stage: int
    mb: int
    save: bool = True


@dataclass(frozen=True, slots=True)
class Backward:
    """Compute the gradients of the stage, adding to what its units have from later stages or earlier microbatches."""

    stage: int
    mb: int


@dataclass(frozen=True, slots=True)
class ReduceScatterGrad:
    """Sum the whole gradient over the shard group; this rank's shard of the sum is added to its reduced gradient."""

    unit: int


@dataclass(frozen=True, slots=True)
class AllReduceGrad:
    """Sum the whole gradient along the axis; the whole sum is added to the reduced gradient."""

    unit: int
    axis: Axis


@dataclass(frozen=True, slots=True)
class AllReduceShard:
    """Sum this rank's shard of the reduced gradient across the replicas."""

    unit: int


@dataclass(frozen=True, slots=True)
class OptimStep:
    """Update what this rank optimises of the unit, and write it to the parameters it keeps."""

    unit: int


@dataclass(frozen=True, slots=True)
class AllGatherParam:
    """Complete the kept whole parameters from the parts that each rank of the shard group updated."""

    unit: int


@dataclass(frozen=True, slots=True)
class FreeGrad:
    """Free the reduced gradient of the unit."""

    unit: int


Action = (Phase | Unshard | Reshard | Forward | Backward | ReduceScatterGrad | AllReduceGrad | AllReduceShard | OptimStep | AllGatherParam
          | FreeGrad)


def show(action: Action) -> str:
    """The action as a person writes it: `Unshard(2)`, `Backward(2, mb=0)`."""
    match action:
        case Phase(name, mb):
            return f"-- {name} mb={mb}"
        case Forward(stage, mb) | Backward(stage, mb):
            return f"{type(action).__name__}({stage}, mb={mb})"
        case AllReduceGrad(unit, axis):
            return f"AllReduceGrad({unit}, {axis.value})"
        case _:
            return f"{type(action).__name__}({action.unit})"
