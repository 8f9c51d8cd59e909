"""Bytes that each rank sent in a step, by op, against the plan, and what of them left its host."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpizero.report.style import BLACK, GREY, SPAN_COLORS, TITLE, byte_unit, figure, legend, styled, swatch, title
from mpizero.text import ranks_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOSTS = 8  # as many are named
SENT, BETWEEN = "sent_bytes_per_step", "between_hosts_bytes_per_step"  # keys of a rank's traffic


def ops(rows: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Ops of the ranks' traffic: those that the plan covers, and the others (agreements of a few bytes)."""
    planned = {op: None for row in rows for op in row["planned_by_op"]}
    return list(planned), [op for op in {op: None for row in rows for op in row["by_op"]} if op not in planned]


def on_plan(row: dict[str, Any]) -> bool:
    """Whether a rank sent as many bytes as planned, in every step, and as many of them to other hosts."""
    return all(row[key] == row[f"planned_{key}"] for key in (SENT, BETWEEN)) and not row["steps_off_plan"]


def leaving(axes: Axes, rows: list[dict[str, Any]], unit: float) -> list[Any]:
    """A hatched column in each column of what went to other hosts: a handle for the legend, or none if nothing did."""
    heights = [row[BETWEEN] / unit for row in rows]
    if not any(heights):
        return []
    return [axes.bar(range(len(rows)), heights, 0.3, facecolor="white", edgecolor=BLACK, hatch="////", linewidth=0.8)]


@styled
def draw_traffic(summary: dict[str, Any], hosts: Sequence[str] = ()) -> Figure:
    """summary: summary.json. A column for each rank; black bars stand where the plan says that an op's part ends.
    hosts: of each rank, named below the columns where there are several."""
    rows = summary["traffic"]
    planned, others = ops(rows)
    most = max((max(sum(row["by_op"].values()), row["planned_sent_bytes_per_step"]) for row in rows), default=0)
    unit, name = byte_unit(most)
    made, (axes,) = figure(3.6)
    handles = _columns(axes, rows, [*planned, *others], unit)
    labels = [*planned, *(f"{op} (small, in no plan)" for op in others)]
    ends = _planned_ends(rows, planned, unit)
    if any(map(any, ends)):
        bars = [(x, y) for x, column in enumerate(ends) for y in column]
        handles.append(axes.hlines([y for _, y in bars], [x - 0.45 for x, _ in bars], [x + 0.45 for x, _ in bars],
                                   color=BLACK, linewidth=1.8))
        labels.append("plan")
    found = leaving(axes, rows, unit)
    handles += found
    labels += ["of it to other hosts"] * len(found)
    if not most:
        axes.text(0.5, 0.5, "nothing was sent", transform=axes.transAxes, ha="center", va="center")
    _scales(axes, len(rows), most / unit)
    _name_hosts(axes, hosts)
    axes.set_ylabel(f"sent in a step, {name}")
    title(axes, *_title(rows))
    legend(made, handles, labels)
    return made


def _columns(axes: Axes, rows: list[dict[str, Any]], names: list[str], unit: float) -> list[Any]:
    below = [0.0] * len(rows)
    for op in names:
        heights = [row["by_op"].get(op, 0) / unit for row in rows]
        axes.bar(range(len(rows)), heights, 0.7, bottom=below, color=_color(op), edgecolor="white", linewidth=0.5)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    return [swatch(_color(op)) for op in names]


def _color(op: str) -> str:
    return SPAN_COLORS.get(op, SPAN_COLORS["other"])


def _planned_ends(rows: list[dict[str, Any]], planned: list[str], unit: float) -> list[list[float]]:
    """For each rank, the heights at which the plan's parts end."""
    heights = [[row["planned_by_op"].get(op, 0) / unit for op in planned] for row in rows]
    return [[sum(column[:i + 1]) for i in range(len(column))] for column in heights]


def _scales(axes: Axes, ranks: int, most: float) -> None:
    from matplotlib.ticker import MaxNLocator
    margin = max(0.6, (6 - ranks) / 2)  # few ranks: no columns as broad as the page
    axes.set_xlim(-margin, ranks - 1 + margin)
    axes.set_ylim(0, 1.08 * most or 1)
    axes.set_xlabel("rank")
    axes.grid(axis="y", color=GREY, alpha=0.3, linewidth=0.5)
    if ranks <= 32:
        axes.set_xticks(range(ranks))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _name_hosts(axes: Axes, hosts: Sequence[str]) -> None:
    """Below the columns, and lines between those of different hosts."""
    if 1 < len(set(hosts)) <= HOSTS:
        axes.set_xlabel(textwrap.fill(f"rank ({ranks_on(hosts)})", TITLE))
        for rank in range(1, len(hosts)):
            if hosts[rank] != hosts[rank - 1]:
                axes.axvline(rank - 0.5, color=GREY, linewidth=0.8)


def _title(rows: list[dict[str, Any]]) -> list[str]:
    off = [rank for rank, row in enumerate(rows) if not on_plan(row)]
    met = "every rank sent what the plan says, in every step"
    if off:
        met = f"ranks {', '.join(map(str, off[:8]))} differ from the plan"
    return ["Bytes sent in a step by each rank", met]
