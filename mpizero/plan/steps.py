"""A step that is planned: the flags of `mpizero.train` that shape it, and what all answers say of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from mpizero.cli import FLAGS
from mpizero.layout import ADAM, MASTER, OPTIMIZERS, OptimizerSpec, named_policy, optimizer_spec, require_narrow
from mpizero.plan.options import Options, add_as_train, add_ranks, model_of, part_of, wrapped
from mpizero.planner.model import PlannedModel
from mpizero.schedule import Setup, StepSettings, set_up
from mpizero.text import counted, precision

PRECISION = ("dtype", "reduce_dtype", "sum_dtype")
SETTINGS = tuple(field.name for field in fields(StepSettings))


def add_step(parser: argparse.ArgumentParser, hosts: bool = True) -> None:
    """Ranks, and the flags of `mpizero.train` that shape a step. hosts: as of `add_ranks`."""
    add_ranks(parser, hosts=hosts)
    add_as_train(parser, "freeze", "wrap", *(name for name, field in FLAGS.items()
                                             if field.name in (*SETTINGS, *PRECISION) and field.name != "overlap"))
    parser.add_argument("--overlap", choices=["on", "off"], default="off",
                        help="collectives go on while a rank computes: memory at its peak (off)")


def add_optimizer(parser: argparse.ArgumentParser) -> None:
    """The flags of `mpizero.train` that say what is kept of each element."""
    parser.add_argument("--optimizer", default=ADAM.name, metavar="NAME", help=f"{', '.join(OPTIMIZERS)} (adam)")
    add_as_train(parser, "momentum", "no-master-weights")


def optimizer_of(options: Options) -> OptimizerSpec:
    """What `add_optimizer`'s flags name."""
    if options["no_master_weights"]:
        require_narrow(options["dtype"])
    return optimizer_spec(options["optimizer"], options["momentum"], master=not options["no_master_weights"])


def settings_of(options: Options) -> StepSettings:
    """What `add_step`'s flags say."""
    return StepSettings(**{name: options[name] for name in SETTINGS} | {"overlap": options["overlap"] == "on"})


def step_of(options: Options) -> tuple[PlannedModel, Setup]:
    """What `add_model`'s and `add_step`'s flags stand for: the very lists that a run would execute; of tensor parallel
    ranks those of the first."""
    model = part_of(model_of(options), options["tensor_size"])
    return model, step_with(model, options)


def step_with(model: PlannedModel, options: Options) -> Setup:
    """The same of a model."""
    return set_up(model.spec, options["ranks"], settings_of(options), optimizer=optimizer_of(options),
                  policy=named_policy(options["wrap"], model.spec, options["dtype"]),
                  **{name: options[name] for name in PRECISION})


def described(model: PlannedModel, step: Setup) -> dict[str, Any]:
    """What was asked, for the head of an answer."""
    wrapping, geometry = step.wrapping, step.geometry
    return {"model": model.name, "psi": model.spec.psi, "own_psi": wrapping.numel,
            "padded_psi": wrapping.padded_numel, "frozen_psi": model.spec.frozen_psi,
            "units": len(wrapping.units), "ranks": geometry.mesh.ranks, "replicas": geometry.replicas,
            **asdict(step.settings), "shard_size": geometry.shards, "dtype": geometry.dtype,
            "reduce_dtype": geometry.wire, "sum_dtype": geometry.sums}


def head(answer: Mapping[str, Any]) -> str:
    """Two lines that say what the tables below are of."""
    steps = [name.replace("_", " ") + ("" if answer[name] is True else f" {answer[name]}")
             for name in SETTINGS if name not in ("stage", "shard_size", "tensor_size")
             if answer[name] and (name, answer[name]) not in (("accumulation", 1), ("recompute_interval", 1))]
    padding = answer["padded_psi"] - answer["own_psi"]
    frozen = f" ({answer['frozen_psi']:,} frozen)" if answer["frozen_psi"] else ""
    own = f", of which a rank has {answer['own_psi']:,}" if answer["tensor_size"] > 1 else ""
    sizes, axes = f"{answer['replicas']:,} x {answer['shard_size']:,}", "replicas x shards"
    if answer["tensor_size"] > 1:
        sizes, axes = f"{sizes} x {answer['tensor_size']}", f"{axes} x tensor"
    return "\n".join([
        *wrapped(answer["model"]),
        *wrapped(f"psi = {answer['psi']:,} parameters{frozen}{own} in {counted(answer['units'], 'unit')}, {padding:,} "
                 "elements of padding"),
        *wrapped(", ".join([f"stage {answer['stage']} in {precision(answer)}",
                            f"{counted(answer['ranks'], 'rank')} = {sizes} ({axes})", *steps]))])


def k_text(answer: Mapping[str, Any]) -> str:
    """`K = 8 of lion`: bytes of optimizer states a parameter."""
    return (f"K = {answer['optimizer_bytes']} of {answer['optimizer']}"
            + ("" if answer["master_weights"] or answer["dtype"] == MASTER.dtype else " without master weights"))
