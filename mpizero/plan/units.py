"""How large a unit should be, fully sharded: the peak of parameters against the number of collectives."""

from __future__ import annotations

import argparse
from typing import Any

from mpizero.dtypes import DTYPES, ITEMSIZE, full_name
from mpizero.layout import Axis, mesh_shape, wrap
from mpizero.papers.sizing import choices
from mpizero.plan.options import Options, add_model, add_ranks, argument_type, count, model_of, wrapped
from mpizero.plan.rates import LINKS, add_machine, facts, machine_of, rates_text
from mpizero.planner.links import route
from mpizero.quantities import in_units
from mpizero.text import counted, table

HELP = "how large a unit should be"
EXAMPLE = "units --model 13b --ranks 64"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_ranks(parser)
    parser.add_argument("--shard-size", type=argument_type(count), metavar="F",
                        help="ranks among which a unit is sharded (all)")
    parser.add_argument("--dtype", type=full_name, choices=DTYPES, default="float16", help="of parameters (float16)")
    add_machine(parser, *LINKS)


def answer(options: Options) -> dict[str, Any]:
    """Key rows: one for each way to cut the model."""
    model, machine = model_of(options), machine_of(options)
    mesh, size = mesh_shape(options["ranks"], options["shard_size"] or options["ranks"]), ITEMSIZE[options["dtype"]]
    way = route(mesh, Axis.SHARD, options["ranks_per_host"])
    rows = choices([unit.numel for unit in wrap(model.spec, mesh.shard).units], mesh.shard, size, machine, way)
    return {"model": model.name, "psi": model.spec.psi, "ranks": options["ranks"], "shard_size": mesh.shard,
            "ranks_per_host": options["ranks_per_host"], "between_hosts": way.leaving > 0, "dtype": options["dtype"],
            **facts(options, *LINKS),
            "rows": [{**vars(row), "peak_bytes": size * row.peak_elements} for row in rows]}


def show(answer: dict[str, Any]) -> str:
    rows = [[row["label"].replace("stage", "segment"), row["units"], row["largest_elements"], row["peak_elements"],
             in_units(row["peak_bytes"]), row["collectives"], row["seconds"], row["latency_seconds"]]
            for row in answer["rows"]]
    where = "between hosts" if answer["between_hosts"] else "inside a host"
    note = ("Peak elements: sum(psi_i)/F + max psi_i, parameters alone. Three collectives a unit and step (FSDP, sec. "
            f"3.2.1). Seconds: alpha-beta rings {where}. Latency: of which the messages would take if they were empty. "
            + rates_text(answer))
    return "\n\n".join([
        f"{answer['model']}\n"
        f"psi = {answer['psi']:,} parameters in {answer['dtype']} on {counted(answer['shard_size'], 'shard')}",
        table(["a unit is", "units", "largest", "peak elements", "peak", "collectives", "seconds", "latency"], rows),
        "\n".join(wrapped(note))])
