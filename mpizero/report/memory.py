"""Memory of one rank over the actions of a step: counted by kind, with plan and capacity of the device drawn in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mpizero.memory.kinds import KINDS, MODEL_STATE, WORKSPACE
from mpizero.quantities import in_units
from mpizero.report.style import (
    BLACK,
    GREY,
    MEMORY_COLORS,
    VERMILLION,
    WIDTH,
    byte_unit,
    figure,
    legend,
    styled,
    swatch,
    text_color,
    text_inches,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# inches of axes and their texts, about: enough to see whether a name has room
AXES_WIDTH, AXES_HEIGHT, POINTS = WIDTH - 0.7, 2.5, 7.5
IN_SIGHT = 2.5  # a capacity of more than so many peaks would press the picture flat: it is told instead of drawn
Actions = list[dict[str, Any]]
Band = tuple[str, list[float], list[float]]  # of one kind: its lower and upper edge


def fullest(trace: dict[str, Any]) -> dict[str, Any]:
    """The rank with the highest peak; the first of them."""
    return max(trace["ranks"], key=lambda rank: max((row["peak_bytes"] for row in rank["actions"]), default=0))


def kinds(actions: Actions) -> list[str]:
    """Kinds of memory that are ever live, in the order in which they are stacked: model states, then the rest."""
    seen = {kind for row in actions for key in ("live", "peak_live") for kind, nbytes in row[key].items() if nbytes}
    return [kind for kind in KINDS if kind in seen] + sorted(seen - set(KINDS))


def model_states(live: dict[str, int]) -> int:
    """Bytes of what every plan covers."""
    return sum(live.get(kind, 0) for kind in MODEL_STATE)


def also_planned(actions: Actions) -> list[str]:
    """Kinds that the plan covers beside model states, and the workspace of collectives under way: activations, if it
    knows them."""
    found = {kind for row in actions for kind, nbytes in row["planned_live"].items() if nbytes}
    return sorted(found - {*MODEL_STATE, WORKSPACE})


def equals_plan(row: dict[str, Any]) -> bool:
    """Whether, after an action, each kind that the plan covers has the planned bytes; it always covers model states."""
    live, planned = row["live"], row["planned_live"]
    return all(live.get(kind, 0) == planned.get(kind, 0) for kind in {*MODEL_STATE, *planned})


def stack(axes: Axes, actions: Actions, edges: Sequence[float], unit: float, line: float = 0.3) -> list[Band]:
    """Draw an area for each kind, and tell them. edges: from where to where the peak of an action holds, and what is
    live after it up to the next: 2 len(actions) + 1 numbers."""
    rows = [live for row in actions for live in (row["peak_live"], row["live"])]
    below, bands = [0.0] * len(rows), list[Band]()
    for kind in kinds(actions):
        above = [base + live.get(kind, 0) / unit for base, live in zip(below, rows, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, facecolor=color_of(kind), edgecolor="white",
                    linewidth=line)
        bands.append((kind, below, above))
        below = above
    return bands


def color_of(kind: str) -> str:
    """Black where the kind is a new one."""
    return MEMORY_COLORS.get(kind, BLACK)


@styled
def draw_memory(trace: dict[str, Any]) -> Figure:
    """trace: trace.json. Each action has a slot: in its left half stands what lived at the peak within the action, in
    its right half what was live after it."""
    rank, capacity = fullest(trace), trace["capacity"]
    actions = [row for row in rank["actions"] if row["computes"] or row["work"]]  # the others are marks
    peak = max((row["peak_bytes"] for row in actions), default=0)
    drawn = capacity is not None and capacity <= IN_SIGHT * peak
    made, (axes,) = figure(4.4)
    unit, name = byte_unit(capacity if drawn else peak)
    top = 1.22 * max(peak, capacity if drawn else 0, 1) / unit  # with room for the words about the peak
    bands = stack(axes, actions, [i / 2 for i in range(2 * len(actions) + 1)], unit, 0.3 if len(actions) < 100 else 0)
    handles, labels = [swatch(color_of(kind)) for kind, _, _ in bands], [kind for kind, _, _ in bands]
    planned = [sum(row["planned_live"].values()) / unit for row in actions]
    handles.append(axes.hlines(planned, [i + 0.5 for i in range(len(actions))], range(1, len(actions) + 1),
                               color=BLACK, linewidth=1.8))
    labels.append("planned")
    if drawn:
        handles.append(axes.axhline(capacity / unit, color=VERMILLION, linestyle=(0, (6, 2, 1, 2)), linewidth=1.6))
        labels.append(f"capacity {in_units(capacity)}")
    axes.set_xlim(0, max(len(actions), 1))
    axes.set_ylim(0, top)
    axes.set_xlabel("actions in order: left half, the peak within; right half, after it")
    axes.set_ylabel(f"live, {name}")
    title(axes, *_title(trace, rank, actions, "" if drawn else _beyond(capacity, peak)))
    _mark_phases(axes, actions)
    _name_areas(axes, bands, len(actions), top)
    if actions:
        _name_peak(axes, actions, unit, top)
    legend(made, handles, labels)
    return made


def _name_areas(axes: Axes, bands: list[Band], actions: int, top: float) -> None:
    """Write the name of each kind into its area, where that has room."""
    for kind, below, above in bands:
        words = kind.replace("_", " ")
        halves = max(1, round(text_inches(words, POINTS) / AXES_WIDTH * 2 * actions))
        places = [(min(above[begin:begin + halves]) - max(below[begin:begin + halves]), begin)
                  for begin in range(0, len(above) - halves + 1, max(1, halves // 4))]
        free, begin = max(places, key=lambda place: (place[0], -abs(place[1] - len(above) / 2)), default=(0.0, 0))
        if free > room(top):
            middle = (min(above[begin:begin + halves]) + max(below[begin:begin + halves])) / 2
            axes.text((begin + halves / 2) / 2, middle, words, ha="center", va="center", fontsize=POINTS,
                      color=text_color(color_of(kind)))


def room(top: float) -> float:
    """Height that a line of text takes on an axis that ends at `top`."""
    return 1.3 * POINTS / 72 / AXES_HEIGHT * top


def _name_peak(axes: Axes, actions: Actions, unit: float, top: float) -> None:
    """Say above the highest peak what it is, and how much of it is workspace, which lives within actions and
    collectives alone and has no room for its name; point to its top."""
    number = max(range(len(actions)), key=lambda i: actions[i]["peak_bytes"])
    row = actions[number]
    words = f"peak {in_units(row['peak_bytes'])} in {row['action']}"
    if workspace := row["peak_live"].get(WORKSPACE, 0):
        words += f",\nof it workspace {in_units(workspace)}"
    wide = max(text_inches(line, POINTS) for line in words.split("\n")) / AXES_WIDTH * len(actions)
    _, begin, end = next(phase for phase in phases(actions) if phase[1] <= number < phase[2])
    left = number + 1.2 if number + 1.2 + wide < end else number - 0.7 - wide  # beside the bar, and inside its phase
    left = max(min(left, end - wide), begin + 0.2) if wide < end - begin else min(max(left, 0), len(actions) - wide)
    beside = max(0.0, min((number + 0.25 - left) / wide, 1.0))  # from above the bar, or next to it
    arrow = {"arrowstyle": "->", "color": GREY, "linewidth": 0.9, "shrinkA": 2, "shrinkB": 0, "relpos": (beside, 0.0)}
    axes.annotate(words, (number + 0.25, row["peak_bytes"] / unit), (left, top - 0.2 * room(top)), fontsize=POINTS,
                  zorder=4, va="top", arrowprops=arrow, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0})


def _covered(actions: Actions) -> str:
    """What the plan covers."""
    *first, last = ["model states", *(kind.replace("_", " ") for kind in also_planned(actions))]
    return f"{', '.join(first)} and {last}" if first else last


def _title(trace: dict[str, Any], rank: dict[str, Any], actions: Actions, beyond: str) -> list[str]:
    ranks = "the only one" if len(trace["ranks"]) == 1 else f"the fullest of {len(trace['ranks'])}"
    first = f"Memory of rank {rank['rank']}, {ranks}, in step {trace['step'] + 1}"
    off = next((row["action"] for row in actions if not equals_plan(row)), None)
    plan = f"{_covered(actions)} equal the plan after every action"
    if off:
        plan = f"count differs from plan first after {off}"
    return [first, plan, beyond]


def _beyond(capacity: int | None, peak: int) -> str:
    if capacity is None:
        return ""
    return f"capacity {in_units(capacity)} lies above the picture: {capacity / max(peak, 1):,.0f} times the peak"


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


def _mark_phases(axes: Axes, actions: Actions) -> None:
    """Lines between phases, and their names above the axes: level if all have room, else upright as far as they do."""
    found = phases(actions)
    for _, begin, _ in found[1:]:
        axes.axvline(begin, color=GREY, linewidth=0.6)
    scale = AXES_WIDTH / max(len(actions), 1)
    words = {name: name.replace("_", " ").split() for name, _, _ in found}
    upright = any(text_inches(word, POINTS) > (end - begin) * scale
                  for name, begin, end in found for word in words[name])
    named = _apart(found, scale) if upright else [("\n".join(words[name]), begin, end) for name, begin, end in found]
    top = axes.secondary_xaxis("top")
    top.set_xticks([(begin + end) / 2 for _, begin, end in named], [name for name, _, _ in named],
                   rotation=90 * upright, fontsize=POINTS)
    top.tick_params(length=0)
    top.spines["top"].set_visible(False)


def _apart(found: Iterable[tuple[str, int, int]], scale: float) -> list[tuple[str, int, int]]:
    """Those phases whose upright names do not touch the one before. scale: inches for each action."""
    kept: list[tuple[str, int, int]] = []
    for phase in found:
        if not kept or (sum(phase[1:]) - sum(kept[-1][1:])) / 2 * scale > 0.17:
            kept.append(phase)
    return kept
