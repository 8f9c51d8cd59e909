"""Figures: nothing overlaps or is cut off, labels have units, colours can be told apart, and what is drawn is what was counted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import StepPatch

from mpizero.report import gantt
from mpizero.report.curves import draw_curves
from mpizero.report.gantt import draw_gantt
from mpizero.report.memory import draw_memory, fullest, phases
from mpizero.report.spans import SPAN_OF_ACTION, lanes
from mpizero.report.style import MEMORY_COLORS, MODEL_STATE, SPAN_COLORS, byte_unit, image, second_unit, text_color
from mpizero.report.traffic import draw_traffic
from mpizero.schedule import actions as schedule
from tests.report.colors import EYES, distance
from tests.report.drawn import outside, overlaps, texts
from tests.report.sample import sample

RUNS = {
    "1 rank, 3 units": {"ranks": 1, "units": 3, "steps": 1},
    "4 ranks, 5 units": {"ranks": 4, "units": 5, "capacity": 300_000, "skipped": (3, 4)},
    "4 ranks, 10 units, stage 1": {"ranks": 4, "units": 10, "stage": "1", "capacity": 2**30, "accumulation": 4},
    "16 ranks, 6 units, hybrid": {"ranks": 16, "units": 6, "shards": 4, "accumulation": 2, "steps": 1000},
    "16 ranks, 40 units": {"ranks": 16, "units": 40, "stage": "2"},
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS)
def run(request):
    return sample(**request.param)


@pytest.fixture(scope="module", params=["loss", "memory", "traffic", "gantt"])
def figure(request, run):
    steps, summary, trace = run
    return {"loss": lambda: draw_curves(steps), "memory": lambda: draw_memory(trace), "traffic": lambda: draw_traffic(summary),
            "gantt": lambda: draw_gantt(trace)}[request.param]()


def test_texts_are_readable(figure):
    found = texts(figure)
    assert not overlaps(found) and not outside(figure, found)
    assert min(artist.get_fontsize() for _, _, artist in found) >= 7
    for axes in figure.axes:
        assert axes.get_ylabel() or len(axes.get_yticklabels()) == len(axes.get_yticks())


def test_axes_say_their_units(run):
    steps, summary, trace = run
    loss, norm = draw_curves(steps).axes
    assert (loss.get_ylabel(), norm.get_xlabel()) == ("loss (nats)", "step")
    assert "bytes" in draw_memory(trace).axes[0].get_ylabel() and "bytes" in draw_traffic(summary).axes[0].get_ylabel()
    assert draw_gantt(trace).axes[0].get_xlabel() in ("time since the step began (ms)", "time since the step began (µs)")


@pytest.mark.parametrize("colors", [MEMORY_COLORS, SPAN_COLORS], ids=["memory", "spans"])
@pytest.mark.parametrize("eyes", EYES)
def test_colors_can_be_told_apart(colors, eyes):
    assert min(distance(one, other, eyes) for one, other in itertools.combinations(colors.values(), 2)) > 15


def test_texts_stand_out_from_their_bars():
    assert text_color("#0072b2") == "white" and text_color("#f0e442") == text_color("#d55e00") == "black"


# -- what is drawn ----------------------------------------------------------------------------------------------------------


def test_memory_is_stacked_to_what_was_live_and_planned():
    _, _, trace = sample(ranks=4, units=5)
    trace["ranks"][2]["actions"][7]["peak_bytes"] += 10**6  # so that rank 2 is the fullest
    actions = [row for row in fullest(trace)["actions"] if row["kind"] != "Phase"]
    figure = draw_memory(trace)
    axes = figure.axes[0]
    assert "rank 2, the fullest of 4 ranks\npeak 1." in axes.get_title(loc="left")
    unit = 1e6
    stacks = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch) and patch.get_fill()]
    tops = np.round(np.array([values for values, _, _ in stacks]) * unit)
    live = np.array([[row["live"][kind] for row in actions] for kind in MEMORY_COLORS if any(row["live"].get(kind) for row in actions)])
    assert (tops == live.cumsum(axis=0)).all() and (stacks[0][1] == np.arange(len(actions) + 1)).all()
    planned = next(lines for lines in axes.collections if isinstance(lines, LineCollection) and len(lines.get_segments()) == len(actions))
    assert [round(segment[0][1] * unit) for segment in planned.get_segments()] == [sum(row["planned_live"].values()) for row in actions]
    peaks = next(patch for patch in axes.patches if isinstance(patch, StepPatch) and not patch.get_fill())
    assert [round(value * unit) for value in peaks.get_data()[0]] == [row["peak_bytes"] for row in actions]


def test_memory_says_where_count_and_plan_part():
    _, _, trace = sample(ranks=1, units=3)
    assert "model states equal the plan after every action" in draw_memory(trace).axes[0].get_title(loc="left")
    row = trace["ranks"][0]["actions"][4]
    row["planned_live"] = {**row["planned_live"], "grad": row["planned_live"]["grad"] + 2, "optim": row["planned_live"]["optim"] - 2}
    assert f"count differs from plan first after {row['action']}" in draw_memory(trace).axes[0].get_title(loc="left")


def test_capacity_is_drawn_or_told():
    _, _, trace = sample(ranks=4, units=5, capacity=200_000)
    figure = draw_memory(trace)
    assert [line.get_ydata()[0] for line in figure.axes[0].lines if len(set(line.get_ydata())) == 1] == [200.0]
    assert "capacity 200 KB" in [text for text, _, _ in texts(figure)]
    trace["capacity"] = 14_273_600
    assert "capacity 14.3 MB lies above the picture: 100 times the peak" in draw_memory(trace).axes[0].get_title(loc="left")


def test_kinds_that_are_new_are_drawn_too():
    _, _, trace = sample(ranks=1, units=3)
    for row in trace["ranks"][0]["actions"]:
        row["live"] = {**row["live"], "paged_out": 5000}
    assert "paged_out" in [text for text, _, _ in texts(draw_memory(trace))]


def test_phases_that_come_again_are_numbered():
    rows = [{"phase": name} for name in ("forward", "forward", "backward", "forward", "backward", "update")]
    assert phases(rows) == [("forward 0", 0, 2), ("backward 0", 2, 3), ("forward 1", 3, 4), ("backward 1", 4, 5), ("update", 5, 6)]


@pytest.mark.parametrize("microbatches, named", [(1, 4), (12, 26), (60, 61)])
def test_names_of_many_phases_do_not_touch(microbatches, named):
    figure = draw_memory(sample(ranks=1, units=3, stage="2", accumulation=microbatches)[2])
    found = texts(figure)
    names = [text for text, _, _ in found if text.startswith(("forward", "backward", "update", "zero_grad"))]
    assert not overlaps(found) and len(names) == named


def test_traffic_columns_and_plan():
    _, summary, _ = sample(ranks=3, units=4)
    summary["traffic"] = [dict(row, by_op=dict(row["by_op"])) for row in summary["traffic"]]
    summary["traffic"][1]["by_op"]["all_gather"] += 8000
    summary["traffic"][1]["sent_bytes_per_step"] += 8000
    axes = draw_traffic(summary).axes[0]
    assert "ranks 1 differ from the plan" in axes.get_title(loc="left")
    heights, bottoms = [bar.get_height() * 1e3 for bar in axes.patches], [bar.get_y() * 1e3 for bar in axes.patches]
    gather, scatter = (summary["traffic"][0]["planned_by_op"][op] for op in ("all_gather", "reduce_scatter"))
    assert np.allclose(heights, [gather, gather + 8000, gather] + [scatter] * 3 + [192] * 3)
    assert np.allclose(bottoms, [0] * 3 + heights[:3] + [gather + scatter, gather + 8000 + scatter, gather + scatter])
    plan = next(lines for lines in axes.collections if isinstance(lines, LineCollection))
    assert np.allclose([segment[0][1] * 1e3 for segment in plan.get_segments()], [gather, gather + scatter] * 3)


def test_nothing_sent():
    assert "nothing was sent" in [text for text, _, _ in texts(draw_traffic(sample(ranks=1, units=3)[1]))]


def test_curves():
    steps, _, _ = sample(ranks=1, units=3, steps=8, skipped=(2, 3))
    loss, norm = draw_curves(steps).axes
    assert list(loss.lines[0].get_ydata()) == [row["loss"] for row in steps]
    assert np.isnan(norm.lines[0].get_ydata()).tolist() == [False, False, True, True] + [False] * 4 and norm.get_yscale() == "linear"
    assert [segment[0][0] for segment in loss.collections[0].get_segments()] == [2, 3]
    steps[0]["grad_norm"] = 100.0
    assert draw_curves(steps).axes[1].get_yscale() == "log"
    for row in steps:
        row["grad_norm"] = None
    assert "no step has this number" in [text for text, _, _ in texts(draw_curves(steps))]


def test_gantt_bars_are_the_runs():
    _, _, trace = sample(ranks=2, units=4)
    axes = draw_gantt(trace).axes[0]
    bars = next(each for each in axes.collections if isinstance(each, PolyCollection)).get_paths()
    boxes = sorted((path.get_extents().y0, path.get_extents().x0, path.get_extents().x1) for path in bars)
    expected = []
    for index, rank in enumerate(trace["ranks"]):
        computed = [row for row in rank["actions"] if row["kind"] in ("Forward", "Backward", "OptimStep")]
        for track, rows in enumerate((computed, rank["collectives"])):
            expected += [(2.25 * index + track - 0.42, 1e6 * row["begin_s"], 1e6 * row["end_s"]) for row in rows]
    assert np.allclose(boxes, sorted(expected))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0  compute", "comm.", "rank 1  compute", "comm."]


def test_labels_lie_in_their_bars():
    figure = draw_gantt(sample(ranks=4, units=12)[2])
    axes = figure.axes[0]
    labels = [(text, box) for text, box, artist in texts(figure) if artist in axes.texts]
    bars = [axes.transData.transform_path(path).get_extents() for path in next(
        each for each in axes.collections if isinstance(each, PolyCollection)).get_paths()]
    assert len(labels) > 100
    for text, box in labels:
        assert any(bar.x0 <= box.x0 and box.x1 <= bar.x1 and bar.y0 <= box.y0 and box.y1 <= bar.y1 for bar in bars), text


def test_many_ranks_are_cut_and_that_is_said():
    _, _, trace = sample(ranks=18, units=3)
    figure = draw_gantt(trace)
    assert "ranks 0 to 15 of 18" in figure.axes[0].get_title(loc="left") and len(figure.axes[0].get_yticks()) == 2 * gantt.SHOWN


def test_collectives_at_one_time_share_their_row():
    _, _, trace = sample(ranks=2, units=3)
    first, second = trace["ranks"][0]["collectives"][:2]
    second["begin_s"] = first["begin_s"]
    bars = next(each for each in draw_gantt(trace).axes[0].collections if isinstance(each, PolyCollection)).get_paths()
    halves = [path.get_extents() for path in bars if round(path.get_extents().height, 2) == 0.42]
    assert len(halves) == len(trace["ranks"][0]["collectives"]) and {round(box.y0, 2) for box in halves} == {0.58, 1.0}


def test_lanes():
    assert lanes([]) == []
    assert lanes([(0, 2), (2, 3), (1, 4), (3, 5), (3, 6), (4, 5)]) == [0, 0, 1, 0, 2, 1]
    assert lanes([(3, 4), (0, 4)]) == [1, 0]


def test_every_action_of_the_schedule_has_a_bar_or_none():
    names = {name for name, each in vars(schedule).items() if isinstance(each, type) and each.__module__ == schedule.__name__}
    assert set(SPAN_OF_ACTION) == names - {"Axis", "Phase", "Reshard", "FreeGrad"}
    assert set(SPAN_OF_ACTION.values()) <= set(SPAN_COLORS)


def test_units_of_axes():
    assert [byte_unit(most)[0] for most in (0, 999, 1000, 5e7, 3e9, 2e13)] == [1, 1, 1e3, 1e6, 1e9, 1e12]
    assert byte_unit(3e9)[1] == "GB (10^9 bytes)" and byte_unit(12)[1] == "bytes"
    assert [second_unit(most)[1] for most in (0, 5e-6, 1e-3, 2e-3, 1.9, 2)] == ["µs", "µs", "µs", "ms", "ms", "s"]


def test_model_states_are_the_planners():
    from mpizero.memory import KINDS
    from mpizero.planner.memory import KINDS as PLANNED
    assert set(MODEL_STATE) == set(PLANNED) and set(MEMORY_COLORS) == set(KINDS)


def test_the_same_figure_gives_the_same_file():
    first, second = (image(draw_curves(sample(ranks=1, units=3, steps=3)[0]), "svg") for _ in range(2))
    assert first == second and b"<svg" in first
