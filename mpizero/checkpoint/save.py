"""Save a job's training state: each rank writes its own 1/N of everything, straight from its buffers."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mpizero.checkpoint.files import created, sync_folder, write_all, write_durably
from mpizero.checkpoint.folder import commit, temporary
from mpizero.checkpoint.format import (
    BLOCK,
    PART,
    Entry,
    Param,
    Part,
    encode,
    params_data,
    part_data,
    part_name,
    step_name,
)
from mpizero.checkpoint.together import together
from mpizero.engine.alike import flat
from mpizero.engine.job import Job
from mpizero.engine.trainer import catch_up
from mpizero.engine.unit import Unit
from mpizero.engine.versions import versions
from mpizero.errors import CheckpointError
from mpizero.layout import Strided

Piece = tuple[str, str, Strided, Iterable[np.ndarray]]  # state, parameter, which elements of it, and these in order


def save(job: Job, folder: str | Path, *, run: str | None = None, runs: Sequence[str] = ()) -> Path:
    """Write folder/step-00000020, by number of steps. Collective; takes no memory beside what rests. An update that is
    under way is ended first.

    run: its identifier. runs: of those that this one goes on from. One run at a time may save into a folder.
    CheckpointError on every rank if it fails on one; then nothing that was there is lost, and `latest` names what it
    did.
    """
    catch_up(job)
    world, target = job.world, Path(folder) / step_name(job.state.step)
    run = run or together(world, lambda: secrets.token_hex(6), only=0)[0]
    made = target.with_name(temporary(target.name, run))
    together(world, lambda: made.mkdir(parents=True), only=0)
    try:
        parts = together(world, lambda: write_part(made, world.rank, _owned(job.state.units)))
        together(world, lambda: commit(made, target, {**_about(job), "runs": [*runs, run], "parts": parts}, run),
                 only=0)
    except CheckpointError:
        if world.rank == 0:
            shutil.rmtree(made, ignore_errors=True)
        raise
    return target


def _about(job: Job) -> dict[str, Any]:
    """What checkpoint.json says beside its parts."""
    state, data = job.state, job.task.data
    return {
        "saved": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "step": state.step, "updates": state.updates, "position": state.position, "scaler": state.scaler.state_dict(),
        "model": job.task.model.name, "world_size": job.world.size, "settings": flat(job.settings),
        "data": {"fingerprint": data.fingerprint, "describe": data.describe()}, "versions": versions(),
        "params": params_data(params_of(job)),
    }


def params_of(job: Job) -> list[Param]:
    """In the model's order, with the states that its unit keeps."""
    states = {param.name: {name: buffer.dtype.name for name, buffer in unit.states.items()}
              for unit in job.state.units for param in unit.layout.params}
    return [Param(param.name, tuple((param.whole or param).shape), states[param.cut()[0].name])
            for param in job.task.model.spec.params]


def write_part(folder: Path, rank: int, pieces: Iterable[Piece]) -> dict[str, Any]:
    """A rank's two files, and what checkpoint.json says of them."""
    name, size = part_name(rank), 0
    entries: list[Entry] = []
    checksums: list[int] = []
    with created(folder / f"{name}.bin") as file:
        for state, param, where, arrays in pieces:
            offset, dtype = size, ""
            for values in arrays:
                for piece in _blocks(values, size):
                    if size % BLOCK == 0:
                        checksums.append(0)
                    write_all(file, piece)
                    checksums[-1] = zlib.crc32(piece, checksums[-1])
                    size += len(piece)
                dtype = values.dtype.name
            entries.append(Entry(state, param, where, dtype, offset))
            assert size == offset + entries[-1].nbytes, (state, param)
    table = encode(PART, part_data(Part(name, size, tuple(entries), tuple(checksums))))
    write_durably(folder / f"{name}.json", table)
    sync_folder(folder)
    return {"name": name, "bytes": size, "table_sha256": hashlib.sha256(table).hexdigest()}


def _owned(units: Sequence[Unit]) -> Iterator[Piece]:
    """What this rank counts as its own, without copies where it is in memory."""
    for unit in units:
        for state in unit.states:
            for param, where, piece in unit.layout.pieces(unit.owned):
                yield state, param.name, where, (values for _, values in unit.blocks(state, piece))


def _blocks(values: np.ndarray, offset: int) -> Iterator[memoryview]:
    """Little-endian bytes, cut where the blocks of a file end in which they begin at `offset`."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)  # no copy on little-endian machines
    left = little.view(np.uint8).data
    while left:
        length = BLOCK - offset % BLOCK
        yield left[:length]
        left, offset = left[length:], offset + length
