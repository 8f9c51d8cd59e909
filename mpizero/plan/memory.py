"""Bytes of a rank by kind: at rest, after backward and at the peak of a step, from the actions that a run executes."""

from __future__ import annotations

import argparse
import textwrap
from fractions import Fraction
from typing import Any

from mpizero.layout import SHARDED
from mpizero.memory.kinds import ACTIVATION
from mpizero.papers.activations import recompute_checkpoints, transformer_activations
from mpizero.papers.compare import others
from mpizero.papers.states import form_text, plain, stage_bytes
from mpizero.plan.options import (
    WIDTH, Options, add_model, add_step, argument_type, count, described, head, step_of, wrapped,
)
from mpizero.planner import MemoryPlan, formula_after_backward, plan_memory
from mpizero.planner.model import PlannedModel
from mpizero.quantities import in_units
from mpizero.schedule import Setup
from mpizero.schedule import show as show_action
from mpizero.text import table

HELP = "bytes of a rank, by kind"
EXAMPLE = "memory --params 7.5e9 --ranks 64 --stage 2 --compare"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_step(parser)
    parser.add_argument("--batch-size", type=argument_type(count), metavar="B",
                        help="samples of a rank: adds activations (--gpt, --model mlp)")
    parser.add_argument("--actions", action="store_true", help="the bytes after every action of the step")
    parser.add_argument("--compare", action="store_true",
                        help="what DeepSpeed, Megatron, accelerate and the papers say, and why")


def answer(options: Options) -> dict[str, Any]:
    """Keys at_rest, after_backward, peak, by_kind, formula, and what was asked."""
    model, step = step_of(options)
    plan = plan_memory(step.lists.step(), step.geometry)
    found = {**described(model, step), **_states(plan), **_formulas(step)}
    if options["batch_size"] is not None:
        found["activations"] = _activations(model, step, options["batch_size"])
    if options["actions"]:
        found["actions"] = [{"action": show_action(point.action), "live": sum(point.live.values()),
                             "peak": point.peak_bytes, **point.live} for point in plan.points]
    if options["compare"]:
        estimates = others(model.spec.psi, step.geometry.shards, step.settings.stage, step.geometry.dtype,
                           model.largest_leaf)
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
    frozen, ranks = step.wrapping.frozen_numel, "N" if geometry.replicas == 1 else "F"
    unpadded = stage_bytes(step.wrapping.numel - frozen, stage, geometry.shards, geometry.dtype)
    text = form_text(stage, geometry.dtype, ranks)
    if frozen:
        sharded = geometry.placement.params is SHARDED
        unpadded += plain(Fraction(geometry.itemsize * frozen, geometry.shards if sharded else 1))
        text += (f" of the psi that train, and {geometry.itemsize} psi{f'/{ranks}' if sharded else ''} of the "
                 f"{frozen:,} that are frozen")
    return {"formula": formula_after_backward(geometry), "formula_without_padding": unpadded, "formula_text": text}


def _activations(model: PlannedModel, step: Setup, batch: int) -> dict[str, Any] | None:
    """Exact bytes over the same actions, and a transformer's closed forms. None where only a size is known."""
    if model.spec.activations is None:
        return None
    each, context = model.spec.activations(model.shape(batch), step.geometry.dtype), model.context
    points = plan_memory(step.lists.step(), step.geometry, each).points
    found: dict[str, Any] = {"batch_size": batch, "context": context, "after_forward": each.after_forward,
                             "peak": max(point.live[ACTIVATION] for point in points)}
    if model.gpt is not None:
        sizes = (model.gpt.d_model, batch, context, model.gpt.layers)
        found["formula"] = step.geometry.itemsize * transformer_activations(*sizes)
        found["recompute_formula"] = recompute_checkpoints(*sizes)
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
        "\n".join(wrapped(f"After backward by formula, {answer['formula_text']}: {answer['formula']:,} bytes, "
                          f"{equal}."))]
    if answer["formula"] != answer["formula_without_padding"]:
        parts[-1] += f"\nThe same without padding: {answer['formula_without_padding']:,} bytes."
    if "activations" in answer:
        parts.append(_show_activations(answer["activations"]))
    if "actions" in answer:
        parts.append(table(["after", "live bytes", "peak meanwhile"],
                           [[row["action"], row["live"], row["peak"]] for row in answer["actions"]]))
    if "compare" in answer:
        parts.append(show_compare(answer["compare"], answer["after_backward"], answer["peak"]))
    return "\n\n".join(parts)


def _show_activations(found: dict[str, Any] | None) -> str:
    if found is None:
        return "activations: of this model only the size is known; use --gpt or --model mlp"
    rows = [["between forward and backward, exact", found["after_forward"]],
            ["peak over the actions, exact", found["peak"]]]
    if "formula" in found:
        rows += [["12 hd batch seq layers elements (ZeRO)", found["formula"]],
                 ["with recompute, 2 bsz seq hd nl (ZeRO-Infinity)", found["recompute_formula"]]]
    return table([f"activations, {found['batch_size']} samples of {found['context']} tokens", "bytes"], rows)


def show_compare(estimates: list[dict[str, Any]], after_backward: int, peak: int) -> str:
    """Each estimate beside ours, and on the next line why it differs."""
    lines = [f"{'others, without offload and activations':<46}{'bytes':>22}{'beside ours':>14}"]
    ours = [{"source": "ours, after backward", "device_bytes": after_backward, "why": ""},
            {"source": "ours, peak of model states", "device_bytes": peak, "why": ""}]
    for estimate in [*ours, *estimates]:
        size = estimate["device_bytes"]
        lines.append(f"{estimate['source']:<46}{size:>22,.0f}{size / after_backward:>14.2f}")
        lines += textwrap.wrap(estimate["why"], WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
