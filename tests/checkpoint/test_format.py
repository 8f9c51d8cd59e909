"""Files as text: whatever is not what we write is refused with the file's name."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.checkpoint.format import (
    BLOCK,
    CHECKPOINT,
    PART,
    Entry,
    Param,
    Part,
    decode,
    encode,
    params_data,
    parse_params,
    parse_part,
    parse_parts,
    part_data,
    part_name,
    step_name,
)
from mpizero.checkpoint.places import Place, index, within
from mpizero.errors import CheckpointError

FILE = Path("D/step-00000001/checkpoint.json")


def test_names_can_be_sorted():
    assert [step_name(20), step_name(10**9), part_name(3), part_name(12345)] == [
        "step-00000020", "step-1000000000", "part-0003", "part-12345"]


@settings(max_examples=20)
@given(st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()))
def test_what_is_written_is_read(data):
    assert decode(CHECKPOINT, encode(CHECKPOINT, {"a": 1, **data}), FILE) == {"a": 1, **data}


def test_every_flipped_bit_is_seen():
    text = encode(PART, {"bytes": 12, "name": "wte\n"})
    for bit in range(8 * len(text)):
        wrong = bytearray(text)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError, match=r"^D/step-00000001/checkpoint.json "):
            decode(PART, bytes(wrong), FILE)
    for length in range(len(text)):
        with pytest.raises(CheckpointError, match=r"^D/step-00000001/checkpoint.json "):
            decode(PART, text[:length], FILE)


@pytest.mark.parametrize("text, said", [
    (b"", "is no mpizero checkpoint, or it is damaged"), (b"{}", "is no mpizero checkpoint"),
    (b"\x80\x04K\x01.", "is no mpizero checkpoint"), (encode(PART, {"a": 1}), "is no mpizero checkpoint"),
    (encode(CHECKPOINT, {"a": 1}).replace(b'"version": 1', b'"version": 2'), "has version 2 .* knows 1: a newer one"),
    (encode(CHECKPOINT, {"a": 1}).replace(b'"a"', b'"b"'), "is damaged: its checksum is another")])
def test_foreign_newer_and_damaged_texts(text, said):
    with pytest.raises(CheckpointError, match=f"^{FILE} {said}"):
        decode(CHECKPOINT, text, FILE)


@pytest.mark.parametrize("name", ["../part-0000", "/etc/passwd", "part-0000/../../x", "a", "part-0000\n", 3, None, "",
                                  "part-\u0661111"])
def test_a_part_lies_beside_its_table(name):
    assert parse_parts({"parts": [{"name": "part-0001", "table_sha256": "x"}]}, FILE) == [("part-0001", "x")]
    with pytest.raises(CheckpointError, match=f"^{FILE} names a part .* which is refused"):
        parse_parts({"parts": [{"name": name, "table_sha256": "x"}]}, FILE)


GOOD = {"state": "master", "param": "w", "begin": 0, "end": 3, "dtype": "float32", "offset": 4}


@pytest.mark.parametrize("change", [
    {"begin": -1}, {"begin": 3}, {"end": 4}, {"end": 2**70}, {"end": 2.0}, {"offset": 5}, {"offset": True},
    {"dtype": "O"}, {"dtype": "float64"}, {"state": 1}, {"param": None}])
def test_entries_that_cannot_be(change):
    data = {"bytes": 16, "checksums": [0], "entries": [GOOD]}
    assert parse_part("p", data, FILE).entries[0].nbytes == 12
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(FILE))}"):
        parse_part("p", {**data, "entries": [{**GOOD, **change}]}, FILE)


@pytest.mark.parametrize("change", [{"checksums": []}, {"checksums": [0, 0]}, {"checksums": [-1]}, {"checksums": ["0"]},
                                    {"bytes": -1}, {"bytes": BLOCK + 1}, {"entries": 3}, {"entries": [[]]}])
def test_tables_that_cannot_be(change):
    data = {"bytes": 16, "checksums": [0], "entries": [GOOD]}
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(FILE))}"):
        parse_part("p", {**data, **change}, FILE)


@pytest.mark.parametrize("change", [{"shape": [-1]}, {"shape": 3}, {"shape": [2**60]}, {"name": None}, {"states": []},
                                    {"states": {"master": "object"}}, {"states": {"master": ["float32"]}}])
def test_parameters_that_cannot_be(change):
    good = {"name": "w", "shape": [3], "states": {"master": "float32"}}
    assert parse_params({"params": [good]}, FILE)[0].numel == 3
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(FILE))}"):
        parse_params({"params": [good | change]}, FILE)


def part(*ranges, param="w", dtype="float32"):
    return Part("part-0000", 99, tuple(Entry("master", param, begin, end, dtype, 0) for begin, end in ranges), (0,))


PARAMS = (Param("w", (2, 5), {"master": "float32"}), Param("none", (0,), {"master": "float16"}))


def test_parameters_and_parts_survive_the_text():
    assert parse_params({"params": params_data(PARAMS)}, FILE) == PARAMS
    whole = part((0, 4), (4, 10))
    assert parse_part("part-0000", part_data(whole), FILE) == whole


def test_each_element_is_there_once():
    places = index(PARAMS, [part((4, 9)), part((9, 10), (0, 4))], FILE)
    found = [(place.begin, place.end, place.part) for place in places["master", "w"]]
    assert found == [(0, 4, 1), (4, 9, 0), (9, 10, 1)]
    assert places["master", "none"] == []


@given(ends=st.sets(st.integers(1, 12)), begin=st.integers(0, 12), length=st.integers(1, 12))
def test_only_places_that_hold_something_wanted_are_looked_at(ends, begin, length):
    cuts = [0, *sorted(ends)]
    places = [Place(low, high, 0, 0) for low, high in pairwise(cuts)]
    end = begin + length
    wanted = [place for place in places if max(begin, place.begin) < min(end, place.end)]
    assert list(within(places, begin, end)) == wanted


@pytest.mark.parametrize("ranges, said", [
    ([(0, 9)], "no part holds master of w from element 9 on"), ([(1, 10)], "from element 0 on"), ([], "from element 0"),
    ([(0, 4), (5, 10)], "from element 4 on"), ([(0, 5), (4, 10)], "stored twice, or beyond"),
    ([(0, 10), (0, 10)], "stored twice"), ([(0, 11)], "stored twice, or beyond its end")])
def test_gaps_and_overlaps(ranges, said):
    with pytest.raises(CheckpointError, match=f"^D/step-00000001/.*json.*{said}"):
        index(PARAMS, [part(*ranges)], FILE)


def test_strangers():
    for stranger in (part((0, 3), param="v"), part((0, 3), dtype="float16")):
        with pytest.raises(CheckpointError, match="of which .* knows nothing"):
            index(PARAMS, [part((0, 10)), stranger], FILE)
