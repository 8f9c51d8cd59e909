"""Quantities as people write and read them.

[Note: quantities] One grammar for all flags: a number (`80`, `7.5e9`, `522,496`), a prefix (K, M, G, T, P: powers of
1000; Ki, Mi, Gi, Ti, Pi: of 1024) and a unit. What can be read in two ways is an error that says both.

* Memory is in bytes: `80G`, `80GB` and `80gb` are the same; `80Gb`, which would be bits of a rate, is asked about.
* Rates are in bytes or bits a second: `B` is a byte and `b` a bit, so `50GB/s` is eight times `50Gb/s`; `Gbit/s` and
  `Gbps` (also `gbps`) are bits, `GBps` bytes. `50gb/s` and `400G` are asked about.
* Operations a second: `989T`, `989TFLOPs`, `989 TFLOP/s`. Shares: `50%` or `0.5`. Parameters: `13e9`, `13B`, `1.5T`.
* A bare number is bytes, bytes a second, operations a second, seconds or parameters; one that is too small for that is
  asked about.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple, NoReturn

from mpizero.errors import ConfigError

PREFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
            "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40, "PI": 2**50}
COUNTS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
SECONDS = {"": "1", "S": "1", "MS": "1e-3", "US": "1e-6", "\u039cS": "1e-6", "NS": "1e-9"}  # upper case of the Greek mu
LARGEST = 10**18  # beyond any machine, and any model
# bare numbers that are believed: a device of ours holds 130,624 bytes, while 81920 may be MiB
LEAST_BYTES, LEAST_RATE, LEAST_FLOPS, MOST_LATENCY = 10**5, 10**6, 10**9, Decimal("0.1")
LEAST_PARAMS = 10**4


class _Number(NamedTuple):
    """A quantity as it is written."""

    value: Decimal
    digits: str
    unit: str


def _split(text: str) -> _Number | None:
    """The number and what follows it; None where the text begins with none."""
    match = re.fullmatch(r"\s*((?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*(.*?)\s*",
                         text, re.ASCII)
    return match and _Number(Decimal(match[1].replace(",", "")), match[1], match[2])


def _scaled(number: _Number, scale: int | Decimal, text: str, what: str, example: str) -> Decimal:
    """A value above 0 and not beyond any machine."""
    value = number.value * scale
    if not value > 0:
        raise ConfigError(f"the {what} {text[:40]!r} must be above zero, as in {example}")
    if value > LARGEST:
        raise ConfigError(f"the {what} {text[:20]!r}... is beyond any machine: write one as in {example}")
    return value


def parse_bytes(text: str) -> int:
    """`64MiB` -> 67108864; see [Note: quantities]. A bare number is bytes, however small."""
    number = _split(str(text))
    match = number and re.fullmatch(r"((?:[KMGTP]I?)?)(B|BYTES?)?", number.unit.upper())
    if number is None or not match:
        raise ConfigError(f"{text[:40]!r} is not a size: write a number and B, KiB, MiB, GiB, TiB, KB, MB, GB or TB, "
                          "as in 64MiB or 80GB")
    if re.fullmatch(r"[KMGTP]i?b", number.unit):
        raise ConfigError(f"{text[:40]!r} may mean bits: memory is in bytes, so write "
                          f"{number.digits}{number.unit[:-1]}B")
    size = round(_scaled(number, PREFIXES[match[1]], text, "size", "64MiB"))
    if not size:
        raise ConfigError(f"the size {text[:40]!r} is less than a byte: write one as in 64MiB")
    return size


def parse_memory(text: str) -> int:
    """`parse_bytes`, but a bare number below `LEAST_BYTES` is no believable memory: ConfigError with both readings."""
    size, number = parse_bytes(text), _split(str(text))
    if number and not number.unit and size < LEAST_BYTES:
        raise ConfigError(f"{text!r} may mean bytes or larger units: write {number.digits}GB for gigabytes, "
                          f"{number.digits}MiB for mebibytes, or {number.digits}B if it is bytes")
    return size


def parse_rate(text: str) -> float:
    """Bytes a second: `50GB/s`, `400Gb/s` = `400Gbit/s` = `400Gbps` = 50e9, `12.5GB`, `50e9`; see [Note:
    quantities]."""
    number = _split(text)
    match = number and re.fullmatch(r"((?:[KMGTPkmgtp]i?)?)(B|b|[Bb]ytes?|[Bb]its?)?(/s|ps|/sec|/second)?", number.unit)
    if number is None or not match:
        raise ConfigError(f"{text[:40]!r} is not a bandwidth: write a number and GB/s for bytes or Gb/s for bits, as "
                          "in 50GB/s or 400Gb/s")
    prefix, unit, per = match[1], match[2] or "", match[3] or ""
    if not (prefix or unit) and 0 < number.value < LEAST_RATE:
        _ask_for_unit(text, number, "G", f"{number.digits}B/s if it is bytes a second")
    if prefix and (not unit or unit == "b" and per != "ps" and prefix[0].islower()):
        _ask_for_unit(text, number, prefix[0].upper() + prefix[1:], "")
    bits = unit == "b" or unit[1:].startswith("it")
    return float(_scaled(number, PREFIXES[prefix.upper()], text, "bandwidth", "50GB/s")) / (8 if bits else 1)


def _ask_for_unit(text: str, number: _Number, prefix: str, more: str) -> NoReturn:
    digits = number.digits
    raise ConfigError(f"{text!r} may mean bits or bytes a second: write {digits}{prefix}B/s for bytes, "
                      f"{digits}{prefix}b/s for bits" + (f", or {more}" if more else ""))


def parse_flops(text: str) -> float:
    """Operations a second: `989T`, `989TFLOPs`, `989 TFLOP/s`, `989e12`."""
    number = _split(text)
    match = number and re.fullmatch(r"([KMGTP]?)(FLOPS?|OPS?)?(/S)?", number.unit.upper())
    if number is None or not match:
        raise ConfigError(f"{text[:40]!r} is no number of operations a second: write it as in 989TFLOPs or 989e12")
    if not number.unit and 0 < number.value < LEAST_FLOPS:
        raise ConfigError(f"{text!r} may mean operations or tera-operations a second: write {number.digits}TFLOPs, or "
                          f"{number.digits}FLOPs if it is single ones")
    return float(_scaled(number, PREFIXES[match[1]], text, "rate", "989TFLOPs"))


def parse_share(text: str) -> float:
    """`50%` or `0.5` -> 0.5; at most the whole."""
    number = _split(text)
    if number is None or number.unit not in ("", "%"):
        raise ConfigError(f"{text[:40]!r} is no share: write it as in 50% or 0.5")
    if not number.unit and 1 < number.value <= 100:
        raise ConfigError(f"{text!r} may mean per cent or a factor: write {number.digits}% or "
                          f"{number.value / 100:f} for per cent; a factor above 1 is impossible")
    share = number.value / 100 if number.unit else number.value
    if not 0 < share <= 1:
        raise ConfigError(f"{text[:40]!r} is impossible: a share is above 0 and at most the whole, as in 50% or 0.5")
    return float(share)


def parse_seconds(text: str) -> float:
    """`10us`, `1.5ms`, `2s`; a bare number is seconds. 0 is one."""
    number = _split(text)
    if number is None or number.unit.upper() not in SECONDS:
        if number is None and re.match(r"\s*-", text):
            raise ConfigError(f"{text[:40]} seconds are impossible: give a number of at least 0, as in 1.5")
        raise ConfigError(f"{text[:40]!r} is no number of seconds: write one as in 1.5 or 10us")
    if not number.value:
        return 0.0
    return float(_scaled(number, Decimal(SECONDS[number.unit.upper()]), text, "time", "1.5"))


def parse_latency(text: str) -> float:
    """`parse_seconds` of a message: above 0, and a bare number that would be long for one is asked about."""
    seconds, number = parse_seconds(text), _split(text)
    if number and not number.unit and seconds >= MOST_LATENCY:
        raise ConfigError(f"{text!r} may mean seconds or microseconds: write {number.digits}us, or {number.digits}s if "
                          "a message takes that long")
    if not seconds:
        raise ConfigError(f"{text!r} is impossible: a message takes a time above 0, as in 10us")
    return seconds


def parse_count(text: str) -> int:
    """A number of parameters: `7.5e9`, `7.5B` or `7500000000` -> 7500000000. K, M, B, T are powers of 1000."""
    number = _split(text)
    if number is None or number.unit.upper() not in COUNTS:
        if number is None and re.match(r"\s*-\d", text):
            number = _Number(Decimal(0), text, "")
        else:
            raise ConfigError(f"{text[:40]!r} is no number of parameters: write it as in 7.5e9, 7.5B or 7500000000")
    value = number.value * COUNTS[number.unit.upper()]
    if not (1 <= value <= LARGEST and value == value.to_integral_value()):
        raise ConfigError(f"{text[:40]!r} parameters make no model: give a whole number from 1 to {LARGEST:.0e}, as in "
                          "7.5e9 or 7.5B")
    return int(value)


def parse_params(text: str) -> int:
    """`parse_count` of a model: a bare number below `LEAST_PARAMS` is asked about; `13e0` is thirteen."""
    number = _split(text)
    if number and not number.unit and "e" not in number.digits.lower() and 0 < number.value < LEAST_PARAMS:
        raise ConfigError(f"{text!r} may mean so many parameters, or billions of them: write {number.digits}B for "
                          f"billions, {number.digits}M for millions, or {number.digits}e0 if it is single ones")
    return parse_count(text)


def parse_margin(text: str) -> float:
    """`5%` or `0.05` -> 0.05; `0` too, and less than the whole."""
    number = _split(text)
    if number and not number.value and number.unit in ("", "%"):
        return 0.0
    share = parse_share(text)
    if share == 1:
        raise ConfigError(f"a margin of {text[:40]!r} leaves nothing: write a smaller one, as in 5%")
    return share


def in_units(nbytes: int | float) -> str:
    """`16.6 GB`: three digits in powers of 1000, as papers print sizes. `parse_bytes` reads it."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if nbytes >= 0.9995 * size:
            return f"{nbytes / size:.3g} {unit}" if nbytes < 999.5 * size else f"{nbytes / size:,.0f} {unit}"
    return f"{nbytes:,.0f} B"
