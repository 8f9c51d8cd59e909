"""Plan a run before it is launched: `python -m mpizero.plan memory --params 7.5e9 --ranks 64 --stage 2`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from mpizero.cli import Parser, spelled, write_json
from mpizero.errors import MpizeroError
from mpizero.launcher import rank_in_job
from mpizero.plan import fit, memory, offload, timeline, traffic, units
from mpizero.plan.options import wrapped

COMMANDS = {"memory": memory, "traffic": traffic, "units": units, "timeline": timeline, "offload": offload, "fit": fit}
EXAMPLE = "examples:\n" + "\n".join(f"  python -m mpizero.plan {command.EXAMPLE}" for command in COMMANDS.values())
USER_ERROR = 2  # exit status, as of every entry point


def main(argv: Sequence[str] | None = None) -> int:
    """A mistake of the user's is one sentence and status 2. Of the ranks of an mpirun, which a plan does not need, one
    speaks."""
    if rank_in_job():
        return 0
    try:
        try:
            _answer(_joined(sys.argv[1:] if argv is None else argv))
        finally:  # here it can still be said that standard output, of --help too, cannot be written
            if sys.stdout is not None:
                sys.stdout.flush()
    except MpizeroError as error:
        return _failed(str(error))
    except BrokenPipeError:  # `| head` has seen enough
        _write_no_more()
    except OSError as error:  # those of files are MpizeroErrors
        if error.filename is not None:
            raise
        _write_no_more()
        return _failed(f"standard output cannot be written: {error.strerror}")
    return 0


def _failed(sentence: str) -> int:
    print(f"mpizero: error: {sentence}", file=sys.stderr)
    return USER_ERROR


def _write_no_more() -> None:
    """Python would try again at its end to write what it could not."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@spelled("--ranks")
def _answer(argv: Sequence[str]) -> None:
    """Parse, answer, write, print."""
    options = vars(_parser().parse_args(argv))
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
