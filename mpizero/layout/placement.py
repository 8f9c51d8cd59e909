"""What each rank keeps of the three model states between uses. ZeRO (arXiv:1910.02054), sec. 5."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Keep(Enum):
    """REPLICATED: every rank keeps all padded_numel elements.

    SHARDED: padded_numel / F, F the size of the shard group.
    """

    REPLICATED = "replicated"
    SHARDED = "sharded"


REPLICATED, SHARDED = Keep.REPLICATED, Keep.SHARDED


@dataclass(frozen=True)
class Placement:
    """How a strategy keeps parameters, reduced gradients and optimizer states."""

    params: Keep
    grads: Keep
    optim: Keep
