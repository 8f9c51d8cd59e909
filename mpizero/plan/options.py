"""Flags that sub-commands share, and what they stand for."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from mpizero.cli import FLAGS
from mpizero.errors import ConfigError
from mpizero.machine import LECTURE_TOKENS
from mpizero.planner.model import UNITS, PlannedModel, blocks, flat, frozen, gpt, mlp
from mpizero.quantities import parse_params
from mpizero.schedule import StepSettings
from mpizero.text import counted

Options = Mapping[str, Any]
Parser = argparse.ArgumentParser | argparse._ArgumentGroup
T = TypeVar("T")

MODELS: dict[str, Callable[[], PlannedModel]] = {"mlp": mlp, "13b": blocks}
MOST = 10**6  # ranks, units, layers: beyond, a plan takes long and is of no use
RANKS_PER_HOST = 8
WIDTH = 100  # columns of what people read
CONTEXT = 1024

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
    parser.add_argument("--tiles", **{**FLAGS["tiles"].metadata, "type": argument_type(count)}, default=1)
    parser.add_argument("--context", type=argument_type(count), metavar="T",
                        help=f"tokens of a sample; with --gpt: its positions ({CONTEXT})")


def add_as_train(parser: Parser, *names: str) -> None:
    """Flags as `mpizero.train` has them, with the values that a step has without them."""
    for name in names:
        field = FLAGS[name]
        usual = [] if name == "freeze" else getattr(StepSettings, field.name, field.default)
        parser.add_argument(f"--{name}", default=usual, **field.metadata)


def model_of(options: Options) -> PlannedModel:
    """What `add_model`'s flags name. ConfigError for one that says nothing of this model."""
    if options["params"] is None:
        ignored(options, ("units",), "says into how many units --params are cut, and this model has its own")
    if options["gpt"] is None and (options["params"] is None and options["model"] == "mlp"
                                   or options.get("batch_size") is None):
        ignored(options, ("context",), "is of the samples of a --gpt, or of --batch-size without shapes")
    model, patterns = _named_model(options), options.get("freeze")
    return frozen(model, patterns) if patterns else model


def part_of(model: PlannedModel, size: int) -> PlannedModel:
    """What the first of `size` tensor parallel ranks has of it. ConfigError where nobody knows."""
    if size <= 1:  # settings of a step refuse those below 1
        return model
    if model.divide is None:
        raise ConfigError(f"`tensor_size` {size} divides heads, columns and vocabulary, which {model.name} does not "
                          "tell: give the shapes by --gpt or --model mlp, or leave it out")
    try:
        return model.divide(size)
    except ConfigError as error:  # names fields, which are no flags here
        raise ConfigError(re.sub("`(heads|hidden|classes)`", r"\1", str(error))) from None


def _named_model(options: Options) -> PlannedModel:
    tiles = options["tiles"]
    if tiles != 1 and options["gpt"] is None and options["model"] != "mlp":
        raise ConfigError(f"`tiles` {tiles} cuts matrices, whose shapes --gpt or --model mlp name: add one of these")
    if options["params"] is not None:
        return flat(options["params"], options["units"] or UNITS)
    if options["gpt"] is not None:
        layers, width, heads, vocab = options["gpt"]
        try:
            return gpt(layers, width, heads, vocab, options["context"] or CONTEXT, tiles=tiles)
        except ConfigError as error:  # names fields, which are no flags here
            raise ConfigError(f"--gpt: {str(error).replace('`', '')}") from None
    return mlp(tiles=tiles) if options["model"] == "mlp" else MODELS[options["model"]]()


def add_ranks(parser: Parser, required: bool = True, hosts: bool = True) -> None:
    """hosts: whether it matters on how many they are."""
    parser.add_argument("--ranks", type=argument_type(count), required=required, metavar="N",
                        help="how many, as mpirun -n")
    if not hosts:
        return
    parser.add_argument("--ranks-per-host", type=argument_type(count), metavar="G",
                        help=f"ranks fill hosts in order ({RANKS_PER_HOST}; with --machine: as it was measured)")


def told_batch(options: Options, model: PlannedModel) -> int | None:
    """Samples of a rank in a microbatch, if there is a word of them."""
    told = options["batch_size"] is not None or options["tokens"] is not None
    return batch_of(options, model)[0] if told else None


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
        context = options["context"] or CONTEXT
        if batch is None:
            return 1, tokens or LECTURE_TOKENS
    if tokens is None:
        return batch or 1, (batch or 1) * context
    if tokens % context or batch not in (None, tokens // context):
        raise ConfigError(f"--tokens {tokens} are not {batch or 'whole'} samples of {counted(context, 'token')}: say "
                          "--batch-size, and --context with --gpt")
    return tokens // context, tokens


# -- words ------------------------------------------------------------------------------------------------------------


def wrapped(text: str) -> list[str]:
    """Lines of at most WIDTH columns."""
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def spelled_text(text: str) -> str:
    """Fields in backticks as the flags that set them: `shard_size` 8 -> --shard-size 8."""
    return re.sub(r"`([a-z][a-z_]*)`", lambda match: "--" + match[1].replace("_", "-"), text)
