"""Bars on rows of time: what Gantt charts of runs and of simulations share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from mpizero.report.style import GREY, SPAN_COLORS, WIDTH, legend, second_unit, swatch, text_color, text_inches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL_POINTS = 7
AXES_INCHES = WIDTH - 1.0  # width of axes beside the names of their rows
TRACK_INCHES = 0.32  # height of a row
# Kinds of work (`schedule.effects.Work`) -> what their bar is called
SPAN_OF_WORK = {"forward": "forward", "recompute": "recompute", "backward": "backward", "optim_step": "update",
                "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_reduce": "all_reduce",
                "all_reduce_shard": "all_reduce", "all_reduce_copied": "all_reduce", "broadcast": "all_gather",
                "reduce": "reduce_scatter",
                "download": "move", "upload": "move", "download_kept": "move", "upload_kept": "move",
                "all_reduce_activation": "all_reduce", "all_reduce_input_grad": "all_reduce",
                "gather_kept": "all_gather", "all_gather_loss": "all_gather"}


@dataclass(frozen=True)
class Span:
    """A bar from `begin` to `end` on `row`; of the labels the first that fits is written into it."""

    row: float
    begin: float
    end: float
    span: str
    labels: tuple[str, ...] = ()
    height: float = 0.84


def span_of(row: dict[str, Any]) -> str:
    """What the bar of an action of trace.json is called."""
    return "other" if row["work"] is None else SPAN_OF_WORK[row["work"]]


def draw_spans(axes: Axes, spans: Sequence[Span], begin: float, end: float, whole: float, times: float = 1.0) -> None:
    """Draw what lies between two times in seconds. whole: to which the unit of the axis shall suit. times: see
    `enlarged`."""
    from matplotlib.collections import PolyCollection
    factor, unit = second_unit(whole)
    spans = [replace(span, begin=max(span.begin, begin), end=min(span.end, end)) for span in spans
             if span.begin < end and span.end > begin or begin <= span.begin == span.end <= end]
    colors = [_color(span) for span in spans]
    boxes = [[(factor * x, span.row + side * span.height / 2)
              for side, edges in ((-1, (span.begin, span.end)), (1, (span.end, span.begin))) for x in edges]
             for span in spans]
    axes.add_collection(PolyCollection(boxes, facecolors=colors, edgecolors="white", linewidths=0.3))
    for span, color in zip(spans, colors, strict=True):
        _write_label(axes, span, factor, color, (span.end - span.begin) / (end - begin or 1) * times * AXES_INCHES)
    axes.set_xlim(factor * begin, factor * end or 1)
    axes.grid(axis="x", color=GREY, alpha=0.3, linewidth=0.5)
    axes.set_xlabel(f"time since the step began ({unit})")


def legend_of(made: Figure, spans: Iterable[Span]) -> None:
    """Names of all colours that the spans have."""
    colors = {_color(span) for span in spans}
    used = {name: color for name, color in SPAN_COLORS.items() if color in colors}
    legend(made, [swatch(color) for color in used.values()], used)


def _color(span: Span) -> str:
    return SPAN_COLORS.get(span.span, SPAN_COLORS["other"])


def _write_label(axes: Axes, span: Span, factor: float, color: str, room: float) -> None:
    """The first label that fits, level rather than upright. room: inches of the bar's width."""
    high = span.height * TRACK_INCHES
    for label, upright in product(filter(None, span.labels), (False, True)):
        width, height = (high, room) if upright else (room, high)
        if text_inches(label, LABEL_POINTS) < width and 1.2 * LABEL_POINTS / 72 < height:
            text = axes.text(factor * (span.begin + span.end) / 2, span.row, label, rotation=90 * upright,
                             color=text_color(color), ha="center", va="center", fontsize=LABEL_POINTS)
            text.set_in_layout(False)  # it lies inside its bar, and there may be thousands
            return


def lanes(intervals: Iterable[tuple[float, float]]) -> list[int]:
    """For intervals in any order: the lane of each, such that none overlap on one lane; 0 where nothing does."""
    rows = list(intervals)
    chosen, free = [0] * len(rows), list[float]()
    for index in sorted(range(len(rows)), key=lambda i: rows[i]):
        begin, end = rows[index]
        lane = next((lane for lane, until in enumerate(free) if until <= begin), len(free))
        free[lane:lane + 1] = [end]
        chosen[index] = lane
    return chosen
