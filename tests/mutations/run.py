"""Is the suite able to fail? Plants one-line faults (mutations.toml) in a copy of the tree, one at a time, and runs the
tests that must notice. Each selection of tests must first pass without a fault.

    python tests/mutations/run.py                # all; status 0 if each is noticed, 1 if not, 2 for a bad list
    python tests/mutations/run.py -k 'clip n=1'  # those in whose entry all these words stand
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.launch import launch  # noqa: E402

TREE = Path()  # a worker's own copy
# of which a SIGTERM is a KeyboardInterrupt, so that what a test has started ends too
PYTEST = "import signal as s, sys, pytest; s.signal(s.SIGTERM, s.default_int_handler); sys.exit(pytest.main())"
NOTICED, HANG, SURVIVED, PASSES, FAILS = "noticed", "hang", "SURVIVED", "passes", "FAILS"


class BadList(Exception):
    """A mutation that cannot be planted, or tests that fail without one."""


@dataclass(frozen=True)
class Mutation:
    """name: what is wrong now. old: occurs once in the file, or is the first behind the text `after`, which does.
    tests: arguments of pytest. ranks: of mpirun; 0: without."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    ranks: int = 0
    after: str = ""

    def planted(self, text: str) -> str:
        """The file's text with the fault in it."""
        unique, begin = self.after or self.old, text.find(self.after)
        if text.count(unique) != 1 or self.old not in text[begin:]:
            raise BadList(f"{self.file}: {self.old!r} is not there, or not once, so nothing is planted: {self.name}")
        return text[:begin] + text[begin:].replace(self.old, self.new, 1)


def read_list() -> list[Mutation]:
    return [Mutation(**row) for row in tomllib.loads((HERE / "mutations.toml").read_text())["mutation"]]


def start_worker(temporary: str) -> None:
    """Copy the tree. A worker ends with its parent, and what it runs with it: see `launch`."""
    global TREE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    TREE = Path(temporary) / str(os.getpid())
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(lambda name: (ROOT / name).is_file(), listed.split("\0")):
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, TREE / name)


def run_tests(job: tuple[Mutation, bool, float]) -> tuple[str, str, float]:
    """Of a mutation that is planted, or not, for so many seconds at most: outcome, output, seconds."""
    mutation, planted, limit = job
    path, begin = TREE / mutation.file, time.monotonic()
    text, clock = path.read_text(), path.stat().st_mtime
    env = {"PYTHONPATH": str(TREE), "TMPDIR": str(TREE.parent), "CI": "1",  # CI: hypothesis draws the same every time
           "MPIZERO_TIMEOUT": str(limit / 3), "PYTHONDONTWRITEBYTECODE": "1" if planted else None}
    ranks = ["--with-mpi", "-o", f"mpi_timeout={limit / 3}"] if mutation.ranks else []  # they give up before we do
    if planted:
        path.write_text(mutation.planted(text))
        os.utime(path, (clock, clock + 9))  # so that no older bytecode is taken for it
    try:
        ended = launch(mutation.ranks or None, "-c", PYTEST, "-x", "-q", *ranks, *shlex.split(mutation.tests),
                       timeout=limit, env=env, cwd=TREE)
    except TimeoutError as error:
        return HANG, str(error), time.monotonic() - begin
    finally:
        path.write_text(text)
        os.utime(path, (clock, clock))
    if ended.status or not planted and " passed" not in ended.output:  # skipped
        return NOTICED if planted else FAILS, ended.output, time.monotonic() - begin
    return SURVIVED if planted else PASSES, ended.output, time.monotonic() - begin


def run(mutations: list[Mutation], workers: int, limit: float) -> list[tuple[str, str, float]]:
    """What `run_tests` says of each, told as it comes."""
    selections = {(each.tests, each.ranks): each for each in mutations}
    with tempfile.TemporaryDirectory(prefix="mutations-") as temporary, \
            multiprocessing.Pool(workers, start_worker, (temporary,)) as pool:
        for planted, jobs in ((False, list(selections.values())), (True, mutations)):
            found = []
            for each, ended in zip(jobs, pool.imap(run_tests, [(each, planted, limit) for each in jobs]), strict=True):
                found.append(ended)
                print(f"{len(found):>4} of {len(jobs)} {ended[2]:6.1f} s  {ended[0]:<8}  "
                      f"{f'{each.file:<34}  {each.name}' if planted else each.tests}", flush=True)
            if not planted and (wrong := [output for outcome, output, _ in found if outcome != PASSES]):
                raise BadList("\n".join([*wrong, f"{len(wrong)} selections of tests do not pass without a mutation"]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", metavar="WORDS", default="", help="only mutations in whose entry all these words stand")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), metavar="N", help="at a time (CPUs)")
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="for one run of tests (60)")
    parser.add_argument("--json", metavar="FILE", help="write outcomes and seconds")
    options, begin = parser.parse_args(), time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    mutations = [each for each in read_list() if all(word in str(asdict(each)) for word in options.k.split())]
    try:
        for each in mutations:
            each.planted((ROOT / each.file).read_text())
        found = [] if options.list else run(mutations, options.jobs, options.limit)
    except BadList as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print(*(f"{each.file:<34}  {each.name}" for each in mutations), sep="\n")
        return 0
    rows = [asdict(each) | {"outcome": ended[0], "seconds": ended[2]} for each, ended in zip(mutations, found)]
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    noticed = sum(row["outcome"] != SURVIVED for row in rows)  # a hang too
    print(*(f"{row['outcome']}: {row['name']}" for row in rows if row["outcome"] != NOTICED),
          f"{time.monotonic() - begin:.0f} s", f"{noticed} of {len(rows)} noticed", sep="\n")
    return 0 if noticed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
