"""What is said of a recommended row, and of none: every number and every cure in it holds."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mpizero.machine import Machine
from mpizero.planner.cures import enough
from mpizero.planner.fit import rows
from mpizero.planner.model import flat, gpt
from mpizero.planner.question import Question
from mpizero.planner.recommend import recommend, seconds
from mpizero.quantities import in_units, parse_bytes

GB = 10**9
ASK = Question(flat(13 * GB), ranks=64, ranks_per_host=8, device_memory=80 * GB, host_memory=None, nvme=None,
               machine=Machine(), tokens=16_384, activations=4 * GB)
SLOW = replace(ASK, tokens=2048, machine=replace(ASK.machine, inter_bandwidth=12.5e9))
# texts of 32k tokens of 128,256: their logits are large
LONG = replace(ASK, model=gpt(12, 8192, 64, 128_256, context=32_768), activations=None, ranks=512, recompute=True,
               device_memory=50 * GB, host_memory=0, nvme=0, tensor_size=1).batch(1)
TEXTS = replace(ASK, model=gpt(40, 5120, 40, 32_000, context=4096), activations=None, batch_size=4, tensor_size=1)
FAR = replace(TEXTS, machine=replace(ASK.machine, inter_bandwidth=3e9, all_nics=True), margin=0.05).batch(2)


def advice(question):
    return recommend(question, rows(question))


@pytest.mark.parametrize("question, words", [
    (replace(ASK, shard_size=64), [
        "stage 3: 2.58 s a step", "bound by compute; 69.5 GB of the device left",
        "Stage 2 is slower (3.12 s) although it sends less, since it gathers parameters after the update, where "
        "nothing hides that (0.53 s), while stage 3 gathers them beside forward and backward"]),
    (SLOW, ["stage 3, `shard_size` 8: 0.581 s a step, of which 0.336 s of the device's own work, 0.244 s waiting",
            "In one shard group of all 64 ranks a step would take 6.2 s: its rings cross hosts",
            "A step waits for 42% of its time: more tokens in a microbatch would hide more of it"]),
    (replace(SLOW, shard_size=64), [
        "stage 2: 4.24 s",
        "Stage 3 is slower (6.2 s), since its backward waits 2.07 s longer for inter-host: it sends 76.8 GB against "
        "51.2 GB"]),
    (replace(ASK, activations=None), ["It fits if activations take at most 73.5 GB", "(`gpt`)", "(`activations`)"]),
    (replace(ASK, device_memory=12 * GB, shard_size=64), ["Nothing else fits"]),
    (replace(ASK, device_memory=9 * GB, host_memory=1000 * GB), [
        "with offload cpu: ", "Faster, but without room: stage 0, stage 3"]),
    (replace(TEXTS, program="mpizero"), ["stage 3: 2.87 s", "6.8 GB of the device left", "Nothing else fits"]),
    (replace(TEXTS, margin=0.05), ["nothing fits", "a rank needs 115 GB and has 76 GB", "`recompute`; `batch_size` 2"]),
    (replace(FAR, recompute=True), ["`batch_size` 4 fits too, and takes 3.84 s for 2 times as many samples, 0% of it"]),
    (FAR, ["A step waits for 56% of its time, and a larger batch does not fit, but does with `recompute`"]),
    (TEXTS.batch(2), ["In one shard group of"]),
    (LONG, ["nothing fits", "would do: `fused_loss`;"]),
    (replace(LONG, recompute=False), ["would do: `recompute` with `fused_loss`;"]),
])
def test_recommendations_have_a_reason(question, words):
    found = advice(question)
    assert (found.row is None) == ("nothing fits" in found.reason)
    for each in words:
        assert each in found.reason, found.reason


def test_what_is_left_is_enough_for_activations():
    """The sentence promises: so many bytes of activations fit, and no byte more."""
    best = advice(replace(ASK, activations=None)).row
    left = ASK.device_memory - best.device_bytes
    for kept, fits in ((left, True), (left + 1, False)):
        found = rows(replace(ASK, activations=kept, shard_size=best.shard_size))
        assert next(row for row in found if (row.stage, row.offload) == (best.stage, best.offload)).fits == fits


# -- when nothing fits -------------------------------------------------------------------------------------------------

POOR = {
    "ranks": replace(ASK, device_memory=7_500_000_000, host_memory=0, nvme=0),
    "activations": replace(ASK, activations=70 * GB, ranks=8, host_memory=0, nvme=0),
    "fused_loss": LONG,
    "units": replace(ASK, model=flat(10**12, 8), ranks=1024, device_memory=80 * GB, host_memory=100 * GB, nvme=0),
    "recompute": replace(TEXTS, device_memory=40 * GB, host_memory=0, nvme=0),
    "shard_size": replace(ASK, shard_size=2, device_memory=20 * GB, host_memory=0, nvme=0),
    "device_memory": replace(ASK, model=flat(175 * GB), ranks=8, device_memory=16 * GB, host_memory=64 * GB,
                             nvme=100 * GB),
}


def cured(question, field, number):
    """`question` with what a cure says."""
    if field in ("recompute", "fused_loss"):
        return replace(question, **{field: True})
    if field == "units":
        return replace(question, model=question.model.cut(int(number)))
    return replace(question, **{field: int(number)})


@pytest.mark.parametrize("missing", list(POOR))
def test_every_cure_cures(missing):
    question = POOR[missing]
    found = advice(question)
    assert found.row is None and f"`{missing}`" in found.reason, found.reason
    tried = re.findall(r"`(ranks|units|recompute|fused_loss|shard_size|batch_size)`(?: (\d+))?", found.reason)
    tried += [(field, parse_bytes(size))
              for size, field in re.findall(r"of ([\d.,]+ [KMGT]?B) \(`(\w+)`\)", found.reason)]
    tried += [("activations", parse_bytes(size)) for size in re.findall(r"`activations` of at most ([\d.]+ GB)",
                                                                        found.reason)]
    for field, number in tried:
        assert advice(cured(question, field, number)).row is not None, (field, number)
    assert missing in [field for field, _ in tried]


def test_no_fewer_ranks_would_do():
    assert "`ranks` 1024" in advice(POOR["ranks"]).reason
    assert advice(replace(POOR["ranks"], ranks=512)).row is None


def test_how_much_is_missing():
    question = POOR["recompute"]
    least = next(row for row in rows(question) if (row.stage, row.offload) == ("3", "cpu+params"))
    assert (f"Stage 3 with offload cpu+params comes nearest and lacks {in_units(least.device_bytes - 40 * GB)} of "
            f"device memory (a rank needs {in_units(least.device_bytes)} and has 40 GB)") in advice(question).reason


def test_memory_of_hosts_that_was_not_told():
    question = replace(ASK, device_memory=4 * GB, activations=GB // 10)
    size = re.search(r"Stage 3 with offload cpu does if each host has ([\d.]+ GB) of host memory: say so by "
                     "`host_memory`", advice(question).reason)[1]
    assert advice(replace(question, host_memory=parse_bytes(size))).row is not None
    assert advice(replace(question, host_memory=int(0.99 * parse_bytes(size)))).row is None


@pytest.mark.parametrize("nbytes, printed", [(1, 1), (999, 999), (1001, 1010), (129_340_000_000, 130 * GB)])
def test_what_is_printed_suffices(nbytes, printed):
    assert enough(nbytes) == printed and parse_bytes(in_units(enough(nbytes))) >= nbytes


def test_seconds_have_no_exponents():
    assert [seconds(value) for value in (0.0, 0.0392, 2.5847, 12.345, 1571.2, 123_456)] == [
        "0", "0.0392", "2.58", "12.3", "1,571", "123,456"]
