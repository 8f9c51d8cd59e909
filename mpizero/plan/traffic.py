"""Bytes that a rank sends in a step: by collective, inside and between hosts, from the actions that a run executes."""

from __future__ import annotations

import argparse
from typing import Any

from mpizero.papers.sharding import full_sharding, hybrid_sharding, hybrid_sharding_printed
from mpizero.plan.options import Options, add_model, add_step, argument_type, count, described, head, step_of
from mpizero.planner import formula_sent, links, plan_traffic, sent_by_op
from mpizero.quantities import in_units
from mpizero.schedule import Setup
from mpizero.text import table

HELP = "bytes that a rank sends, by collective and by link"
EXAMPLE = "traffic --params 13e9 --ranks 64 --shard-size 8 --ranks-per-host 8"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_step(parser)
    parser.add_argument("--ranks-per-host", type=argument_type(count), metavar="G",
                        help="ranks fill hosts in order (all on one host)")


def answer(options: Options) -> dict[str, Any]:
    """Keys sent_bytes, inter_, intra_ and host_bytes, by_op, messages, formulas, and what was asked."""
    model, step = step_of(options)
    sends = plan_traffic(step.lists.step(), step.geometry)
    per_host = options["ranks_per_host"] or options["ranks"]
    placed = links.place(sends, step.geometry, per_host)
    return {**described(model, step), "ranks_per_host": per_host, "hosts": placed.hosts,
            "sent_bytes": placed.sent_bytes, "inter_host_bytes": placed.inter_host_bytes,
            "intra_host_bytes": placed.intra_host_bytes, "host_bytes": placed.host_bytes,
            "messages": sum(send.rounds for send in sends), "by_op": sent_by_op(sends),
            "formulas": _formulas(step, per_host)}


def _formulas(step: Setup, per_host: int) -> dict[str, dict[str, Any]]:
    """The papers' closed forms for one microbatch: name -> formula and bytes."""
    geometry, volume = step.geometry, step.strategy.volume
    world, model = geometry.mesh.ranks, geometry.itemsize * step.wrapping.padded_numel
    frozen = step.wrapping.frozen_numel
    words = f"{volume} M (F-1)/F + 2 M/F (R-1)/R" + (" of what trains, gathers" if frozen else ", tied again")
    found: dict[str, dict[str, Any]] = {"a step": {"formula": words, "bytes": formula_sent(geometry, volume)}}
    if step.settings.stage == "3" and not frozen and world % per_host == 0 and per_host < world:
        hybrid, printed = (form(model, world, per_host) for form in (hybrid_sharding, hybrid_sharding_printed))
        found |= {
            "full sharding, between hosts": {"formula": "3 M (W-1)/W", "bytes": full_sharding(model, world)},
            "hybrid sharding in hosts, between them": {"formula": "2 M (W-G)/(G W)", "bytes": hybrid},
            "the same as the FSDP paper prints it": {"formula": "2 M (W-1)/(G W)", "bytes": printed}}
    return found


def show(answer: dict[str, Any]) -> str:
    rows = [("sent by every rank", answer["sent_bytes"]),
            *((f"  {op}", nbytes) for op, nbytes in answer["by_op"].items()),
            ("between hosts, by the rank that sends most there", answer["inter_host_bytes"]),
            ("inside its host, by the rank that sends most there", answer["intra_host_bytes"]),
            ("leaving the busiest host, all its ranks together", answer["host_bytes"])]
    formulas = [[name, entry["formula"], f"{entry['bytes']:,.0f}"] for name, entry in answer["formulas"].items()]
    return "\n\n".join([
        head(answer),
        f"hosts: {answer['hosts']:,}, of {answer['ranks_per_host']:,} ranks; "
        f"messages of a rank: {answer['messages']:,}",
        table(["in a step", "bytes", "in units"], [[words, nbytes, in_units(nbytes)] for words, nbytes in rows]),
        "In a ring a rank sends to its successor alone: where a ring spans hosts, the last rank of each\n"
        "host sends to another one.",
        table(["closed form, one microbatch", "M: bytes of all parameters", "bytes"], formulas)])
