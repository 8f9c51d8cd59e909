"""Bytes that a rank sends in a step: by collective, inside and between hosts, from the actions that a run executes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from mpizero.errors import ConfigError
from mpizero.layout import ADAM, DEVICE, NVME, OWNED, ActivationBytes
from mpizero.papers.sharding import full_sharding, hybrid_sharding, hybrid_sharding_printed
from mpizero.plan.options import Options, add_batch, add_model, ignored, told_batch, wrapped
from mpizero.plan.rates import LINKS, add_machine, facts, machine_of, rates_text
from mpizero.plan.steps import add_optimizer, add_step, described, head, step_of
from mpizero.plan.tiers import own_table, steady_moves
from mpizero.planner import formula_sent, formula_sizes, links, plan_traffic_by_shard_rank, sent_by_op, sent_bytes
from mpizero.planner.formulas import AT_THE_ENDS, shared_inputs
from mpizero.planner.model import PlannedModel
from mpizero.quantities import in_units
from mpizero.schedule import Setup
from mpizero.text import counted, table

HELP = "bytes that a rank sends, by collective and by link"
EXAMPLE = "traffic --params 13e9 --ranks 64 --shard-size 8 --ranks-per-host 8"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_step(parser)
    add_optimizer(parser)
    add_batch(parser, "with --tensor-size, whose ranks sum activations, and with --offload checkpoints=cpu")
    add_machine(parser, *LINKS)


def answer(options: Options) -> dict[str, Any]:
    """Keys sent_bytes (of the rank that sends most, as are by_op and messages), all_ranks_bytes, inter_, intra_ and
    host_bytes, seconds (one after the other), formulas, moved_bytes (between tiers, by link), and what was asked."""
    model, step = step_of(options)
    known = _table_of(model, step, options)
    moved = steady_moves(step, known)
    by_shard_rank = plan_traffic_by_shard_rank(step.lists.step(), step.geometry, known)
    busiest = max(by_shard_rank, key=lambda shard_rank: sent_bytes(by_shard_rank[shard_rank]))
    sends, step = by_shard_rank[busiest], replace(step, geometry=step.geometry.at(busiest))
    per_host, machine = options["ranks_per_host"], machine_of(options)
    placed = links.split(by_shard_rank, step.geometry, per_host)
    return {**described(model, step), "ranks_per_host": per_host, "hosts": placed.hosts,
            "sent_bytes": placed.sent_bytes, "all_ranks_bytes": sum(map(sum, placed.by_rank)),
            "inter_host_bytes": placed.inter_host_bytes, "intra_host_bytes": placed.intra_host_bytes,
            "host_bytes": placed.host_bytes,
            "messages": sum(send.rounds for send in sends), "by_op": sent_by_op(sends),
            "seconds": sum(machine.wire_seconds(*send.busiest, links.route(step.geometry.mesh, send.axis, per_host))
                           for send in sends), **facts(options, *LINKS),
            "formulas": _formulas(step, per_host) | _shared(model, step, known), "moved_bytes": moved}


def _table_of(model: PlannedModel, step: Setup, options: Options) -> ActivationBytes | None:
    """The table that says how large activations are, where they are sent or move. ConfigError for what says nothing of
    a message or a move."""
    tiers = step.geometry.placement.tiers
    if tiers.optimizer is not NVME and options["optimizer"] != ADAM.name:
        ignored(options, ("optimizer",), "changes no message, and a move only with `offload` optimizer=nvme")
    if tiers.optimizer is not NVME:
        ignored(options, ("momentum", "no_master_weights"),
                "changes no message, and a move only with `offload` optimizer=nvme")
    batch = told_batch(options, model)
    if step.geometry.tensors > 1 and batch is None:
        raise ConfigError(f"`tensor_size` {step.geometry.tensors} sends activations, whose bytes follow from "
                          "`batch_size`: name it, the samples of a microbatch")
    if tiers.checkpoints is DEVICE and step.geometry.tensors == 1:
        ignored(options, ("batch_size", "tokens"), "changes no message, and a move only with `offload` "
                "checkpoints=cpu")
        return None
    return own_table(model, step, batch)


def _formulas(step: Setup, per_host: int) -> dict[str, dict[str, Any]]:
    """The papers' closed forms for one microbatch: name -> formula and bytes."""
    geometry, volume = step.geometry, step.strategy.volume
    world, model = geometry.mesh.ranks, geometry.itemsize * step.wrapping.padded_numel
    frozen = step.wrapping.frozen_numel
    ends = " of what trains, gathers" if frozen else ", tied again"
    words = f"{volume} M (F-1)/F + 2 M/F (R-1)/R{ends}"
    sizes = formula_sizes(geometry.placement, volume, geometry.dtype, geometry.wire, geometry.sums)
    if {geometry.wire, geometry.sums} != {geometry.dtype}:
        words = (f"{'+'.join(map(str, sizes))} psi (F-1)/F + {geometry.wire_itemsize}+{geometry.sum_itemsize} psi/F "
                 f"(R-1)/R{ends}")
    if geometry.placement.params is OWNED:
        words = "this rank's; on average (3 + 1/F) M (F-1)/F, tied again"
    found: dict[str, dict[str, Any]] = {"a step": {"formula": words, "bytes": formula_sent(geometry, volume)}}
    of_papers = step.settings.stage == "3" and geometry.tensors == 1 and not frozen
    if of_papers and world % per_host == 0 and per_host < world:
        hybrid, printed = (form(model, world, per_host) for form in (hybrid_sharding, hybrid_sharding_printed))
        found |= {
            "full sharding, between hosts": {"formula": "3 M (W-1)/W", "bytes": full_sharding(model, world)},
            "hybrid sharding in hosts, between them": {"formula": "2 M (W-G)/(G W)", "bytes": hybrid},
            "the same as the FSDP paper prints it": {"formula": "2 M (W-1)/(G W)", "bytes": printed}}
    return found


