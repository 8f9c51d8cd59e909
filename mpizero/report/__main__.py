"""A training log as a page, pictures and a trace: `python -m mpizero.report LOGDIR`. Several logs: one page that lays
their runs over each other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpizero.cli import Parser
from mpizero.errors import ConfigError
from mpizero.output import alone, tell, write_json
from mpizero.report.log import STEPS, read_log
from mpizero.report.write import write_comparison, write_report

EXAMPLE = """examples:
  mpirun -n 4 python -m mpizero.train --stage 3 --log runs/zero3
  python -m mpizero.report runs/zero3                 # runs/zero3/report.html, figures, perfetto.json
  python -m mpizero.report runs/zero2 runs/zero3 --out page
  python -m mpizero.report runs                       # all runs in that folder"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    return alone(lambda: report(sys.argv[1:] if argv is None else argv))


def report(argv: Sequence[str]) -> None:
    """Read the logs, write the report, say where it is."""
    parser = Parser(prog="python -m mpizero.report", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("logs", metavar="LOGDIR", nargs="+",
                        help="folder that a run wrote with python -m mpizero.train --log, or a folder of such ones; "
                             "of several runs, the first is what others are held against")
    parser.add_argument("--out", metavar="DIR", help="write here instead of into LOGDIR, or the folder of all LOGDIRs")
    parser.add_argument("--json", metavar="FILE", help="write all tables to this file")
    options = parser.parse_args(argv)
    data = _write(_folders(options.logs), options.out)
    if options.json is not None:
        write_json(options.json, data)
    tell("\n".join([*data["notes"], *(f"wrote {file}" for file in data["files"])]))


def _write(folders: Sequence[Path], out: str | None) -> dict[str, Any]:
    logs = [read_log(folder) for folder in folders]
    if len(logs) == 1:
        return write_report(logs[0], Path(out or folders[0]))
    parents = {folder.absolute().parent for folder in folders}
    if out is None and len(parents) > 1:
        raise ConfigError("the logs lie in several folders: say with --out DIR where their common report shall be")
    return write_comparison(logs, Path(out or folders[0].parent))


def _folders(given: Sequence[str]) -> list[Path]:
    """One for each log. Where several are given (DIR/*), files among them are left out: an older report's."""
    paths = [Path(name) for name in given if len(given) == 1 or not Path(name).is_file()]
    found = [folder for path in paths for folder in (_logs_in(path) or [path])]
    return list(dict.fromkeys(found)) or [Path(given[0])]


def _logs_in(folder: Path) -> list[Path]:
    """The logs in a folder that is none itself."""
    if (folder / STEPS).exists() or not folder.is_dir():
        return []
    return sorted(path.parent for path in folder.glob(f"*/{STEPS}"))


if __name__ == "__main__":
    sys.exit(main())
