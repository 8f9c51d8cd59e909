"""--machine FILE: a machine's own rates, as `mpizero.doctor` has measured them, or somebody has written them down."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from mpizero.errors import ConfigError
from mpizero.machine import ETHERNET, ETHERNET_SOURCE, Machine
from mpizero.text import counted

NAMES = tuple(field.name for field in fields(Machine))
BY_DTYPE = ("peak_flops", "efficiency", "update_bandwidth", "host_adam")
# without which a file says nothing of the machine; the rest has a default that says where it comes from
NEEDED = ("peak_flops", "memory_bandwidth", "intra_bandwidth")
MOST, MOST_RATE = 10**6, 1e30  # NICs, ranks; a second


@dataclass(frozen=True)
class Measured:
    """What a file tells. rates: fields of `Machine` that it has; by_dtype: other values of `BY_DTYPE` where a run
    computes in that dtype; sources: of rates; ranks_per_host: how many worked at once while it was measured, None if
    it does not say."""

    path: str
    rates: Mapping[str, Any]
    by_dtype: Mapping[str, Mapping[str, float]]
    sources: Mapping[str, str]
    ranks_per_host: int | None

    def of(self, dtype: str | None, asked: Collection[str], told: Collection[str]) -> dict[str, tuple[Any, str]]:
        """Field -> value and where from, for a run in `dtype` (None: the file's own rates). asked: fields that count;
        told: those of them that flags give. ConfigError where a field is missing that nothing stands in for."""
        rates = {**self.rates, **self.by_dtype.get(dtype or "", {})}
        found = {name: (value, self.sources.get(name, f"by {self.path}")) for name, value in rates.items()}
        for name in asked:
            if name in found or name in told:
                continue
            if name in ETHERNET:
                found[name] = ETHERNET[name], ETHERNET_SOURCE
            elif name in NEEDED:
                raise ConfigError(f"--machine {self.path}: machine has no {name}, as if one rank alone had been "
                                  f"measured: give {flag(name)}, or measure it with several ranks, as in mpirun -n 4 "
                                  f"python -m mpizero.doctor --json {self.path}")
        return found


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_machine(path: str) -> Measured:
    """ConfigError that names file and field where it cannot be used."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {' '.join(str(error).split())[:200]}") from None
    machine = data.get("machine") if isinstance(data, dict) else None
    if not isinstance(machine, dict):
        raise ConfigError(f"{path} has no table 'machine': give a file that python -m mpizero.doctor --json has "
                          "written")
    per_host, sources = data.get("ranks_per_host"), _table(path, data, "sources")
    if per_host is not None and not _is_count(per_host):
        _refuse(path, "ranks_per_host", per_host, COUNT)
    by_dtype = {name: _checked(path, f"by_dtype.{name}", rates, BY_DTYPE)
                for name, rates in _table(path, data, "by_dtype").items()}
    return Measured(path, _checked(path, "machine", machine, NAMES), by_dtype,
                    {name: str(words) for name, words in sources.items()}, per_host)


def _table(path: str, data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name, {})
    if not isinstance(value, dict):
        _refuse(path, name, value, "a table")
    return value


def _checked(path: str, where: str, rates: Any, known: Collection[str]) -> dict[str, Any]:
    """`rates` without what is null. ConfigError for names and values that cannot be."""
    if not isinstance(rates, dict):
        _refuse(path, where, rates, "a table")
    for name, value in rates.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            cure = f"did you mean {near[0]}?" if near else f"fields are {', '.join(known)}"
            raise ConfigError(f"{path}: {where} has no field {name!r}: {cure}")
        fits, wanted = VALUES.get(name, (_is_rate, "a number above 0, at most 1e30"))
        if value is not None and not fits(value):
            _refuse(path, f"{where}.{name}", value, wanted)
    return {name: value for name, value in rates.items() if value is not None}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_RATE


COUNT = f"a whole number from 1 to {MOST:,}"
VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {  # of fields that are no rates: whether it fits, what would
    "all_nics": (lambda value: isinstance(value, bool), "true or false"), "nics": (_is_count, COUNT),
    "efficiency": (lambda value: _is_rate(value) and value <= 1, "a share above 0, at most 1")}


def _refuse(path: str, field: str, value: Any, wanted: str) -> NoReturn:
    raise ConfigError(f"{path}: {field} = {json.dumps(value)[:40]} must be {wanted}: correct it, or measure "
                      "anew with python -m mpizero.doctor --json FILE")


def remark(answer: Mapping[str, Any]) -> str:
    """What an answer must say beside the rates of a file; "" if nothing. Begins with a full stop."""
    told, parts = answer["measured"], [""]
    if told is None:
        return ""
    missing = [flag(name) for name, source in answer["sources"].items() if source == ETHERNET_SOURCE]
    if missing and answer["ranks"] > answer["ranks_per_host"]:
        parts.append(f"{told['file']} has no rates between hosts: give {' and '.join(missing)}, or run mpizero.doctor "
                     "on several hosts")
    if told["ranks_per_host"] not in (None, answer["ranks_per_host"]):
        parts.append(f"It was measured with {counted(told['ranks_per_host'], 'rank')} a host, which share its cores "
                     f"and links; {answer['ranks_per_host']:,} would share them otherwise")
    return ". ".join(parts)
