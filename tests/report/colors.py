"""How far apart colours look, also to eyes with two kinds of cones.

Machado et al. (2009), full severity; distances in CIELAB (1976).
"""

from __future__ import annotations

import numpy as np

EYES = {
    "usual": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # from linear sRGB
WHITE = XYZ.sum(axis=1)


def distance(one: str, other: str, eyes: str) -> float:
    """Between two colours `#rrggbb`; a difference of 2.3 is just noticed."""
    return float(np.linalg.norm(_lab(one, eyes) - _lab(other, eyes)))


def lightness(color: str) -> float:
    """L* of a colour, from 0 to 100."""
    return float(_lab(color, "usual")[0])


def _lab(color: str, eyes: str) -> np.ndarray:
    srgb = np.array([int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(EYES[eyes] @ linear, 0, 1) / WHITE
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