def _shared(model: PlannedModel, step: Setup, known: ActivationBytes | None) -> dict[str, dict[str, Any]]:
    """What tensor parallel ranks of a GPT tell each other."""
    geometry, settings, size = step.geometry, step.settings, step.geometry.tensors
    if known is None or model.gpt is None or size == 1 or step.wrapping.frozen_numel:
        return {}
    copied = sum(geometry.kept(unit, geometry.placement.optim) for unit in step.wrapping.trained
                 if step.wrapping.units[unit].copied)
    each = geometry.wire_itemsize + geometry.sum_itemsize
    interval = settings.recompute_interval if settings.recompute else None
    inputs = shared_inputs(model.gpt.layers, interval, settings.partition_activations)
    blocks = inputs - AT_THE_ENDS
    words = f"({blocks} + {AT_THE_ENDS}) bsz seq hd (T-1)/T; {blocks / model.gpt.layers:g} a block"
    nbytes = inputs * known.segments[0].output + known.loss_parts
    return {"tensor ranks: activations": {"formula": words, "bytes": nbytes // size * (size - 1)},
            "tensor ranks: gradients of copies": {
                "formula": f"{each} bytes of each element kept x (T-1)/T",
                "bytes": each * (copied // size) * (size - 1)}}


def _how(answer: dict[str, Any]) -> str:
    straight = ("" if answer["reduce_dtype"] == answer["sum_dtype"] else
                f" Gradients go straight to the ranks that sum them in {answer['sum_dtype']}.")
    return "\n".join(wrapped("In a ring a rank sends to its successor alone: where a ring spans hosts, the last rank "
                             f"of each host sends to another one.{straight} One after the other, all collectives take "
                             f"an estimated {answer['seconds']:.3g} s. {rates_text(answer)}"))


def show(answer: dict[str, Any]) -> str:
    most = answer["all_ranks_bytes"] < answer["sent_bytes"] * answer["ranks"]
    rows = [("sent by the rank that sends most" if most else "sent by every rank", answer["sent_bytes"]),
            *((f"  {op}", nbytes) for op, nbytes in answer["by_op"].items()),
            ("sent by all ranks together", answer["all_ranks_bytes"]),
            ("between hosts, by the rank that sends most there", answer["inter_host_bytes"]),
            ("inside its host, by the rank that sends most there", answer["intra_host_bytes"]),
            ("leaving the busiest host, all its ranks together", answer["host_bytes"])]
    rows += [(f"moved between tiers, {link}", nbytes) for link, nbytes in answer["moved_bytes"].items() if nbytes]
    formulas = [[name, entry["formula"], f"{entry['bytes']:,.0f}"] for name, entry in answer["formulas"].items()]
    return "\n\n".join([
        head(answer),
        f"hosts: {answer['hosts']:,}, of up to {counted(answer['ranks_per_host'], 'rank')}; "
        f"messages of a rank: {answer['messages']:,}",
        table(["in a step", "bytes", "in units"], [[words, nbytes, in_units(nbytes)] for words, nbytes in rows]),
        _how(answer),
        table(["closed form, one microbatch", "M: bytes of all parameters", "bytes"], formulas)])
