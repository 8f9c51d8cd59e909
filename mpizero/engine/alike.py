"""Ranks of one run must be started alike. Where they differ, they would wait for each other in vain, or worse, train a
mixture of two models that no checksum of replicas shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mpizero.comm import Group
from mpizero.engine.config import Settings, TrainConfig
from mpizero.engine.gather import gather_data
from mpizero.engine.versions import versions
from mpizero.errors import ConfigError, DataError
from mpizero.layout import Wrapping
from mpizero.layout.tensor import parts_of
from mpizero.text import numbers, ranks_on

# May differ between hosts: where the data lies (its content may not), how much memory a device has, and how
# many threads a host.
FREE = ("data", "device_memory", "host_memory", "host_threads")
# Of `versions`. Python and mpi4py compute nothing that a rank keeps.
COMPARED_VERSIONS = ("mpizero", "sources", "numpy", "ml_dtypes")
SHOWN = 3  # differences in a message


def compare_settings(config: TrainConfig, settings: Settings, world: Group) -> None:
    """ConfigError on every rank unless all have the same settings and versions. Collective."""
    installed = versions()
    facts = {f"`{name}`": value for name, value in flat(settings).items() if name not in FREE}
    facts["`log` (given or not)"] = config.log is not None  # then actions are timed, and gathered
    facts |= {f"the version of {name}": installed.get(name, "none") for name in COMPARED_VERSIONS}
    found = differences(gather_data(world, facts), world.hosts)
    if found:
        raise ConfigError(f"ranks were started differently: {found}. Start all of them with the same flags, the same "
                          "`config` file and the same installation")


def compare_flags(flags: Mapping[str, Any], world: Group) -> None:
    """ConfigError on every rank unless all have the same `flags`, of which `json` is rank 0's own. Collective."""
    mine = {f"`{name}`": value for name, value in flags.items() if name != "json" and not callable(value)}
    found = differences(gather_data(world, mine), world.hosts)
    if found:
        raise ConfigError(f"ranks were started differently: {found}. Start all of them with the same flags")


def compare_data(fingerprint: int, world: Group) -> None:
    """DataError on every rank unless all have the same data. Collective."""
    every = gather_data(world, fingerprint)
    others = [rank for rank, each in enumerate(every) if each != every[0]]
    if others:
        raise DataError(f"`data` holds something else on {_ranks(others, world.hosts)} than on rank 0: give all hosts "
                        "the same files")


def compare_model(wrapping: Wrapping, world: Group, tensor: int = 1) -> None:
    """ConfigError on every rank unless all have the same model in the same units; of `tensor` ranks each its own part.
    Collective."""
    units = [f"{unit.name}{' (frozen)' if unit.frozen else ''}: "
             + ", ".join(f"{param.name} {param.shape}" for param in unit.params) for unit in wrapping.units]
    segments = [f"{segment.name} of units {segment.units}" for segment in wrapping.segments]
    parts = sorted(parts_of(param for unit in wrapping.units for param in unit.params))
    every = gather_data(world, {"unit": units, "segment": segments, "parts": parts})
    for what in ("unit", "segment"):
        facts = [{f"{what} {number}": text for number, text in enumerate(rank[what])} for rank in every]
        found = differences(facts, world.hosts)
        if found:
            raise ConfigError(f"the model differs between ranks: {found}. Give all of them the same task and policy")
    wrong = [rank for rank, facts in enumerate(every) if facts["parts"] not in ([], [rank % tensor])]
    if wrong:
        rank = wrong[0]
        raise ConfigError(f"rank {rank} has part {numbers(every[rank]['parts'])} of the model, but among {tensor} "
                          f"tensor parallel ranks it is number {rank % tensor}: make its model with "
                          f"place=TensorPlace({rank % tensor}, {tensor})")


def flat(settings: Settings) -> dict[str, Any]:
    """Settings by the names of their flags, sizes and groups of settings spread out."""
    found: dict[str, Any] = {}
    for name, value in asdict(settings).items():
        found |= value if isinstance(value, dict) else {name: value}
    return found


def differences(every: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> str:
    """The first facts that differ between ranks, which ranks, and their values; "" if none does. every: the facts of
    each rank. hosts: the host of each, which is said where there are several."""
    names = dict.fromkeys(name for facts in every for name in facts)
    found = [f"{name} is {_values([facts.get(name, 'not given') for facts in every], hosts)}" for name in names
             if any(facts.get(name) != every[0].get(name) for facts in every)]
    more = [f"{len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "; ".join(found[:SHOWN] + more)


def _values(values: Sequence[Any], hosts: Sequence[str]) -> str:
    """`1e-2 on rank 0, 1e-4 on ranks 1-3`."""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(str(value), []).append(rank)
    return ", ".join(f"{value} on {_ranks(ranks, hosts)}" for value, ranks in by_value.items())


def _ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """`rank 2`, `ranks 0, 2`; where there are several hosts, `ranks 2-3 on host1`."""
    where = numbers(ranks) if len(set(hosts)) == 1 else ranks_on(hosts, ranks)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {where}"
