"""Flags that sub-commands share, and what they stand for."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from mpizero.cli import FLAGS
from mpizero.errors import ConfigError
from mpizero.layout import ADAM, MASTER, OPTIMIZERS, OptimizerSpec, freeze, named_policy, optimizer_spec, require_narrow
from mpizero.machine import LECTURE_TOKENS
from mpizero.planner.model import UNITS, PlannedModel, blocks, flat, gpt, mlp
from mpizero.quantities import parse_params
from mpizero.schedule import Setup, StepSettings, set_up
from mpizero.text import counted, precision

Options = Mapping[str, Any]
Parser = argparse.ArgumentParser | argparse._ArgumentGroup
T = TypeVar("T")

MODELS: dict[str, Callable[[], PlannedModel]] = {"mlp": mlp, "13b": blocks}
MOST = 10**6  # ranks, units, layers: beyond, a plan takes long and is of no use
RANKS_PER_HOST = 8
WIDTH = 100  # columns of what people read
PRECISION = ("dtype", "reduce_dtype", "sum_dtype")
SETTINGS = tuple(field.name for field in fields(StepSettings))

# -- types of flags: text -> value, or a ConfigError with the cure ----------------------------------------------------


def argument_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` as a type for argparse, which otherwise hides what a ConfigError says."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def ignored(options: Options, names: Iterable[str], why: str) -> None:
    """ConfigError for the first of `names` that the user has given: what would be ignored is refused."""
    for name in names:
        if options.get(name) not in (None, False, []):
            raise ConfigError(f"`{name}` {why}: leave it out")


def count(text: str) -> int:
    """An int from 1 to MOST."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= MOST):
        raise ConfigError(f"{text[:40]!r} is impossible: give a whole number from 1 to {MOST:,}, as in 64")
    return int(text)


def _gpt_sizes(text: str) -> tuple[int, int, int, int]:
    sizes = text.split(",")
    if len(sizes) != 4:
        raise ConfigError(f"{text[:40]!r} is not LAYERS,D,HEADS,VOCAB: give four numbers, as in 24,1024,16,50257")
    layers, width, heads, vocab = (count(size.strip()) for size in sizes)
    return layers, width, heads, vocab


# -- a model, a step of it, a machine ---------------------------------------------------------------------------------


