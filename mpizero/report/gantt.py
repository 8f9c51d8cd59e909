"""What every rank did when in a real step: a compute track and a communication track each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mpizero.report.spans import TRACK_INCHES, Span, chart_inches, draw_spans, lanes, span_of
from mpizero.report.style import LIGHT, figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 16  # ranks; more would not be read
PITCH = 2.25  # from rank to rank, in heights of a track


@styled
def draw_gantt(trace: dict[str, Any]) -> Figure:
    """trace: trace.json."""
    ranks = trace["ranks"][:SHOWN]
    finish = max((row["end_s"] for rank in ranks for row in (*rank["actions"], *rank["collectives"])), default=0.0)
    rows = [PITCH * index + track for index in range(len(ranks)) for track in (0, 1)]
    tracks = [list(track) for index, rank in enumerate(ranks)
              for track in (_computing(rank, PITCH * index), _communicating(rank, PITCH * index + 1))]
    inches = chart_inches(max(map(len, tracks)))
    made, (axes,) = figure(inches + 1.2, 1.2 + TRACK_INCHES * (rows[-1] + 1.2))
    draw_spans(made, axes, [span for track in tracks for span in track], finish, inches)
    axes.set_yticks(rows, [name for rank in ranks for name in (f"rank {rank['rank']}  compute", "comm.")], fontsize=7.5)
    axes.set_ylim(rows[-1] + 0.6, -0.6)
    axes.hlines([row - PITCH / 2 + 0.5 for row in rows[2::2]], 0, 1, transform=axes.get_yaxis_transform(), color=LIGHT,
                linewidth=0.8)
    more = ""
    if len(trace["ranks"]) > SHOWN:
        more = f" (ranks 0 to {SHOWN - 1} of {len(trace['ranks'])}; perfetto.json has all)"
    axes.set_title(f"Step {trace['step']} on every rank{more}: bars bear the names of segments and units, narrow ones "
                   "the names' last part")
    return made


def _computing(rank: dict[str, Any], row: float) -> Iterator[Span]:
    for action in rank["actions"]:
        if action["computes"] and action["end_s"] > action["begin_s"]:
            yield Span(row, action["begin_s"], action["end_s"], span_of(action), _labels(action["label"]))


def _communicating(rank: dict[str, Any], row: float) -> Iterator[Span]:
    """Collectives; where several are under way they share the row's height."""
    found = rank["collectives"]
    lane = lanes((each["begin_s"], each["end_s"]) for each in found)
    count = max(lane, default=0) + 1
    for each, number in zip(found, lane, strict=True):
        middle = row - 0.42 + 0.84 * (number + 0.5) / count
        yield Span(middle, each["begin_s"], each["end_s"], each["op"], _labels(each["unit"]), 0.84 / count)


def _labels(name: str) -> tuple[str, ...]:
    """`h.3`, or where that has no room `3`."""
    return name, name.rpartition(".")[2]
