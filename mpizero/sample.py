"""Let a trained GPT write: `python -m mpizero.sample runs/a/latest --prompt "def "`, or on many ranks under mpirun,
each with its share of the weights: the same text."""

from __future__ import annotations

import codecs
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mpizero.checkpoint.load import Loaded, load_gpt
from mpizero.cli import Parser, on_rank_0, spelled
from mpizero.comm import run_main, start
from mpizero.engine.alike import compare_flags
from mpizero.engine.gather import gather_data
from mpizero.engine.generate import generate
from mpizero.errors import ConfigError
from mpizero.launcher import launch
from mpizero.layout.models import GPTConfig
from mpizero.output import check_writable, tell, write_json

EXAMPLE = """examples:
  python -m mpizero.sample runs/a/latest --prompt "import " --bytes 200
  mpirun -n 4 python -m mpizero.sample gpt2.safetensors --tokens 464,3290 --bytes 20 --temperature 0
  head -c 100 code.py | python -m mpizero.sample runs/a --prompt - --top-k 20 --seed 1"""
BYTES = 256  # a vocabulary whose tokens are bytes of text
# what a terminal would obey
CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    """Parse, load, write; the exit status. Every rank runs it; rank 0 prints."""
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    _check(options)
    world = start()
    compare_flags(vars(options), world)
    on_rank_0(world, lambda: check_writable("--json", options.json))
    loaded = load_gpt(options.path, world, heads=options.heads)
    prompt = gather_data(world, _prompt(options, loaded, world.rank))[0]
    written = generate(loaded.job, prompt, options.bytes, context=loaded.sizes.context,
                       temperature=options.temperature, top_k=options.top_k, seed=options.seed)
    if world.rank:
        for _ in written:
            pass
        return 0
    if loaded.guessed:
        print(f"mpizero: {loaded.path} does not say how many heads it has: {loaded.sizes.heads} of 64 features, as "
              "GPT-2 (--heads says otherwise)", file=sys.stderr)
    tokens = _told(prompt, written, text=options.tokens is None)
    if options.json is not None:
        write_json(options.json, _facts(options, loaded, prompt, tokens))
    return 0


def parser() -> Parser:
    """The command's flags."""
    top = Parser(prog="python -m mpizero.sample", description=__doc__, epilog=EXAMPLE)
    top.add_argument("path", metavar="CHECKPOINT", help="DIR/latest, DIR, DIR/step-... or a safetensors file")
    top.add_argument("--prompt", metavar="TEXT", help="how the text begins; -: standard input has it (a newline)")
    top.add_argument("--tokens", metavar="N,N,...", help="numbers of tokens in place of text: writes numbers, too")
    top.add_argument("--bytes", type=int, default=200, metavar="N", help="how many to write (%(default)s)")
    top.add_argument("--temperature", type=float, default=1.0, metavar="T",
                     help="below 1 the likely becomes likelier; 0: always the likeliest byte (%(default)s)")
    top.add_argument("--top-k", type=int, metavar="K", help="choose among the K likeliest (all)")
    top.add_argument("--seed", type=int, default=0, help="of the choices (%(default)s)")
    top.add_argument("--heads", type=int, metavar="H", help="where the file does not say (64 features each)")
    top.add_argument("--json", metavar="FILE", help="write text, tokens and settings to this file")
    return top


def _check(options: Any) -> None:
    """ConfigError for values that can never work."""
    rules = {"bytes": (1, 2**40), "top_k": (1, 2**40), "heads": (1, 2**40), "seed": (0, 2**40),
             "temperature": (0, 1e6)}
    for name, (least, most) in rules.items():
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and least <= value < most):
            raise ConfigError(f"`{name}` {value} is impossible: it must be at least {least}, and below {most:,}")
    if options.prompt is not None and options.tokens is not None:
        raise ConfigError("`prompt` and `tokens` both say how it begins: leave one of them out")
    found = launch()
    if options.prompt == "-" and found is not None and found.name == "Open MPI's mpirun":  # 5.0 never tells the end
        raise ConfigError("`prompt` - would wait for ever, since Open MPI's mpirun does not pass on where standard "
                          "input ends: give the text itself, as in `prompt` \"$(cat FILE)\"")


def _prompt(options: Any, loaded: Loaded, rank: int) -> list[int]:
    """Tokens; what standard input has, on rank 0 alone, whose prompt all take. ConfigError for one that the model
    cannot go on from."""
    vocab = loaded.sizes.vocab
    if options.tokens is not None:
        words = options.tokens.split(",")
        if not all(word.strip().isascii() and word.strip().isdigit() and int(word[:12]) < vocab for word in words):
            raise ConfigError(f"`tokens` {options.tokens[:100]!r} cannot be used: give numbers from 0 to {vocab - 1}, "
                              "with commas between them")
        return [int(word) for word in words]
    if vocab != BYTES:
        raise ConfigError(f"{loaded.path} has a vocabulary of {vocab:,} tokens, for which mpizero has no tokenizer (it "
                          "knows bytes): give the numbers of a prompt's tokens with `tokens`")
    if options.prompt == "-" and rank:
        return []
    given = "\n" if options.prompt is None else options.prompt
    text = _standard_input() if given == "-" else os.fsencode(given)
    if not text and rank == 0:
        raise ConfigError("`prompt` is empty, and the model needs a byte to go on from: give one")
    return list(text)


def _standard_input() -> bytes:
    if sys.stdin is None:
        return b""
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise ConfigError(f"standard input cannot be read: {error.strerror}") from None


def _told(prompt: Sequence[int], written: Iterable[int], text: bool) -> list[int]:
    """Print the prompt and what follows, as it comes; the tokens that follow."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    tokens: list[int] = []

    def show(token: int, before: str = " ") -> str:
        return decoder.decode(bytes([token])).translate(CONTROLS) if text else f"{before}{token}"

    tell("".join(show(token, " " if place else "") for place, token in enumerate(prompt)), end="")
    for token in written:
        tokens.append(token)
        tell(show(token), end="")
    tell(decoder.decode(b"", final=True))
    return tokens


def _facts(options: Any, loaded: Loaded, prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """As `--json` has it. prompt, text: None where tokens are no bytes."""
    texts: Iterator[str | None] = (None if options.tokens is not None else bytes(part).decode("utf-8", "replace")
                                   for part in (prompt, tokens))
    sizes: GPTConfig = loaded.sizes
    return {"checkpoint": str(loaded.path), "world_size": loaded.job.world.size, "dtype": loaded.job.settings.dtype,
            "layers": sizes.layers, "d_model": sizes.d_model, "heads": sizes.heads, "context": sizes.context,
            "vocab": sizes.vocab, "temperature": options.temperature, "top_k": options.top_k, "seed": options.seed,
            "prompt": next(texts), "text": next(texts), "prompt_tokens": list(prompt), "tokens": list(tokens)}


if __name__ == "__main__":
    run_main(main)
