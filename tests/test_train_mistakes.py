"""`python -m mpizero.train` when something is wrong: one sentence, and the exit status of its kind."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from mpizero.errors import ConfigError
from mpizero.train import main

TRAIN = ("-m", "mpizero.train")
QUICK = ("--steps", "3")


def sentence(finished) -> str:
    """The one line a user's mistake gets, printed once: exit status 2, no traceback."""
    assert finished.status == 2, finished.output
    assert "Traceback" not in finished.output and finished.output.count("mpizero: error:") == 1, finished.output
    return finished.output.split("mpizero: error:")[1]


@pytest.mark.parametrize("text, words", [
    ("stpes = 3", "unknown key 'stpes': did you mean 'steps'?"),
    ("no-sync = 1", "no-sync = 1 must be true or false"),
    ("steps = [1]", "must be a number or a string"),
    ("steps = ", "is not TOML"),
    ('steps = "many"', "--steps"),
    ("steps = " + "9" * 5000, "is not TOML"),
    ("a = " + "[" * 20000, "is not TOML"),
    ('json = "a\\u0000b"', "must be a number or a string"),
])
def test_bad_config_file(tmp_path, text, words):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        main(["--config", str(tmp_path / "run.toml")])


@pytest.mark.parametrize("flags, words", [
    (("--stage", "4"), "--stage"),
    (("--stpes", "4"), "--stpes"),
    (("--steps", "-1"), "--steps -1 is impossible: it must be at least 0"),
    (("--batch-size", "0"), "--batch-size 0"),
    (("--hidden", "9" * 400), "below 2^40"),
    (("--device-memory", ""), "'' is not a size"),
    (("--lr", "nan"), "--lr nan"),
    (("--clip", "0"), "--clip 0.0"),
    (("--heads", "4"), "--heads is a size of --model gpt"),
    (("--stage", "0", "--shard-size", "2"), "--stage 0 shards nothing"),
    (("--device-memory", "64 gigs"), "'64 gigs' is not a size"),
    (("--device-memory", "0B"), "above zero"),
    (("--config", "no/such/file.toml"), "cannot be read"),
])
def test_mistakes_are_found_before_mpi_starts(flags, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        main(flags)


@pytest.mark.parametrize("flags, words", [
    (("--warmup", "60"), "--warmup 60 is longer than --steps 50"),
    (("--hidden", "1000000000000"), "on this host come to"),
    (("--data", "no/such/file.npz"), "no/such/file.npz"),
    (("--model", "gpt", "--data", "no/such/folder"), "no/such/folder"),
    (("--json", "no/such/folder/s.json"), "cannot be written"),
])
def test_mistakes_get_a_sentence(launch, flags, words):
    assert words in sentence(launch(None, *TRAIN, *flags))


def test_mistakes_that_need_ranks_are_reported_once(launch, tmp_path):
    assert "shard(3)" in sentence(launch(2, *TRAIN, "--shard-size", "3"))
    assert "out of device memory" in sentence(launch(2, *TRAIN, "--device-memory", "100KiB"))
    assert "--stage" in sentence(launch(2, *TRAIN, "--stage", "5"))
    (tmp_path / "short.txt").write_text("short")
    assert "context" in sentence(launch(2, *TRAIN, "--model", "gpt", "--data", tmp_path / "short.txt"))
    x = np.zeros((40, 32), np.float32)
    x[7, 3] = np.nan
    np.savez(tmp_path / "nan.npz", x=x, y=np.zeros(40, np.int64))
    assert "row 7" in sentence(launch(2, *TRAIN, "--data", tmp_path / "nan.npz"))


def test_streams_that_are_closed_do_not_matter(launch, tmp_path):
    program = ("import os, sys; os.close({}); "
               "os.execv(sys.executable, [sys.executable, '-m', 'mpizero.train', *sys.argv[1:]])")
    for descriptor in (1, 2):
        path = tmp_path / f"{descriptor}.json"
        end = launch(None, "-c", program.format(descriptor), "--steps", "1", "--json", path)
        assert end.status == 0 and json.loads(path.read_text())["psi"] == 32_656, end.output
    assert launch(None, "-c", program.format(2), "--stage", "9").status == 2


def test_training_that_cannot_go_on_is_no_mistake_in_the_command(launch):
    """Status 1, as where the last loss is not finite."""
    end = launch(2, *TRAIN, "--lr", "1e9", "--hidden", "8")
    assert end.status == 1 and end.stderr.count("mpizero: error: the gradient of unit") == 1, end.output
    assert "Traceback" not in end.output


def test_a_full_disk_gets_a_sentence(launch):
    assert "cannot be written: No space left on device" in sentence(launch(None, *TRAIN, *QUICK, "--json", "/dev/full"))


def test_a_full_terminal_gets_a_sentence(launch):
    program = ("import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); "
               "os.execv(sys.executable, [sys.executable, '-m', 'mpizero.train', '--steps', '1'])")
    assert "standard output cannot be written: No space left" in sentence(launch(None, "-c", program))


FAULTY = '''
from mpizero import train
from mpizero.comm import run_main
from mpizero.engine import summary
from mpizero.comm import wait
from mpizero.launcher import rank_in_job
plan, summarise, proof = summary.plan_memory, train.summarise, train.proof

def one_byte_more(*arguments, **options):
    made = plan(*arguments, **options)
    made.after_backward["grad"] += rank_in_job() == 1
    return made

def other_weights(job, progress):
    job.state.units[2].param[5] += rank_in_job() == 1
    return summarise(job, progress)

def slow(found):
    """In its waits a rank hears that others leave, and follows them."""
    rank_in_job() or wait.wait(lambda: False, 0.5)
    return proof(found)

train.proof = slow
{}
run_main(train.main)
'''


@pytest.mark.parametrize("fault, words", [
    ("summary.plan_memory = one_byte_more",
     r"rank 1 held 32,656 bytes of grad after backward, but 32,657 were planned(; and \d more, see the tables)?"),
    ("train.summarise = other_weights",
     r"replicas differ: param of unit layers.2 differs \(rank 0: \w{8}, rank 1: \w{8}.*\)"),
])
def test_what_is_wrong_is_said_last_and_is_the_exit_status(launch, fault, words):
    end = launch(2, "-c", FAULTY.format(fault), *QUICK)
    assert end.status == 1 and "Traceback" not in end.output, end.output
    assert end.stdout.rstrip().splitlines()[-1].count("weights sha256") == 1
    [said] = [line for line in end.stderr.splitlines() if line.startswith("mpizero:")]
    assert re.fullmatch(f"mpizero: error: {words}", said), said
