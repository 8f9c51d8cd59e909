"""A training log as a page, pictures and a trace: `python -m mpizero.report LOGDIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mpizero.cli import Parser, tell, write_json
from mpizero.comm import run_main
from mpizero.report.log import read_log
from mpizero.report.write import write_report

EXAMPLE = """examples:
  mpirun -n 4 python -m mpizero.train --stage 3 --log runs/zero3
  python -m mpizero.report runs/zero3                 # runs/zero3/report.html, figures, perfetto.json
  python -m mpizero.report runs/zero3 --out page --json tables.json"""


def main(argv: Sequence[str] | None = None) -> int:
    """Read the log, write the report, say where it is."""
    parser = Parser(prog="python -m mpizero.report", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("log", metavar="LOGDIR", help="folder that a run wrote with python -m mpizero.train --log")
    parser.add_argument("--out", metavar="DIR", help="write here instead of into LOGDIR")
    parser.add_argument("--json", metavar="FILE", help="write all tables to this file")
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    log = read_log(options.log)
    data = write_report(log, Path(options.out or options.log))
    if options.json is not None:
        write_json(options.json, data)
    tell("\n".join([*data["notes"], *(f"wrote {file}" for file in data["files"])]))
    return 0


if __name__ == "__main__":
    run_main(main)
