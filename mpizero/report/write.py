"""From a log to all files of its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mpizero.errors import ConfigError
from mpizero.report.curves import draw_curves
from mpizero.report.gantt import draw_gantt
from mpizero.report.log import Log
from mpizero.report.memory import draw_memory
from mpizero.report.page import page
from mpizero.report.perfetto import perfetto
from mpizero.report.style import image, require_matplotlib
from mpizero.report.tables import tables
from mpizero.report.traffic import draw_traffic
from mpizero.text import readable


def write_report(log: Log, out: Path) -> dict[str, Any]:
    """Write report.html, each figure as PNG and SVG, and perfetto.json into `out`; returns files, notes and tables."""
    require_matplotlib()
    found, written, vectors = tables(log), [], {}
    _make(out)
    if log.trace is not None:
        written.append(_write(out / "perfetto.json", json.dumps(perfetto(log.trace)).encode()))
    for name, figure in _figures(log):
        vectors[name] = image(figure, "svg")
        written += [_write(out / f"{name}.svg", vectors[name]), _write(out / f"{name}.png", image(figure, "png"))]
    # a name or a command that is not UTF-8 has surrogates
    written.append(_write(out / "report.html", readable(page(log, vectors, found)).encode()))
    return {"files": [readable(file) for file in written], "notes": list(log.notes),
            **{table.name: table.rows for table in found}}


def _figures(log: Log) -> list[tuple[str, Any]]:
    figures = [("loss", draw_curves(log.steps))] if log.steps else []
    if log.trace is not None:
        figures.append(("memory", draw_memory(log.trace)))
    if log.summary is not None:
        figures.append(("traffic", draw_traffic(log.summary)))
    if log.trace is not None:
        figures.append(("gantt", draw_gantt(log.trace)))
    return figures


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be made: {error.strerror}") from None


def _write(path: Path, data: bytes) -> str:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    return str(path)
