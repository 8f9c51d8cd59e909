"""Several runs in one picture: losses with their differences, memory and traffic side by side."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpizero.dtypes import ITEMSIZE
from mpizero.memory.kinds import KINDS
from mpizero.quantities import in_units
from mpizero.report.compare import Losses, Run, differences
from mpizero.report.curves import SPANS, whole_steps
from mpizero.report.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MEMORY_COLORS,
    ORANGE,
    PURPLE,
    SKY,
    SPAN_COLORS,
    VERMILLION,
    WIDTH,
    byte_unit,
    figure,
    legend,
    styled,
    swatch,
    text_inches,
    title,
)
from mpizero.report.thin import thin
from mpizero.report.traffic import SENT, leaving

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RUN_COLORS = (BLACK, ORANGE, BLUE, SKY, VERMILLION, GREEN, PURPLE)
LINES: tuple[Any, ...] = ("-", "-", "-", (0, (4, 2)), (0, (1, 1.5)), "-", (0, (4, 2)), (0, (1, 1.5)))
VOLUMES = (2, 3)  # psi elements that a step sends: ZeRO sec. 7


@styled
def draw_losses(curves: Mapping[str, Losses], compared: Sequence[str] | None = None) -> Figure:
    """curves: name -> {step: loss}. Below the losses their differences from the first run's; compared: of which (all).
    Curves of the same bits lie on one another, so lines get ever thinner."""
    first = next(iter(curves.values()))
    shown = [name for name in curves if compared is None or name in compared]
    made, (loss, apart) = figure(4.8, 2, sharex=True, gridspec_kw={"height_ratios": [1.5, 1]})
    every = [(step, name, value) for name in shown[1:] for step, value in differences(first, curves[name]).items()]
    handles = []
    for number, (name, losses) in enumerate(curves.items()):
        how = {"color": RUN_COLORS[number % len(RUN_COLORS)], "linestyle": LINES[number % len(LINES)],
               "solid_capstyle": "butt",  # in the legend a thick line would else touch its text
               "linewidth": 1.2 + 1.6 * max(0, min(len(curves), 6) - 1 - number)}
        handles.append(_line(loss, losses, how))
        if name in shown and every:
            _line(apart, {step: value for step, value in differences(first, losses).items() if math.isfinite(value)},
                  how)
    title(loss, f"Losses of {len(curves)} runs, and their differences from the first")
    loss.set_ylabel("loss (nats)")
    apart.set_ylabel("difference")
    whole_steps(apart)
    if not any(value for _, _, value in every):
        apart.set_ylim(-1, 1)
        apart.set_yticks([0])
        words = "exactly zero in every step: the same bits" if every else "nothing to compare"
        apart.text(0.5, 0.72, words, transform=apart.transAxes, ha="center", va="center")
    else:
        apart.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        moved = [name for name in shown[1:] if any(value for _, which, value in every if which == name)]
        title(apart, f"Not zero: {', '.join(moved)}")
    for axes in (loss, apart):
        axes.grid(axis="y", color=GREY, alpha=0.3, linewidth=0.5)
    legend(made, handles, curves)
    return made


def _line(axes: Axes, losses: Mapping[int, float | None], how: dict[str, Any]) -> Any:
    rows = thin([{"step": step, "loss": loss} for step, loss in losses.items()], ["loss"], SPANS)
    values = [float("nan") if row["loss"] is None else row["loss"] for row in rows]
    return axes.plot([row["step"] for row in rows], values, **how)[0]


@styled
def draw_kinds(runs: Sequence[Run]) -> Figure:
    """Model states of each run's fullest rank after backward, by kind, in the outline of their plan; above its peaks.
    """
    ended = {run.name: run.log.summary for run in runs if run.log.summary is not None}
    ranks = [max(summary["memory"], key=lambda row: row["device_peak"]) for summary in ended.values()]
    unit, name = byte_unit(max(rank["device_peak"] for rank in ranks))
    made, (axes,) = figure(4.2)
    below, handles, labels = [0.0] * len(ranks), [], []
    for kind in KINDS:
        heights = [rank["by_kind"].get(kind, {}).get("after_backward", 0) / unit for rank in ranks]
        if any(heights):
            axes.bar(range(len(ranks)), heights, 0.6, bottom=below, color=MEMORY_COLORS[kind])
            below = [base + height for base, height in zip(below, heights, strict=True)]
            handles.append(swatch(MEMORY_COLORS[kind]))
            labels.append(kind)
    planned = [rank["planned_after_backward"] / unit for rank in ranks]
    handles.append(axes.bar(range(len(ranks)), planned, 0.66, fill=False, edgecolor=BLACK, linewidth=1.2))
    labels.append("planned, after backward")
    for key, color, line, words in (("peak", BLACK, "-", "peak of model states"),
                                    ("device_peak", GREY, (0, (3, 1.5)), "peak of the device: temporaries too")):
        handles.append(axes.hlines([rank[key] / unit for rank in ranks], [x - 0.42 for x in range(len(ranks))],
                                   [x + 0.42 for x in range(len(ranks))], color=color, linewidth=1.8, linestyle=line))
        labels.append(words)
    for x, rank in enumerate(ranks):
        axes.text(x, rank["after_backward"] / unit / 2, in_units(rank["after_backward"]), ha="center", va="center",
                  fontsize=7.5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})
    _columns(axes, list(ended))
    axes.set_ylim(0, 1.05 * max(rank["device_peak"] for rank in ranks) / unit)
    axes.set_ylabel(f"live, {name}")
    title(axes, "Model states of a rank right after backward, by kind")
    legend(made, handles, labels)
    return made


@styled
def draw_sent(runs: Sequence[Run]) -> Figure:
    """What each run's busiest rank sent in a step, by op, with the plan's outline and lines at 2 psi and 3 psi."""
    ended = {run.name: run.log.summary for run in runs if run.log.summary is not None}
    ranks = [max(summary["traffic"], key=lambda row: row[SENT]) for summary in ended.values()]
    marks = [[_volume(summary, passes) for summary in ended.values()] for passes in VOLUMES]
    most = max(max(rank[SENT] for rank in ranks), *(max(heights) for heights in marks))
    unit, name = byte_unit(most)
    made, (axes,) = figure(4.0)
    below, handles, labels = [0.0] * len(ranks), [], []
    for op in dict.fromkeys(op for rank in ranks for op in rank["planned_by_op"]):
        heights = [rank["by_op"].get(op, 0) / unit for rank in ranks]
        color = SPAN_COLORS.get(op, SPAN_COLORS["other"])
        axes.bar(range(len(ranks)), heights, 0.6, bottom=below, color=color)
        below = [base + height for base, height in zip(below, heights, strict=True)]
        handles.append(swatch(color))
        labels.append(op)
    planned = [rank[f"planned_{SENT}"] / unit for rank in ranks]
    handles.append(axes.bar(range(len(ranks)), planned, 0.66, fill=False, edgecolor=BLACK, linewidth=1.2))
    labels.append("planned")
    hatched = leaving(axes, ranks, unit)
    handles += hatched
    labels += ["of it to other hosts"] * len(hatched)
    _columns(axes, list(ended))
    for passes, heights in zip(VOLUMES, marks, strict=True):
        axes.hlines([height / unit for height in heights], [x - 0.5 for x in range(len(ranks))],
                    [x + 0.5 for x in range(len(ranks))], color=GREY, linestyle="--", linewidth=1.2)
        axes.annotate(f"{passes} psi\n(N-1)/N", (len(ranks) - 0.5, heights[-1] / unit), (3, 0), va="center",
                      fontsize=7.5, textcoords="offset points", annotation_clip=False)
    axes.set_ylim(0, 1.08 * most / unit or 1)
    axes.set_ylabel(f"sent in a step, {name}")
    title(axes, "Sent by a rank in a step; dashed: 2 psi and 3 psi elements")
    legend(made, handles, labels)
    return made


def _volume(summary: dict[str, Any], passes: int) -> float:
    """Bytes that a ring of all ranks sends of so many psi elements, padded."""
    ranks = summary["world_size"]
    return passes * summary["padded_psi"] * ITEMSIZE[summary["dtype"]] * (ranks - 1) / ranks


def _columns(axes: Axes, names: Sequence[str]) -> None:
    """A column for each run, under its name."""
    room = (WIDTH - 0.8) / max(len(names), 4)  # inches of a column
    lines = [textwrap.fill(name, max(int(room / text_inches("x", 9)), 1), break_long_words=False,
                           break_on_hyphens=False) for name in names]
    widest = max(text_inches(line, 9) for name in lines for line in name.split("\n"))
    upright = widest > room
    axes.set_xticks(range(len(names)), [name.replace(", ", ",\n") for name in names] if upright else lines,
                    rotation=90 * upright)
    margin = max(0.5, (4 - len(names)) / 2)
    axes.set_xlim(-margin, len(names) - 1 + margin)
    axes.grid(axis="y", color=GREY, alpha=0.3, linewidth=0.5)
