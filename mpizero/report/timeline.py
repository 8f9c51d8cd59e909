"""A simulated step as a picture: `python -m mpizero.plan timeline --plot FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mpizero.errors import ConfigError
from mpizero.planner.timeline import COMMUNICATION, COMPUTE, LETTER, Event, Timeline
from mpizero.report.spans import SPAN_OF_WORK, TRACK_INCHES, Span, chart_inches, draw_spans
from mpizero.report.style import figure, save, second_unit, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
ROWS = {COMPUTE: 0, COMMUNICATION: 1}


def plot(timeline: Timeline, path: str | Path) -> None:
    """Write the timeline to `path`, whose ending chooses PNG or SVG. `ConfigError` for another ending, and without
    matplotlib."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path} cannot be drawn: give a file name that ends in {' or '.join(FORMATS)}")
    save(draw_timeline(timeline), path)


@styled
def draw_timeline(timeline: Timeline) -> Figure:
    """Both streams over time."""
    spans = [_span(event) for event in timeline.events]
    inches = chart_inches(max((sum(span.row == row for span in spans) for row in ROWS.values()), default=0))
    made, (axes,) = figure(inches + 1.2, 1.2 + 2.2 * TRACK_INCHES)
    draw_spans(made, axes, spans, timeline.finish, inches)
    axes.set_yticks(list(ROWS.values()), list(ROWS))
    axes.set_ylim(1.6, -0.6)
    factor, unit = second_unit(timeline.finish)
    busy = timeline.compute / timeline.finish if timeline.finish else 0
    units = "1 unit" if timeline.peak_gathered == 1 else f"{timeline.peak_gathered} units"
    finish, compute = (f"{factor * seconds:.4g} {unit}" for seconds in (timeline.finish, timeline.compute))
    axes.set_title(f"Simulated step: {finish}, of which {compute} ({busy:.0%}) compute; at most {units} gathered")
    return made


def _span(event: Event) -> Span:
    """`F3`: letter as in the text chart, number of the segment or unit."""
    kind, number = event.work.kind, str(event.work.index)
    return Span(ROWS[event.stream], event.start, event.end, SPAN_OF_WORK[kind], (LETTER[kind] + number, number))
