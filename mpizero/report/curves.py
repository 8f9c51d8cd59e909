"""Loss and gradient norm over the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpizero.report.style import BLUE, GREEN, GREY, VERMILLION, figure, legend, styled, title
from mpizero.report.thin import thin

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKED = 60  # up to so many steps, each is a dot of its own
SPANS = 700  # columns of pixels in a small window; of each a line shows at most five steps


@styled
def draw_curves(steps: list[dict[str, Any]]) -> Figure:
    """steps: rows of steps.jsonl, numbered from 0; the picture's are from 1. Skipped steps are grey lines across both
    axes. Of very many steps, see `thin`."""
    made, (loss, norm) = figure(4.4, 2, sharex=True)
    title(loss, f"Loss and gradient norm of {len(steps):,} steps")
    loss.set_ylabel("loss (nats)")
    norm.set_ylabel("global norm of\nthe gradient")
    whole_steps(norm)
    handles = [_line(loss, steps, "loss", BLUE), _line(norm, steps, "grad_norm", VERMILLION)]
    labels = ["loss: mean over the global batch, before the update", "norm: unscaled, before clipping"]
    evaluated = [row for row in steps if row.get("eval_loss") is not None]
    if evaluated:
        handles.append(_line(loss, evaluated, "eval_loss", GREEN))
        labels.append("held-out loss, after the update")
    norms = [row["grad_norm"] for row in steps if row["grad_norm"]]
    if norms and max(norms) > 20 * min(norms):
        norm.set_yscale("log")
    skipped = [row["step"] + 1 for row in steps if row["skipped"]]
    if skipped:
        shown = skipped[::-(-len(skipped) // SPANS)]
        marks = [axes.vlines(shown, 0, 1, transform=axes.get_xaxis_transform(), color=GREY, linewidth=1)
                 for axes in (loss, norm)]
        handles.append(marks[0])
        labels.append(f"{len(skipped):,} skipped: gradients overflowed")
    for axes in (loss, norm):
        axes.grid(axis="y", color=GREY, alpha=0.3, linewidth=0.5)
    legend(made, handles, labels)
    return made


def whole_steps(axes: Axes) -> None:
    """Steps on the horizontal axis."""
    from matplotlib.ticker import MaxNLocator
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _line(axes: Axes, steps: list[dict[str, Any]], key: str, color: str) -> Any:
    """A line with gaps where there is no number."""
    steps = thin(steps, [key], SPANS)
    if all(row[key] is None for row in steps):
        axes.text(0.5, 0.5, "no step has this number", transform=axes.transAxes, ha="center", va="center")
    values = [float("nan") if row[key] is None else row[key] for row in steps]
    marker = "o" if len(steps) <= MARKED else ""
    return axes.plot([row["step"] + 1 for row in steps], values, color=color, linewidth=1.4, marker=marker,
                     markersize=3)[0]
