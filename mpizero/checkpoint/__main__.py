"""Look into a checkpoint of a training run, read all of it to see whether it is whole, or exchange its weights with
other libraries. PATH: DIR/latest, DIR (the same), or DIR/step-00000020, where DIR is that of
`python -m mpizero.train --save DIR`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from mpizero.cli import Parser, spelled
from mpizero.dtypes import DTYPES, full_name
from mpizero.output import alone, check_writable, tell, write_json

EXAMPLE = """examples:
  mpirun -n 4 python -m mpizero.train --save runs/a --save-every 10
  python -m mpizero.checkpoint inspect runs/a/latest    # step, settings, parameters, sizes
  python -m mpizero.checkpoint verify runs/a/latest     # status 1, and the file's name, if anything is off
  python -m mpizero.checkpoint export runs/a/latest OUT.safetensors
  python -m mpizero.checkpoint import gpt2.safetensors runs/gpt2"""
COMMANDS = {"inspect": "step, settings, parameters and sizes; reads no numbers",
            "verify": "read everything, and compare all checksums; status 1 where something is off",
            "export": "weights as one safetensors file, with GPT-2's names and shapes as Hugging Face has them",
            "import": "a checkpoint of the weights of a safetensors file, for `sample` and `train --init`"}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    return alone(lambda: _answer(sys.argv[1:] if argv is None else argv))


@spelled()
def _answer(argv: Sequence[str]) -> None:
    """Parse, read, write, print."""
    options = _parser().parse_args(argv)
    check_writable("--json", options.json)
    found, show = _run(options)
    if options.json is not None:
        write_json(options.json, found)
    if problems := found.get("problems"):
        sys.exit("\n".join(f"mpizero: error: {problem}" for problem in problems))
    tell(show(found))


def _parser() -> Parser:
    parser = Parser(prog="python -m mpizero.checkpoint", description=__doc__, epilog=EXAMPLE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    for name, what in COMMANDS.items():
        sub = commands.add_parser(name, help=what, description=what, epilog=EXAMPLE)
        if name == "import":
            sub.add_argument("path", metavar="IN.safetensors", help="also one that another library wrote")
            sub.add_argument("folder", metavar="DIR", help="a new one, for the checkpoint")
            sub.add_argument("--heads", type=int, metavar="H",
                             help="of a GPT whose file does not say (64 features each)")
        else:
            sub.add_argument("path", metavar="PATH", help="DIR/latest, DIR or DIR/step-...")
        if name == "export":
            sub.add_argument("out", metavar="OUT.safetensors", help="the file to write")
            sub.add_argument("--dtype", type=full_name, choices=DTYPES, default="float32",
                             help="what weights are rounded to (%(default)s)")
            sub.add_argument("--force", action="store_true", help="replace the file if it exists")
        sub.add_argument("--json", metavar="FILE", help="write the answer to this file")
    return parser


def _run(options: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], str]]:
    """The answer, and what shows it. Only what the command needs is loaded: NumPy for neither of the first two."""
    if options.command == "inspect":
        from mpizero.checkpoint import inspect
        return inspect.inspect(options.path), inspect.show
    if options.command == "verify":
        from mpizero.checkpoint import verify
        return verify.verify(options.path), verify.show
    if options.command == "export":
        from mpizero.checkpoint import export
        return export.export(options.path, options.out, dtype=options.dtype, force=options.force), export.show
    from mpizero.checkpoint import imported
    return imported.import_weights(options.path, options.folder, heads=options.heads), imported.show


if __name__ == "__main__":
    sys.exit(main())
