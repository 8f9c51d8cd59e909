"""Flags that sub-commands share, and what they stand for."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from mpizero.cli import FLAGS
from mpizero.errors import ConfigError
from mpizero.layout import freeze
from mpizero.machine import GPUS, Gpu, Machine
from mpizero.planner.model import UNITS, PlannedModel, blocks, flat, gpt, mlp
from mpizero.quantities import in_units, parse_count, parse_flops, parse_latency, parse_rate, parse_share
from mpizero.schedule import Setup, StepSettings, set_up

Options = Mapping[str, Any]
T = TypeVar("T")

MODELS: dict[str, Callable[[], PlannedModel]] = {"mlp": mlp, "13b": blocks}
DTYPES = ("float16", "bfloat16", "float32")
MOST = 10**6  # ranks, units, layers: beyond, a plan takes long and is of no use
WIDTH = 100  # columns of what people read
SETTINGS = tuple(field.name for field in fields(StepSettings))
RATES: dict[str, tuple[Callable[[str], float], str]] = {  # field of Machine -> how its flag is read, what it says
    "peak_flops": (parse_flops, "operations a second of a device, as 989TFLOPs"),
    "efficiency": (parse_share, "share of it that a model reaches, as 50%%"),
    "alpha": (parse_latency, "seconds that a message takes however short, as 10us"),
    "inter_bandwidth": (parse_rate, "of a rank between hosts, as 50GB/s or 400Gb/s"),
    "intra_bandwidth": (parse_rate, "the same inside a host"),
    "memory_bandwidth": (parse_rate, "of the device's memory"),
    "host_bandwidth": (parse_rate, "between device and host, each way"),
    "nvme_bandwidth": (parse_rate, "of a rank to NVMe"),
    "host_adam": (lambda text: float(parse_count(text.removesuffix("/s"))),
                  "parameters a second that the CPUs of a host update"),
}


# -- types of flags: text -> value, or a ConfigError with the cure ----------------------------------------------------


def argument_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` as a type for argparse, which otherwise hides what a ConfigError says."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


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
    which.add_argument("--params", type=argument_type(parse_count), metavar="N",
                       help="a bare number of parameters, as 7.5e9 or 7.5B")
    which.add_argument("--gpt", type=argument_type(_gpt_sizes), metavar="LAYERS,D,HEADS,VOCAB",
                       help="GPT-2's shapes, tied, as 24,1024,16,50257")
    which.add_argument("--model", choices=list(MODELS),
                       help="mlp: 5 Linears, 32,656 parameters; 13b: 40 blocks of 12 x 5120^2, embedding")
    parser.add_argument("--units", type=argument_type(count), metavar="K",
                        help=f"with --params: units of equal size ({UNITS})")
    parser.add_argument("--context", type=argument_type(count), default=1024, metavar="T",
                        help="with --gpt: positions, tokens of a sample (1024)")


def add_freeze(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--freeze", default=[], **FLAGS["freeze"].metadata)


def model_of(options: Options) -> PlannedModel:
    """What `add_model`'s flags name."""
    model = _named_model(options)
    # another number of units would have other names
    patterns = options.get("freeze")
    return replace(model, spec=freeze(model.spec, patterns), cut=None) if patterns else model


def _named_model(options: Options) -> PlannedModel:
    if options["params"] is not None:
        return flat(options["params"], options["units"] or UNITS)
    if options["gpt"] is not None:
        layers, width, heads, vocab = options["gpt"]
        try:
            return gpt(layers, width, heads, vocab, options["context"])
        except ConfigError as error:  # names fields, which are no flags here
            raise ConfigError(f"--gpt: {str(error).replace('`', '')}") from None
    return MODELS[options["model"]]()


def add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=argument_type(count), required=True, metavar="N", help="how many, as mpirun -n")


def add_step(parser: argparse.ArgumentParser) -> None:
    """Ranks, and the flags of `mpizero.train` that shape a step."""
    add_ranks(parser)
    add_freeze(parser)
    for name, field in FLAGS.items():
        if field.name in (*SETTINGS, "dtype"):
            parser.add_argument(f"--{name}", default=getattr(StepSettings, field.name, field.default),
                                **field.metadata)


def step_of(options: Options) -> tuple[PlannedModel, Setup]:
    """What `add_model`'s and `add_step`'s flags stand for: the very lists that a run would execute."""
    model, settings = model_of(options), StepSettings(**{name: options[name] for name in SETTINGS})
    return model, set_up(model.spec, options["ranks"], settings, dtype=options["dtype"])


def add_machine(parser: argparse.ArgumentParser, *names: str) -> None:
    """Flags for the rates of a machine, on which estimates of time depend."""
    if "peak_flops" in names:
        parser.add_argument("--gpu", choices=list(GPUS), help="rates from its data sheet; other flags win")
    for field in fields(Machine):
        if field.name in names:
            read, words = RATES[field.name]
            default: float = field.default  # type: ignore[assignment]  # a field need not have one; these do
            shown = f"{in_units(default)}/s" if read is parse_rate else f"{default:.3g}"
            parser.add_argument("--" + field.name.replace("_", "-"), type=argument_type(read), metavar="X",
                                help=f"{words} ({shown})")


def gpu_of(options: Options) -> Gpu | None:
    """What --gpu names."""
    return GPUS.get(options.get("gpu") or "")


def machine_of(options: Options) -> Machine:
    """What `add_machine`'s flags say; where they say nothing the GPU's data sheet, then the defaults."""
    gpu = gpu_of(options)
    told = {field.name: options.get(field.name) or getattr(gpu, field.name, None) for field in fields(Machine)}
    return Machine(**{name: value for name, value in told.items() if value is not None})


# -- what all answers share -------------------------------------------------------------------------------------------


def described(model: PlannedModel, step: Setup) -> dict[str, Any]:
    """What was asked, for the head of an answer."""
    wrapping, geometry = step.wrapping, step.geometry
    return {"model": model.name, "psi": wrapping.numel, "padded_psi": wrapping.padded_numel,
            "frozen_psi": wrapping.frozen_numel,
            "units": len(wrapping.units), "ranks": geometry.mesh.ranks, "replicas": geometry.replicas,
            **asdict(step.settings), "shard_size": geometry.shards, "dtype": geometry.dtype}


def head(answer: Mapping[str, Any]) -> str:
    """Two lines that say what the tables below are of."""
    steps = [name.replace("_", " ") + ("" if answer[name] is True else f" {answer[name]}")
             for name in SETTINGS if name not in ("stage", "shard_size")
             if answer[name] and (name, answer[name]) != ("accumulation", 1)]
    padding = answer["padded_psi"] - answer["psi"]
    frozen = f" ({answer['frozen_psi']:,} frozen)" if answer["frozen_psi"] else ""
    mesh = f"{answer['ranks']:,} ranks = {answer['replicas']:,} x {answer['shard_size']:,} (replicas x shards)"
    return "\n".join([
        answer["model"],
        f"psi = {answer['psi']:,} parameters{frozen} in {answer['units']:,} units, {padding:,} elements of padding",
        *wrapped(", ".join([f"stage {answer['stage']} in {answer['dtype']}", mesh, *steps]))])


def wrapped(text: str) -> list[str]:
    """Lines of at most WIDTH columns."""
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def spelled_text(text: str) -> str:
    """Fields in backticks as the flags that set them: `shard_size` 8 -> --shard-size 8."""
    return re.sub(r"`([a-z][a-z_]*)`", lambda match: "--" + match[1].replace("_", "-"), text)
