"""Table 2 of ZeRO (arXiv:1910.02054): the largest model that devices of one size hold, in theory and measured.

    mpirun -n 4 python scripts/largest.py [--json FILE]

As printed in the paper beside the closed form; then, on real ranks, for T tensor parallel ranks x N_d data parallel
ones x stage: the most layers of a small GPT for which a rank needs no more than `--device-memory`, as planned, and as
found: the largest that trains a step, while the next one runs out of device memory. Nobody refuses these runs: the
capacity is set when all is prepared, so they die at an allocation, all ranks at the same one. Status 1 if any cell
differs.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("MPIZERO_TIMEOUT", "120")  # a rank that dies alone leaves the others waiting

from meshes import start_with, together, where  # noqa: E402  finds mpizero

from mpizero.comm import Group  # noqa: E402
from mpizero.engine.config import TrainConfig  # noqa: E402
from mpizero.engine.gather import gather_data  # noqa: E402
from mpizero.engine.job import prepare  # noqa: E402
from mpizero.engine.resolve import resolve  # noqa: E402
from mpizero.engine.summary import summarise  # noqa: E402
from mpizero.engine.trainer import run_steps  # noqa: E402
from mpizero.errors import OutOfDeviceMemory  # noqa: E402
from mpizero.layout import ActivationBytes  # noqa: E402
from mpizero.layout.models import GPTConfig, gpt_spec  # noqa: E402
from mpizero.layout.tensor import TensorPlace  # noqa: E402
from mpizero.output import write_json  # noqa: E402
from mpizero.papers.states import GB, NAMES, TABLE_2, TABLE_2_MEASURED, TABLE_2_RANKS, table_2  # noqa: E402
from mpizero.planner import plan_memory  # noqa: E402
from mpizero.planner.largest import Largest, largest  # noqa: E402
from mpizero.planner.need import step_peak  # noqa: E402
from mpizero.quantities import in_units, parse_memory  # noqa: E402
from mpizero.schedule import Setup, set_up  # noqa: E402
from mpizero.text import table  # noqa: E402

RANKS, STAGES = 4, ("0", "1", "2", "3")
MESHES = ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1))  # T x N_d
CONFIG = TrainConfig(model="gpt", layers=1, d_model=32, heads=4, context=16, batch_size=2, steps=1, dtype="float16",
                     loss_scale=1.0, overlap="off", data=argparse.__file__)


@dataclass(frozen=True)
class Cell:
    """T tensor parallel ranks x N_d data parallel ones, at a stage."""

    tensor_size: int
    data_ranks: int
    stage: str

    @property
    def ranks(self) -> int:
        return self.tensor_size * self.data_ranks

    def config(self, layers: int) -> TrainConfig:
        return replace(CONFIG, layers=layers, stage=self.stage, tensor_size=self.tensor_size)


CELLS = [Cell(*mesh, stage) for mesh in MESHES for stage in STAGES]


def planned(cell: Cell, layers: int, rank: int) -> tuple[Setup, ActivationBytes]:
    """The step of place `rank` among tensor parallel ranks, and what a microbatch takes: no rank, no array."""
    settings = resolve(cell.config(layers), ranks=cell.data_ranks)
    assert isinstance(settings.sizes, GPTConfig)
    spec = gpt_spec(settings.sizes, place=TensorPlace(rank, cell.tensor_size))
    assert spec.activations is not None
    return (set_up(spec, cell.ranks, settings.step, dtype=settings.dtype, optimizer=settings.optim.spec),
            spec.activations((settings.batch_size, settings.sizes.context), settings.dtype))


def needs(cell: Cell, layers: int) -> int:
    """Bytes that a rank needs, of all ranks the one that needs most."""
    return max(step_peak(*planned(cell, layers, rank)).nbytes for rank in range(cell.tensor_size))


@functools.cache
def predicted(cell: Cell, room: int) -> Largest:
    return largest(lambda layers: needs(cell, layers), room)


def die_together(cell: Cell, layers: int, room: int) -> bool:
    """Whether all ranks run out of memory at the same action: or one would die, and others wait for it."""
    places = set[int]()
    for rank in range(cell.tensor_size):
        made, activations = planned(cell, layers, rank)
        points = plan_memory(made.lists.longest(), made.geometry, activations).points
        places.add(next((place for place, point in enumerate(points) if point.device_bytes > room), len(points)))
    return len(places) == 1


def common_room(asked: int) -> int:
    """The most bytes, as good as `asked`, for which ranks die together in all cells."""
    room = asked
    while not all(die_together(cell, predicted(cell, room).number + 1, room) for cell in CELLS):
        room -= asked // 200
    return room


def run(cell: Cell, layers: int, room: int, group: Group) -> int | None:
    """The most bytes that a rank's device held, if it trained a step; None if it ran out of memory. Collective."""
    job = prepare(cell.config(layers), group)
    job.ledger.capacity = room
    try:
        summary = summarise(job, run_steps(job))
    except OutOfDeviceMemory:
        return None
    assert math.isfinite(summary["losses"][0]) and not summary["skipped_steps"], "it did not train"
    return max(rank["device_peak"] for rank in summary["memory"])


