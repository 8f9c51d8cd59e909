"""Figures of the scripts: one function each, from plain numbers.

Colours and sizes are those of `mpizero.report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpizero.papers import intensity as ait
from mpizero.papers import states
from mpizero.papers.fragmentation import Outcome
from mpizero.papers.sizing import Sizing
from mpizero.planner.timeline import Timeline
from mpizero.report.overlay import draw_losses
from mpizero.report.style import (
    BLACK, BLUE, GREEN, GREY, MEMORY_COLORS, ORANGE, PURPLE, SKY, SPAN_COLORS, VERMILLION, figure, legend,
    styled, swatch,
)
from mpizero.report.timeline import draw_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGE_COLORS = {"0": BLACK, "1": VERMILLION, "2": ORANGE, "3": BLUE}
LINES = ("-", "--", "-.", ":", (0, (1, 2)), (0, (5, 1, 1, 1)))
WIDTH, HEIGHT = 7.0, 3.8  # inches


def _one(title: str, x: str, y: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    made, (axes,) = figure(height, width=WIDTH)
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    return made, axes


def _ticks(axis: Any, values: Sequence[float]) -> None:
    """These labels and no others, on an axis that may be logarithmic."""
    axis.set_ticks(values, [f"{value:,g}" for value in values])
    axis.set_ticks([], minor=True)


@styled
def model_states(psi: int, cells: Sequence[states.Cell]) -> Figure:
    """ZeRO's figure 1 as curves: bytes on a rank against the number of ranks, and what table 1 prints."""
    made, axes = _one(f"Model states of {psi / 1e9:g}B parameters on each rank, after backward", "ranks N",
                      "GB (10^9 bytes)")
    ranks = [2**i for i in range(11)]
    for (stage, color), line in zip(STAGE_COLORS.items(), LINES, strict=False):
        label = f"{states.NAMES[stage]}: {states.form_text(stage)}"
        axes.plot(ranks, [states.stage_bytes(psi, stage, count) / states.GB for count in ranks], color=color,
                  linestyle=line, label=label)
    printed = [cell for cell in cells if cell.label == f"{psi / 1e9:g}B"]
    axes.plot([cell.count for cell in printed], [cell.printed / states.GB for cell in printed], "o", color=GREY,
              markersize=5, markeredgecolor=BLACK, label="printed in table 1")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _ticks(axes.xaxis, ranks[::2])
    _ticks(axes.yaxis, (0.1, 1, 10, 100))
    axes.legend(loc="lower left")
    return made


@styled
def fragments(plain: Outcome, arena: Outcome) -> Figure:
    """Free memory and its largest hole, against a request."""
    made, axes = _one(f"A request for {plain.request} of {plain.capacity}, after nine layers", "units of memory", "",
                      2.4)
    for row, each in enumerate((plain, arena)):
        axes.barh(row, each.free, color=SKY, height=0.6)
        axes.barh(row, each.largest_hole, color=BLUE, height=0.3)
        axes.text(each.free + 15, row, "the request succeeds" if each.succeeds else "the request fails", va="center")
    axes.axvline(plain.request, color=VERMILLION, linestyle="--")
    axes.set_yticks([0, 1], ["checkpoints where\nthey come", "checkpoints in\nan arena"])
    axes.set_xlim(0, 1.35 * plain.free)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    legend(made, [swatch(SKY), swatch(BLUE), axes.lines[0]], ["free in all", "largest hole", "requested"])
    return made


