"""Bytes of a rank by kind: at rest, after backward and at the peak of a step, from the actions that a run executes."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from mpizero.plan.options import WIDTH, Options, Setup, add_model, add_step, count, described, head, said, setup, wrapped
from mpizero.planner import formula_after_backward, plan_memory
from mpizero.planner.activations import plan_activations, recompute_checkpoints, transformer_activations
from mpizero.planner.compare import others
from mpizero.planner.states import form_text, stage_bytes
from mpizero.schedule import show as show_action
from mpizero.text import in_units, table

HELP = "bytes of a rank, by kind"
EXAMPLE = "memory --params 7.5e9 --ranks 64 --stage 2 --compare"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_step(parser)
    parser.add_argument("--batch-size", type=said(count), metavar="B", help="samples of a rank: adds activations (--gpt, --model mlp)")
    parser.add_argument("--actions", action="store_true", help="the bytes after every action of the step")
    parser.add_argument("--compare", action="store_true", help="what DeepSpeed, Megatron, accelerate and the papers say, and why")


def answer(options: Options) -> dict[str, Any]:
    """Keys at_rest, after_backward, peak, by_kind, formula, and what was asked."""
    asked = setup(options)
    plan = plan_memory(asked.lists.step(), asked.geometry)
    moments = {"at_rest": plan.at_rest, "after_backward": plan.after_backward, "peak": plan.peak_by_kind}
    found: dict[str, Any] = {
        **described(asked), "at_rest": plan.at_rest_bytes, "after_backward": plan.after_backward_bytes, "peak": plan.peak_bytes,
        "peak_action": show_action(plan.peak_action) if plan.peak_action else "at rest",
        "by_kind": {kind: {moment: values[kind] for moment, values in moments.items()} for kind in plan.at_rest},
        "formula": formula_after_backward(asked.geometry),  # of padded parameters; the paper's own counts none:
        "formula_without_padding": stage_bytes(asked.wrapping.numel, asked.config.stage, asked.geometry.shards, asked.config.dtype),
        "formula_text": form_text(asked.config.stage, asked.config.dtype, "N" if asked.geometry.replicas == 1 else "F"),
    }
    if options["batch_size"] is not None:
        found["activations"] = _activations(asked, options["batch_size"])
    if options["actions"]:
        found["actions"] = [{"action": show_action(point.action), "live": sum(point.live.values()), "peak": point.peak_bytes, **point.live}
                            for point in plan.points]
    if options["compare"]:
        estimates = others(asked.wrapping.numel, asked.geometry.shards, asked.config.stage, asked.config.dtype, asked.model.largest_leaf)
        found["compare"] = [vars(estimate) for estimate in estimates]
    return found


def _activations(asked: Setup, batch: int) -> dict[str, Any] | None:
    """Exact bytes over the same actions, and the papers' closed forms for a transformer. None where only a size is known."""
    if asked.model.activations is None:
        return None
    table_ = asked.model.activations(batch, asked.model.context, asked.config.dtype)
    found: dict[str, Any] = {"batch_size": batch, "context": asked.model.context, "after_forward": table_.after_forward,
                             "peak": max(plan_activations(asked.lists.step(), table_))}
    if asked.model.transformer:
        layers, hidden, _ = asked.model.transformer
        found["formula"] = asked.geometry.itemsize * transformer_activations(hidden, batch, asked.model.context, layers)
        found["recompute_formula"] = recompute_checkpoints(hidden, batch, asked.model.context, layers)
    return found


def show(answer: dict[str, Any]) -> str:
    rows = [[kind, *moments.values()] for kind, moments in answer["by_kind"].items()]
    rows.append(["all", *(answer[moment] for moment in ("at_rest", "after_backward", "peak"))])
    equal = "equal" if answer["formula"] == answer["after_backward"] else "NOT equal: it counts one gradient buffer, here are two"
    sizes = ", ".join(in_units(value) for value in rows[-1][1:])
    parts = [head(answer), table(["bytes of a rank", "at rest", "after backward", "peak"], rows),
             "\n".join(wrapped(f"All in units: {sizes}; the peak is at {answer['peak_action']}. Kinds peak at different moments.")),
             "\n".join(wrapped(f"After backward by formula, {answer['formula_text']}: {answer['formula']:,} bytes, {equal}."))]
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
    rows = [["between forward and backward, exact", found["after_forward"]], ["peak over the actions, exact", found["peak"]]]
    if "formula" in found:
        rows += [["12 hd batch seq layers elements (ZeRO)", found["formula"]],
                 ["with recompute, 2 bsz seq hd nl (ZeRO-Infinity)", found["recompute_formula"]]]
    return table([f"activations, {found['batch_size']} samples of {found['context']} tokens", "bytes"], rows)


def show_compare(estimates: list[dict[str, Any]], after_backward: int, peak: int) -> str:
    """Each estimate beside ours, and on the next line why it differs."""
    lines = [f"{'others, without offload and activations':<46}{'bytes':>22}{'beside ours':>14}"]
    ours = {"source": "ours, after backward", "device_bytes": after_backward, "why": ""}
    for estimate in [ours, {"source": "ours, peak of model states", "device_bytes": peak, "why": ""}, *estimates]:
        size = estimate["device_bytes"]
        lines.append(f"{estimate['source']:<46}{size:>22,.0f}{size / after_backward:>14.2f}")
        lines += textwrap.wrap(estimate["why"], WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
