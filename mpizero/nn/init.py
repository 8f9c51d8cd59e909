"""Initial values, keyed by (seed, parameter name).

Never by shape, position or rank, so every layout starts from the same model.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from mpizero.nn.ops.blocks import Array


def generator(seed: int, name: str) -> np.random.Generator:
    """The random stream of one parameter: Philox under a 128-bit hash of seed and name."""
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def normal(seed: int, name: str, shape: tuple[int, ...], std: float) -> Array:
    """float32 normal values of standard deviation `std`."""
    values = generator(seed, name).standard_normal(shape, dtype=np.float32)
    values *= np.float32(std)
    return values


def he_normal(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """Normal with variance 2 / inputs, shape (inputs, outputs).

    That keeps activations level through ReLU (arXiv:1502.01852, sec. 2.2).
    """
    return normal(seed, name, shape, math.sqrt(2 / shape[0]))


def constant(shape: tuple[int, ...], value: float) -> Array:
    """float32, all equal."""
    return np.full(shape, value, np.float32)