def losses(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Losses over steps, and their differences from the first run's."""
    made = draw_losses({name: dict(enumerate(values, 1)) for name, values in curves.items()})
    made.axes[0].set_title("Loss on four ranks: ZeRO's curves lie on data parallelism's", loc="left", fontsize=9,
                           fontweight="bold")
    return made


@styled
def unmoved(shares: Mapping[str, Sequence[float]], losses: Mapping[str, Sequence[float]]) -> Figure:
    """Percent of the weights that each update left where they were, and the losses."""
    made, (above, below) = figure(4.8, 2, width=WIDTH, sharex=True)
    for (name, share), line, color in zip(shares.items(), LINES, (BLUE, VERMILLION, SKY, ORANGE), strict=False):
        above.plot([100 * each for each in share], color=color, linestyle=line, label=f"{name} master weights")
        below.plot(losses[name], color=color, linestyle=line)
    above.set_title("16-bit weights without float32 master weights swallow updates")
    above.set_ylabel("weights unmoved, %")
    below.set_ylabel("loss (nats)")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(True, color="#dddddd", linewidth=0.6)
    above.legend(loc="center right")
    return made


@styled
def counted_states(ranks: Mapping[str, Mapping[str, Any]], psi: int) -> Figure:
    """Bytes a parameter by kind, after backward, with the peak of the step."""
    made, axes = _one("Model states counted on rank 0 of 4, right after backward", "", "bytes a parameter")
    kinds = [kind for kind in MEMORY_COLORS
             if any(rank["by_kind"].get(kind, {}).get("after_backward") for rank in ranks.values())]
    kinds = [kind for kind in kinds if kind not in ("activation", "workspace")]
    for column, rank in enumerate(ranks.values()):
        bottom = 0.0
        for kind in kinds:
            height = rank["by_kind"][kind]["after_backward"] / psi
            axes.bar(column, height, bottom=bottom, color=MEMORY_COLORS[kind], width=0.6)
            bottom += height
        axes.plot([column - 0.36, column + 0.36], [rank["peak"] / psi] * 2, color=BLACK, linewidth=1.5)
        axes.text(column, rank["peak"] / psi + 0.25, f"{bottom:g}; peak {rank['peak'] / psi:.2f}", ha="center")
    axes.set_xticks(range(len(ranks)), [label.replace(", ", ",\n") for label in ranks])
    axes.grid(False, axis="x")
    axes.set_ylim(0, 19)
    legend(made, [*[swatch(MEMORY_COLORS[kind]) for kind in kinds], axes.lines[0]], [*kinds, "peak of a step"])
    return made


@styled
def counted_traffic(by_op: Mapping[str, Mapping[str, int]], psi: int) -> Figure:
    """What rank 0 sent in a step, by collective."""
    made, axes = _one("Sent by rank 0 of 4 in a step, counted", "", "units of 2 psi bytes")
    ops = {op: SPAN_COLORS[op] for op in ("reduce_scatter", "all_gather", "all_reduce")}
    for column, sent in enumerate(by_op.values()):
        bottom = 0.0
        for op, color in ops.items():
            axes.bar(column, sent.get(op, 0) / (2 * psi), bottom=bottom, color=color, width=0.6)
            bottom += sent.get(op, 0) / (2 * psi)
        axes.text(column, bottom + 0.04, f"{bottom:g}", ha="center")
    for volume in (2, 3):
        axes.axhline(0.75 * volume, color=GREY, linestyle="--", linewidth=1, zorder=0)
        axes.text(len(by_op) - 0.6, 0.75 * volume + 0.03, f"{volume} psi (N-1)/N", va="bottom", color=BLACK)
    axes.set_xticks(range(len(by_op)), [label.replace(", ", ",\n") for label in by_op])
    axes.set_xlim(-0.5, len(by_op) + 0.25)
    axes.set_ylim(0, 2.6)
    axes.grid(False, axis="x")
    legend(made, map(swatch, ops.values()), [op.replace("_", "-") for op in ops])
    return made


@styled
def unit_size(rows: Sequence[Sizing], itemsize: int) -> Figure:
    """The peak of parameters against the number of collectives, and what these take."""
    made, axes = _one("How large a unit should be (13B on 64 ranks), and how long its rings take",
                      "collectives in a step", "peak of parameters, GB (10^9 bytes)")
    peaks = [itemsize * row.peak_elements / 1e9 for row in rows]
    axes.plot([row.collectives for row in rows], peaks, "o-", color=BLUE)
    for i, (row, peak) in enumerate(zip(rows, peaks, strict=True)):
        above = i % 2 == 0
        text = f"{row.label.replace('stage', 'block')}: {row.seconds:.2f} s"
        axes.annotate(text, (row.collectives, peak), (4, 4) if above else (-4, -4), textcoords="offset points",
                      fontsize=8, ha="left" if above else "right", va="bottom" if above else "top")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1.2, 20_000)
    axes.set_ylim(0.3, 45)
    _ticks(axes.xaxis, (3, 10, 30, 100, 300, 1000, 3000))
    _ticks(axes.yaxis, (0.5, 1, 2, 5, 10, 20))
    return made


