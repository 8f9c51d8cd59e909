"""Where model states rest: on the device, in the host's memory, or in files. ZeRO-Offload (arXiv:2101.06840), sec. 3;
ZeRO-Infinity (arXiv:2104.07857), sec. 5. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from mpizero.errors import ConfigError


class Tier(StrEnum):
    """A place with a ledger of its own. Users say `cpu` for HOST, as PyTorch and DeepSpeed do."""

    DEVICE = "device"
    HOST = "host"
    NVME = "nvme"


DEVICE, HOST, NVME = Tier.DEVICE, Tier.HOST, Tier.NVME
WORDS = {"none": DEVICE, "cpu": HOST, "nvme": NVME}


@dataclass(frozen=True)
class Tiers:
    """params: of what a rank keeps of the parameters. optimizer: of the optimizer's states; the reduced gradient goes
    there, and the update runs there, or on the host for states in files. checkpoints: of inputs that are kept to
    compute segments again."""

    params: Tier = DEVICE
    optimizer: Tier = DEVICE
    checkpoints: Tier = DEVICE


def parse_offload(text: str | None) -> Tiers:
    """`optimizer=cpu` or `params=cpu,optimizer=cpu`. ConfigError for words that mean nothing, or places that do not go
    together."""
    found: dict[str, Tier] = {}
    names = [field.name for field in fields(Tiers)]
    for part in text.split(",") if text else ():
        name, _, where = part.strip().partition("=")
        if name not in names or where not in WORDS or name in found:
            raise ConfigError(f"`offload` {text!r} cannot be read at {part!r}: say what goes where, each once, as in "
                              f"optimizer=cpu or params=cpu,optimizer=cpu; what is one of {', '.join(names)}, and "
                              f"where one of {', '.join(WORDS)}")
        found[name] = WORDS[where]
    tiers = Tiers(**found)
    if tiers.params is not DEVICE and tiers.params is not tiers.optimizer:
        raise ConfigError(f"`offload` {text!r} takes parameters off the device but not the optimizer's states, which "
                          "are larger and needed once a step alone: give optimizer= the same place")
    return tiers


def offload_text(tiers: Tiers) -> str | None:
    """What `parse_offload` reads; None where all rests on the device."""
    words = {tier: word for word, tier in WORDS.items()}
    return ",".join(f"{name}={words[tier]}" for name, tier in vars(tiers).items() if tier is not DEVICE) or None
