"""Where a checkpoint holds what: a fold over the tables of all parts, whoever wrote them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpizero.checkpoint.format import Param, Part
from mpizero.errors import CheckpointError


@dataclass(frozen=True)
class Place:
    """Where elements begin .. end - 1 of a state of a parameter lie: in which part, from which byte on."""

    begin: int
    end: int
    part: int
    offset: int


Index = Mapping[tuple[str, str], Sequence[Place]]  # (state, parameter) -> in order of elements


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
            places[key].append(Place(entry.begin, entry.end, number, entry.offset))
    for param in params:
        for state in param.states:
            found = places[state, param.name]
            found.sort(key=lambda place: place.begin)
            _check_cover(found, param, state, parts, path)
    return places


def within(places: Sequence[Place], begin: int, end: int) -> Iterator[Place]:
    """Those that hold some of the elements begin .. end - 1, at least one, of places in order. There are many where
    tensor parallel ranks have saved columns: a place for each row."""
    for number in range(bisect_right(places, begin, key=lambda place: place.end), len(places)):
        if places[number].begin >= end:
            return
        yield places[number]


def _check_cover(found: Sequence[Place], param: Param, state: str, parts: Sequence[Part], path: Path) -> None:
    reached = 0
    for place in found:
        if place.begin < reached or place.end > param.numel:
            raise CheckpointError(f"{path.with_name(parts[place.part].name)}.json: elements of {state} of {param.name} "
                                  "are stored twice, or beyond its end")
        if place.begin > reached:
            break
        reached = place.end
    if reached != param.numel:
        raise CheckpointError(f"{path}: no part holds {state} of {param.name} from element {reached:,} on")
