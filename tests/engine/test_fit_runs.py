"""Every row of `plan fit` of a model of ours is a run: with its flags, under exactly the memory that it says."""

from __future__ import annotations

import argparse
import shlex

import pytest

from mpizero.cli import Parser, add_train_flags, train_config
from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from mpizero.errors import OutOfDeviceMemory
from mpizero.plan import fit, memory
from mpizero.plan.rates import with_host

pytestmark = pytest.mark.usefixtures("few_held_out")

ALL = ("device", "host")
GPT = "--gpt 2,32,2,256 --context 20 --batch-size 4 --activations-of mpizero"
ASKED = {  # what `plan fit` is asked, and which rows are run: as many as tell one setting from another
    "gpt": (f"{GPT} --dtype float32", [("2", "cpu"), ("3", "none"), ("3", "cpu+params")]),
    "recompute": (f"{GPT} --recompute --accumulation 2 --freeze h.0.ln_1.*",
                  [("1", "cpu"), ("3", "nvme")]),
    "checkpoints": (f"{GPT} --recompute --recompute-interval 2 --offload params=cpu,optimizer=cpu,checkpoints=cpu",
                    [("3", "params=cpu,optimizer=cpu,checkpoints=cpu")]),
    "hybrid": (f"{GPT} --shard-size 1 --optimizer lion --offload optimizer=nvme", [("1", "optimizer=nvme")]),
    "buckets": (f"{GPT} --bucket-size 8KiB --tiles 2 --offload optimizer=cpu", [("3", "cpu")]),
    "mlp": ("--model mlp --batch-size 20 --reduce-dtype float32 --optimizer sgd --momentum 0 --no-master-weights",
            [("1", "none"), ("3", "nvme")]),
}


def answered(asked, ranks):
    """What `plan fit` says."""
    parser = Parser()
    fit.add_flags(parser)
    words = f"{asked} --ranks {ranks} --device-memory 1GB --host-memory 8GB --nvme 8GB --ranks-per-host 8"
    return fit.answer(with_host({**vars(parser.parse_args(words.split())), "json": None}))


def config_of(row, folder, *more):
    """As `mpizero.train` reads the row's flags."""
    parser = Parser()
    add_train_flags(parser)
    words = shlex.split(row["train"].replace("--nvme DIR", f"--nvme {folder}"))
    return train_config(parser, [*words, "--steps", "2", *more])


@pytest.mark.parametrize("name", list(ASKED))
def test_a_row_runs_in_what_it_needs_and_in_no_byte_less(world, shared_path, name):
    asked, wanted = ASKED[name]
    found = answered(asked, world.size)
    rows = {(row["stage"], row["offload"]): row for row in found["rows"]}
    data = [] if name == "mlp" else ["--data", argparse.__file__]
    assert found["exact"] and found["made_by_train"]
    for key in wanted:
        row = rows[key]
        needs = row["needs"]
        given = {tier: ["--" + tier + "-memory", f"{needs[tier]}B"] for tier in ALL if needs[tier]}
        enough = [word for words in given.values() for word in words]
        job = prepare(config_of(row, shared_path, *data, *enough), world)
        summary = summarise(job, run_steps(job))
        most = {tier: max(rank[f"{tier}_peak"] for rank in summary["memory"]) for tier in ALL}
        assert most == {tier: needs[tier] for tier in ALL}, key
        assert not any(rank["steps_off_plan"] for rank in summary["traffic"])
        assert row["device_bytes"] == needs["device"]
        assert job.storage is None or needs["nvme"] >= max(rank["nvme_peak"] for rank in summary["memory"])
        for tier, words in given.items():
            less = [*data, *enough, words[0], f"{needs[tier] - 1}B"]
            with pytest.raises(OutOfDeviceMemory, match=f"out of {tier} memory: the run needs {needs[tier]:,} bytes"):
                prepare(config_of(row, shared_path, *less), world)


@pytest.mark.parametrize("flags", [
    "--stage 2 --offload optimizer=cpu --delayed-update-after 1 --bucket-size 8KiB",
    "--stage 3 --recompute --offload params=nvme,optimizer=nvme,checkpoints=cpu --overlap on --accumulation 2",
    "--stage 3-broadcast --tiles 2 --offload optimizer=cpu --forward-prefetch 1",
], ids=["delayed", "files", "owners"])
def test_plan_memory_tells_the_tiers_of_a_run(world, shared_path, flags):
    """Peaks and moves as its summary counts them."""
    parser = Parser()
    memory.add_flags(parser)
    asked = f"--gpt 2,32,2,256 --context 20 --batch-size 4 --ranks {world.size} {flags}"
    found = memory.answer({**vars(parser.parse_args(asked.split())), "json": None})
    job = prepare(config_of(found, shared_path, "--data", argparse.__file__, "--steps", "4"), world)
    summary = summarise(job, run_steps(job))
    assert found["tiers_exact"] and found["made_by_train"]
    for tier, planned in found["tiers"].items():
        assert max(rank[f"{tier}_peak"] for rank in summary["memory"]) == planned["peak"], tier
    assert max((rank["moved_bytes_per_step"] for rank in summary["traffic"]),
               key=lambda moved: sum(moved.values())) == found["moved_bytes"]
