"""`python -m mpizero.train` as a user starts it, with and without offload, recompute, buckets: one digest of weights;
and for each rank and tier, in the summary, what was counted beside what was planned."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.launches

PROGRAM = """
import os, sys
from pathlib import Path
from mpizero import train
from mpizero.comm import run_main

def main():
    os.chdir(sys.argv[1])
    for number, flags in enumerate(Path("flags").read_text().splitlines()):
        status = train.main([*flags.split(), "--json", f"{number}.json"])
        if status:
            return status
    return 0

run_main(main)
"""
SMALL = "--model gpt --stage 3 --layers 3 --d-model 16 --heads 2 --context 8 --batch-size 2 --steps 3 --data text"
SAME = ["", "--offload optimizer=cpu", "--offload params=cpu,optimizer=cpu",
        "--offload params=nvme,optimizer=nvme --nvme .", "--recompute", "--recompute --offload checkpoints=cpu",
        "--recompute --offload checkpoints=nvme --nvme .", "--bucket-size 1MiB"]
OTHER = ["--tiles 4", "--offload optimizer=cpu --delayed-update-after 1"]


def test_commands_print_one_digest(launch, tmp_path):
    (tmp_path / "text").write_text(" ".join(map(str, range(900))))
    (tmp_path / "flags").write_text("\n".join(f"{SMALL} {flags}" for flags in [*SAME, *OTHER]))
    end = launch(4, "-c", PROGRAM, tmp_path, timeout=240)
    assert end.status == 0, end.output
    found = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(len(SAME + OTHER))]
    digests = [summary["weights_sha256"] for summary in found]
    assert len(set(digests[: len(SAME)])) == 1 and not set(digests[len(SAME):]) & set(digests[: len(SAME)])
    assert all(f"weights sha256 {digest}" in end.stdout for digest in digests)
    for flags, summary in zip(SAME + OTHER, found, strict=True):
        check_tiers(flags, summary)


def check_tiers(flags, summary):
    """What is named as off the device is there, and moves."""
    host, nvme = "=cpu" in flags or "=nvme" in flags, "=nvme" in flags
    assert len(summary["memory"]) == len(summary["traffic"]) == 4
    for memory, traffic in zip(summary["memory"], summary["traffic"], strict=True):
        for tier, used in (("device", True), ("host", host), ("nvme", nvme)):
            assert memory[f"{tier}_peak"] == memory[f"planned_{tier}_peak"] and bool(memory[f"{tier}_peak"]) == used
        moved = traffic["moved_bytes_per_step"]
        assert moved == traffic["planned_moved_bytes_per_step"]
        assert {link: bool(nbytes) for link, nbytes in moved.items()} == {"device-host": host, "host-nvme": nvme}
