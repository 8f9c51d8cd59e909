"""Cuts bytes into chunks where their content says so: a copy of a text, wherever it stands, is cut at the same places.

A chunk ends behind a *hit*, a place where a hash of the 32 bytes before falls below a bound, if no other hit stands
less than `quiet` bytes before. Both look at bytes near by only, so a text that is shifted, or embedded in another, is
cut alike but for its two ends. That is content-defined chunking (Muthitacharoen, Chen, Mazieres: LBFS, SOSP 2001), but
for the hash: theirs rolls from byte to byte, ours is computed at one place in `COARSE`, which a hash of 4 bytes picks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from mpizero.data.counter import hash64

COARSE = 64
WINDOW = 32  # bytes that the hash sees
KEY = 64  # bytes at a chunk's end that its key is made of
_FACTOR, _ADDEND = np.uint32(0x9E3779B1), np.uint32(0x7F4A7C15)  # with these no run of zeros or of spaces is picked


def chunks(blocks: Iterable[bytes], mean: int, quiet: int) -> tuple[np.ndarray, np.ndarray]:
    """Chunks of one file: where each ends, int64 (n,), and its key, uint32 (n,).

    mean: bytes between hits, at least `COARSE`. quiet: at least `KEY`; no chunk but the first and last is shorter. The
    key is a checksum of the chunk's last `KEY` bytes, or of all if it has fewer: equal chunks have equal keys, and so
    have those that differ only further in front, as the first chunks of two copies of which one has a line more.
    """
    assert quiet >= KEY and mean >= COARSE
    stops, keys, before, hit, position = [], [], b"", -quiet, 0
    for block in blocks:
        data = before + block
        origin = position - len(before)  # of data
        hits = origin + _hits(data, mean)
        hits = hits[hits > max(position, KEY - 1)]  # those further in front were seen, or have no whole key
        alone = hits[np.diff(hits, prepend=hit) >= quiet]
        hit = int(hits[-1]) if hits.size else hit
        stops.append(alone)
        keys += [zlib.crc32(data[stop - origin - KEY:stop - origin]) for stop in alone.tolist()]
        position += len(block)
        before = data[-KEY:]
    ends = np.concatenate([np.empty(0, np.int64), *stops])
    begin = int(ends[-1]) if ends.size else 0
    if position > begin:  # what is left up to the end of the file
        ends = np.append(ends, position)
        keys.append(zlib.crc32(before[-min(KEY, position - begin):]))
    return ends, np.array(keys, np.uint32)


def _hits(data: bytes, mean: int) -> np.ndarray:
    """Where hits are: numbers of bytes before them, ascending, int64 (n,)."""
    places = _picked(data)
    places = places[places >= WINDOW]
    if not places.size:
        return places
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # the eight bytes from each place on
    total = np.zeros(places.size, np.uint64)
    for begin in range(0, WINDOW, 8):
        total = hash64(0, 0, total ^ words[places - WINDOW + begin])
    return places[total < np.uint64((1 << 64) // mean * COARSE - 1)]


def _picked(data: bytes) -> np.ndarray:
    """Places behind four bytes whose product falls below a bound, as one in `COARSE` does: ascending, int64 (n,)."""
    found = []
    for shift in range(4):
        words = np.frombuffer(data[shift:], "<u4", max(0, len(data) - shift) // 4)
        found.append(np.flatnonzero(words * _FACTOR + _ADDEND < np.uint32((1 << 32) // COARSE)) * 4 + (shift + 4))
    return np.sort(np.concatenate(found))
