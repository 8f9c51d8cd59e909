"""What each rank keeps of the three model states between uses. ZeRO (arXiv:1910.02054), sec. 5."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mpizero.errors import ConfigError
from mpizero.layout.tiers import DEVICE, Tiers


class Keep(Enum):
    """REPLICATED: every rank keeps all padded_numel elements.

    SHARDED: padded_numel / F, F the size of the shard group.

    OWNED: one rank of the shard group keeps all of them, the others nothing; see `Geometry.owner`.
    """

    REPLICATED = "replicated"
    SHARDED = "sharded"
    OWNED = "owned"


REPLICATED, SHARDED, OWNED = Keep.REPLICATED, Keep.SHARDED, Keep.OWNED


@dataclass(frozen=True)
class Placement:
    """How a strategy keeps parameters, reduced gradients and optimizer states; and on which tiers these rest. delayed:
    whether an update may go on beside the next step, which reads the parameters as they were."""

    params: Keep
    grads: Keep
    optim: Keep
    tiers: Tiers = Tiers()
    delayed: bool = False

    def __post_init__(self) -> None:
        if self.params is SHARDED and self.optim is REPLICATED:
            raise ConfigError("a rank that keeps a shard of the parameters cannot update all of them: shard the "
                              "optimizer's states too")
        if 0 < [self.params, self.grads, self.optim].count(OWNED) < 3:
            raise ConfigError("a unit that one rank owns is updated there: let it own parameters, gradients and the "
                              "optimizer's states")
        if self.params is REPLICATED and self.tiers.params is not DEVICE:
            raise ConfigError("`offload` of params needs parameters that are gathered for their use: take `stage` "
                              "3, or offload the optimizer's states alone")

    @property
    def apart(self) -> bool:
        """Whether what is updated is not what forward reads, so that new parameters are moved there."""
        return self.delayed or self.tiers.params is not self.tiers.optimizer
