"""`python -m mpizero.plan largest`: one more does not fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.layout.models import GPTConfig, gpt_spec
from mpizero.papers.states import TABLE_2_DEVICE, largest_model
from mpizero.plan.__main__ import main
from mpizero.planner.largest import MOST, Family, largest


@given(begin=st.integers(0, 50), slope=st.integers(1, 9), square=st.integers(0, 3), kink=st.integers(0, 400),
       room=st.integers(0, 10**6))
def test_the_largest_that_fits(begin, slope, square, kink, room):
    """Of bytes that grow in proportion, faster, and from somewhere on otherwise."""
    asked = []

    def needs(number):
        asked.append(number)
        return max(begin + slope * number + square * number**2, 20 * (number - kink))

    if needs(1) > room:
        with pytest.raises(ConfigError, match=f"a rank needs {needs(1):,} bytes and has {room:,}: "):
            largest(needs, room)
        return
    found = largest(needs, room)
    assert (found.nbytes, found.next_bytes) == (needs(found.number), needs(found.number + 1))
    assert found.nbytes <= room < found.next_bytes
    assert len(asked) < 45


def test_few_are_planned_where_bytes_grow_in_proportion():
    asked = []
    assert largest(lambda number: asked.append(number) or 7 + 11 * number, 7 + 11 * 2500).number == 2500
    assert sorted(asked) == [1, 2, 2500, 2501]


def test_a_family_that_never_fills_it():
    with pytest.raises(ConfigError, match=f"even member {MOST:,} of the family fits"):
        largest(lambda number: number, 10**9)


def test_members():
    deep, wide = Family("layers", GPTConfig(1, 64, 4, 32, 256)), Family("width", GPTConfig(3, 128, 2, 32, 256))
    assert deep.member(7) == GPTConfig(7, 64, 4, 32, 256) and wide.member(5) == GPTConfig(3, 640, 10, 32, 256)


@pytest.mark.parametrize("flags, close", [("--d-model 25600 --heads 80", 0.01), ("--family width", 0.05)])
def test_a_cell_of_table_2(plan, flags, close):
    """ZeRO's largest of 1,024 devices: by closed form and by the states of a real model."""
    found, out = plan(f"largest --device-memory 32GB --ranks 1024 --tensor-size 16 --stage 3 {flags}")
    assert found["formula_params"] == largest_model(TABLE_2_DEVICE, "3", 64, 16) == 2.048e12
    assert found["params"] == pytest.approx(2.048e12, rel=close) and found["bytes"] <= 32e9 < found["next"]["bytes"]
    assert "Bytes are model states after backward" in out and "16 psi/F of the psi/T" in out
    assert found["peak"] > found["bytes"] and found["shard_size"] == 64


@pytest.mark.parametrize("stage", ["0", "1", "2", "3", "3-broadcast"])
@pytest.mark.parametrize("size", [1, 2])
def test_model_states_alone_are_those_that_memory_plans(plan, stage, size):
    flags = f"--ranks 4 --stage {stage} --tensor-size {size}"
    found, _ = plan(f"largest --device-memory 5MB --d-model 64 --heads 4 --vocab 256 --context 32 {flags}")
    for each in (found, found["next"]):
        memory, _ = plan(f"memory --gpt {each['layers']},64,4,256 --context 32 {flags}")
        assert (each["bytes"], each["params"]) == (memory["after_backward"], memory["psi"])
        assert each["params"] == gpt_spec(GPTConfig(each["layers"], 64, 4, 32, 256)).psi
    assert found["bytes"] <= 5_000_000 < found["next"]["bytes"]


@pytest.mark.parametrize("flags", ["--stage 3 --tensor-size 2 --recompute --partition-activations",
                                   "--stage 2 --offload optimizer=cpu --accumulation 2", "--stage 0 --dtype float32"])
def test_with_a_batch_it_is_all_that_a_run_needs(plan, flags):
    found, out = plan("largest --device-memory 6MB --ranks 4 --d-model 64 --heads 4 --vocab 256 --context 32 "
                      f"--batch-size 4 {flags}")
    for each in (found, found["next"]):
        memory, _ = plan(f"memory --gpt {each['layers']},64,4,256 --context 32 --ranks 4 --batch-size 4 {flags}")
        assert each["bytes"] == memory["activations"]["device_peak"]
    assert found["bytes"] <= 6_000_000 < found["next"]["bytes"] and found["made_by_train"]
    assert f"--layers {found['layers']}" in found["train"] and "The run: mpizero.train" in out


def test_width_grows_by_whole_heads_that_divide(plan):
    found, _ = plan("largest --gpu v100 --ranks 64 --tensor-size 8 --stage 2 --family width --layers 12")
    assert found["heads"] % 8 == 0 and found["d_model"] == 64 * found["heads"] and found["layers"] == 12
    assert found["next"]["heads"] == found["heads"] + 8 and found["device_memory"] == 32 * 10**9


def test_heads_divide_the_width_unless_told(plan):
    found, _ = plan("largest --device-memory 32GB --ranks 4 --stage 3 --d-model 1600")
    assert found["heads"] == 64 and math.isclose(found["formula_params"], 8e9)


@pytest.mark.parametrize("flags, words", [
    ("--ranks 4", "how much memory has a device? Add --device-memory"),
    ("--ranks 4 --device-memory 1KB", "not even the smallest of the family fits: a rank needs"),
    ("--ranks 4 --device-memory 1KB --family width", "(of --family width: fewer --layers)"),
    ("--ranks 4 --device-memory 1000000TB --family width --layers 1", "(of --family width: more --layers)"),
    ("--ranks 4 --device-memory 32GB --recompute", "--recompute says nothing of model states after backward"),
    ("--ranks 4 --device-memory 32GB --layers 3", "--layers is what grows with --family layers"),
    ("--ranks 4 --device-memory 32GB --family width --heads 3", "--heads is what grows with --family width"),
    ("--ranks 3 --device-memory 32GB --tensor-size 3", "--tensor-size 3 does not divide heads 64"),
])
def test_sentences(capsys, flags, words):
    assert main(["largest", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert not out and words in err and err.count("\n") == 1
