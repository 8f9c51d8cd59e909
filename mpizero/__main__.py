"""The command `mpizero`, also as `python -m mpizero`: `mpizero train --stage 2` is `python -m mpizero.train --stage 2`.

{commands}
Each takes --help. Before those that train or measure stands an mpirun: mpirun -n 4 mpizero train --stage 2
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable
from typing import NoReturn

COMMANDS = {  # name -> its module, and what it does
    "train": ("mpizero.train", "train, and see what each rank stored and sent"),
    "verify": ("mpizero.verify", "prove that all stages compute the same, and the bytes"),
    "bench": ("mpizero.bench", "measure our rings beside MPI's collectives, and a step beside its arithmetic"),
    "doctor": ("mpizero.doctor.__main__", "what is wrong with MPI and this machine, the cures, and how fast it is"),
    "plan": ("mpizero.plan.__main__", "does a model fit, how, and what will it send? Needs no ranks"),
    "checkpoint": ("mpizero.checkpoint.__main__", "look into a checkpoint, verify, export, import. Needs no ranks"),
    "sample": ("mpizero.sample", "let a trained GPT write text"),
    "report": ("mpizero.report.__main__", "figures and a page of a training log. Needs no ranks"),
}
EXAMPLE = """examples:
  mpirun -n 4 mpizero train --stage 3
  mpizero plan fit --params 13e9 --ranks 64 --device-memory 80GB"""


def overview() -> str:
    """What `--help` prints."""
    rows = "\n".join(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items())
    return (__doc__ or "").format(commands=rows + "\n") + f"\n{EXAMPLE}"


def version() -> str:
    """What `--version` prints. Starts no MPI."""
    from mpizero.engine.versions import versions

    return ", ".join(f"{name} {number}" for name, number in versions().items())


def main() -> NoReturn:
    """Hand the rest of the command line to a command's own entry point."""
    from mpizero.comm import run_main
    from mpizero.launcher import rank_in_job

    name, *rest = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        module = importlib.import_module(COMMANDS[name][0])
        if name in ("plan", "checkpoint", "report"):  # have frames of their own, without MPI
            sys.exit(module.main(rest))
        run_main(lambda: module.main(rest))
    if name in ("-h", "--help", "help", "--version"):
        if not rank_in_job():  # once, not once per rank
            print(version() if name == "--version" else overview())
        sys.exit()
    run_main(_unknown(name))


def _unknown(name: str) -> Callable[[], int]:
    def fail() -> int:
        from mpizero.errors import ConfigError

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        cure = f"did you mean {near[0]}?" if near else f"commands are {', '.join(COMMANDS)}"
        raise ConfigError(f"there is no command {name!r}: {cure} (see mpizero --help)")

    return fail


if __name__ == "__main__":
    main()
