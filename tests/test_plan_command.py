"""`python -m mpizero.plan` as a program: what it says to mistakes, what it needs, and its help."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mpizero.plan.__main__ import COMMANDS, main
from tests.support.launch import ROOT, clean_environment

WIDTH = 100


@pytest.mark.parametrize("command, words", [
    ("memory --params 0 --ranks 4", "'0' parameters make no model: give a whole number from 1"),
    ("memory --params -7e9 --ranks 4", "'-7e9' parameters make no model"),
    ("memory --params 7.5 --ranks 4", "write 7.5B for billions, 7.5M for millions"),
    ("memory --params 13 --ranks 4", "write 13B for billions, 13M for millions, or 13e0 if it is single ones"),
    ("memory --params 7.5e0 --ranks 4", "'7.5e0' parameters make no model"),
    ("memory --params many --ranks 4", "'many' is no number of parameters: write it as in 7.5e9"),
    ("memory --params 7e9", "required: --ranks"),
    ("memory --ranks 4", "one of the arguments --params --gpt --model is required"),
    ("memory --params 7e9 --model mlp --ranks 4", "not allowed with"),
    ("memory --params 7e9 --ranks 0", "'0' is impossible: give a whole number from 1"),
    ("memory --params 7e9 --ranks -4", "'-4' is impossible"),
    ("memory --params 7e9 --ranks 4.5", "'4.5' is impossible"),
    ("memory --params 7e9 --ranks 99999999999999999999999", "is impossible: give a whole number from 1 to 1,000,000"),
    ("memory --params 7e9 --ranks 4 --stage 4", "--stage"),
    ("memory --params 7e9 --ranks 64 --shard-size 7",
     "replicate * shard(7) = 64 ranks has no solution: use --shard-size 1 or 2 or 4"),
    ("traffic --params 7e9 --ranks 4 --shard-size 8", "or --ranks 8"),
    ("memory --params 7e9 --ranks 4 --shard-size 0", "--shard-size 0 is impossible"),
    ("memory --params 7e9 --ranks 4 --stage 0 --shard-size 2", "--stage 0 shards nothing"),
    ("memory --params 7e9 --ranks 4 --accumulation 0", "--accumulation 0 is impossible: it must be at least 1"),
    ("memory --params 7e9 --ranks 4 --backward-prefetch -1", "--backward-prefetch -1 is impossible"),
    ("memory --gpt 24,1024,16 --ranks 4", "give four numbers, as in 24,1024,16,50257"),
    ("memory --gpt 24,1024,0,50257 --ranks 4", "'0' is impossible"),
    ("memory --gpt 2,10,3,7 --ranks 4", "error: --gpt: d_model 10 does not divide by heads 3"),
    ("memory --gpt 2,10,3,7 --ranks 4", "use d_model 9 or 12"),
    ("memory --params 7e9 --ranks 4 --json no/such/folder/f.json", "cannot be written"),
    ("traffic --params 7e9 --ranks 4 --ranks-per-host 0", "'0' is impossible"),
    ("units --params 7e9 --ranks 64 --shard-size 7", "replicate * shard(7)"),
    ("units --params 7e9 --ranks 64 --alpha nan", "'nan' is no number of seconds"),
    ("units --params 7e9 --ranks 64 --alpha 10", "write 10us, or 10s if a message takes that long"),
    ("timeline --units 0", "'0' is impossible"),
    ("timeline --forward -2", "-2 seconds are impossible: give a number of at least 0"),
    ("timeline --forward soon", "'soon' is no number of seconds"),
    ("timeline --limit few", "'few' is impossible"),
    ("timeline --gpt 2,8,2,7 --ranks 4 --tokens 5", "say --batch-size"),
    ("timeline --model mlp", "add --ranks, as in --ranks 64"),
    ("timeline --model mlp --ranks 4 --forward 2", "leave one out"),
    ("timeline --plot step.gif", "step.gif cannot be drawn: give a file name that ends in .png or .svg"),
    ("fit --params 7e9 --ranks 4", "Add --device-memory, as in --device-memory 80GB, or --gpu"),
    ("fit --params 7e9 --ranks 4 --gpu h1000", "invalid choice: 'h1000'"),
    ("fit --params 7e9 --ranks 4 --device-memory 80", "write 80GB for gigabytes, 80MiB for mebibytes, or 80B"),
    ("fit --params 7e9 --ranks 4 --gpu h100 --efficiency 50", "write 50% or 0.5"),
    ("fit --params 7e9 --ranks 4 --gpu h100 --peak-flops 989", "write 989TFLOPs, or 989FLOPs if it is single ones"),
    ("fit --params 7e9 --ranks 4 --gpu h100 --inter-bandwidth 400G", "write 400GB/s for bytes, 400Gb/s for bits"),
    ("fit --params 7e9 --ranks 4 --device-memory 0GB", "the size '0GB' must be above zero"),
    ("fit --params 7e9 --ranks 4 --device-memory 1GB --dtype bfloat16 --reduce-dtype float16",
     "--reduce-dtype float16 cannot hold gradients of --dtype bfloat16"),
    ("traffic --params 7e9 --ranks 4 --reduce-dtype float32 --sum-dtype float16", "use --sum-dtype float32, or leave"),
    ("fit --params 7e9 --ranks 4 --device-memory -5GB", "'-5GB' is not a size"),
    ("fit --params 7e9 --ranks 4 --device-memory 80GB --nvme 1e3EB", "'1e3EB' is not a size"),
    ("fit --params 7e9 --ranks 4 --device-memory " + "9" * 400 + "GB", "beyond any machine"),
    ("fit --params 7e9 --ranks 4 --device-memory 80GB --inter-bandwidth -1", "'-1' is not a bandwidth"),
    ("fit --params 7e9 --ranks 4 --device-memory 80GB --inter-bandwidth fast", "'fast' is not a bandwidth"),
    ("fit --gpt 2,8,2,7 --ranks 4 --device-memory 80GB --tokens 5", "5 are not whole samples of 1,024 tokens: say"),
    ("fit --gpt 2,8,2,7 --ranks 4 --gpu h100 --tokens 1024 --batch-size 2", "say --batch-size"),
    ("fit --params 7e9 --ranks 4 --gpu h100 --activations-of pytorch", "give its shapes by --gpt"),
    ("fit --model mlp --ranks 4 --gpu h100 --activations-of pytorch", "use mpizero"),
    ("fit --params 7e9 --ranks 4 --gpu h100 --margin 100%", "leaves nothing: write a smaller one"),
    ("fit --params 7e9 --ranks 4 --device-memory 80Gb", "may mean bits: memory is in bytes, so write 80GB"),
    ("fit --params 7e9 --ranks 4 --device-memory 80GB --shard-size 3", "replicate * shard(3)"),
    ("memory --gpt 2,8,2,8 --ranks 4 --tensor-size 0", "--tensor-size 0 is impossible: it must be at least 1"),
    ("timeline --gpt 2,8,2,8 --ranks 4 --tensor-size 0", "--tensor-size 0 is impossible: it must be at least 1"),
    ("largest --device-memory 1GB --ranks 4 --tensor-size 0", "--tensor-size 0 is impossible: it must be at least 1"),
    ("largest --device-memory 1GB --ranks 4 --family width --tensor-size 0", "--tensor-size 0 is impossible: it must"),
    ("", "memory|traffic|units|timeline|offload|fit"),
    ("guess", "invalid choice: 'guess'"),
])
def test_mistakes_get_a_sentence(capsys, command, words):
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("mpizero: error:") == 1 and len(err.splitlines()) == 1
    assert words in err, err


def test_unknown_units_of_size(capsys):
    assert main(["fit", "--params", "7e9", "--ranks", "4", "--device-memory", "64 gigs"]) == 2
    assert "'64 gigs' is not a size: write a number and B, KiB, MiB, GiB" in capsys.readouterr().err


# -- the program -------------------------------------------------------------------------------------------------------

WITHOUT = """
import runpy, sys
sys.modules["numpy"] = sys.modules["mpi4py"] = None  # importing them raises ImportError
for command in {!r}:
    sys.argv = ["plan", *command.split()]
    try:
        runpy.run_module("mpizero.plan", run_name="__main__")
    except SystemExit as end:
        print(command, "ended with", end.code)
