"""The Gantt chart of a traced step."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from mpizero.layout.models import GPTConfig, gpt_spec
from mpizero.layout.tensor import TensorPlace
from mpizero.planner.costs import Costs
from mpizero.planner.timeline import LETTER
from mpizero.report import gantt
from mpizero.report.gantt import draw_gantt
from mpizero.report.memory import draw_memory
from mpizero.report.spans import SPAN_OF_WORK, lanes
from mpizero.report.style import SPAN_COLORS, byte_unit, image
from tests.report.drawn import texts
from tests.report.sample import sample


def test_gantt_bars_are_the_runs():
    _, _, trace = sample(ranks=2, units=4)
    axes = draw_gantt(trace).axes[2]
    bars = next(each for each in axes.collections if isinstance(each, PolyCollection))
    extents = [path.get_extents() for path in bars.get_paths()]
    names = {to_rgba(color): name for name, color in SPAN_COLORS.items()}
    shown = [names[tuple(color)] for color in bars.get_facecolor()]
    boxes = sorted((box.y0, box.x0, box.x1, name) for box, name in zip(extents, shown, strict=True))
    computing = {"Forward": "forward", "Backward": "backward", "OptimStep": "update",
                 **dict.fromkeys(("LoadBatch", "Loss", "LossBackward"), "other")}
    expected = []
    for index, rank in enumerate(trace["ranks"]):
        computed = [(row, computing[row["kind"]]) for row in rank["actions"] if row["kind"] in computing]
        for track, rows in enumerate((computed, [(row, row["op"]) for row in rank["collectives"]])):
            expected += [(2.25 * index + track - 0.42, 1e6 * row["begin_s"], 1e6 * row["end_s"], name)
                         for row, name in rows]
    works = {"forward": "forward", "backward": "backward", "optim_step": "update"}
    expected += [(2.25 * 2 + (event["stream"] != "compute") - 0.42, 1e6 * event["begin_s"], 1e6 * event["end_s"],
                  works.get(event["work"], event["work"])) for event in trace["simulated"]["events"]]
    expected.sort()
    assert np.allclose([box[:3] for box in boxes], [box[:3] for box in expected])
    assert [box[3] for box in boxes] == [box[3] for box in expected]
    assert {box[3] for box in boxes} == {"forward", "backward", "update", "other", "all_gather", "reduce_scatter"}
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["rank 0\nnode0", "rank 1\nnode0", "simulated"]


def test_memory_and_traffic_share_the_axis_of_time():
    _, _, trace = sample(ranks=2, units=4)
    trace["ranks"][1]["actions"][3]["peak_bytes"] += 10**6
    trace["ranks"][1]["host"] = "a-very-long-name.of.a.host"
    figure = draw_gantt(trace)
    memory, sent, axes = figure.axes
    assert memory.get_xlim() == sent.get_xlim() == axes.get_xlim()
    assert "memory of rank 1" in memory.get_title(loc="left")
    assert "a-very-long…" in axes.get_yticklabels()[1].get_text()
    rank = trace["ranks"][1]
    edges = [1e6 * row[key] for row in rank["actions"] for key in ("begin_s", "end_s")]
    tops = memory.patches[-1].get_data()
    assert np.allclose(tops.edges[:-1], edges) and tops.edges[-1] == pytest.approx(axes.get_xlim()[1])
    unit = byte_unit(max(row["peak_bytes"] for row in rank["actions"]))[0]
    assert np.allclose(unit * tops.values, [sum(row[key].values()) for row in rank["actions"]
                                            for key in ("peak_live", "live")])
    sends = [send for each in rank["collectives"] for send in each["sends"]]
    grown = sent.patches[0].get_data()
    assert np.allclose(grown.edges[1:-1], [1e6 * send["begin_s"] for send in sends])
    assert np.allclose(1e3 * grown.values, np.cumsum([0, *(send["bytes"] for send in sends)]))


def test_both_colour_codes_of_the_gantt_chart_have_a_legend():
    """The same few colours mean kinds of memory above and work below."""
    _, _, trace = sample(ranks=2, units=4)
    figure = draw_gantt(trace)
    memory = figure.axes[0].get_legend()
    assert [text.get_text() for text in memory.get_texts()] == [
        "param", "optim", "grad", "unsharded_param", "unsharded_grad", "activation", "workspace"]
    colors = [to_rgba(patch.get_facecolor()) for patch in memory.get_patches()]
    assert colors == [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert "forward" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_names_in_bars_are_short_or_long_alike():
    assert gantt._short({"layers.0", "layers.1", "wte", ""}) == {"layers.0": "0", "layers.1": "1", "wte": "wte", "": ""}
    assert gantt._short({"a.w", "b.w"}) == {"a.w": "a.w", "b.w": "b.w"}


def test_labels_lie_in_their_bars():
    figure = draw_gantt(sample(ranks=4, units=12)[2])
    axes = figure.axes[2]
    labels = [(text, box) for text, box, artist in texts(figure) if artist in axes.texts]
    bars = [axes.transData.transform_path(path).get_extents() for path in next(
        each for each in axes.collections if isinstance(each, PolyCollection)).get_paths()]
    assert len(labels) > 60
    for text, box in labels:
        assert any(bar.x0 <= box.x0 and box.x1 <= bar.x1 and bar.y0 <= box.y0 and box.y1 <= bar.y1
                   for bar in bars), text


def test_many_ranks_are_cut_and_that_is_said():
    _, _, trace = sample(ranks=18, units=3)
    figure = draw_gantt(trace)
    assert "ranks 0 to 15 of 18" in figure.axes[2].get_title(loc="left").replace("\n", " ")
    assert len(figure.axes[2].get_yticks()) == gantt.SHOWN + 1  # and as simulated


def test_collectives_at_one_time_share_their_row():
    _, _, trace = sample(ranks=2, units=3)
    first, second = trace["ranks"][0]["collectives"][:2]
    second["begin_s"] = first["begin_s"]
    bars = next(each for each in draw_gantt(trace).axes[2].collections if isinstance(each, PolyCollection)).get_paths()
    halves = [path.get_extents() for path in bars if round(path.get_extents().height, 2) == 0.42]
    assert len(halves) == len(trace["ranks"][0]["collectives"]) and {round(box.y0, 2) for box in halves} == {0.58, 1.0}


def test_lanes():
    assert lanes([]) == []
    assert lanes([(0, 2), (2, 3), (1, 4), (3, 5), (3, 6), (4, 5)]) == [0, 0, 1, 0, 2, 1]
    assert lanes([(3, 4), (0, 4)]) == [1, 0]


def test_every_kind_of_work_has_a_bar():
    """All kinds that effects speak of, costs know, and the text chart has a letter for."""
    runs = ({"stage": "0"}, {"stage": "1"}, {"stage": "2"}, {"stage": "3"}, {"shards": 2}, {"stage": "3-broadcast"},
            {"recompute": True}, {"offload": "optimizer=cpu"}, {"recompute": True, "offload": "checkpoints=cpu"},
            {"spec": gpt_spec(GPTConfig(d_model=8, heads=2, context=4), place=TensorPlace(0, 2)), "tensor_size": 2,
             "recompute": True, "partition_activations": True})
    traces = [sample(ranks=4, units=3, **options)[2] for options in runs]
    kinds = {row["work"] for trace in traces for row in trace["ranks"][0]["actions"]} - {None}
    assert kinds == set(SPAN_OF_WORK) == set(LETTER) == (
        {field.name for field in fields(Costs)} - {"buckets", "reduce_scatter_start", "all_reduce_start"})
    assert set(SPAN_OF_WORK.values()) <= set(SPAN_COLORS)


def test_a_new_action_needs_nothing_here():
    """What is drawn of an action follows from the kind of its work, not from its name."""
    _, _, known = sample(ranks=2, units=3)
    _, _, new = sample(ranks=2, units=3)
    for rank in new["ranks"]:
        for row in rank["actions"]:
            row["kind"] = "New"
    for draw in (draw_gantt, draw_memory):
        assert image(draw(new), "svg") == image(draw(known), "svg")
