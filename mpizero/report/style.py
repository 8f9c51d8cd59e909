"""What all figures share: colours that colour-blind readers tell apart, sizes, units, and how a figure becomes files.

Colours: Okabe and Ito, "Color Universal Design" (2008). matplotlib is loaded only when a figure is made.
"""

from __future__ import annotations

import functools
import io
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from mpizero.errors import ConfigError
from mpizero.memory import kinds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
WIDTH = 6.0  # inches of a figure: its texts are read at 420 pixels too, where 9 points are 9 pixels high
TITLE = 62  # characters of a line
BLACK, DARK, GREY, LIGHT = "#000000", "#444444", "#999999", "#e6e6e6"
ORANGE, SKY, GREEN, YELLOW = "#e69f00", "#56b4e9", "#009e73", "#f0e442"
BLUE, VERMILLION, PURPLE, VIOLET = "#0072b2", "#d55e00", "#cc79a7", "#9933ff"

# Neighbours in a stack, whose order is that of `kinds.KINDS`, differ in lightness too.
MEMORY_COLORS = {kinds.PARAM: BLUE, kinds.OPTIM: SKY, kinds.GRAD: VERMILLION, kinds.UNSHARDED_PARAM: ORANGE,
                 kinds.UNSHARDED_GRAD: GREEN, kinds.GRAD_FP32: YELLOW, kinds.KEPT_INPUT: VIOLET,
                 kinds.ACTIVATION: PURPLE, kinds.WORKSPACE: DARK}
SPAN_COLORS = {"forward": SKY, "recompute": YELLOW, "backward": BLUE, "update": GREEN, "all_gather": ORANGE,
               "reduce_scatter": VERMILLION, "all_reduce": PURPLE, "move": VIOLET, "agree": DARK, "other": "#d9d9d9"}

SETTINGS: Any = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "axes.titlesize": 9,
    "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2, "legend.handletextpad": 0.5, "figure.constrained_layout.use": True, "figure.dpi": 100,
    "savefig.dpi": 200, "svg.hashsalt": "mpizero",
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """For functions that draw: `SETTINGS` hold in them, and without matplotlib they raise `ConfigError`."""
    @functools.wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Figure:
        require_matplotlib()
        import matplotlib
        with matplotlib.rc_context(SETTINGS):
            return draw(*args, **kwargs)
    return inner


def enlarged(times: float) -> Any:
    """A context in which texts are so many times as large: for figures that are wider than WIDTH by as much, and shall
    be read at the same size as others."""
    import matplotlib
    sizes: Any = {name: times * SETTINGS[name] for name in ("font.size", "axes.titlesize", "legend.fontsize")}
    return matplotlib.rc_context(sizes)


def require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("figures need matplotlib, which is not installed: pip install 'mpizero[plot]'") from None


def figure(height: float, rows: int = 1, width: float = WIDTH, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches with `rows` axes one under the other."""
    from matplotlib.figure import Figure
    made = Figure(figsize=(width, height))
    return made, list(made.subplots(rows, 1, squeeze=False, **options)[:, 0])


def save(made: Figure, path: Path) -> None:
    """Write the figure in the format that the path's ending names; the same figure gives the same bytes."""
    data = image(made, path.suffix[1:].lower())
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def image(made: Figure, form: str) -> bytes:
    """The figure as png or svg. Of coordinates in an svg's paths two decimals are kept: the page is to be small."""
    import matplotlib
    with matplotlib.rc_context(SETTINGS), io.BytesIO() as file:
        made.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
        data = file.getvalue()
    if form == "png":
        return data
    return re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"(\.\d\d)\d+", rb"\1", path[0]), data)


def legend(made: Figure, handles: Iterable[Any], labels: Iterable[str]) -> None:
    """Below all axes, where it can hide nothing, in as many columns as there is room for."""
    handles, labels = list(handles), [textwrap.fill(label, TITLE) for label in labels]
    made.legend(handles, labels, loc="outside lower left", ncols=_columns(labels, WIDTH))


def legend_below(axes: Axes, handles: Iterable[Any], labels: Iterable[str]) -> None:
    """The same right below one of several axes, whose colours mean something else than those of the others."""
    labels = list(labels)
    axes.legend(list(handles), labels, loc="upper left", bbox_to_anchor=(0, -0.02), borderaxespad=0,
                ncols=_columns(labels, WIDTH - 0.7))


def _columns(labels: Iterable[str], inches: float) -> int:
    widest = max((text_inches(line, 8) for label in labels for line in label.split("\n")), default=0.0) + 0.4
    return max(1, int(inches / widest))


def title(axes: Axes, *lines: str) -> None:
    """Each of the lines, wrapped."""
    axes.set_title("\n".join(textwrap.fill(line, TITLE) for line in lines if line))


def swatch(color: str) -> Any:
    """A patch of one colour for the legend."""
    from matplotlib.patches import Patch
    return Patch(facecolor=color, edgecolor="white", linewidth=0.5)


def byte_unit(most: float) -> tuple[float, str]:
    """What to divide bytes by, and the axis' words for it: powers of 1000, as papers print sizes."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if most >= size:
            value = f"{size:,.0f}" if unit == "KB" else f"10^{len(str(int(size))) - 1}"
            return size, f"{unit} ({value} bytes)"
    return 1.0, "bytes"


def second_unit(most: float) -> tuple[float, str]:
    """What to multiply seconds by, and the unit that is then read."""
    return next((scale for scale in ((1.0, "s"), (1e3, "ms")) if most * scale[0] >= 2), (1e6, "µs"))


def text_color(background: str) -> str:
    """Black or white, whichever is read more easily on that colour (relative luminance, WCAG 2)."""
    channels = [int(background[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if luminance < 0.179 else "black"


def text_inches(text: str, points: float) -> float:
    """Width of a text, a little more than it is."""
    return 0.66 * points / 72 * len(text)
