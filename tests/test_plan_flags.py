"""No flag of `python -m mpizero.plan` is ignored in silence: what says nothing of the question is refused."""

from __future__ import annotations

import pytest

from mpizero.plan.__main__ import main

BARE, GPT, MLP = "--params 1e6 --ranks 4", "--gpt 2,32,2,256 --ranks 4", "--model mlp --ranks 4"
FIT = "--device-memory 1GB"
REFUSED = {  # what is asked -> the flag that is told of
    f"memory {GPT} --units 3": "--units",
    f"memory {MLP} --context 3": "--context",
    f"memory {BARE} --context 3": "--context",
    f"memory {GPT} --ranks-per-host 2": "--ranks-per-host",
    f"memory {BARE} --stage 3 --recompute --offload checkpoints=cpu": "--offload",
    f"traffic {BARE} --context 3": "--context",
    f"traffic {GPT} --optimizer lion": "--optimizer",
    f"traffic {GPT} --no-master-weights": "--no-master-weights",
    f"traffic {GPT} --tokens 1024": "--tokens",
    f"units {MLP} --context 3": "--context",
    "timeline --ranks 4": "--ranks",
    "timeline --ranks-per-host 4": "--ranks-per-host",
    "timeline --stage 2": "--stage",
    "timeline --accumulation 2": "--accumulation",
    "timeline --dtype float32": "--dtype",
    "timeline --tokens 3": "--tokens",
    "timeline --context 3": "--context",
    "timeline --gpu h100": "--gpu",
    "timeline --alpha 1us": "--alpha",
    "timeline --rings one": "--rings",
    "timeline --offload optimizer=cpu": "--offload",
    f"timeline {GPT} --offload params=nvme,optimizer=nvme": "--offload",
    f"timeline {GPT} --host-adam 1e9": "--host-adam",
    f"fit {BARE} {FIT} --tokens 8 --context 3": "--context",
    f"fit {BARE} {FIT} --fused-loss": "--fused-loss",
    f"fit {MLP} {FIT} --fused-loss": "--fused-loss",
    f"fit {GPT} {FIT} --fused-loss --activations 1MB": "--fused-loss",
    f"fit {GPT} {FIT} --activations-of pytorch --activations 1MB": "--activations-of",
    f"fit {GPT} {FIT} --offload optimizer=cpu --compare": "--compare",
    f"fit {GPT} {FIT} --offload checkpoints=cpu": "--offload",
    "offload --bandwidth --params 3": "--params",
    "offload --largest --seq 3": "--seq",
    "offload --partitions --gpu h100": "--gpu",
    "offload --loading --host-adam 1e9": "--host-adam",
}


@pytest.mark.parametrize("asked", list(REFUSED))
def test_what_would_be_ignored_is_refused(capsys, asked):
    assert main(asked.split()) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("mpizero: error: ") and REFUSED[asked] in err and err.count("\n") == 1


@pytest.mark.parametrize("asked", [f"memory {GPT}", f"traffic {GPT} --batch-size 2", f"timeline {GPT}", f"memory {MLP}",
                                   "largest --device-memory 1GB --ranks 4"])
@pytest.mark.parametrize("size", ["0", "-2"])
def test_no_tensor_parallel_ranks(capsys, asked, size):
    assert main([*asked.split(), "--tensor-size", size]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    assert err.startswith(f"mpizero: error: --tensor-size {size} is impossible: it must be at least 1")


def test_what_says_something_counts(plan):
    """Each of these flags changes what is answered."""
    for asked, flag in ((f"memory {BARE} --stage 3", "--offload optimizer=cpu"),
                        (f"memory {GPT} --batch-size 2", "--bucket-size 4KiB"),
                        (f"memory {GPT} --offload optimizer=cpu", "--delayed-update-after 3"),
                        (f"memory {GPT}", "--host-memory 1MB"), (f"memory {GPT}", "--device-memory 1MB"),
                        (f"traffic {GPT} --stage 3", "--offload params=cpu,optimizer=cpu"),
                        (f"traffic {GPT} --stage 3 --offload optimizer=nvme", "--optimizer lion"),
                        (f"traffic {GPT} --recompute --offload checkpoints=cpu --batch-size 1", "--batch-size 2"),
                        (f"timeline {GPT}", "--offload params=cpu,optimizer=cpu"),
                        (f"timeline {GPT} --offload optimizer=cpu", "--host-adam 1e6"),
                        (f"timeline {GPT} --offload optimizer=cpu", "--host-bandwidth 1MB/s"),
                        (f"timeline {GPT}", "--bucket-size 4KiB"),
                        (f"fit {GPT} {FIT} --activations-of mpizero", "--bucket-size 4KiB"),
                        (f"fit {GPT} {FIT} --activations-of mpizero --recompute", "--offload checkpoints=cpu"),
                        (f"fit {BARE} {FIT} --batch-size 2", "--context 3"),
                        ("offload --bandwidth", "--seq 2048")):
        echoed = {"offload", "bucket_size", "delayed_update_after", "optimizer", "optimizer_bytes", "batch_size", "seq",
                  "train"}
        before, after = ({key: value for key, value in plan(each)[0].items() if key not in echoed}
                         for each in (asked, f"{asked} {flag}"))
        assert before != after, (asked, flag)


def test_offload_moves_what_the_papers_say(plan):
    """4 psi bytes over the link with optimizer states in the host's memory, a rank's share; a file has room for its
    states, in whole pages."""
    found, out = plan("memory --params 8e6 --units 1 --ranks 4 --stage 2 --offload optimizer=cpu")
    assert found["moved_bytes"] == {"device-host": 4 * 8_000_000 // 4, "host-nvme": 0}
    assert found["tiers"]["host"]["at_rest"] == 12 * 8_000_000 // 4 and "8,000,000 bytes device-host" in out
    found, _ = plan("memory --params 8e6 --units 2 --ranks 4 --stage 3 --offload params=nvme,optimizer=nvme")
    assert found["tiers"]["nvme"]["peak"] == 16 * 8_000_000 // 4
    assert 0 <= found["file_bytes"] - found["tiers"]["nvme"]["peak"] < 10 * 4096
    assert found["tiers"]["device"]["at_rest"] == 0


def test_a_timeline_of_updates_on_the_host(plan):
    """All ranks of a host share its CPUs: psi parameters at so many a second, whatever the number of ranks."""
    found, out = plan(f"timeline {GPT} --context 32 --offload optimizer=cpu --host-adam 1e6 --stage 3")
    psi = 256 * 32 + 32 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32
    spent = sum(event["end"] - event["start"] for event in found["events"] if event["action"].startswith("OptimStep"))
    assert spent == pytest.approx(psi / 1e6, rel=1e-3) and "offload optimizer=cpu" in out
    assert {event["stream"] for event in found["events"]} >= {"down", "up"}
