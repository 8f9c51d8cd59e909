"""Quantities: what people write is what they mean, what is ambiguous is asked about, and print and parse agree."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.quantities import (
    in_units,
    parse_bytes,
    parse_count,
    parse_flops,
    parse_margin,
    parse_latency,
    parse_memory,
    parse_params,
    parse_rate,
    parse_seconds,
    parse_share,
)
from mpizero.text import table

PARSERS = (parse_bytes, parse_memory, parse_rate, parse_flops, parse_share, parse_seconds, parse_latency, parse_count,
           parse_params, parse_margin)
CASES = {
    parse_memory: {
        "1KB": 10**3, "1KiB": 2**10, "1.5 MB": 15 * 10**5, "2mib": 2**21, "3GB": 3 * 10**9, "3GiB": 3 * 2**30,
        "1TB": 10**12, "1TiB": 2**40, "7B": 7, "80G": 80 * 10**9, "80g": 80 * 10**9, "80gb": 80 * 10**9,
        "80Gi": 80 * 2**30, "1T": 10**12, "2PB": 2 * 10**15, "85.5e9": 85_500_000_000,
        "522,496": 522_496, "1,500 TB": 15 * 10**14, "7.5e1 GBytes": 75 * 10**9},
    parse_bytes: {"7": 7, "1024": 1024, "64KiB": 2**16},
    parse_rate: {
        "50GB/s": 50e9, "12.5GB": 12.5e9, "50GBps": 50e9, "50 GByte/s": 50e9, "50e9": 50e9, "50GiB/s": 50 * 2**30,
        "400Gb/s": 50e9, "400Gbit/s": 50e9, "400 Gbit/s": 50e9, "400gbit/s": 50e9, "400Gbps": 50e9, "400gbps": 50e9,
        "400Gb": 50e9, "100Mbps": 12.5e6, "3.35TB/s": 3.35e12},
    parse_flops: {
        "989TFLOPs": 989e12, "989 TFLOP/s": 989e12, "989TFLOPS": 989e12, "989tflops": 989e12, "989T": 989e12,
        "989e12": 989e12, "1 PFLOPs/s": 1e15},
    parse_share: {"50%": 0.5, "50 %": 0.5, "0.5": 0.5, "100%": 1.0, "1": 1.0, ".25": 0.25},
    parse_seconds: {"10us": 1e-5, "10 \u00b5s": 1e-5, "1.5": 1.5, "2ms": 2e-3, "0": 0.0, "3s": 3.0},
    parse_latency: {"10us": 1e-5, "1e-5": 1e-5, "2s": 2.0},
    parse_count: {
        "7.5e9": 7_500_000_000, "7.5B": 7_500_000_000, "7500000000": 7_500_000_000, "13e9": 13 * 10**9,
        "1.5b": 1_500_000_000, "32656": 32_656, "32,656": 32_656, "1T": 10**12, " 2K ": 2000, "1.5T": 15 * 10**11},
    parse_params: {"13B": 13 * 10**9, "13e0": 13, "10000": 10**4, "32,656": 32_656, "7.5e9": 7_500_000_000},
    parse_margin: {"5%": 0.05, "0.05": 0.05, "0": 0.0, "0 %": 0.0},
}
ASKED = {  # which cures an ambiguous text gets
    parse_memory: {"80": ("80GB", "80MiB", "80B"), "81920": ("81920MiB",), "80Gb": ("80GB",), "1.5Tib": ("1.5TiB",)},
    parse_rate: {"400gb/s": ("400GB/s", "400Gb/s"), "400G": ("400GB/s", "400Gb/s"), "100kb/s": ("100KB/s", "100Kb/s"),
                 "50": ("50GB/s", "50Gb/s", "50B/s")},
    parse_flops: {"989": ("989TFLOPs", "989FLOPs")},
    parse_share: {"50": ("50%", "0.5"), "1.5": ("1.5%", "0.015")},
    parse_latency: {"10": ("10us", "10s")},
    parse_params: {"13": ("13B", "13M", "13e0"), "7.5": ("7.5B", "7.5M"), "1,000": ("1,000B",)},
}
WRONG = {
    parse_memory: ("", "64 gigs", "80Gbit", "-5GB", "0GB", "nan", "inf", "1,2", "0.1B", "1e400", "9" * 400 + "GB", "G"),
    parse_rate: ("fast", "-1", "0", "nan", "1e400", "50 TFLOPs", "50GB/h"),
    parse_flops: ("many", "-1", "0", "50GB/s"), parse_share: ("half", "0", "-0.5", "150%", "150", "nan"),
    parse_seconds: ("soon", "-2", "nan", "inf", "10 minutes"), parse_latency: ("0", "nan"),
    parse_params: ("0", "-7e9", "0.5B1"), parse_margin: ("100%", "1", "-5%", "much"),
    parse_count: ("0", "-1", "7.5", "1e-3", "nan", "inf", "1e400", "12 gigs", "", "B", "1e19"),
}


def listed(cases):
    return [pytest.param(parse, text, id=f"{parse.__name__}-{text[:20]}") for parse in cases for text in cases[parse]]


@pytest.mark.parametrize("parse, text", listed(CASES))
def test_as_people_write_them(parse, text):
    assert parse(text) == pytest.approx(CASES[parse][text], rel=1e-15)


@pytest.mark.parametrize("parse, text", listed(ASKED))
def test_what_is_ambiguous_is_asked_about(parse, text):
    """And every cure that is offered is taken."""
    with pytest.raises(ConfigError) as error:
        parse(text)
    for cure in ASKED[parse][text]:
        assert re.search(rf"\b{re.escape(cure)}", str(error.value)), cure
        assert parse(cure) > 0


@pytest.mark.parametrize("parse, text", listed(WRONG))
def test_what_is_none_gets_a_sentence(parse, text):
    with pytest.raises(ConfigError, match="as in "):
        parse(text)


def test_bits_are_an_eighth_of_bytes():
    for prefix in ("K", "M", "G", "T", "Ki", "Gi"):
        assert 8 * parse_rate(f"400{prefix}b/s") == parse_rate(f"400{prefix}B/s") == parse_bytes(f"400{prefix}B")


# -- properties -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**18))
def test_a_printed_size_is_read_again(nbytes):
    printed = in_units(nbytes)
    read = parse_memory(printed)
    assert abs(read - nbytes) <= 0.005 * nbytes and in_units(read) == printed
    assert parse_rate(f"{printed}/s") == read


@given(st.integers(10**5, 10**18))
def test_whole_numbers_are_read_exactly(number):
    assert parse_memory(str(number)) == parse_memory(f"{number:,}") == parse_memory(f"{number}B") == number
    assert parse_count(str(number)) == parse_count(f"{number:,}") == number


@given(st.integers(1, 100))
def test_per_cent_and_fractions_agree(per_cent):
    assert parse_share(f"{per_cent}%") == parse_share(f"{per_cent / 100}")


@given(st.text(max_size=12) | st.from_regex(r"[-+]?[0-9.,eE]{1,6} ?[KMGTPkmgtpi]{0,2}[a-zA-Z%/]{0,5}", fullmatch=True))
def test_any_text_is_a_value_above_zero_or_a_config_error(text):
    for parse in PARSERS:
        try:
            value = parse(text)
        except ConfigError:
            continue
        assert 0 < value <= 10**18 or (parse in (parse_seconds, parse_margin) and value == 0)


def test_sizes_in_words():
    assert [in_units(n) for n in (0, 999, 1000, 16_640_625_000, 999_400_000, 999_600_000, 75.29e9, 1.5e15)] == \
        ["0 B", "999 B", "1 KB", "16.6 GB", "999 MB", "1 GB", "75.3 GB", "1,500 TB"]


def test_columns_that_go_to_the_right():
    assert table(["what", "size", "n"], [["a", "1 B", 5], ["bc", "12 KB", 10]], right=["size"]).splitlines() == [
        "what   size   n", "----  -----  --", "a       1 B   5", "bc    12 KB  10"]
