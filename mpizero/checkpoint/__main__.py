"""Look into a checkpoint of a training run, or read all of it to see whether it is whole. PATH: DIR/latest, DIR (the
same), or DIR/step-00000020, where DIR is that of `python -m mpizero.train --save DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mpizero.checkpoint import inspect, verify
from mpizero.cli import Parser, alone, spelled, tell, write_json

EXAMPLE = """examples:
  mpirun -n 4 python -m mpizero.train --save runs/a --save-every 10
  python -m mpizero.checkpoint inspect runs/a/latest    # step, settings, parameters, sizes
  python -m mpizero.checkpoint verify runs/a/latest     # status 1, and the file's name, if anything is off"""
COMMANDS = {"inspect": "step, settings, parameters and sizes; reads no numbers",
            "verify": "read everything, and compare all checksums; status 1 where something is off"}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    return alone(lambda: _answer(sys.argv[1:] if argv is None else argv))


@spelled()
def _answer(argv: Sequence[str]) -> None:
    """Parse, read, write, print."""
    parser = Parser(prog="python -m mpizero.checkpoint", description=__doc__, epilog=EXAMPLE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    for name, what in COMMANDS.items():
        sub = commands.add_parser(name, help=what, description=what, epilog=EXAMPLE)
        sub.add_argument("path", metavar="PATH", help="DIR/latest, DIR or DIR/step-...")
        sub.add_argument("--json", metavar="FILE", help="write the answer to this file")
    options = parser.parse_args(argv)
    command = inspect if options.command == "inspect" else verify
    found = command.inspect(options.path) if command is inspect else verify.verify(options.path)
    if options.json is not None:
        write_json(options.json, found)
    if problems := found.get("problems"):
        sys.exit("\n".join(f"mpizero: error: {problem}" for problem in problems))
    tell(command.show(found))


if __name__ == "__main__":
    sys.exit(main())
