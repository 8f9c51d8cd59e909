"""A real step over time: memory and bytes sent of one rank, and what every rank did when, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mpizero.planner.timeline import COMPUTE
from mpizero.report.memory import color_of, fullest, stack
from mpizero.report.spans import AXES_INCHES, SPAN_OF_WORK, TRACK_INCHES, Span, draw_spans, lanes, legend_of, span_of
from mpizero.report.style import (
    DARK,
    LIGHT,
    WIDTH,
    byte_unit,
    enlarged,
    figure,
    legend_below,
    second_unit,
    styled,
    swatch,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 16  # ranks; more would not be read
PITCH = 2.25  # from rank to rank, in heights of a track
BAR = 0.2  # inches of axes for each bar of the fullest track
HOST = 12  # characters of a host's name


@styled
def draw_gantt(trace: dict[str, Any]) -> Figure:
    """trace: trace.json. The wider, up to three times, the more bars there are to name."""
    ranks = trace["ranks"][:SHOWN]
    short = _short({name for rank in ranks for name in (*(row["label"] for row in rank["actions"]),
                                                        *(each["unit"] for each in rank["collectives"]))})
    tracks = [list(track) for index, rank in enumerate(ranks)
              for track in (_computing(rank, PITCH * index, short), _communicating(rank, PITCH * index + 1, short))]
    times = min(max(1.0, BAR * max(map(len, tracks)) / AXES_INCHES), 3.0)
    tracks.append(list(_as_simulated(trace["simulated"], PITCH * len(ranks), short)))
    with enlarged(times):
        return _draw(trace, ranks, [span for track in tracks for span in track], times, short)


def _draw(trace: dict[str, Any], ranks: list[dict[str, Any]], spans: list[Span], times: float,
          short: dict[str, str]) -> Figure:
    finish = max((row["end_s"] for rank in ranks for row in (*rank["actions"], *rank["collectives"])), default=0.0)
    finish = max(finish, trace["simulated"]["seconds"])
    rows = [PITCH * index + track for index in range(len(ranks) + 1) for track in (0, 1)]
    inches = TRACK_INCHES * (rows[-1] + 1.2)
    made, (memory, sent, axes) = figure(inches + 4.0 * times, 3, times * WIDTH, sharex=True,
                                        gridspec_kw={"height_ratios": [1.1 * times, 0.7 * times, inches]})
    draw_spans(axes, spans, 0.0, finish, finish, times)
    axes.set_yticks([PITCH * index + 0.5 for index in range(len(ranks) + 1)], [*map(_name, ranks), "simulated"],
                    fontsize=7.5 * times)
    axes.set_ylim(rows[-1] + 0.6, -0.6)
    axes.hlines([row - PITCH / 2 + 0.5 for row in rows[2::2]], 0, 1, transform=axes.get_yaxis_transform(), color=LIGHT,
                linewidth=0.8)
    _memory_over_time(memory, trace, finish)
    _sent_over_time(sent, trace, finish)
    more = ""
    if len(trace["ranks"]) > SHOWN:
        more = f" (ranks 0 to {SHOWN - 1} of {len(trace['ranks'])}; perfetto.json has all)"
    for upper in (memory, sent):
        upper.locator_params(axis="y", nbins=4)
    title(memory, f"Step {trace['step'] + 1}: memory of rank {fullest(trace)['rank']}, and below it what it sent")
    named = next((f"; {label}: {name}" for name, label in sorted(short.items()) if label != name), "")
    title(axes, f"Each rank computes (above), communicates (below){named}{more}")
    legend_of(made, spans)
    return made


def _name(rank: dict[str, Any]) -> str:
    """`rank 0` over its host."""
    host = rank["host"]
    return f"rank {rank['rank']}\n{host if len(host) <= HOST else host[:HOST - 1] + '…'}"


def _memory_over_time(axes: Axes, trace: dict[str, Any], finish: float) -> None:
    """What is live, by kind. Within an action: at its peak."""
    actions = fullest(trace)["actions"]
    factor, _ = second_unit(finish)
    unit, name = byte_unit(max((row["peak_bytes"] for row in actions), default=0))
    edges = [factor * row[key] for row in actions for key in ("begin_s", "end_s")]
    bands = stack(axes, actions, [*edges, max([factor * finish, *edges[-1:]])], unit, 0)
    legend_below(axes, [swatch(color_of(kind)) for kind, _, _ in bands], [kind for kind, _, _ in bands])
    axes.set_ylabel(name.partition(" ")[0])


def _sent_over_time(axes: Axes, trace: dict[str, Any], finish: float) -> None:
    """What has been sent up to then."""
    sends = sorted((send["begin_s"], send["bytes"]) for each in fullest(trace)["collectives"] for send in each["sends"])
    factor, _ = second_unit(finish)
    sums = [0, *accumulate(nbytes for _, nbytes in sends)]
    unit, name = byte_unit(sums[-1])
    times = [0.0, *(time for time, _ in sends), max([finish, *(time for time, _ in sends[-1:])])]
    axes.stairs([each / unit for each in sums], [factor * time for time in times], fill=True, color=DARK)
    axes.set_ylabel(f"{name.partition(' ')[0]} sent")


def _short(names: set[str]) -> dict[str, str]:
    """What to write for each name: of `layers.2` its `2`, and of all of them alike, unless two would become one."""
    short = {name: name.rpartition(".")[2] for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def _computing(rank: dict[str, Any], row: float, short: dict[str, str]) -> Iterator[Span]:
    for action in rank["actions"]:
        if action["computes"] and action["end_s"] > action["begin_s"]:
            yield Span(row, action["begin_s"], action["end_s"], span_of(action), (short[action["label"]],))


def _as_simulated(simulated: dict[str, Any], row: float, short: dict[str, str]) -> Iterator[Span]:
    """Computation above; below it the streams of collectives, which share the row's height."""
    streams = sorted({event["stream"] for event in simulated["events"]} - {COMPUTE})
    for event in simulated["events"]:
        middle, height = row, 0.84
        if event["stream"] != COMPUTE:
            height /= len(streams)
            middle = row + 1 - 0.42 + height * (streams.index(event["stream"]) + 0.5)
        yield Span(middle, event["begin_s"], event["end_s"], SPAN_OF_WORK[event["work"]], (short[event["label"]],),
                   height)


def _communicating(rank: dict[str, Any], row: float, short: dict[str, str]) -> Iterator[Span]:
    """Collectives; where several are under way they share the row's height."""
    found = rank["collectives"]
    lane = lanes((each["begin_s"], each["end_s"]) for each in found)
    count = max(lane, default=0) + 1
    for each, number in zip(found, lane, strict=True):
        middle = row - 0.42 + 0.84 * (number + 0.5) / count
        yield Span(middle, each["begin_s"], each["end_s"], each["op"], (short[each["unit"]],), 0.84 / count)
