"""Many steps in few: what a picture's columns of pixels, or a reader, can take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def thin(rows: Sequence[Row], keys: Sequence[str], spans: int) -> list[Row]:
    """Of each of `spans` spans of rows: the first and the last, those with the lowest and the highest value of each
    key, and the first that has none (null). So nothing that sticks out of its span is lost. All rows, if they are few.
    """
    most = 2 + 3 * len(keys)
    if len(rows) <= most * spans:
        return list(rows)
    kept: list[Row] = []
    for span in range(spans):
        begin, end = (len(rows) * edge // spans for edge in (span, span + 1))
        chosen = {begin, end - 1}
        for key in keys:
            there = [index for index in range(begin, end) if rows[index][key] is not None]
            if there:
                chosen |= {pick(there, key=lambda index: rows[index][key]) for pick in (min, max)}
            chosen |= set([index for index in range(begin, end) if rows[index][key] is None][:1])
        kept += [rows[index] for index in sorted(chosen)]
    return kept
