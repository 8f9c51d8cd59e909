"""Links between tiers: their names and rates as flags have them, how moves are cut, and the workspace that they take.
Pure."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.errors import ConfigError
from mpizero.layout.rings import adder_bytes
from mpizero.layout.tiers import DEVICE, HOST, NVME, Tier
from mpizero.quantities import parse_rate

LINKS = {"host": (DEVICE, HOST), "nvme": (HOST, NVME)}  # as flags name them
Way = tuple[Tier, Tier]
CHUNK = 2**20  # bytes that are copied at a time


def chunk_numel(numel: int, itemsize: int) -> int:
    """Elements that are copied at a time, of so many."""
    return min(numel, max(1, CHUNK // itemsize))


def landing_bytes(numel: int, dtype: str) -> int:
    """Of what is added on arrival: a chunk, and what the addition takes."""
    width = chunk_numel(numel, ITEMSIZE[dtype])
    return width * ITEMSIZE[dtype] + adder_bytes(dtype, width)


def parse_limits(text: str | None) -> dict[Way, float]:
    """`host=3GB/s,nvme=1GB/s` -> bytes a second of each way. ConfigError for what is no link or no rate."""
    found: dict[Way, float] = {}
    for part in text.split(",") if text else ():
        name, _, rate = part.strip().partition("=")
        if name not in LINKS or LINKS[name] in found:
            raise ConfigError(f"`limit` {text!r} cannot be read at {part!r}: name links and their rates, each once, as "
                              f"in host=3GB/s,nvme=1GB/s; links are {', '.join(LINKS)}")
        above, below = LINKS[name]
        found[above, below] = found[below, above] = parse_rate(rate)
    return found
