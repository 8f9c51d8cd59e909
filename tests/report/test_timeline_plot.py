"""Pictures of simulated steps."""

from __future__ import annotations

import pytest
from matplotlib.collections import PolyCollection

from mpizero.errors import ConfigError
from mpizero.planner.costs import Costs
from mpizero.planner.timeline import Timeline, simulate
from mpizero.report.timeline import draw_timeline, plot
from mpizero.schedule import StepSettings, set_up
from tests.report.drawn import outside, overlaps, texts
from tests.schedule.toys import chain

COSTS = Costs(forward=2, backward=4, all_gather=1.5, reduce_scatter=1.5, optim_step=1)


def lecture(units=4, whole=False, **options) -> Timeline:
    settings = StepSettings("3", keep_last_unit=True, limit_all_gathers=2, overlap=True, **options)
    setup = set_up(chain((64,) * units), 64, settings)
    return simulate(setup.lists.step() if whole else setup.lists.accumulate, setup.geometry, COSTS)


@pytest.mark.parametrize("units", [3, 12, 40])
def test_texts_are_readable(units):
    figure = draw_timeline(lecture(units, whole=True))
    found = texts(figure)
    assert not overlaps(found) and not outside(figure, found)
    streams = {"compute", "communication"} if units == 3 else {"comp.", "comm."}
    names = {*streams, "time since the step began (s)", "forward", "backward", "update"}
    assert names <= {text for text, _, _ in found}


def test_a_long_step_goes_on_in_further_lines():
    """Together they hold every event, cut where a line ends; each bar that begins and ends on a line has its name."""
    timeline = lecture(40, whole=True)
    figure = draw_timeline(timeline)
    assert len(figure.axes) > 4 and figure.get_figwidth() == 6
    edges = [axes.get_xlim() for axes in figure.axes]
    assert [begin for begin, _ in edges[1:]] == [end for _, end in edges[:-1]] and edges[-1][1] == timeline.finish
    drawn = sum(path.get_extents().width for axes in figure.axes for each in axes.collections
                if isinstance(each, PolyCollection) for path in each.get_paths())
    assert drawn == pytest.approx(sum(event.end - event.start for event in timeline.events))
    labels = [text.get_text() for axes in figure.axes for text in axes.texts]
    whole = [event for event in timeline.events if event.work.kind == "backward"
             and any(begin <= event.start and event.end <= end for begin, end in edges)]
    assert len(whole) > 30 and {f"B{event.work.index}" for event in whole} <= set(labels)


def test_bars_are_the_events():
    timeline = lecture(backward_prefetch=1)
    figure = draw_timeline(timeline)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "Simulated step: 27 s, of which 24 s (89%) compute\nat most 2 units gathered"
    bars = next(each for each in axes.collections if isinstance(each, PolyCollection)).get_paths()
    extents = [path.get_extents() for path in bars]
    boxes = [(extent.x0, extent.x1, round(extent.y0 + 0.42)) for extent in extents]
    assert boxes == [(event.start, event.end, int(event.stream == "communication")) for event in timeline.events]
    labels = [text.get_text() for text in axes.texts]
    assert labels[:4] == ["A0", "F0", "A1", "F1"] and labels[-3:] == ["R1", "B0", "R0"]


def test_replicas_have_a_row_of_their_own():
    setup = set_up(chain((64,) * 3), 64, StepSettings("2", 8, overlap=True))
    costs = Costs(forward=1, backward=2, reduce_scatter=2, all_reduce_shard=3)
    (axes,) = draw_timeline(simulate(setup.lists.accumulate, setup.geometry, costs)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["compute", "communication", "replicas"]


def test_times_have_a_unit_that_suits():
    costs = Costs(forward=0.021, backward=0.042, all_gather=0.013)
    setup = set_up(chain((64,)), 2, StepSettings("3", overlap=True))
    (axes,) = draw_timeline(simulate(setup.lists.accumulate, setup.geometry, costs)).axes
    assert axes.get_xlabel() == "time since the step began (ms)"
    assert axes.get_title(loc="left") == (
        "Simulated step: 76 ms, of which 63 ms (83%) compute\nat most 2 units gathered")


def test_nothing_happens():
    geometry = set_up(chain((64,)), 2).geometry
    assert "0 µs" in draw_timeline(simulate([], geometry, COSTS)).axes[0].get_title(loc="left")


@pytest.mark.parametrize("name, begin", [("step.png", b"\x89PNG"), ("step.SVG", b"<?xml")])
def test_files(tmp_path, name, begin):
    plot(lecture(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)


@pytest.mark.parametrize("name, words", [
    ("step.gif", "step.gif cannot be drawn: give a file name that ends in .png or .svg"),
    ("step", "ends in .png or .svg"),
    ("no/step.png", "no/step.png cannot be written: No such file or directory"),
])
def test_files_that_cannot_be(tmp_path, name, words):
    with pytest.raises(ConfigError, match=words):
        plot(lecture(), str(tmp_path / name))
