"""What each rank keeps of the three model states between uses. ZeRO (arXiv:1910.02054), sec. 5."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mpizero.errors import ConfigError


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

    def __post_init__(self) -> None:
        if self.params is SHARDED and self.optim is REPLICATED:
            raise ConfigError("a rank that keeps a shard of the parameters cannot update all of them: shard the "
                              "optimizer's states too")
