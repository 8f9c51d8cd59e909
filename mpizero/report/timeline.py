"""A simulated step as a picture: `python -m mpizero.plan timeline --plot FILE`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from mpizero.errors import ConfigError
from mpizero.planner.timeline import COMMUNICATION, COMPUTE, LETTER, REPLICAS, Event, Timeline
from mpizero.report.spans import SPAN_OF_WORK, TRACK_INCHES, Span, draw_spans, legend_of
from mpizero.report.style import figure, save, second_unit, styled, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
ROWS = {COMPUTE: 0, COMMUNICATION: 1, REPLICAS: 2}
BARS, LINES = 16, 12  # so many bars of a stream have room on a line; more lines would not fit a page


def plot(timeline: Timeline, path: str | Path) -> None:
    """Write the timeline to `path`, whose ending chooses PNG or SVG. `ConfigError` for another ending, and without
    matplotlib."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path} cannot be drawn: give a file name that ends in {' or '.join(FORMATS)}")
    save(draw_timeline(timeline), path)


@styled
def draw_timeline(timeline: Timeline) -> Figure:
    """All streams over time, which goes on in further lines where one has no room for the names of all bars."""
    spans = [_span(event) for event in timeline.events]
    fullest = max(sum(span.row == row for span in spans) for row in ROWS.values())
    lines = min(max(1, math.ceil(fullest / BARS)), LINES)
    rows = len(timeline.streams)
    made, every = figure(0.9 + lines * (0.35 + (rows + 0.2) * TRACK_INCHES), lines)
    for line, axes in enumerate(every):
        begin, end = timeline.finish * line / lines, timeline.finish * (line + 1) / lines
        draw_spans(axes, spans, begin, end, timeline.finish)
        axes.set_yticks(range(rows), [f"{stream[:4]}." if lines > 1 else stream for stream in timeline.streams])
        axes.set_ylim(rows - 0.4, -0.6)
        if line < lines - 1:
            axes.set_xlabel("")
    factor, unit = second_unit(timeline.finish)
    busy = timeline.compute / timeline.finish if timeline.finish else 0
    units = "1 unit" if timeline.peak_gathered == 1 else f"{timeline.peak_gathered} units"
    finish, compute = (f"{factor * seconds:.4g} {unit}" for seconds in (timeline.finish, timeline.compute))
    title(every[0], f"Simulated step: {finish}, of which {compute} ({busy:.0%}) compute", f"at most {units} gathered")
    legend_of(made, spans)
    return made


def _span(event: Event) -> Span:
    """`F3`: letter as in the text chart, number of the segment or unit."""
    kind, number = event.work.kind, str(event.work.index)
    return Span(ROWS[event.stream], event.start, event.end, SPAN_OF_WORK[kind], (LETTER[kind] + number, number))
