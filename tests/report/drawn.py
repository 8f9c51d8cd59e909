"""What a figure really shows: its texts with their places, as they are drawn."""

from __future__ import annotations

from unittest import mock

import numpy as np
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def texts(figure) -> list[tuple[str, Bbox, Text]]:
    """(text, place in pixels, artist) of every text that drawing the figure puts on the canvas."""
    seen = []
    draw = Text.draw

    def spy(self, renderer, *args, **kwargs):
        if self.get_visible() and self.get_text().strip():
            seen.append((self.get_text(), self.get_window_extent(renderer), self))
        return draw(self, renderer, *args, **kwargs)

    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)  # it settles in two passes, of which drawing makes one
    with mock.patch.object(Text, "draw", spy):
        figure.draw_without_rendering()
    return seen


def overlaps(found) -> list[tuple[str, str]]:
    """Pairs of texts that share more than the rim of their boxes."""
    edges = np.array([box.padded(-0.5).extents for _, box, _ in found])
    left, bottom, right, top = edges.T
    apart = (left[:, None] >= right) | (bottom[:, None] >= top)
    pairs = np.argwhere(np.triu(~(apart | apart.T), 1))
    return [(found[one][0], found[other][0]) for one, other in pairs]


def outside(figure, found) -> list[str]:
    """Texts that are not wholly on the canvas."""
    page = figure.bbox.padded(1)
    return [text for text, box, _ in found if not (page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1))]
