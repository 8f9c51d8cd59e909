"""Counter-based random numbers: number j of sample i is a function of (seed, stream, i, j).

There is no state to carry or share.
Each sample owns one splitmix64 sequence (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
2014), whose starting point is a hash of (seed, stream, i). Integers are exact, so they are equal on every machine.
"""

from __future__ import annotations

import numpy as np

_GAMMA = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: splitmix64's increment
_MASK = (1 << 64) - 1
_TURNS = 6  # of a Feistel network; 4 make a pseudo-random permutation of a large domain (Luby and Rackoff, 1988)


def _mix(z: np.ndarray) -> np.ndarray:
    """splitmix64's output function: a bijection of uint64.

    It flips each output bit with probability 1/2 per flipped input bit.
    """
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _key(seed: int, stream: int) -> np.ndarray:
    """A starting point for (seed, stream): uint64 (1,)."""
    key = np.array([seed & _MASK], np.uint64)
    for word in (0, stream):
        key = _mix(key + np.uint64((_GAMMA * (word + 1)) & _MASK))
    return key


def hash64(seed: int, stream: int, samples: np.ndarray) -> np.ndarray:
    """One uint64 per sample. samples: int64 of any shape -> uint64 of the same shape."""
    return _mix(_key(seed, stream) + samples.astype(np.uint64) * np.uint64(_GAMMA))


def bits(seed: int, stream: int, samples: np.ndarray, count: int) -> np.ndarray:
    """Number 0..count-1 of each sample's sequence. samples: int64 (n,) -> uint64 (n, count)."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    return _mix(hash64(seed, stream, samples)[:, None] + steps)


def normal(seed: int, stream: int, samples: np.ndarray, count: int) -> np.ndarray:
    """Standard normal numbers by Box and Muller (1958). samples: int64 (n,) -> float64 (n, count).

    A 64-bit word gives a radius (upper half) and an angle (lower half), hence a pair of numbers; none lies beyond
    sqrt(2 ln 2^33) = 6.77.
    A processor's log and cos may differ in the last bit of float64; rounded to float32 that is hardly ever seen.
    """
    words = bits(seed, stream, samples, (count + 1) // 2)
    radius = np.sqrt(-2.0 * np.log(((words >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32))
    angle = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2.0 * np.pi * 2.0**-32)
    pairs = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)
    return pairs.reshape(samples.size, 2 * words.shape[1])[:, :count]


def permuted(seed: int, stream: int, epochs: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """What stands at a place of an epoch's order: each epoch is a permutation of 0 .. count - 1, of (seed, stream,
    epoch) alone. epochs, places: int64 (n,), places below `count` -> int64 (n,).

    Nothing is stored: a Feistel network permutes the smallest 4^k >= count numbers, and what falls outside goes through
    it again (Black and Rogaway: Ciphers with Arbitrary Finite Domains, CT-RSA 2002).
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys, numbers = hash64(seed, stream, epochs), places.astype(np.uint64)
    walking = np.arange(numbers.size)
    while walking.size:
        left, right = numbers[walking] >> half, numbers[walking] & mask
        for turn in range(1, _TURNS + 1):
            mixed = _mix(keys[walking] + (right + np.uint64(turn << 32)) * np.uint64(_GAMMA))
            left, right = right, left ^ (mixed & mask)
        numbers[walking] = left << half | right
        walking = walking[numbers[walking] >= count]
    return numbers.astype(np.int64)
