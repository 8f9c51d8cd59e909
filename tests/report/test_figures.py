"""Figures: nothing overlaps or is cut off, labels have units, colours can be told apart, what is drawn was counted."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import StepPatch

from mpizero.memory.kinds import KINDS, MODEL_STATE
from mpizero.report.curves import draw_curves
from mpizero.report.gantt import draw_gantt
from mpizero.report.memory import draw_memory, fullest, phases
from mpizero.report.style import MEMORY_COLORS, SPAN_COLORS, byte_unit, image, second_unit, text_color
from mpizero.report.traffic import draw_traffic
from tests.report.colors import EYES, distance, lightness
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


@pytest.fixture(scope="module")
def figures(run):
    steps, summary, trace = run
    return {"loss": draw_curves(steps), "memory": draw_memory(trace), "traffic": draw_traffic(summary),
            "gantt": draw_gantt(trace)}


@pytest.mark.parametrize("name", ["loss", "memory", "traffic", "gantt"])
def test_texts_are_readable(figures, name):
    figure = figures[name]
    found = texts(figure)
    assert not overlaps(found) and not outside(figure, found)
    assert min(artist.get_fontsize() for _, _, artist in found) >= 7
    for axes in figure.axes:
        assert axes.get_ylabel() or len(axes.get_yticklabels()) == len(axes.get_yticks())


def test_axes_say_their_units(figures):
    loss, norm = figures["loss"].axes
    assert (loss.get_ylabel(), norm.get_xlabel()) == ("loss (nats)", "step")
    assert all("bytes" in figures[name].axes[0].get_ylabel() for name in ("memory", "traffic"))
    words = figures["gantt"].axes[-1].get_xlabel()
    assert words in ("time since the step began (ms)", "time since the step began (µs)")


@pytest.mark.parametrize("colors", [MEMORY_COLORS, SPAN_COLORS], ids=["memory", "spans"])
@pytest.mark.parametrize("eyes", EYES)
def test_colors_can_be_told_apart(colors, eyes):
    assert min(distance(one, other, eyes) for one, other in itertools.combinations(colors.values(), 2)) > 15


def test_neighbours_in_a_stack_differ_in_lightness():
    levels = [lightness(MEMORY_COLORS[kind]) for kind in KINDS]
    assert min(abs(one - other) for one, other in itertools.pairwise(levels)) > 5


def test_texts_stand_out_from_their_bars():
    assert text_color("#0072b2") == "white" and text_color("#f0e442") == text_color("#d55e00") == "black"


# -- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activations, covered", [(True, "model states and activation"), (False, "model states")])
def test_memory_is_stacked_to_what_was_live_and_planned(activations, covered):
    _, _, trace = sample(ranks=4, units=5, activations_planned=activations)
    trace["ranks"][2]["actions"][7]["peak_bytes"] += 10**6  # so that rank 2 is the fullest
    actions = [row for row in fullest(trace)["actions"] if row["computes"] or row["work"]]
    figure = draw_memory(trace)
    axes = figure.axes[0]
    assert "Memory of rank 2, the fullest of 4, in step 50\n" in axes.get_title(loc="left")
    unit = 1e6
    stacks = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch) and patch.get_fill()]
    tops = np.round(np.array([values for values, _, _ in stacks]) * unit)
    most, live = (np.array([[row[key][kind] for row in actions]
                            for kind in KINDS if any(row["peak_live"].get(kind) for row in actions)])
                  for key in ("peak_live", "live"))
    assert (tops[:, ::2] == most.cumsum(axis=0)).all() and (tops[:, 1::2] == live.cumsum(axis=0)).all()
    assert (stacks[0][1] == np.arange(2 * len(actions) + 1) / 2).all()
    states = len(MODEL_STATE) - 1  # this sample has no float32 gradient
    assert len(live) == states + 2
    bars = next(lines.get_segments() for lines in axes.collections
                if isinstance(lines, LineCollection) and len(lines.get_segments()) == len(actions))
    planned = [round(segment[0][1] * unit) for segment in bars]
    assert planned == [sum(row["planned_live"].values()) for row in actions]
    assert planned == list(live[:states + activations].sum(axis=0))  # they lie on the edge of what they plan
    assert f"{covered} equal the plan after every action" in axes.get_title(loc="left")


def test_memory_names_its_areas_and_its_peak():
    """The largest area bears its name inside; workspace, which lives within actions alone, is named at the peak."""
    _, _, trace = sample(ranks=1, units=3)
    actions = [row for row in trace["ranks"][0]["actions"] if row["computes"] or row["work"]]
    row = actions[7]
    row["peak_live"] = row["peak_live"] | {"workspace": 400_000}
    row["peak_bytes"] = sum(row["peak_live"].values())
    axes = draw_memory(trace).axes[0]
    named = {text.get_text(): text.get_position() for text in axes.texts}
    (words,) = [text for text in named if text.startswith("peak ")]
    assert words == f"peak {row['peak_bytes'] / 1e3:.0f} KB in {row['action']},\nof it workspace 400 KB"
    (arrow,) = [text.xy for text in axes.texts if text.get_text() == words]
    assert arrow == pytest.approx((7.25, row["peak_bytes"] / 1e3))
    x, y = named["optim"]
    under = actions[int(x)]["live"]["param"] / 1e3
    assert under < y < under + actions[int(x)]["live"]["optim"] / 1e3


@pytest.mark.parametrize("number", range(3, 40, 4))
def test_the_peak_is_named_inside_its_phase(number):
    """Its words cross no line, unless the phase is shorter than they are."""
    _, _, trace = sample(ranks=1, units=5)
    actions = [row for row in trace["ranks"][0]["actions"] if row["computes"] or row["work"]]
    actions[number]["peak_bytes"] = 10**6
    figure = draw_memory(trace)
    (box,) = [box for text, box, _ in texts(figure) if text.startswith("peak ")]
    lines = [figure.axes[0].transData.transform((begin, 0))[0] for _, begin, _ in phases(actions)]
    assert actions[number]["phase"] in ("update", "zero_grad") or not [x for x in lines if box.x0 < x < box.x1]


def test_memory_says_where_count_and_plan_part():
    _, _, trace = sample(ranks=1, units=3, activations_planned=False)
    assert "\nmodel states equal the plan after every action" in draw_memory(trace).axes[0].get_title(loc="left")
    _, _, trace = sample(ranks=1, units=3)
    words = "\nmodel states and activation equal the plan after every action"
    assert words in draw_memory(trace).axes[0].get_title(loc="left")
    words = "\nmodel states, activation and kept input equal the plan after"
    assert words in draw_memory(sample(ranks=1, units=5, recompute=True)[2]).axes[0].get_title(loc="left")
    row = trace["ranks"][0]["actions"][7]
    row["live"] = {**row["live"], "activation": row["live"]["activation"] + 2}
    assert f"count differs from plan first after {row['action']}" in draw_memory(trace).axes[0].get_title(loc="left")
    row, plan = trace["ranks"][0]["actions"][4], trace["ranks"][0]["actions"][4]["planned_live"]
    row["planned_live"] = {**plan, "grad": plan["grad"] + 2, "optim": plan["optim"] - 2}
    assert f"count differs from plan first after {row['action']}" in draw_memory(trace).axes[0].get_title(loc="left")


def test_capacity_is_drawn_or_told():
    _, _, trace = sample(ranks=4, units=5, capacity=200_000)
    figure = draw_memory(trace)
    assert [line.get_ydata()[0] for line in figure.axes[0].lines if len(set(line.get_ydata())) == 1] == [200.0]
    assert "capacity 200 KB" in [text for text, _, _ in texts(figure)]
    trace["capacity"] = 14_888_000
    words = "capacity 14.9 MB lies above the picture: 100 times the peak"
    assert words in draw_memory(trace).axes[0].get_title(loc="left")


def test_kinds_that_are_new_are_drawn_too():
    _, _, trace = sample(ranks=1, units=3)
    for row in trace["ranks"][0]["actions"]:
        row["live"] = {**row["live"], "paged_out": 5000}
    assert "paged_out" in [text for text, _, _ in texts(draw_memory(trace))]


def test_phases_that_come_again_are_numbered():
    rows = [{"phase": name} for name in ("forward", "forward", "backward", "forward", "backward", "update")]
    assert phases(rows) == [("forward 0", 0, 2), ("backward 0", 2, 3), ("forward 1", 3, 4), ("backward 1", 4, 5),
                            ("update", 5, 6)]


@pytest.mark.parametrize("microbatches, named", [(1, 4), (12, 25), (90, 31)])
def test_names_of_many_phases_do_not_touch(microbatches, named):
    figure = draw_memory(sample(ranks=1, units=3, stage="2", accumulation=microbatches)[2])
    found = texts(figure)
    names = [text for text, _, _ in found if text.startswith(("forward", "backward", "update", "zero"))]
    assert not overlaps(found) and len(names) == named


def test_traffic_columns_and_plan():
    _, summary, _ = sample(ranks=3, units=4)
    summary["traffic"] = [dict(row, by_op=dict(row["by_op"])) for row in summary["traffic"]]
    summary["traffic"][1]["by_op"]["all_gather"] += 8000
    summary["traffic"][1]["sent_bytes_per_step"] += 8000
    axes = draw_traffic(summary).axes[0]
    assert "ranks 1 differ from the plan" in axes.get_title(loc="left")
    heights = [bar.get_height() * 1e3 for bar in axes.patches]
    bottoms = [bar.get_y() * 1e3 for bar in axes.patches]
    gather, scatter = (summary["traffic"][0]["planned_by_op"][op] for op in ("all_gather", "reduce_scatter"))
    assert np.allclose(heights, [gather, gather + 8000, gather] + [scatter] * 3 + [192] * 3)
    assert np.allclose(bottoms, [0] * 3 + heights[:3] + [gather + scatter + more for more in (0, 8000, 0)])
    plan = next(lines for lines in axes.collections if isinstance(lines, LineCollection))
    assert np.allclose([segment[0][1] * 1e3 for segment in plan.get_segments()], [gather, gather + scatter] * 3)


def test_what_leaves_a_host_is_hatched():
    _, summary, _ = sample(ranks=2, units=3)
    rows = summary["traffic"] = [dict(row) for row in summary["traffic"]]
    assert "of it to other hosts" not in [text for text, _, _ in texts(draw_traffic(summary))]
    rows[1]["between_hosts_bytes_per_step"] = rows[1]["planned_between_hosts_bytes_per_step"] = 30_000
    figure = draw_traffic(summary)
    assert "of it to other hosts" in [text for text, _, _ in texts(figure)]
    assert [bar.get_height() for bar in figure.axes[0].patches if bar.get_hatch()] == [0, 30]
    assert figure.axes[0].get_xlabel() == "rank" and not figure.axes[0].lines
    figure = draw_traffic(summary, ["host0", "host1"])
    assert figure.axes[0].get_xlabel() == "rank (0 on host0, 1 on host1)"
    assert [line.get_xdata()[0] for line in figure.axes[0].lines] == [0.5]
    rows[1]["planned_between_hosts_bytes_per_step"] += 2
    assert "ranks 1 differ from the plan" in draw_traffic(summary).axes[0].get_title(loc="left")


@pytest.mark.parametrize("name", ["loss", "memory", "traffic", "gantt"])
def test_figures_are_read_at_420_pixels(figures, name):
    """There texts of axes and legends are 8 pixels high, however wide the figure is."""
    figure = figures[name]
    sizes = [artist.get_fontsize() for axes in figure.axes for artist in (axes.xaxis.label, axes.yaxis.label)]
    sizes += [text.get_fontsize() for legend in figure.legends for text in legend.get_texts()]
    assert min(sizes) / 72 * 420 / figure.get_figwidth() >= 7.7


def test_nothing_sent():
    assert "nothing was sent" in [text for text, _, _ in texts(draw_traffic(sample(ranks=1, units=3)[1]))]


def test_curves():
    steps, _, _ = sample(ranks=1, units=3, steps=8, skipped=(2, 3))
    loss, norm = draw_curves(steps).axes
    assert list(loss.lines[0].get_ydata()) == [row["loss"] for row in steps]
    assert np.isnan(norm.lines[0].get_ydata()).tolist() == [False, False, True, True] + [False] * 4
    assert norm.get_yscale() == "linear"
    assert [segment[0][0] for segment in loss.collections[0].get_segments()] == [3, 4]
    assert list(loss.lines[0].get_xdata()) == list(norm.lines[0].get_xdata()) == [1, 2, 3, 4, 5, 6, 7, 8]
    steps[0]["grad_norm"] = 100.0
    assert draw_curves(steps).axes[1].get_yscale() == "log"
    for row in steps:
        row["grad_norm"] = None
    assert "no step has this number" in [text for text, _, _ in texts(draw_curves(steps))]


def test_units_of_axes():
    assert [byte_unit(most)[0] for most in (0, 999, 1000, 5e7, 3e9, 2e13)] == [1, 1, 1e3, 1e6, 1e9, 1e12]
    assert byte_unit(3e9)[1] == "GB (10^9 bytes)" and byte_unit(12)[1] == "bytes"
    assert [second_unit(most)[1] for most in (0, 5e-6, 1e-3, 2e-3, 1.9, 2)] == ["µs", "µs", "µs", "ms", "ms", "s"]


def test_every_kind_of_memory_has_a_colour():
    assert set(MEMORY_COLORS) == set(KINDS)


def test_the_same_figure_gives_the_same_file():
    first, second = (image(draw_curves(sample(ranks=1, units=3, steps=3)[0]), "svg") for _ in range(2))
    assert first == second and b"<svg" in first


def test_files_of_figures_are_small():
    """And paths alone are rounded: what scales letters is not."""
    data = image(draw_gantt(sample(ranks=4, units=5)[2]), "svg").decode()
    paths = re.findall(r' d="([^"]*)"', data)
    assert len(paths) > 100 and not any(re.search(r"\.\d{3}", path) for path in paths)
    assert "scale(0.015625)" in data and len(data) < 220_000
