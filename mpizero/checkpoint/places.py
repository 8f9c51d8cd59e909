"""Where a checkpoint holds what: a fold over the tables of all parts, whoever wrote them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpizero.checkpoint.format import Param, Part
from mpizero.errors import CheckpointError
from mpizero.layout.strided import Strided


@dataclass(frozen=True)
class Place:
    """Elements of a state of a parameter, and where they lie: in which part, from which byte on."""

    where: Strided
    part: int
    offset: int


Index = Mapping[tuple[str, str], Sequence[Place]]  # (state, parameter) -> in order of their first elements


def index(params: Sequence[Param], parts: Sequence[Part], path: Path) -> Index:
    """Where everything lies. CheckpointError unless each element of each state is there exactly once."""
    places: dict[tuple[str, str], list[Place]] = {(state, param.name): [] for param in params for state in param.states}
    dtypes = {(state, param.name): dtype for param in params for state, dtype in param.states.items()}
    for number, part in enumerate(parts):
        for entry in part.entries:
            key = entry.state, entry.param
            if dtypes.get(key) != entry.dtype:
                raise CheckpointError(f"{path.with_name(part.name)}.json holds {entry.state} of {entry.param} in "
                                      f"{entry.dtype}, of which {path} knows nothing")
            places[key].append(Place(entry.where, number, entry.offset))
    for param in params:
        for state in param.states:
            found = places[state, param.name]
            found.sort(key=lambda place: place.where.begin)
            _check_cover(found, param, state, parts, path)
    return places


def within(places: Sequence[Place], where: Strided) -> Iterator[Place]:
    """Those that may hold some of the elements, of places in order."""
    for place in places[: bisect_left(places, where.end, key=lambda place: place.where.begin)]:
        if place.where.end > where.begin:
            yield place


def _check_cover(found: Sequence[Place], param: Param, state: str, parts: Sequence[Part], path: Path) -> None:
    """As rectangles of a matrix, in the order of their first elements: each lies right under what was laid before."""
    widths = {place.where.stride for place in found} - {0} or {max(param.numel, 1)}
    width = max(widths)
    if len(widths) > 1:
        raise CheckpointError(f"{path}: its parts hold {state} of {param.name} as columns of matrices of different "
                              f"widths, {', '.join(map(str, sorted(widths)))}")
    edges, reached = [0, width], [0]  # in columns edges[i] .. edges[i + 1] - 1 all rows before reached[i] are there
    for place, piece in _rectangles(found, width):
        row, low = divmod(piece.begin, width)
        high = low + piece.length
        first, last = bisect_right(edges, low) - 1, bisect_left(edges, high)
        if place.where.end > param.numel or max(reached[first:last]) > row:
            raise CheckpointError(f"{path.with_name(parts[place.part].name)}.json: elements of {state} of {param.name} "
                                  "are stored twice, or beyond its end")
        if min(reached[first:last]) < row:
            break
        left, right = edges[first] < low, edges[last] > high
        reached[first:last] = [*reached[first:first + left], row + piece.count, *reached[last - right:last]]
        edges[first:last] = [*edges[first:first + left], low, *[high] * right]
        if first and not left and reached[first - 1] == reached[first]:  # one stretch: ranges in order stay one
            del edges[first], reached[first]
    missing = min(row * width + low for row, low in zip(reached, edges, strict=False))
    if missing < param.numel:
        raise CheckpointError(f"{path}: no part holds {state} of {param.name} from element {missing:,} on")


def _rectangles(found: Sequence[Place], width: int) -> list[tuple[Place, Strided]]:
    pieces = [(place, piece) for place in found for _, piece in place.where.columns(width)]
    return sorted(pieces, key=lambda pair: pair[1].begin)
