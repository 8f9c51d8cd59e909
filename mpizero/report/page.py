"""One HTML page with the figures and tables of a run, or of several. It asks no network and no other file for anything.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mpizero.report.compare import Run, verdicts
from mpizero.report.html import Markup, element, void
from mpizero.report.log import Log
from mpizero.report.tables import Table, as_planned, speed
from mpizero.report.thin import thin
from mpizero.report.traffic import on_plan
from mpizero.text import counted, readable

LONG = 20  # rows of a table that stays folded until it is asked for
SHOWN_SPANS = 100  # of the rows of a very long table, see `thin`
THINNED_BY = ("loss", "grad_norm")
LEFT_OUT = ("{:,} of {:,} rows are shown: of each of {} spans the first, the last, and those with the lowest and the "
            "highest loss and norm. The log has all, and so has report --json.")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; color: #111; background: #fff;
       margin: 0 auto; padding: 1.5rem; max-width: 76rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { margin: .3rem 0; max-width: 60rem; } figure { margin: 1.8rem 0; }
.scroll { overflow-x: auto; border: 1px solid #ddd; }
.scroll img { display: block; min-width: min(100%, 56rem); height: auto; }
figcaption, .note { color: #444; font-size: .9rem; margin-top: .3rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
thead th { border-bottom: 2px solid #888; vertical-align: bottom; } td.number, th.number { text-align: right; }
td.no { color: #a33d00; font-weight: bold; }
summary { cursor: pointer; font-size: 1.1rem; font-weight: bold; margin-top: 2.2rem; }
"""
CAPTIONS = {
    "loss": "Loss and global norm of the gradient at every step; the norm on a logarithmic scale where it varies more "
            "than 20-fold. Of very many steps each column of pixels shows the first, the last, the lowest and the "
            "highest.",
    "memory": "Each area is one kind of memory, as the ledger counted it: in the left half of an action's slot at the "
              "highest moment within the action, in the right half after it. Workspace (temporaries of operators and "
              "rings) and the float32 gradient of the unit being updated live within actions alone. Black bars: model "
              "states, and activations where the plan knows them, after the action, as planned from the same list of "
              "actions.",
    "traffic": "What each rank sent, by op, as the traffic log counted it. Black bars: where the plan says that each "
               "part ends. Hatched, where ranks run on several hosts: what of it left the host.",
    "gantt": "Three views of a step on one axis of time, which perfetto.json has too. Above: memory of one rank by "
             "kind, within an action at its peak, and what it had sent. Below: what each rank computed, and the "
             "collectives that it was in, waiting for others included; last, the same list of actions as the simulator "
             "plays it with the seconds that these actions took. Other: neither a segment nor an update, "
             "such as loading a batch, and the loss. To zoom in, open perfetto.json in ui.perfetto.dev or "
             "chrome://tracing; it also holds an arrow for every message (but those that would run back in time, where "
             "clocks of hosts differ by more than could be measured).",
}
SEVERAL = {
    "loss": "Losses, and below them their differences from the first run's. The same bits give exactly zero. Of very "
            "many steps each column of pixels shows the first, the last, the lowest and the highest.",
    "memory": "Bytes of model states on the fullest rank of each run right after backward, by kind, as the ledger "
              "counted them, in the outline of their plan. Lines: the peak of model states in a step, and that of the "
              "device, activations and workspace included.",
    "traffic": "What the busiest rank of each run sent in a step, by op, in the outline of its plan. Dashed: (N-1)/N "
               "of 2 psi and of 3 psi elements, which rings of all N ranks send. Hatched, where ranks run on several "
               "hosts: what of it left the host.",
}
SOURCES = {
    "CMU 15-779 (Fall 2025), lecture 13": "https://www.cs.cmu.edu/~zhihaoj2/15-779/",
    "ZeRO": "https://arxiv.org/abs/1910.02054",
    "ZeRO-Offload": "https://arxiv.org/abs/2101.06840",
    "ZeRO-Infinity": "https://arxiv.org/abs/2104.07857",
    "PyTorch FSDP": "https://arxiv.org/abs/2304.11277",
}


def page(log: Log, figures: Mapping[str, bytes], tables: list[Table]) -> str:
    """The whole text. figures: name -> SVG."""
    return _document(_title(log), _lead(log, figures), figures, CAPTIONS, list(map(_from_one, tables)))


def page_of_several(runs: Sequence[Run], figures: Mapping[str, bytes], tables: list[Table]) -> str:
    """The same for runs laid over each other."""
    said = [*verdicts(runs), *(f"{run.name}: {note}" for run in runs for note in (*run.log.notes, *_ending(run.log)))]
    return _document(f"{len(runs)} runs: {', '.join(run.name for run in runs)}", said, figures, SEVERAL, tables)


