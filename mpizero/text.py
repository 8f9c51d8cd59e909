"""Tables and words as people read them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any


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


def precision(facts: Mapping[str, Any]) -> str:
    """`float16`; `float16, gradients sent as float16 and summed in float32`. facts: dtype, reduce_dtype, sum_dtype."""
    dtype, wire, sums = (facts[name] for name in ("dtype", "reduce_dtype", "sum_dtype"))
    return dtype if dtype == wire == sums else f"{dtype}, gradients sent as {wire} and summed in {sums}"


def ranks_on(hosts: Sequence[str], ranks: Iterable[int] | None = None) -> str:
    """Which ranks are where: `0-1 on host0, 2-3 on host1`. hosts: of each rank. ranks: those of whom it is said; None:
    all."""
    by_host: dict[str, list[int]] = {}
    for rank in range(len(hosts)) if ranks is None else ranks:
        by_host.setdefault(hosts[rank], []).append(rank)
    return ", ".join(f"{numbers(same)} on {host}" for host, same in by_host.items())


def table(header: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[str] = ()) -> str:
    """Aligned columns: words to the left, numbers to the right with thousands separated. right: columns of words that
    go to the right as well, such as sizes in units."""
    body = [list(row) for row in rows]
    cells = [list(header)] + [[_cell(value) for value in row] for row in body]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    to_right = [name in right or all(isinstance(row[i], int | float) and not isinstance(row[i], bool) for row in body)
                for i, name in enumerate(header)]
    lines = ["  ".join(cell.rjust(width) if goes_right else cell.ljust(width)
                       for cell, width, goes_right in zip(row, widths, to_right, strict=True)).rstrip()
             for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