def found(cell: Cell, begin: int, room: int, group: Group) -> tuple[int, int]:
    """The most layers that train, from `begin` on up or down, and the bytes that a rank then held. Collective."""
    layers, most = begin, run(cell, begin, room, group)
    while most is None and layers > 1:
        layers -= 1
        most = run(cell, layers, room, group)
    if layers == begin:
        while (more := run(cell, layers + 1, room, group)) is not None:
            layers, most = layers + 1, more
    return (layers, most) if most is not None else (0, 0)


def measured(world: Group, room: int) -> Iterator[dict[str, Any]]:
    """A row for each cell, on all ranks alike. Collective."""
    groups = {ranks: world.subgroup(range(ranks), f"first {ranks}") for ranks in {cell.ranks for cell in CELLS}}
    for cell in CELLS:
        plan = predicted(cell, room)
        layers, most = (found(cell, plan.number, room, groups[cell.ranks]) if world.rank < cell.ranks else (0, 0))
        yield gather_data(world, _row(cell, plan, layers, most))[0]


def _row(cell: Cell, plan: Largest, layers: int, most: int) -> dict[str, Any]:
    sizes = replace(resolve(CONFIG).sizes, layers=max(layers, 1))
    return {**vars(cell), "planned_layers": plan.number, "planned_bytes": plan.nbytes, "next_bytes": plan.next_bytes,
            "found_layers": layers, "found_bytes": most, "params": gpt_spec(sizes).psi if layers else 0,
            "equal": (layers, most) == (plan.number, plan.nbytes)}


def show_theory() -> str:
    """The paper's table beside the closed form, and what it measured."""
    cells = {(cell.count, cell.stage): cell.computed / GB for cell in table_2()}
    rows = [[mp, mp * TABLE_2_RANKS, *(f"{printed:g} | {cells[mp, stage]:.4g}" for stage, printed in row.items()),
             f"{TABLE_2_MEASURED[mp]:g}"] for mp, row in TABLE_2.items()]
    names = ["MP", "GPUs", *(f"{NAMES[stage]}" for stage in STAGES), "P_os ran"]
    return ("Table 2 of ZeRO, 32 GB, N_d = 64, billions of parameters in theory: as printed | by closed form\n"
            + table(names, rows, right=names[2:]))


def show_measured(rows: Sequence[dict[str, Any]], room: int) -> str:
    body = [[row["tensor_size"], row["data_ranks"], NAMES[row["stage"]], row["planned_layers"], row["found_layers"],
             row["params"], row["planned_bytes"], row["found_bytes"], row["next_bytes"],
             "yes" if row["equal"] else "NO"] for row in rows]
    names = ["T", "N_d", "stage", "planned", "found", "parameters", "bytes, planned", "counted", "next needs", "equal"]
    return (f"Measured here: most layers of a GPT of width {CONFIG.d_model}, {CONFIG.heads} heads, 256 tokens, on "
            f"devices of {in_units(room)}\n" + table(names, body))


def main(argv: Sequence[str] | None = None) -> int:
    """Status 1 if a cell differs, on all ranks alike."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device-memory", type=parse_memory, default=parse_memory("1MB"), metavar="SIZE",
                        help="of a rank (1MB); less, by half percents, until all ranks of a cell die together")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    options = parser.parse_args(argv)
    world, begin = start_with(RANKS, "mpirun -n 4 python scripts/largest.py"), time.perf_counter()
    room = common_room(options.device_memory)
    rows = list(measured(world, room))
    wrong = sum(not row["equal"] for row in rows)
    if world.rank == 0:
        print(f"{where(world)}\n\n{show_theory()}\n\n{show_measured(rows, room)}\n\n"
              f"{len(rows) - wrong} of {len(rows)} cells are as planned; {time.perf_counter() - begin:.0f} s")
        if options.json:
            write_json(options.json, {"device_memory": room, "rows": rows,
                                      "theory": [vars(cell) for cell in table_2()]})
    return together(world, int(wrong > 0))


if __name__ == "__main__":
    sys.exit(main())