def _document(title: str, said: Sequence[str], figures: Mapping[str, bytes], captions: Mapping[str, str],
              tables: Sequence[Table]) -> str:
    body = [element("h1", title), *(element("p", text) for text in said),
            *(_figure(name, svg, captions[name]) for name, svg in figures.items()), *map(_table, tables), _sources()]
    head = [void("meta", charset="utf-8"), void("meta", http_equiv="Content-Security-Policy", content=POLICY),
            void("meta", name="viewport", content="width=device-width, initial-scale=1"), element("title", title),
            element("style", Markup(STYLE))]
    return f"<!DOCTYPE html>\n{element('html', element('head', *head), element('body', *body), lang='en')}\n"


def _from_one(table: Table) -> Table:
    """Steps numbered as people count them."""
    if table.name != "steps":
        return table
    return replace(table, rows=[row | {"step": row["step"] + 1} for row in table.rows])


def _sources() -> Markup:
    links = [element("li", element("a", name, href=address)) for name, address in SOURCES.items()]
    return element("section", element("h2", "What this is about"), element("ul", *links), id="sources")


def _title(log: Log) -> str:
    run = log.summary or log.trace or log.run
    if run is None:
        return f"Training log {readable(log.folder.name)}"
    return f"{run['model']}, stage {run['stage']}, {counted(run['world_size'], 'rank')}"


def _lead(log: Log, figures: Mapping[str, bytes]) -> list[str]:
    """What there is to say first: how it went, whether plan and count agree, and what is missing."""
    losses = [row["loss"] for row in log.steps if row["loss"] is not None]
    said = [*_began(log), f"{counted(len(log.steps), 'step')}"
            + (f", loss {losses[0]:.4f} to {losses[-1]:.4f}" if losses else "") + _rate(log) + ".",
            *log.notes, *_ending(log)]
    if log.summary is not None and log.summary.get("interrupted"):
        said.append("The held-out loss is left out.")
    if log.summary is None:
        said.append("The log has no summary.json of it: memory and traffic are left out.")
    if log.trace is None:
        said.append("The log has no trace.json: no step was traced. Memory over the actions, Gantt chart and "
                    "perfetto.json are left out.")
    if not figures:
        said.append("No step has ended yet.")
    return said


def _began(log: Log) -> list[str]:
    return [] if log.run is None else [f"Began {log.run['began'].replace('T', ' ')}: {log.run['command']}"]


def _rate(log: Log) -> str:
    """`, 1.2 s in steps, 23 ms each, 696 samples or tokens a second`."""
    told = speed(log)
    seconds = "" if told["seconds"] is None else f", {told['seconds']:.3g} s in steps, {told['ms']:.3g} ms each"
    return seconds + ("" if told["per_second"] is None else f", {told['per_second']:,.0f} samples or tokens a second")


def _ending(log: Log) -> list[str]:
    """How the run ended, and whether plan and count agree."""
    if log.summary is None:
        return ["The run is still going on." if log.running else "The run did not end: it was killed, or has failed."]
    memory, traffic = all(map(as_planned, log.summary["memory"])), all(map(on_plan, log.summary["traffic"]))
    said = [f"The run was interrupted by {log.summary['signal']}."] if log.summary.get("interrupted") else []
    return [*said, f"Bytes of model states {_equal(memory)}; bytes sent {_equal(traffic)}; replicas "
            f"{'are equal' if log.summary['replicas_equal'] else 'DIFFER'}."]


def _equal(equal: bool) -> str:
    return "equal their plan on every rank" if equal else "DIFFER from their plan"


def _figure(name: str, svg: bytes, caption: str) -> Markup:
    data = base64.b64encode(svg).decode("ascii")
    picture = void("img", alt=f"{name}: {caption}", src=f"data:image/svg+xml;base64,{data}")
    return element("figure", element("div", picture, class_="scroll"), element("figcaption", caption), id=name)


def _table(table: Table) -> Markup:
    numbers = {key for key in table.columns if all(type(row[key]) in (int, float, type(None)) for row in table.rows)}
    heads = [element("th", heading, scope="col", class_="number" if key in numbers else "")
             for key, heading in table.columns.items()]
    shown = thin(table.rows, THINNED_BY, SHOWN_SPANS) if {*THINNED_BY} <= {*table.columns} else table.rows
    rows = [element("tr", *(_cell(row[key], key in numbers) for key in table.columns)) for row in shown]
    head = element("thead", element("tr", *heads)) if any(table.columns.values()) else Markup()
    parts = [element("div", element("table", head, element("tbody", *rows)), class_="scroll")]
    left_out = "" if len(shown) == len(table.rows) else LEFT_OUT.format(len(shown), len(table.rows), SHOWN_SPANS)
    if table.note or left_out:
        parts.append(element("p", " ".join(filter(None, (table.note, left_out))), class_="note"))
    if len(table.rows) > LONG:
        summary = element("summary", f"{table.title} ({len(table.rows):,} rows)")
        return element("details", summary, *parts, id=f"table-{table.name}")
    return element("section", element("h2", table.title), *parts, id=f"table-{table.name}")


def _cell(value: object, number: bool) -> Markup:
    if isinstance(value, bool):
        return element("td", "yes" if value else "NO", class_="" if value else "no")
    return element("td", show(value), class_="number" if number else "")


def show(value: object) -> str:
    """Thousands separated, four digits of what is no whole number."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
