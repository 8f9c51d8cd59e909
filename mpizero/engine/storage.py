"""The files of this run, of states and kept inputs: opened on all ranks, or refused on all with one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from mpizero.comm import Group
from mpizero.engine.gather import gather_data
from mpizero.errors import StorageError
from mpizero.layout import HOST, NVME, ActivationBytes, Geometry, Tier
from mpizero.layout.links import Way
from mpizero.layout.files import file_bytes, lanes, spaces
from mpizero.memory.files import StateFile, free_bytes
from mpizero.memory.ledger import Ledger
from mpizero.memory.links import Link
from mpizero.memory.regions import Storage, make_lanes
from mpizero.quantities import in_units
from mpizero.text import counted

Result = TypeVar("Result")


def open_storage(world: Group, folder: str | None, geometry: Geometry, ledgers: Mapping[Tier, Ledger],
                 links: Mapping[Way, Link], activations: ActivationBytes | None = None,
                 segments: Mapping[int, bool] = {}) -> Storage | None:
    """This rank's file, with room for all that comes there; None where nothing does. Collective.

    folder: of this host. segments: whose inputs come there, of a microbatch of these `activations`. StorageError on
    every rank where one cannot have its file, or a disk has not the room that the ranks of its host need together.
    """
    if NVME not in vars(geometry.placement.tiers).values():
        return None
    assert folder is not None, "states in files need a folder"
    found = spaces(geometry, activations, segments)
    needed, file = file_bytes(found), _on_all(world, lambda: StateFile(folder, f"rank {world.rank}"))
    _check_room(world, folder, needed, os.fstat(file.fd).st_dev)
    _on_all(world, lambda: file.reserve(needed))
    ledgers[HOST].at("buffers")
    return Storage(file, links[HOST, NVME], links[NVME, HOST], make_lanes(lanes(geometry, activations), ledgers[HOST]),
                   {(space.unit, space.name): space for space in found}, ledgers[NVME])


def _check_room(world: Group, folder: str, needed: int, device: int) -> None:
    """Of the ranks of a host whose files are on one disk, together."""
    told = gather_data(world, [world.hosts[world.rank], device, needed, free_bytes(folder)])
    for host, disk, _, free in told:
        needs = [need for its_host, its_disk, need, _ in told if (its_host, its_disk) == (host, disk)]
        if sum(needs) > free:
            raise StorageError(f"`nvme` {folder} has {in_units(free)} left on host {host}, but what "
                               f"{counted(len(needs), 'rank')} there keep in files takes {in_units(sum(needs))} "
                               f"({in_units(max(needs))} each): make room, name another folder, or use more hosts")


def _on_all(world: Group, act: Callable[[], Result]) -> Result:
    """What `act` gives. StorageError on all ranks where it fails on one."""
    problem = ""
    try:
        result = act()
    except StorageError as error:
        problem = str(error)
    for sentence in gather_data(world, problem):
        if sentence:
            raise StorageError(sentence)
    return result
