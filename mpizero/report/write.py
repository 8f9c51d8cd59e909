"""From one log, or several, to all files of the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpizero.errors import ConfigError
from mpizero.report.compare import compare, verdicts
from mpizero.report.compare import tables as comparison_tables
from mpizero.report.curves import draw_curves
from mpizero.report.gantt import draw_gantt
from mpizero.report.log import Log
from mpizero.report.memory import draw_memory
from mpizero.report.overlay import draw_kinds, draw_losses, draw_sent
from mpizero.report.page import page, page_of_several
from mpizero.report.perfetto import perfetto
from mpizero.report.style import image, require_matplotlib
from mpizero.report.tables import tables
from mpizero.report.traffic import draw_traffic
from mpizero.text import readable


def write_report(log: Log, out: Path) -> dict[str, Any]:
    """Write report.html, each figure as PNG and SVG, and perfetto.json into `out`; returns files, notes and tables."""
    require_matplotlib()
    found, written = tables(log), []
    _make(out)
    if log.trace is not None:
        written.append(_write(out / "perfetto.json", json.dumps(perfetto(log.trace)).encode()))
    vectors = _draw(_figures(log), out, written)
    # a name or a command that is not UTF-8 has surrogates
    written.append(_write(out / "report.html", readable(page(log, vectors, found)).encode()))
    return {"files": [readable(file) for file in written], "notes": list(log.notes),
            **{table.name: table.rows for table in found}}


def write_comparison(logs: Sequence[Log], out: Path) -> dict[str, Any]:
    """The same for several runs laid over each other. notes: what there is to say of them."""
    require_matplotlib()
    runs, written = compare(logs), list[str]()
    found = comparison_tables(runs)
    _make(out)
    figures = []
    if any(run.log.steps for run in runs):
        figures.append(("loss", draw_losses({run.name: run.losses for run in runs},
                                            [run.name for run in runs if not run.differs])))
    if any(run.log.summary is not None for run in runs):
        figures += [("memory", draw_kinds(runs)), ("traffic", draw_sent(runs))]
    vectors = _draw(figures, out, written)
    written.append(_write(out / "report.html", readable(page_of_several(runs, vectors, found)).encode()))
    return {"files": [readable(file) for file in written], "notes": [readable(text) for text in verdicts(runs)],
            **{table.name: table.rows for table in found}}


def _draw(figures: Sequence[tuple[str, Any]], out: Path, written: list[str]) -> dict[str, bytes]:
    """Write them, and add the files' names; each as SVG."""
    vectors = {}
    for name, figure in figures:
        vectors[name] = image(figure, "svg")
        written += [_write(out / f"{name}.svg", vectors[name]), _write(out / f"{name}.png", image(figure, "png"))]
    return vectors


def _figures(log: Log) -> list[tuple[str, Any]]:
    figures = [("loss", draw_curves(log.steps))] if log.steps else []
    if log.trace is not None:
        figures.append(("memory", draw_memory(log.trace)))
    if log.summary is not None:
        figures.append(("traffic", draw_traffic(log.summary, log.hosts)))
    if log.trace is not None:
        figures.append(("gantt", draw_gantt(log.trace)))
    return figures


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"--out {out} is a file: give a folder, which is made if need be") from None
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be made: {error.strerror}") from None


def _write(path: Path, data: bytes) -> str:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    return str(path)
