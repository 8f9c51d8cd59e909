"""Memory of one rank over the actions of a step: counted by kind, with plan and capacity of the device drawn in."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mpizero.memory.kinds import KINDS, MODEL_STATE
from mpizero.quantities import in_units
from mpizero.report.style import (
    BLACK,
    GREY,
    INCHES,
    MEMORY_COLORS,
    VERMILLION,
    byte_unit,
    figure,
    legend,
    styled,
    swatch,
    text_inches,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IN_SIGHT = 2.5  # a capacity of more than so many peaks would press the picture flat: it is told instead of drawn
Actions = list[dict[str, Any]]


def fullest(trace: dict[str, Any]) -> dict[str, Any]:
    """The rank with the highest peak; the first of them."""
    return max(trace["ranks"], key=lambda rank: max((row["peak_bytes"] for row in rank["actions"]), default=0))


def kinds(actions: Actions) -> list[str]:
    """Kinds of memory that are ever live, in the order in which they are stacked: model states, then the rest."""
    seen = {kind for row in actions for kind, nbytes in row["live"].items() if nbytes}
    return [kind for kind in KINDS if kind in seen] + sorted(seen - set(KINDS))


def model_states(live: dict[str, int]) -> int:
    """Bytes of what every plan covers."""
    return sum(live.get(kind, 0) for kind in MODEL_STATE)


def also_planned(actions: Actions) -> list[str]:
    """Kinds that the plan covers beside the model states: activations, if it knows them."""
    return sorted({kind for row in actions for kind in row["planned_live"]} - set(MODEL_STATE))


def equals_plan(row: dict[str, Any]) -> bool:
    """Whether, after an action, each kind that the plan covers has the planned bytes; it always covers model states."""
    live, planned = row["live"], row["planned_live"]
    return all(live.get(kind, 0) == planned.get(kind, 0) for kind in {*MODEL_STATE, *planned})


@styled
def draw_memory(trace: dict[str, Any]) -> Figure:
    """trace: trace.json."""
    rank, capacity = fullest(trace), trace["capacity"]
    actions = [row for row in rank["actions"] if row["computes"] or row["work"]]  # the others are marks
    peak = max((row["peak_bytes"] for row in actions), default=0)
    drawn = capacity is not None and capacity <= IN_SIGHT * peak
    inches = min(max(INCHES, 0.03 * len(actions)), 24.0)
    made, (axes,) = figure(inches + 1.2, 4.8)
    unit, name = byte_unit(capacity if drawn else peak)
    handles, labels = _stack(axes, actions, unit)
    planned = [sum(row["planned_live"].values()) / unit for row in actions]
    handles.append(axes.hlines(planned, range(len(actions)), range(1, len(actions) + 1), color=BLACK, linewidth=2))
    labels.append(f"planned {_covered(actions)}")
    peaks = [row["peak_bytes"] / unit for row in actions]
    handles.append(axes.stairs(peaks, baseline=None, color=BLACK, linewidth=0.6))
    labels.append("peak within the action")
    if drawn:
        handles.append(axes.axhline(capacity / unit, color=VERMILLION, linestyle=(0, (6, 2, 1, 2)), linewidth=1.6))
        labels.append(f"capacity {in_units(capacity)}")
    axes.set_xlim(0, max(len(actions), 1))
    axes.set_ylim(0, 1.05 * max(peak, capacity if drawn else 0, 1) / unit)
    axes.set_xlabel("action of the step, in the order in which they ran")
    axes.set_ylabel(f"live on rank {rank['rank']}, {name}")
    axes.set_title(_title(trace, rank, actions, "" if drawn else _beyond(capacity, peak)))
    _mark_phases(axes, actions, inches)
    legend(made, handles, labels)
    return made


def _stack(axes: Axes, actions: Actions, unit: float) -> tuple[list[Any], list[str]]:
    """An area for each kind: its height between i and i + 1 is what is live after action i."""
    below = [0.0] * len(actions)
    names = kinds(actions)
    colors = [MEMORY_COLORS.get(kind, BLACK) for kind in names]
    for kind, color in zip(names, colors, strict=True):
        above = [base + row["live"].get(kind, 0) / unit for base, row in zip(below, actions, strict=True)]
        axes.stairs(above, baseline=below, fill=True, facecolor=color, edgecolor="white", linewidth=0.3)
        below = above
    return [swatch(color) for color in colors], names


def _covered(actions: Actions) -> str:
    """What the plan covers."""
    return " and ".join(["model states", *also_planned(actions)])


def _title(trace: dict[str, Any], rank: dict[str, Any], actions: Actions, beyond: str) -> str:
    ranks = "the only rank" if len(trace["ranks"]) == 1 else f"the fullest of {len(trace['ranks'])} ranks"
    first = f"Memory over the {len(actions)} actions of step {trace['step']}: rank {rank['rank']}, {ranks}"
    if not actions:
        return first
    top = max(actions, key=lambda row: row["peak_bytes"])
    off = next((row["action"] for row in actions if not equals_plan(row)), None)
    plan = f"{_covered(actions)} equal the plan after every action"
    if off:
        plan = f"count differs from plan first after {off}"
    return f"{first}\npeak {in_units(top['peak_bytes'])} in {top['action']}; {plan}{beyond}"


def _beyond(capacity: int | None, peak: int) -> str:
    if capacity is None:
        return ""
    return f"\ncapacity {in_units(capacity)} lies above the picture: {capacity / max(peak, 1):,.0f} times the peak"


def phases(actions: Actions) -> list[tuple[str, int, int]]:
    """(name, first action, end) of each phase; phases that come again are numbered: `forward 0`, `forward 1`."""
    runs = [(name, len(list(rows))) for name, rows in groupby(actions, key=lambda row: row["phase"])]
    seen: dict[str, int] = {}
    found, begin = [], 0
    for name, length in runs:
        number = seen[name] = seen.get(name, -1) + 1
        again = sum(name == other for other, _ in runs) > 1
        found.append((f"{name} {number}" if again else name, begin, begin + length))
        begin += length
    return found


def _mark_phases(axes: Axes, actions: Actions, inches: float) -> None:
    """Lines between phases, and their names above the axes: level if all have room, else upright as far as they do."""
    found = phases(actions)
    for _, begin, _ in found[1:]:
        axes.axvline(begin, color=GREY, linewidth=0.6)
    scale = inches / max(len(actions), 1)
    upright = any(text_inches(word, 8) > (end - begin) * scale for name, begin, end in found for word in name.split())
    named = _apart(found, scale) if upright else [(name.replace(" ", "\n"), begin, end) for name, begin, end in found]
    top = axes.secondary_xaxis("top")
    top.set_xticks([(begin + end) / 2 for _, begin, end in named], [name for name, _, _ in named],
                   rotation=90 * upright, fontsize=8)
    top.tick_params(length=0)
    top.spines["top"].set_visible(False)


def _apart(found: Iterable[tuple[str, int, int]], scale: float) -> list[tuple[str, int, int]]:
    """Those phases whose upright names do not touch the one before. scale: inches for each action."""
    kept: list[tuple[str, int, int]] = []
    for phase in found:
        if not kept or (sum(phase[1:]) - sum(kept[-1][1:])) / 2 * scale > 0.17:
            kept.append(phase)
    return kept
