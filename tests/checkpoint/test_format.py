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
from mpizero.layout import Strided

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
    (encode(CHECKPOINT, {"a": 1}).replace(b'"version": 2', b'"version": 3'), "has version 3 .* knows 2: a newer one"),
    (encode(CHECKPOINT, {"a": 1}).replace(b'"a"', b'"b"'), "is damaged: its checksum is another")])
def test_foreign_newer_and_damaged_texts(text, said):
    with pytest.raises(CheckpointError, match=f"^{FILE} {said}"):
        decode(CHECKPOINT, text, FILE)


def test_a_text_of_the_first_version_is_read():
    """Its checksum is over what stands there."""
    text = encode(PART, {"bytes": 0}).replace(b'"version": 2', b'"version": 1')
    assert decode(PART, text, FILE) == {"bytes": 0}
    with pytest.raises(CheckpointError, match="its checksum is another"):
        decode(PART, text.replace(b'"bytes": 0', b'"bytes": 1'), FILE)


@pytest.mark.parametrize("name", ["../part-0000", "/etc/passwd", "part-0000/../../x", "a", "part-0000\n", 3, None, "",
                                  "part-\u0661111"])
def test_a_part_lies_beside_its_table(name):
    assert parse_parts({"parts": [{"name": "part-0001", "table_sha256": "x"}]}, FILE) == [("part-0001", "x")]
    with pytest.raises(CheckpointError, match=f"^{FILE} names a part .* which is refused"):
        parse_parts({"parts": [{"name": name, "table_sha256": "x"}]}, FILE)


GOOD = {"state": "master", "param": "w", "begin": 0, "end": 3, "dtype": "float32", "offset": 4}


@pytest.mark.parametrize("change", [
    {"begin": -1}, {"begin": 3}, {"end": 4}, {"end": 2**70}, {"end": 2.0}, {"offset": 5}, {"offset": True},
    {"dtype": "O"}, {"dtype": "float64"}, {"state": 1}, {"param": None}, {"run": 1}, {"stride": 2}, {"end": 0},
    {"run": 0, "stride": 2}, {"run": 2, "stride": 2}, {"run": 1, "stride": 0}, {"run": 1, "stride": 3}, {"run": 4},
    {"run": 1, "stride": -2}, {"run": "1", "stride": 2}, {"begin": 1, "end": 4, "run": 2, "stride": 1}])
def test_entries_that_cannot_be(change):
    data = {"bytes": 16, "checksums": [0], "entries": [GOOD]}
    assert parse_part("p", data, FILE).entries[0].nbytes == 12
    columns = {**GOOD, "run": 1, "stride": 2}
    assert parse_part("p", {**data, "entries": [columns]}, FILE).entries[0].where == Strided(0, 1, 2, 2)
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(FILE))}"):
        parse_part("p", {**data, "entries": [{**GOOD, **change}]}, FILE)


def test_columns_lie_within_rows():
    data = {"bytes": 16, "checksums": [0], "entries": [{**GOOD, "begin": 2, "end": 7, "run": 2, "stride": 3}]}
    with pytest.raises(CheckpointError, match="holds columns that are none"):
        parse_part("p", data, FILE)


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
    """Of a range (begin, end), or columns (begin, length, count, stride)."""
    wheres = [Strided(*each) if len(each) == 4 else Strided(each[0], each[1] - each[0]) for each in ranges]
    return Part("part-0000", 99, tuple(Entry("master", param, where, dtype, 0) for where in wheres), (0,))


PARAMS = (Param("w", (2, 5), {"master": "float32"}), Param("none", (0,), {"master": "float16"}))


def test_parameters_and_parts_survive_the_text():
    assert parse_params({"params": params_data(PARAMS)}, FILE) == PARAMS
    whole = part((0, 4), (4, 10), (1, 2, 3, 4))
    assert parse_part("part-0000", part_data(whole), FILE) == whole


def test_each_element_is_there_once():
    places = index(PARAMS, [part((4, 9)), part((9, 10), (0, 4))], FILE)
    found = [(place.where.begin, place.where.end, place.part) for place in places["master", "w"]]
    assert found == [(0, 4, 1), (4, 9, 0), (9, 10, 1)]
    assert places["master", "none"] == []


@given(ends=st.sets(st.integers(1, 12)), begin=st.integers(0, 12), length=st.integers(1, 12))
def test_only_places_that_hold_something_wanted_are_looked_at(ends, begin, length):
    places = [Place(Strided(low, high - low), 0, 0) for low, high in pairwise([0, *sorted(ends)])]
    wanted = [place for place in places if list(place.where.common(Strided(begin, length)))]
    assert list(within(places, Strided(begin, length))) == wanted


@given(size=st.integers(1, 4), width=st.integers(1, 3), rows=st.integers(1, 4), blocks=st.integers(1, 3),
       data=st.data())
def test_columns_of_all_ranks_are_all_of_it(size, width, rows, blocks, data):
    """Each rank's part cut anywhere, in any order. One piece less, or moved by an element, and it is not all."""
    numel = rows * blocks * width * size
    pieces = []
    for rank in range(size):
        mine = Strided(rank * width, width, rows * blocks, width * size)
        cuts = sorted(data.draw(st.sets(st.integers(1, mine.numel), max_size=3)) | {0, mine.numel})
        pieces += [piece for low, high in pairwise(cuts) for piece in mine.cut(low, high)]
    pieces = data.draw(st.permutations(pieces))
    param = Param("w", (numel,), {"master": "float32"})

    def check(pieces):
        index([param], [Part("p", 0, tuple(Entry("master", "w", piece, "float32", 0) for piece in pieces), ())], FILE)

    check(pieces)
    odd = data.draw(st.integers(0, len(pieces) - 1))
    with pytest.raises(CheckpointError, match="no part holds master of w from element"):
        check([piece for number, piece in enumerate(pieces) if number != odd])
    with pytest.raises(CheckpointError, match="stored twice"):
        check([*pieces, pieces[odd]])


@pytest.mark.parametrize("ranges, said", [
    ([(0, 9)], "no part holds master of w from element 9 on"), ([(1, 10)], "from element 0 on"), ([], "from element 0"),
    ([(0, 4), (5, 10)], "from element 4 on"), ([(0, 5), (4, 10)], "stored twice, or beyond"),
    ([(0, 10), (0, 10)], "stored twice"), ([(0, 11)], "stored twice, or beyond its end"),
    ([(0, 2, 2, 5), (2, 3, 2, 5), (7, 8)], "stored twice"), ([(0, 2, 2, 5), (2, 3, 3, 5)], "beyond its end"),
    ([(0, 2, 2, 5), (3, 2, 2, 5)], "from element 2 on"), ([(0, 2, 2, 5), (2, 5), (8, 10)], "from element 7 on"),
    ([(0, 2, 2, 5), (2, 2, 2, 4)], "of different widths, 4, 5")])
def test_gaps_and_overlaps(ranges, said):
    with pytest.raises(CheckpointError, match=f"^D/step-00000001/.*json.*{said}"):
        index(PARAMS, [part(*ranges)], FILE)


def test_strangers():
    for stranger in (part((0, 3), param="v"), part((0, 3), dtype="float16")):
        with pytest.raises(CheckpointError, match="of which .* knows nothing"):
            index(PARAMS, [part((0, 10)), stranger], FILE)
