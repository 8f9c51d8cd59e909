"""`python -m mpizero.train` with states in files that dies, or whose disk goes wrong: nothing is left, nobody hangs."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.launches

# act(job), on every rank, after the second step
PROGRAM = """
import os, signal, sys
from mpizero import train
from mpizero.comm import run_main

def kill(job, ranks):
    assert os.listdir(job.config.nvme) == [], os.listdir(job.config.nvme)
    if job.world.rank in ranks:
        os.kill(os.getpid(), signal.SIGKILL)

def flip(job, ranks):
    if job.world.rank in ranks:
        file, place = job.storage.file, job.storage.spaces[1, "exp_avg"].offset
        pages = bytearray(4096)
        os.preadv(os.open(f"/proc/self/fd/{file.fd}", os.O_RDONLY), [pages], place)
        pages[77] ^= 16
        plain = os.open(f"/proc/self/fd/{file.fd}", os.O_WRONLY)
        os.pwrite(plain, pages, place)
        os.fsync(plain)

told = train._tell
def tell(job, record, *arguments, **options):
    told(job, record, *arguments, **options)
    if record.step == 1:
        globals()[sys.argv[1]](job, eval(sys.argv[2]))
train._tell = tell
run_main(lambda: train.main(sys.argv[3:]))
"""


def start(launch, tmp_path, act, ranks):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "files").mkdir()
    return launch(3, tmp_path / "program.py", act, ranks, "--stage", "3", "--steps", "4", "--nvme", tmp_path / "files",
                  "--offload", "params=nvme,optimizer=nvme")


@pytest.mark.parametrize("ranks", ["[1]", "[0, 1, 2]"])
def test_a_run_that_is_killed_leaves_nothing(launch, tmp_path, ranks):
    finished = start(launch, tmp_path, "kill", ranks)
    assert finished.status != 0 and "step 3/4" not in finished.stdout, finished.output
    assert "step 1/4" in finished.stdout, finished.output  # rank 0 may not have told of the second any more
    assert os.listdir(tmp_path / "files") == []


def test_a_bit_that_flips_on_one_rank_ends_all_with_a_sentence(launch, tmp_path):
    finished = start(launch, tmp_path, "flip", "[2]")
    assert finished.status == 2 and "Traceback" not in finished.output, finished.output
    assert "the file of rank 2 in" in finished.stderr and "(exp_avg of unit " in finished.stderr
    assert finished.stdout.count("step 4/4") == 0 and os.listdir(tmp_path / "files") == []
