"""How ranks divide into replicas of a shard group."""

from __future__ import annotations

from mpizero.errors import ConfigError


def replica_count(ranks: int, shard_size: int, more_ranks: str = "mpirun -n") -> int:
    """R of R x F = ranks. ConfigError with the equation and the cure unless F divides; more_ranks: how the user asks for other ranks."""
    if shard_size >= 1 and ranks % shard_size == 0:
        return ranks // shard_size
    cure = "use --shard-size " + " or ".join(str(f) for f in range(1, ranks + 1) if ranks % f == 0)
    if shard_size > 0:
        cure += f", or {more_ranks} {-(-ranks // shard_size) * shard_size}"
    raise ConfigError(f"replicate * shard({shard_size}) = {ranks} ranks has no solution: {cure}")
