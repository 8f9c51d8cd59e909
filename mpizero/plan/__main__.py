"""Plan a run before it is launched: `python -m mpizero.plan memory --params 7.5e9 --ranks 64 --stage 2`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from mpizero.cli import Parser, spelled
from mpizero.output import alone, write_json
from mpizero.plan import fit, largest, memory, offload, timeline, traffic, units
from mpizero.plan.options import wrapped
from mpizero.plan.rates import with_host

COMMANDS = {"memory": memory, "traffic": traffic, "units": units, "timeline": timeline, "offload": offload, "fit": fit,
            "largest": largest}
EXAMPLE = "examples:\n" + "\n".join(f"  python -m mpizero.plan {command.EXAMPLE}" for command in COMMANDS.values())


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    return alone(lambda: _answer(_joined(sys.argv[1:] if argv is None else argv)))


@spelled("--ranks")
def _answer(argv: Sequence[str]) -> None:
    """Parse, answer, write, print."""
    options = with_host(vars(_parser().parse_args(argv)))
    command, path = COMMANDS[options["command"]], options["json"]
    answer = command.answer(options)
    if path is not None:
        write_json(path, answer)
    print(command.show(answer))


def _parser() -> Parser:
    parser = Parser(prog="python -m mpizero.plan", description=__doc__, epilog=EXAMPLE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    for name, command in COMMANDS.items():
        example = f"example:\n  python -m mpizero.plan {command.EXAMPLE}"
        about = "\n\n".join("\n".join(wrapped(paragraph)) for paragraph in (command.__doc__ or "").split("\n\n"))
        sub = commands.add_parser(name, help=command.HELP, description=about, epilog=example)
        command.add_flags(sub)
        sub.add_argument("--json", metavar="FILE", help="write the answer to this file; sizes are ints of bytes")
    return parser


def _joined(argv: Sequence[str]) -> list[str]:
    """`--ranks -4` as `--ranks=-4`: argparse would take a negative size for a flag, and say nothing of sizes."""
    out: list[str] = []
    for word in argv:
        if re.match(r"-[\d.]", word) and out and re.fullmatch(r"--[a-z-]+", out[-1]):
            out[-1] += f"={word}"
        else:
            out.append(word)
    return out


if __name__ == "__main__":
    sys.exit(main())
