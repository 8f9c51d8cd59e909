"""Sizes and tables as people read and write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from mpizero.errors import ConfigError

UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9,
         "TB": 10**12}


def parse_bytes(text: str) -> int:
    """`64MiB` -> 67108864. KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of 1000; a bare number is bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if match is None or match[2].upper() not in UNITS:
        raise ConfigError(f"{text!r} is not a size: write a number and B, KiB, MiB, GiB, KB, MB or GB, as in 64MiB")
    value = float(match[1]) * UNITS[match[2].upper()]
    if not math.isfinite(value):
        raise ConfigError(f"the size {text[:20]!r}... is beyond any machine: write one as in 64MiB")
    size = round(value)
    if size <= 0:
        raise ConfigError(f"the size {text!r} must be above zero, as in 64MiB")
    return size


def readable(name: object) -> str:
    """Text for any file's name: bytes that are not UTF-8, for which Python has `\\udcff` and the like, written out."""
    return str(name).encode("utf-8", "backslashreplace").decode("utf-8")


def counted(number: int, what: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}{'es' if what.endswith(('s', 'ch')) else 's'}"


def numbers(values: Sequence[int]) -> str:
    """`0-3`, `0-1, 4`: increasing whole numbers, runs of them joined."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns: words to the left, numbers to the right with thousands separated."""
    body = [list(row) for row in rows]
    cells = [list(header)] + [[_cell(value) for value in row] for row in body]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [all(isinstance(row[i], int | float) and not isinstance(row[i], bool) for row in body)
             for i in range(len(header))]
    lines = ["  ".join(cell.rjust(width) if to_right else cell.ljust(width)
                       for cell, width, to_right in zip(row, widths, right, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def in_units(nbytes: int | float) -> str:
    """`16.6 GB`: three digits in powers of 1000, as papers print sizes."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if nbytes >= 0.9995 * size:
            return f"{nbytes / size:.3g} {unit}" if nbytes < 999.5 * size else f"{nbytes / size:,.0f} {unit}"
    return f"{nbytes:,.0f} B"
