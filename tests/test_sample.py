"""`python -m mpizero.sample` as a user meets it: the same text on any number of ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from mpizero.sample import _told
from tests.golden.gpt2 import shapes
from tests.support.launch import ROOT, clean_environment, mpirun
from tests.test_train_mistakes import sentence

numpy_files = pytest.importorskip("safetensors.numpy")
SAMPLE = ("-m", "mpizero.sample")
SIZES = ("--model", "gpt", "--layers", "1", "--d-model", "16", "--heads", "2", "--context", "8")
TRAIN = ("-m", "mpizero.train", *SIZES, "--data", json.__file__, "--batch-size", "2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A checkpoint of a few steps at stage 3, and its weights as a file."""
    from tests.support.launch import launch

    folder = tmp_path_factory.mktemp("runs")
    for n, arguments in ((2, (*TRAIN, "--stage", "3", "--steps", "3", "--save", folder / "D")),
                         (None, ("-m", "mpizero", "checkpoint", "export", folder / "D", folder / "f.safetensors"))):
        end = launch(n, *arguments)
        assert end.status == 0, end.output
    return folder


def read(path):
    return json.loads(path.read_text())


@pytest.mark.launches
def test_the_same_text_on_any_number_of_ranks(launch, runs, tmp_path):
    """Longer than the context; from a checkpoint and from what was made of it."""
    texts = {}
    for n in (None, 1, 3):
        end = launch(n, *SAMPLE, runs / "D/latest", "--prompt", "import é ", "--bytes", "30", "--seed", "4", "--json",
                     tmp_path / f"{n}.json")
        assert end.status == 0 and not end.stderr, end.output
        texts[n] = end.stdout, read(tmp_path / f"{n}.json")["tokens"]
    assert texts[None] == texts[1] == texts[3]
    found, told = read(tmp_path / "3.json"), texts[3][0]
    assert told.startswith("import é ") and len(found["tokens"]) == 30 and found["world_size"] == 3
    assert (found["prompt"], found["dtype"], found["context"], found["heads"]) == ("import é ", "float16", 8, 2)
    other = launch(None, *SAMPLE, runs / "D", "--prompt", "import é ", "--bytes", "30", "--seed", "5")
    assert other.status == 0 and other.stdout != told


@pytest.mark.launches
def test_files_imports_tokens_and_standard_input(launch, runs, tmp_path):
    """Greedily, all of them write the same."""
    file, more = runs / "f.safetensors", ("--bytes", "9", "--temperature", "0", "--json", tmp_path / "s.json")
    end = launch(None, "-m", "mpizero.checkpoint", "import", file, tmp_path / "E", "--json", tmp_path / "i.json")
    assert end.status == 0 and "layers 1, d-model 16, heads 2, context 8, vocab 256" in end.stdout, end.output
    found = []
    for n, path, prompt in ((None, file, ("--prompt", "\nab")), (2, tmp_path / "E", ("--prompt", "\nab")),
                            (None, file, ("--tokens", "10,97,98")), (None, file, ("--tokens", "1,2,3,4,5,10,97,98"))):
        end = launch(n, *SAMPLE, path, *prompt, *more)
        assert end.status == 0, end.output
        found.append(read(tmp_path / "s.json"))
    assert end.stdout.startswith("1 2 3 4 5 10 97 98 ") and len(end.stdout.split()) == 17 and found[2]["text"] is None
    assert found[0]["tokens"] == found[1]["tokens"] == found[2]["tokens"] and found[0]["dtype"] == "float32"
    for ranks in ([], [mpirun(), "-n", "2"]):
        command = [*ranks, sys.executable, *SAMPLE, str(file), "--prompt", "-", *map(str, more)]
        child = subprocess.run(command, cwd=ROOT, env=clean_environment(), input=b"\nab", capture_output=True,
                               timeout=120)
        if ranks and b"Open MPI's mpirun does not pass on where standard input ends" in child.stderr:
            assert child.returncode == 2
        else:
            assert child.returncode == 0 and read(tmp_path / "s.json")["tokens"] == found[0]["tokens"], child
        (tmp_path / "s.json").unlink(missing_ok=True)


@pytest.mark.launches
def test_train_from_a_file(launch, runs, tmp_path):
    """As from the checkpoint that it was made of; then the way back is shown where sizes differ."""
    digests = []
    for n, path in ((2, runs / "D/latest"), (None, runs / "f.safetensors")):
        end = launch(n, *TRAIN, "--init", path, "--steps", "0", "--json", tmp_path / "s.json")
        assert end.status == 0 and "\nstarted from the weights of /" in end.stdout, end.output
        summary = read(tmp_path / "s.json")
        digests.append(summary["weights_sha256"])
        assert summary["checkpoints"]["started_from"] == str(path)
        for row in summary["checkpoints"]["memory"]:
            assert row["loading_peak"] == row["planned_loading_peak"] > 0
    assert digests[0] == digests[1]
    wrong = launch(2, *TRAIN, "--init", runs / "f.safetensors", "--d-model", "8")
    assert "but has shape (256, 16) in /" in (said := sentence(wrong)) and ": use --d-model 16\n" in said


@pytest.mark.launches
def test_mistakes(launch, runs, tmp_path):
    numpy_files.save_file({"layers.0.weight": np.zeros((2, 3), np.float32), "layers.0.bias": np.zeros(3, np.float32)},
                          tmp_path / "mlp")
    numpy_files.save_file({name: np.zeros(shape, np.float32) for name, shape in
                           shapes(layers=1, d_model=64, heads=1, context=3, vocab=300).items()}, tmp_path / "big")
    file = runs / "f.safetensors"
    for n, arguments, said in (
            (2, (tmp_path / "none",), "none does not exist"),
            (None, (tmp_path / "mlp",), "holds an MLP, which writes no text"),
            (2, (tmp_path / "big",), "has a vocabulary of 300 tokens, for which mpizero has no tokenizer"),
            (2, (file, "--prompt", ""), "--prompt is empty"), (None, (file, "--prompt", "-"), "--prompt is empty"),
            (2, (file, "--tokens", "1,256"), "--tokens '1,256' cannot be used: give numbers from 0 to 255"),
            (None, (file, "--tokens", "1", "--prompt", "a"), "--prompt and --tokens both say how it begins"),
            (None, (file, "--bytes", "0"), "--bytes 0 is impossible: it must be at least 1"),
            (None, (file, "--temperature", "nan"), "--temperature nan is impossible"),
            (None, (file, "--heads", "3"), "16 features, which cannot be divided into --heads 3"),
            (None, (file, "--json", tmp_path / "no/where"), "cannot be written")):
        assert said in sentence(launch(n, *SAMPLE, *arguments))


def test_what_is_printed(capsys):
    """As it comes: what is not UTF-8 as a replacement, and nothing that a terminal would obey."""
    data = "é€".encode() + b"\xff\x1b[31m\tx\ny\r\xe2\x82"
    assert _told(list(data[:1]), list(data[1:]), text=True) == list(data[1:])
    assert capsys.readouterr().out == "é€\ufffd\ufffd[31m\tx\ny\r\ufffd\n"
    _told([5, 6], [7], text=False)
    assert capsys.readouterr().out == "5 6 7\n"