def timeline(name: str, played: Timeline) -> Figure:
    """Both streams of a simulated step."""
    made = draw_timeline(played)
    axes = made.axes[0]
    title = f"{name[0].upper()}{name[1:]}: {played.finish:g} s, of which {played.compute:g} s compute"
    axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
    return made


@styled
def hybrid(between: Mapping[int, int], kept: Mapping[int, int]) -> Figure:
    """What F costs in memory, and what it spares between hosts."""
    made, axes = _one("Sharding factor F: 13B on 8 hosts of 8 ranks", "F, ranks among which the model is sharded",
                      "GB (10^9 bytes)")
    axes.plot(list(between), [nbytes / 1e9 for nbytes in between.values()], "o-", color=VERMILLION,
              label="sent to other hosts in a step, by the busiest rank")
    axes.plot(list(kept), [nbytes / 1e9 for nbytes in kept.values()], "s--", color=BLUE,
              label="model states kept by a rank, after backward")
    axes.axvline(8, color=GREY, linestyle=":")
    axes.text(8.3, 150, "a shard group\nfills a host", va="center")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _ticks(axes.xaxis, list(between))
    _ticks(axes.yaxis, (3, 10, 30, 100))
    legend(made, *axes.get_legend_handles_labels())
    return made


@styled
def efficiency() -> Figure:
    """Share of the time spent computing against bandwidth, as ZeRO-Infinity's figure 3."""
    made, axes = _one("Efficiency without overlap, 70 TFLOP/s, sequence 1024", "bandwidth, GB/s (10^9 bytes/s)",
                      "efficiency, %")
    speeds = [10 ** (i / 20) for i in range(-10, 75)]
    curves = [("activation checkpoints, hd 2048", ait.ait_activations(2048), GREEN),
              ("parameters and gradients, batch 2", ait.ait_params(ait.SEQ, 2), BLUE),
              ("parameters and gradients, batch 1", ait.ait_params(ait.SEQ, 1), SKY),
              ("optimizer states, batch 2", ait.ait_optimizer(ait.SEQ, 2), VERMILLION)]
    for (label, intensity, color), line in zip(curves, LINES, strict=False):
        axes.plot(speeds, [100 * ait.efficiency(intensity, 1e9 * speed) for speed in speeds], color=color,
                  linestyle=line, label=label)
    axes.axvline(ait.PCIE / 1e9, color=GREY, linestyle=":")
    axes.text(ait.PCIE / 1e9 * 1.06, 3, "one PCIe link")
    axes.set_xscale("log")
    axes.set_ylim(0, 100)
    _ticks(axes.xaxis, (0.3, 1, 3, 10, 30, 100, 300, 1000, 3000))
    legend(made, *axes.get_legend_handles_labels())
    return made


@styled
def loading() -> Figure:
    """Effective bandwidth against the number of ranks."""
    made, axes = _one("Loading parameters from slow memory", "ranks", "effective bandwidth, GB/s (10^9 bytes/s)")
    counts = list(range(1, 65))
    for tier, label, color, line in (("cpu", "all ranks load from CPU memory, then all-gather", BLUE, "-"),
                                     ("nvme", "all ranks load from NVMe, then all-gather", ORANGE, "--")):
        axes.plot(counts, [ait.bandwidth_centric(ranks, tier) / 1e9 for ranks in counts], color=color, linestyle=line,
                  label=label)
    axes.plot(counts, [ait.owner_broadcast() / 1e9] * len(counts), color=PURPLE, linestyle="-.",
              label="an owner loads and broadcasts")
    axes.set_ylim(0, 75)
    axes.set_xlim(1, 64)
    _ticks(axes.xaxis, (1, 8, 16, 24, 32, 48, 64))
    axes.legend(loc="center right")
    return made