def add_model(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Which model, one of three ways."""
    which = parser.add_mutually_exclusive_group(required=required)
    which.add_argument("--params", type=argument_type(parse_params), metavar="N",
                       help="a bare number of parameters, as 7.5e9 or 7.5B")
    which.add_argument("--gpt", type=argument_type(_gpt_sizes), metavar="LAYERS,D,HEADS,VOCAB",
                       help="GPT-2's shapes, tied, as 24,1024,16,50257")
    which.add_argument("--model", choices=list(MODELS),
                       help="mlp: 5 Linears, 32,656 parameters; 13b: 40 blocks of 12 x 5120^2, embedding")
    parser.add_argument("--units", type=argument_type(count), metavar="K",
                        help=f"with --params: units of equal size ({UNITS})")
    parser.add_argument("--tiles", type=argument_type(count), default=1, metavar="T",
                        help=FLAGS["tiles"].metadata["help"])
    parser.add_argument("--context", type=argument_type(count), default=1024, metavar="T",
                        help="tokens of a sample; with --gpt: its positions (1024)")


def add_freeze(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--freeze", default=[], **FLAGS["freeze"].metadata)


def model_of(options: Options) -> PlannedModel:
    """What `add_model`'s flags name."""
    model = _named_model(options)
    # another number of units would have other names
    patterns = options.get("freeze")
    return replace(model, spec=freeze(model.spec, patterns), cut=None) if patterns else model


def _named_model(options: Options) -> PlannedModel:
    tiles = options["tiles"]
    if tiles != 1 and options["gpt"] is None and options["model"] != "mlp":
        raise ConfigError(f"`tiles` {tiles} cuts matrices, whose shapes --gpt or --model mlp name: add one of these")
    if options["params"] is not None:
        return flat(options["params"], options["units"] or UNITS)
    if options["gpt"] is not None:
        layers, width, heads, vocab = options["gpt"]
        try:
            return gpt(layers, width, heads, vocab, options["context"], tiles=tiles)
        except ConfigError as error:  # names fields, which are no flags here
            raise ConfigError(f"--gpt: {str(error).replace('`', '')}") from None
    return mlp(tiles=tiles) if options["model"] == "mlp" else MODELS[options["model"]]()


def add_ranks(parser: Parser, required: bool = True) -> None:
    parser.add_argument("--ranks", type=argument_type(count), required=required, metavar="N",
                        help="how many, as mpirun -n")
    parser.add_argument("--ranks-per-host", type=argument_type(count), metavar="G",
                        help=f"ranks fill hosts in order ({RANKS_PER_HOST}; with --machine: as it was measured)")


def add_batch(parser: Parser, words: str = "1") -> None:
    """How much a rank computes in a microbatch. words: what --batch-size is unless it is given."""
    parser.add_argument("--batch-size", type=argument_type(count), metavar="B",
                        help=f"samples of a rank in a microbatch ({words})")
    parser.add_argument("--tokens", type=argument_type(count), metavar="T",
                        help=f"the same in tokens (batch size x context; of a bare size {LECTURE_TOKENS:,})")


def batch_of(options: Options, model: PlannedModel) -> tuple[int, int]:
    """(samples, tokens) of a rank in a microbatch. ConfigError where both are told and disagree, or tokens are no whole
    samples."""
    batch, tokens, context = options["batch_size"], options["tokens"], model.context
    if not model.programs:  # of a bare size only tokens count
        context = options["context"]
        if batch is None:
            return 1, tokens or LECTURE_TOKENS
    if tokens is None:
        return batch or 1, (batch or 1) * context
    if tokens % context or batch not in (None, tokens // context):
        raise ConfigError(f"--tokens {tokens} are not {batch or 'whole'} samples of {counted(context, 'token')}: say "
                          "--batch-size, and --context with --gpt")
    return tokens // context, tokens


def add_step(parser: argparse.ArgumentParser) -> None:
    """Ranks, and the flags of `mpizero.train` that shape a step."""
    add_ranks(parser)
    add_freeze(parser)
    for name, field in FLAGS.items():
        if field.name in (*SETTINGS, *PRECISION) and field.name != "overlap":
            parser.add_argument(f"--{name}", default=getattr(StepSettings, field.name, field.default),
                                **field.metadata)
    parser.add_argument("--wrap", **FLAGS["wrap"].metadata)
    parser.add_argument("--overlap", choices=["on", "off"], default="off",
                        help="collectives go on while a rank computes: memory at its peak (off)")


def add_optimizer(parser: argparse.ArgumentParser) -> None:
    """The flags of `mpizero.train` that say what is kept of each element."""
    parser.add_argument("--optimizer", default=ADAM.name, metavar="NAME", help=f"{', '.join(OPTIMIZERS)} (adam)")
    for name in ("momentum", "no-master-weights"):
        parser.add_argument(f"--{name}", **FLAGS[name].metadata)


def optimizer_of(options: Options) -> OptimizerSpec:
    """What `add_optimizer`'s flags name; Adam where there are none."""
    if "optimizer" not in options:
        return ADAM
    if options["no_master_weights"]:
        require_narrow(options["dtype"])
    return optimizer_spec(options["optimizer"], options["momentum"], master=not options["no_master_weights"])


def step_of(options: Options) -> tuple[PlannedModel, Setup]:
    """What `add_model`'s and `add_step`'s flags stand for: the very lists that a run would execute."""
    chosen = {name: options[name] for name in SETTINGS} | {"overlap": options["overlap"] == "on"}
    model, settings = model_of(options), StepSettings(**chosen)
    return model, set_up(model.spec, options["ranks"], settings, optimizer=optimizer_of(options),
                         policy=named_policy(options["wrap"], model.spec, options["dtype"]),
                         **{name: options[name] for name in PRECISION})


# -- what all answers share -------------------------------------------------------------------------------------------


def described(model: PlannedModel, step: Setup) -> dict[str, Any]:
    """What was asked, for the head of an answer."""
    wrapping, geometry = step.wrapping, step.geometry
    return {"model": model.name, "psi": wrapping.numel, "padded_psi": wrapping.padded_numel,
            "frozen_psi": wrapping.frozen_numel,
            "units": len(wrapping.units), "ranks": geometry.mesh.ranks, "replicas": geometry.replicas,
            **asdict(step.settings), "shard_size": geometry.shards, "dtype": geometry.dtype,
            "reduce_dtype": geometry.wire, "sum_dtype": geometry.sums}


def head(answer: Mapping[str, Any]) -> str:
    """Two lines that say what the tables below are of."""
    steps = [name.replace("_", " ") + ("" if answer[name] is True else f" {answer[name]}")
             for name in SETTINGS if name not in ("stage", "shard_size")
             if answer[name] and (name, answer[name]) not in (("accumulation", 1), ("recompute_interval", 1))]
    padding = answer["padded_psi"] - answer["psi"]
    frozen = f" ({answer['frozen_psi']:,} frozen)" if answer["frozen_psi"] else ""
    mesh = f"{counted(answer['ranks'], 'rank')} = {answer['replicas']:,} x {answer['shard_size']:,} (replicas x shards)"
    return "\n".join([
        answer["model"],
        f"psi = {answer['psi']:,} parameters{frozen} in {counted(answer['units'], 'unit')}, {padding:,} elements of "
        "padding",
        *wrapped(", ".join([f"stage {answer['stage']} in {precision(answer)}", mesh, *steps]))])


def k_text(answer: Mapping[str, Any]) -> str:
    """`K = 8 of lion`: bytes of optimizer states a parameter."""
    return (f"K = {answer['optimizer_bytes']} of {answer['optimizer']}"
            + ("" if answer["master_weights"] or answer["dtype"] == MASTER.dtype else " without master weights"))


def wrapped(text: str) -> list[str]:
    """Lines of at most WIDTH columns."""
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def spelled_text(text: str) -> str:
    """Fields in backticks as the flags that set them: `shard_size` 8 -> --shard-size 8."""
    return re.sub(r"`([a-z][a-z_]*)`", lambda match: "--" + match[1].replace("_", "-"), text)
