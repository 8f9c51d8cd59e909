"""Bytes of a rank by kind: at rest, after backward and at the peak of a step, from the actions that a run executes.
With a batch size also the most on the device of all kinds together: of mpizero's own program exactly what a run
needs."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import replace
from fractions import Fraction
from typing import Any

from mpizero.layout import DEVICE, MASTER, OWNED, SHARDED, stored_states
from mpizero.memory.kinds import ACTIVATIONS, KEPT_INPUT
from mpizero.papers.activations import recompute_checkpoints, transformer_activations
from mpizero.papers.compare import others
from mpizero.papers.states import form_text, plain, stage_bytes
from mpizero.plan.options import WIDTH, Options, add_batch, add_model, argument_type, told_batch, wrapped
from mpizero.plan.rates import add_gpu, gpu_of
from mpizero.plan.steps import add_optimizer, add_step, described, head, k_text, step_of
from mpizero.plan.tiers import show_tiers, tiers_of
from mpizero.planner import MemoryPlan, formula_after_backward, fullest_and_emptiest, plan_memory
from mpizero.planner.model import OURS, PROGRAMS, PlannedModel
from mpizero.planner.need import step_peak
from mpizero.quantities import in_units, parse_memory
from mpizero.schedule import Setup
from mpizero.schedule import show as show_action
from mpizero.schedule.actions import Phase
from mpizero.text import counted, table

HELP = "bytes of a rank, by kind"
EXAMPLE = "memory --params 7.5e9 --ranks 64 --stage 2 --compare"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_step(parser, hosts=False)
    add_optimizer(parser)
    add_batch(parser, "adds activations of --gpt or --model mlp")
    add_gpu(parser, "how much of its memory is left")
    for tier in ("device", "host"):
        parser.add_argument(f"--{tier}-memory", type=argument_type(parse_memory), metavar="SIZE",
                            help="of a rank: how much of it is left")
    parser.add_argument("--actions", action="store_true", help="the bytes after every action of the step")
    parser.add_argument("--compare", action="store_true",
                        help="what FSDP2, DeepSpeed, Megatron, accelerate and the papers say, and why")


def answer(options: Options) -> dict[str, Any]:
    """Keys at_rest, after_backward, peak, by_kind, formula, and what was asked; where units have owners of the rank
    that keeps most, and under `emptiest` of the one that keeps least."""
    model, step = step_of(options)
    fullest, emptiest = fullest_and_emptiest(step.geometry)
    step = replace(step, geometry=fullest)
    actions = step.lists.longest()
    plan = plan_memory(actions, fullest)
    found, gpu = {**described(model, step), **_states(plan), **_formulas(step)}, gpu_of(options)
    if emptiest is not fullest:
        found["places"] = {"fullest": fullest.shard_rank, "emptiest": emptiest.shard_rank}
        found["emptiest"] = _states(plan_memory(actions, emptiest))
    if gpu is not None:
        found["gpu"] = {"name": gpu.name, "memory": gpu.memory, "left_bytes": gpu.memory - plan.peak_bytes}
    batch = told_batch(options, model)
    if batch is not None:
        found["activations"] = _activations(model, step, batch)
    found |= tiers_of(model, step, options, batch)
    if options["actions"]:
        found["actions"] = [{"action": show_action(point.action), "live": sum(point.live.values()),
                             "peak": point.peak_bytes, **point.live} for point in plan.points]
    if options["compare"]:
        estimates = others(step.wrapping.numel, step.geometry.shards, step.settings.stage, step.geometry.dtype,
                           model.largest_leaf, model.largest_unit, step.geometry.optimizer)
        found["compare"] = [vars(estimate) for estimate in estimates]
    return found


def _states(plan: MemoryPlan) -> dict[str, Any]:
    moments = {"at_rest": plan.at_rest, "after_backward": plan.after_backward, "peak": plan.peak_by_kind}
    return {"at_rest": plan.at_rest_bytes, "after_backward": plan.after_backward_bytes, "peak": plan.peak_bytes,
            "peak_action": show_action(plan.peak_action) if plan.peak_action else "at rest",
            "by_kind": {kind: {moment: values[kind] for moment, values in moments.items()} for kind in plan.at_rest}}


def _formulas(step: Setup) -> dict[str, Any]:
    """Of padded parameters; the paper's own counts none. Frozen ones are stored, and nothing else."""
    geometry, stage = step.geometry, step.settings.stage
    dtype, optimizer = geometry.dtype, geometry.optimizer
    ranks = "N" if geometry.replicas == geometry.tensors == 1 else "F"
    shards, units = geometry.shards, step.wrapping.units
    if geometry.placement.params is OWNED:
        shards, units = 1, tuple(unit for index, unit in enumerate(units) if geometry.owns(index))
    frozen = sum(unit.numel for unit in units if unit.frozen)
    trained = sum(unit.numel for unit in units) - frozen
    unpadded = stage_bytes(trained, stage, shards, dtype, geometry.sums, optimizer)
    text = form_text(stage, dtype, ranks, geometry.sums, optimizer)
    if geometry.tensors > 1:
        text += f" of the {trained:,} that a rank has"
    if geometry.placement.params is OWNED:
        text = f"{text} on average and {text.removesuffix(f'/{ranks}')} of the {trained:,} that this rank owns"
    if frozen:
        sharded = geometry.placement.params is SHARDED
        unpadded += plain(Fraction(geometry.itemsize * frozen, shards if sharded else 1))
        text += (f" of the psi that train, and {geometry.itemsize} psi{f'/{ranks}' if sharded else ''} of the "
                 f"{frozen:,} that are frozen")
    formula = formula_after_backward(geometry)
    if geometry.placement.tiers.optimizer is not DEVICE:
        unpadded, text = formula, f"{text} as far as it rests on the device,"
    return {"optimizer": optimizer.name, "optimizer_bytes": geometry.optimizer_bytes,
            "master_weights": MASTER in stored_states(optimizer, dtype),
            "formula": formula, "formula_without_padding": unpadded, "formula_text": text}