"""


def test_runs_without_mpi_and_without_numpy(launch):
    every = [command.EXAMPLE for command in COMMANDS.values()]
    end = launch(None, "-c", WITHOUT.format(every))
    assert end.status == 0 and not end.stderr, end.output
    told = end.stdout
    for command in every:
        shown, _, told = told.partition(f"{command} ended with 0\n")
        assert shown, command


def test_status_and_help_of_the_program(launch):
    end = launch(None, "-m", "mpizero.plan", "memory", "--params", "0", "--ranks", "4")
    assert end.status == 2 and "Traceback" not in end.output and end.stderr.count("mpizero: error:") == 1
    end = launch(None, "-m", "mpizero.plan", "--help")
    assert end.status == 0 and "python -m mpizero.plan fit" in end.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_has_an_example(capsys, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and f"python -m mpizero.plan {COMMANDS[name].EXAMPLE}" in out
    assert max(map(len, out.splitlines())) <= WIDTH


OWN = "from mpizero.comm import run_main; run_main(lambda: print('done'))"  # a program of a user's


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["-m", *command.split()] for command in (
    "mpizero.plan memory --params 7e9 --ranks 4", "mpizero.plan --help", "mpizero.train --help",
    "mpizero.train --steps 0")] + [["-c", OWN]], ids=lambda words: words[-1][:20])
def test_a_full_disk_gets_a_sentence(words, unbuffered):
    """Python writes at once or when the program ends, as it is told."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        end = subprocess.run([sys.executable, *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                             env=clean_environment({"PYTHONUNBUFFERED": unbuffered}))
    assert (end.returncode, end.stderr.count("\n")) == (2, 1), end.stderr
    assert "mpizero: error: standard output cannot be written: No space left on device" in end.stderr


@pytest.mark.launches
@pytest.mark.parametrize("command, status", [("memory --params 7e9 --ranks 4", 0), ("memory --params 7e9", 2)])
def test_under_mpirun_one_rank_speaks(launch, command, status):
    end = launch(2, "-m", "mpizero.plan", *command.split())
    assert end.status == status, end.output
    assert end.stdout.count("psi = ") == (status == 0) and end.stderr.count("mpizero: error:") == (status == 2)
