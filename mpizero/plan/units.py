"""How large a unit should be, fully sharded: the peak of parameters against the number of collectives."""

from __future__ import annotations

import argparse
from typing import Any

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import mesh_shape, wrap
from mpizero.papers.sizing import choices
from mpizero.plan.options import (
    DTYPES, Options, add_machine, add_model, add_ranks, argument_type, count, machine_of, model_of, wrapped,
)
from mpizero.quantities import in_units
from mpizero.text import table

HELP = "how large a unit should be"
EXAMPLE = "units --model 13b --ranks 64"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_ranks(parser)
    parser.add_argument("--shard-size", type=argument_type(count), metavar="F",
                        help="ranks among which a unit is sharded (all)")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="of parameters (float16)")
    add_machine(parser, "alpha", "inter_bandwidth")


def answer(options: Options) -> dict[str, Any]:
    """Key rows: one for each way to cut the model."""
    model, machine = model_of(options), machine_of(options)
    shards = mesh_shape(options["ranks"], options["shard_size"] or options["ranks"]).shard
    size = ITEMSIZE[options["dtype"]]
    rows = choices([unit.numel for unit in wrap(model.spec, shards).units], shards, size, machine)
    return {"model": model.name, "psi": model.spec.psi, "ranks": options["ranks"], "shard_size": shards,
            "dtype": options["dtype"], "alpha": machine.alpha, "bandwidth": machine.inter_bandwidth,
            "rows": [{**vars(row), "peak_bytes": size * row.peak_elements} for row in rows]}


def show(answer: dict[str, Any]) -> str:
    rows = [[row["label"].replace("stage", "segment"), row["units"], row["largest_elements"], row["peak_elements"],
             in_units(row["peak_bytes"]), row["collectives"], row["seconds"], row["latency_seconds"]]
            for row in answer["rows"]]
    note = ("Peak elements: sum(psi_i)/F + max psi_i, parameters alone. Three collectives a unit and step (FSDP, sec. "
            f"3.2.1). Seconds: alpha-beta rings, {1e6 * answer['alpha']:g} us a message, "
            f"{in_units(answer['bandwidth'])}/s. Latency: of which the messages would take if they were empty.")
    return "\n\n".join([
        f"{answer['model']}\n"
        f"psi = {answer['psi']:,} parameters in {answer['dtype']} on {answer['shard_size']:,} shards",
        table(["a unit is", "units", "largest", "peak elements", "peak", "collectives", "seconds", "latency"], rows),
        "\n".join(wrapped(note))])
