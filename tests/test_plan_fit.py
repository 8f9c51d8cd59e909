"""`python -m mpizero.plan fit`, and what the other commands say to the same questions."""

from __future__ import annotations

import re

import pytest

from mpizero.plan.__main__ import main


def test_fit(plan):
    found, out = plan("fit --params 13e9 --ranks 64 --shard-size 64 --device-memory 80GB --activations 4GB")
    rows = {(row["stage"], row["offload"]): row for row in found["rows"]}
    assert [rows[stage, "none"]["fits"] for stage in "0123"] == [False, True, True, True]
    row = rows["3", "none"]
    assert row["at_rest"] == {"device": 14 * 13 * 10**9 // 64, "host": 0, "nvme": 0}
    assert row["seconds"] > 0 and row["bound_by"] == "compute"
    assert row["device_bytes"] == row["peak"]["device"] + 4 * 10**9
    assert row["sent_bytes"] == row["host_bytes"] == 3 * 63 * 26 * 10**9 // 64
    assert row["left_bytes"] == 76 * 10**9 - row["device_bytes"] and row["seconds_by_size"] == {"64": row["seconds"]}
    assert found["recommended"] == {"stage": "3", "offload": "none", "tensor_size": 1, "shard_size": 64}
    assert found["reason"] in " ".join(out.split()) and "65.5 GB of the device left" in found["reason"]
    assert "5 % of a device (4 GB) are kept free, for the device's context" in " ".join(out.split())
    assert rows["3", "nvme"]["fits"] is None and found["machine"]["inter_bandwidth"] == 50e9
    assert next(line for line in out.splitlines() if line.startswith("stage ")).split() == [
        "stage", "offload", "F", "device", "host", "NVMe", "out", "of", "host", "own", "s", "exposed", "s", "step", "s",
        "fits"]


def test_fit_of_a_bare_size_does_not_claim_what_is_unknown(plan):
    """13B in 80 GB: of the activations nothing is known, and of a GPT of that size they take 115 GB in PyTorch, 68.4 GB
    here."""
    found, out = plan("fit --params 13e9 --ranks 64 --device-memory 80GB")
    assert {row["fits"] for row in found["rows"]} == {False, None}
    assert all(row["activations"] is row["left_bytes"] is None for row in found["rows"])
    assert "6.47 GB + ?" in out and "yes" not in out and "of the device left" not in out
    assert "if activations take at most 69.5 GB" in found["reason"] and "--gpt" in found["reason"]
    asked = ("fit --gpt 40,5120,40,32000 --context 4096 --batch-size 4 --ranks 64 --device-memory 80GB "
             "--tensor-size 1")
    usual, out = plan(asked)
    assert {row["fits"] for row in usual["rows"]} == {False} and usual["activations_of"] == "pytorch"
    assert {round(row["activations"] / 1e9) for row in usual["rows"]} == {115} and "115 GB of the latter" in out
    assert "are PyTorch's with flash attention, no dropout: an estimate" in " ".join(out.split())
    eager, _ = plan(f"{asked} --activations-of pytorch-eager")
    assert {round(row["activations"] / 1e9) for row in eager["rows"]} == {659}
    assert {round(row["activations"] / 1e9, 1) for row in plan(f"{asked} --recompute")[0]["rows"]} == {14.4}
    exact, out = plan(f"{asked} --activations-of mpizero")
    assert "Activations are mpizero's own, exact" in out
    assert [row["fits"] for row in exact["rows"] if row["offload"] == "none"] == [False, False, False, True]
    assert {round(row["activations"] / 1e9, 1) for row in exact["rows"]} == {68.4}
    assert "activations of 68.4 GB included, exact" in " ".join(out.split())


def test_fit_tries_every_shard_size(plan):
    asked = "fit --params 13e9 --ranks 64 --device-memory 80GB --inter-bandwidth 12.5GB --tokens 2048"
    found, out = plan(asked)
    assert found["recommended"] == {"stage": "3", "offload": "none", "tensor_size": 1, "shard_size": 8}
    best = next(row for row in found["rows"] if (row["stage"], row["offload"]) == ("3", "none"))
    assert set(best["seconds_by_size"]) == {"2", "4", "8", "16", "32", "64"} and "the best of 6 sizes" in out
    assert "--shard-size 8: 0.581 s a step" in found["reason"] and "6.2 s: its rings cross hosts" in found["reason"]
    alone, _ = plan(f"{asked} --shard-size 8")
    assert next(row for row in alone["rows"] if row["stage"] == "3")["seconds"] == pytest.approx(best["seconds"])


def test_fit_on_a_gpu(plan):
    """Its data sheet, where flags do not say otherwise."""
    found, out = plan("fit --params 13e9 --ranks 64 --gpu a100")
    assert (found["device_memory"], found["machine"]["peak_flops"]) == (80 * 10**9, 312e12)
    assert (found["machine"]["memory_bandwidth"], found["machine"]["intra_bandwidth"]) == (2039e9, 300e9)
    assert [found["machine"][name] for name in ("inter_bandwidth", "nics", "all_nics")] == [25e9, 8, True]
    assert found["sources"]["inter_bandwidth"].startswith("NVIDIA DGX A100") and found["sources"]["alpha"] == "assumed"
    words = " ".join(out.split())
    assert "Seconds are an estimate on A100 SXM 80GB: 6 psi" in words and "share all of them, as NCCL's do" in words
    assert "NVIDIA A100 data sheet, June 2021: 312 TFLOP/s" in words and "Assumed: 50 % of the peak, 10 us" in words
    assert plan("fit --params 13e9 --ranks 64 --gpu A100")[0] == found
    assert plan("fit --params 13e9 --ranks 64 --gpu v100")[0]["machine"]["nics"] == 4
    assert plan("fit --params 13e9 --ranks 64 --gpu b200")[0]["machine"]["host_bandwidth"] == 64e9
    found, out = plan("fit --params 13e9 --ranks 64 --gpu a100 --device-memory 40GB --peak-flops 100TFLOPs "
                      "--inter-bandwidth 400Gb/s --efficiency 40%")
    assert (found["device_memory"], found["machine"]["peak_flops"]) == (40 * 10**9, 100e12)
    assert (found["machine"]["inter_bandwidth"], found["machine"]["efficiency"]) == (50e9, 0.4)
    assert found["sources"]["efficiency"] == "flags" and "Flags: 100 TFLOP/s" in " ".join(out.split())
    timeline, _ = plan("timeline --model 13b --ranks 64 --gpu v100")
    again, _ = plan("timeline --model 13b --ranks 64")
    assert timeline["compute"] / again["compute"] == pytest.approx(989.4 / 125, rel=2e-3)  # less an update


def test_a_peak_of_16_bits_is_not_taken_for_float32_in_silence(plan):
    words = "The peak is of 16-bit operands"
    asked = "fit --params 13e9 --ranks 64 --gpu h100"
    assert words in plan(f"{asked} --dtype float32")[1] and words not in plan(asked)[1]
    assert words not in plan(f"{asked} --dtype float32 --peak-flops 67TFLOPs")[1]


@pytest.mark.parametrize("flags, k, said", [
    ("", 12, "K = 12 of adam"), ("--optimizer lion", 8, "K = 8 of lion"), ("--optimizer sgd", 8, "K = 8 of sgd"),
    ("--optimizer sgd --momentum 0", 4, "K = 4 of sgd"), ("--optimizer sgd --dtype float32", 4, "K = 4 of sgd"),
    ("--no-master-weights", 8, "K = 8 of adam without master weights"),
])
def test_an_optimizer_is_a_number(plan, flags, k, said):
    size = 4 if "float32" in flags else 2
    memory, out = plan(f"memory --params 7.5e9 --ranks 64 --stage 2 {flags}")
    right = size * 75 * 10**8 + (size + k) * 75 * 10**8 // 64
    assert memory["optimizer_bytes"] == k and memory["after_backward"] == memory["formula"] == right
    assert f"{size} psi + {size + k} psi/N with {said}:" in out and "equal" in out
    found, out = plan(f"fit --params 7.5e9 --ranks 64 --shard-size 64 --gpu h100 {flags}")
    assert found["optimizer_bytes"] == k and said in " ".join(out.split())
    rest = {row["stage"]: row["at_rest"]["device"] for row in found["rows"] if row["offload"] == "none"}
    assert (rest["0"], rest["3"] * 64) == ((size + k) * 75 * 10**8,) * 2


@pytest.mark.parametrize("command", ["memory --params 1e6 --ranks 2", "fit --params 1e6 --ranks 2 --gpu h100"])
@pytest.mark.parametrize("flags, says", [
    ("--optimizer muon", "--optimizer muon updates a matrix at a time (it makes each orthogonal), but a rank's shard"),
    ("--momentum 0.5", "--momentum is a setting of --optimizer sgd, not of adam"),
    ("--no-master-weights --dtype float32", "--no-master-weights means nothing with --dtype float32"),
])
def test_optimizers_that_cannot_be(capsys, command, flags, says):
    assert main([*command.split(), *flags.split()]) == 2
    assert says in capsys.readouterr().err


def test_fit_with_all_memories(plan):
    found, out = plan("fit --params 1e11 --ranks 128 --ranks-per-host 16 --device-memory 32GB --host-memory 1.5TB "
                      "--nvme 28TB --units 40 --inter-bandwidth 12.5GB/s --peak-flops 125e12 --activations 4G "
                      "--compare")
    assert all(row["fits"] is not None for row in found["rows"]) and found["recommended"]["stage"] == "3"
    assert set(found["compare"]) == {"0", "1", "2", "3"} and "DeepSpeed" in out


def test_fit_of_a_gpt(plan):
    exact, _ = plan("fit --gpt 24,1024,16,50257 --ranks 8 --device-memory 16GiB --batch-size 4")
    again, out = plan("fit --gpt 24,1024,16,50257 --ranks 8 --device-memory 16GiB --tokens 4096 --recompute")
    assert exact["device_memory"] == 16 * 2**30 and exact["tokens"] == 4096 and "an estimate" in out
    for less, more in zip(again["rows"], exact["rows"], strict=True):
        assert less["activations"] < more["activations"]
    plan("fit --model mlp --ranks 4 --device-memory 1MiB --batch-size 16")
    pair, out = plan("fit --gpt 24,1024,16,50257 --ranks 8 --device-memory 16GiB --tokens 4096 --recompute "
                     "--recompute-interval 2 --activations-of mpizero")
    words = " ".join(out.split())
    assert "24 blocks keep an input of 8.39 MB every 2 together" in words and "own, exact" in words


def test_recompute_of_a_bare_size_saves_no_bytes_and_says_so(plan):
    asked = "fit --params 13e9 --ranks 64 --device-memory 80GB"
    for more in ("", " --activations 4GB"):
        (plain, before), (again, out) = plan(asked + more), plan(f"{asked}{more} --recompute")
        says = "--recompute takes its time here, and saves no bytes"
        assert says in out and says not in before
        for old, new in zip(plain["rows"], again["rows"], strict=True):
            if new["offload"] == "nvme":  # where it changes how far ahead a unit is fetched
                continue
            assert (new["device_bytes"], new["activations"]) == (old["device_bytes"], old["activations"])
            assert new["by_resource"]["compute"] > 1.3 * old["by_resource"]["compute"]


def test_an_interval_needs_recompute(capsys):
    assert main("fit --params 1e6 --ranks 2 --gpu h100 --recompute-interval 2".split()) == 2
    assert "--recompute-interval 2 says how many segments share the input that --recompute keeps" in (
        capsys.readouterr().err)


def test_fit_when_nothing_fits(plan):
    found, out = plan("fit --params 175e9 --ranks 8 --device-memory 16GB --host-memory 64GB --nvme 100GB --units 100")
    assert found["recommended"] is None and "No recommendation: nothing fits" in out
    assert "--ranks 512" in found["reason"] and "devices of 383 GB (--device-memory)" in found["reason"]


def test_fit_says_when_it_waits(plan):
    """And what a larger batch would do; of 64 ranks with 12.5 GB/s a NIC, all NICs used or one."""
    asked = ("fit --gpt 40,5120,40,32000 --context 512 --ranks 64 --gpu h100 --inter-bandwidth 100Gb/s "
             "--tensor-size 1")
    found, _ = plan(f"{asked} --rings one --shard-size 64")
    told = re.search(r"--batch-size (\d+) fits too, and takes [\d.]+ s for (\d+) times", found["reason"])
    batch, times = told.groups()
    assert batch == times and int(batch) > 1
    more, _ = plan(f"{asked} --rings one --shard-size 64 --batch-size {batch}")
    assert more["recommended"] is not None
    shared, out = plan(f"{asked} --shard-size 64")
    seconds = [next(row["by_resource"]["inter-host"] for row in each["rows"] if row["stage"] == "3")
               for each in (found, shared)]
    latency = 3 * 42 * 63 * 1e-5  # tied: the embedding is gathered once more in each direction
    assert (seconds[0] - latency) / (seconds[1] - latency) == pytest.approx(8, rel=0.01)


def test_fit_names_cures_with_told_activations(plan):
    found, _ = plan("fit --params 13e9 --ranks 8 --gpu h100 --activations 70GB")
    most = re.search(r"--activations of at most ([\d.]+) GB, by recomputing blocks", found["reason"])[1]
    assert plan(f"fit --params 13e9 --ranks 8 --gpu h100 --activations {most}GB")[0]["recommended"] is not None


def test_the_same_question_to_fit_and_timeline(plan):
    """GPT-2 XL on 8 H100s of one host: 6 psi + 12 L h s operations a token, whatever is asked."""
    asked = "--gpt 48,1600,25,50257 --ranks 8 --shard-size 8 --gpu h100 --batch-size 16"
    fit, timeline = plan(f"fit {asked}")[0], plan(f"timeline {asked}")[0]
    row = next(row for row in fit["rows"] if (row["stage"], row["offload"]) == ("3", "none"))
    assert row["seconds"] <= timeline["finish"] <= 1.03 * row["seconds"]
    assert timeline["compute"] == pytest.approx(row["compute_seconds"])
    assert timeline["tokens"] == fit["tokens"] == 16_384
    assert timeline["machine"] == fit["machine"] and plan(f"units {asked[:-16]}")[0]["machine"] == fit["machine"]
    two, _ = plan("timeline --gpt 4,64,4,100 --ranks 4 --stage 2 --shard-size 2 --ranks-per-host 2 --tokens 2048 "
                  "--accumulation 2")
    assert [event["action"] for event in two["events"] if "AllGatherParam" in event["action"]] and two["tokens"] == 2048


def test_units_and_traffic_by_the_link_they_use(plan):
    """8 ranks of a host at 450 GB/s; a flat ring of 64 over one NIC, or over all 8 at 400 GB/s."""
    found = {}
    for ranks, rings in ((8, "one"), (64, "one"), (64, "all-nics")):
        flags = f"--params 13e9 --ranks {ranks} --rings {rings} --alpha 1ns"
        row = plan(f"units {flags}")[0]["rows"][0]
        traffic = plan(f"traffic {flags} --stage 3")[0]
        assert row["seconds"] == pytest.approx(traffic["seconds"], rel=1e-3)
        found[ranks, rings] = row["seconds"] / (3 * 26e9 * (ranks - 1) / ranks)
    assert found == {(8, "one"): pytest.approx(1 / 450e9, rel=1e-3), (64, "one"): pytest.approx(1 / 50e9, rel=1e-3),
                     (64, "all-nics"): pytest.approx(1 / 400e9, rel=1e-3)}


def test_memory_beside_a_gpu_and_other_programs(plan):
    found, out = plan("memory --gpt 24,1024,16,50257 --ranks 64 --stage 2 --batch-size 4 --gpu H100 --compare")
    assert found["gpu"]["left_bytes"] == 80 * 10**9 - found["peak"] and "On H100 SXM 80GB the peak leaves" in out
    peaks = found["activations"]["peak_of"]
    assert peaks["mpizero"] == found["activations"]["peak"] < peaks["pytorch"] < peaks["pytorch-eager"]
    assert "PyTorch FSDP2" in out