def _activations(model: PlannedModel, step: Setup, batch: int) -> dict[str, Any] | None:
    """Exact bytes over the same actions; what other programs would keep; closed forms of a transformer. None where only
    a size is known."""
    if not model.programs:
        return None
    tables = {program: model.activations(program, batch, step.geometry.dtype) for program in model.programs}
    plans = {program: plan_memory(step.lists.longest(), step.geometry, each) for program, each in tables.items()}
    live = {program: [sum(point.live[kind] for kind in ACTIVATIONS) for point in plan.points]
            for program, plan in plans.items()}
    peaks, ours, context = {program: max(each) for program, each in live.items()}, plans[OURS].points, model.context
    turn = next(i for i, point in enumerate(ours) if point.action == Phase("backward"))
    device = {program: max(sum(point.live.values()) for point in plan.points) for program, plan in plans.items()}
    device[OURS] = step_peak(step, tables[OURS]).nbytes
    found: dict[str, Any] = {"batch_size": batch, "context": context, "device_peak": device[OURS],
                             "device_peak_of": device, "after_forward": live[OURS][turn],
                             "kept_inputs": ours[turn].live[KEPT_INPUT],
                             "peak": peaks[OURS], "peak_of": peaks}
    if model.gpt is not None:
        sizes = (model.gpt.d_model, batch, context, model.gpt.layers)
        found["formula"] = step.geometry.itemsize * transformer_activations(*sizes)
        kept = recompute_checkpoints(*sizes, step.settings.recompute_interval)  # of 2 bytes each
        parts = step.geometry.tensors if step.settings.partition_activations else 1
        found["recompute_formula"] = plain(Fraction(kept * step.geometry.itemsize // 2, parts))
        found["parts"] = parts
    return found


def show(answer: dict[str, Any]) -> str:
    rows = [[kind, *moments.values()] for kind, moments in answer["by_kind"].items()]
    rows.append(["all", *(answer[moment] for moment in ("at_rest", "after_backward", "peak"))])
    same = answer["formula"] == answer["after_backward"]
    equal = "equal" if same else "NOT equal: it counts one gradient buffer, here are two"
    sizes = ", ".join(in_units(value) for value in rows[-1][1:])
    parts = [
        head(answer),
        table(["bytes of a rank", "at rest", "after backward", "peak"], rows),
        "\n".join(wrapped(f"All in units: {sizes}; the peak is at {answer['peak_action']}. Kinds peak at different "
                          "moments.")),
        "\n".join(wrapped(f"After backward by formula, {answer['formula_text']} with {k_text(answer)}: "
                          f"{answer['formula']:,} bytes, {equal}."))]
    if "emptiest" in answer:
        parts.insert(3, "\n".join(wrapped(_emptiest(answer))))
    if answer["formula"] != answer["formula_without_padding"]:
        parts[-1] += f"\nThe same without padding: {answer['formula_without_padding']:,} bytes."
    if "gpu" in answer:
        parts[2] += f"\nOn {answer['gpu']['name']} the peak leaves {_left(answer['gpu']['left_bytes'])}."
    if "activations" in answer:
        parts.append(_show_activations(answer["activations"]))
    parts.append(show_tiers(answer))
    if "actions" in answer:
        parts.append(table(["after", "live bytes", "peak meanwhile"],
                           [[row["action"], row["live"], row["peak"]] for row in answer["actions"]]))
    if "compare" in answer:
        parts.append(show_compare(answer["compare"], answer["after_backward"], answer["peak"]))
    return "\n\n".join(parts)


def _emptiest(answer: dict[str, Any]) -> str:
    least, places = answer["emptiest"], answer["places"]
    moments = ", ".join(f"{least[moment]:,} {words}" for moment, words in (
        ("at_rest", "at rest"), ("after_backward", "after backward"), ("peak", "at the peak")))
    return (f"Each unit has one owner, so ranks differ. The table is of the rank that keeps most, number "
            f"{places['fullest']} of its shard group; the one that keeps least, number {places['emptiest']}, has "
            f"{moments}.")


def _show_activations(found: dict[str, Any] | None) -> str:
    if found is None:
        return "activations: of this model only the size is known; use --gpt or --model mlp"
    rows = [["mpizero's own, between forward and backward, exact", found["after_forward"]],
            *([f"peak: {PROGRAMS[program]}", nbytes] for program, nbytes in found["peak_of"].items())]
    if found["kept_inputs"]:
        rows.insert(1, ["of it inputs that recompute keeps", found["kept_inputs"]])
    if "formula" in found:
        parts = f", 1/{found['parts']} of" if found["parts"] > 1 else ","
        rows += [["12 hd batch seq layers elements (ZeRO)", found["formula"]],
                 [f"with recompute{parts} bsz seq hd nl / ci elements (ZeRO-Infinity)", found["recompute_formula"]]]
    rows += [[f"device, all kinds: {PROGRAMS[program]}", found["device_peak_of"][program]]
             for program in reversed(found["device_peak_of"])]
    samples, tokens = counted(found["batch_size"], "sample"), counted(found["context"], "token")
    return table([f"activations, {samples} of {tokens}", "bytes"], rows)


def _left(nbytes: int) -> str:
    return f"{in_units(nbytes)} for activations and the rest" if nbytes > 0 else f"{in_units(-nbytes)} too little"


def show_compare(estimates: list[dict[str, Any]], after_backward: int, peak: int) -> str:
    """Each estimate beside ours, and on the next line why it differs."""
    lines = [f"{'others, of Adam, without activations':<46}{'bytes':>22}{'beside ours':>14}"]
    ours = [{"source": "ours, after backward", "device_bytes": after_backward, "why": ""},
            {"source": "ours, peak of model states", "device_bytes": peak, "why": ""}]
    for estimate in [*ours, *estimates]:
        size = estimate["device_bytes"]
        lines.append(f"{estimate['source']:<46}{size:>22,.0f}{size / after_backward:>14.2f}")
        lines += textwrap.wrap(estimate["why"], WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
