"""What a model is made of, without arrays.

Parameters, the segments of computation that read them, and what these leave in memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise

from mpizero.errors import ConfigError
from mpizero.layout.strided import Strided
from mpizero.layout.tape import Tape

SHOWN = 8  # names in a message


@dataclass(frozen=True)
class ParamSpec:
    """One parameter tensor. frozen: it stays as it was drawn, without gradient and optimizer states. decay: whether
    weight decay shrinks it; None: as the run has it, see `with_decay`.

    tiles: ranges of rows that are gathered and used one after the other, each a unit; `cut` gives them. Such a tile is
    a parameter too: of `whole`, the rows from `row` on. What a tensor parallel rank has of a parameter keeps its name:
    rows likewise, or the elements `columns` of it; or, `copied`, all of it, as the others have.
    """

    name: str
    shape: tuple[int, ...]
    frozen: bool = False
    decay: bool | None = None
    tiles: int = 1
    whole: ParamSpec | None = None
    row: int = 0
    columns: Strided | None = None
    copied: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def tile(self) -> bool:
        """Whether it is one."""
        return self.whole is not None and self.whole.name != self.name

    def elements(self, begin: int, end: int) -> Iterator[Strided]:
        """Where its elements begin .. end - 1 lie in `whole`."""
        if self.columns is not None:
            return self.columns.cut(begin, end)
        return iter([Strided(self.row * math.prod(self.shape[1:]) + begin, end - begin)])

    def cut(self) -> tuple[ParamSpec, ...]:
        """Its tiles, NAME[0] and so on; itself, where it has none."""
        if self.tiles == 1:
            return (self,)
        rows = tile_rows(self.shape[0], self.tiles)
        return tuple(replace(self, name=f"{self.name}[{index}]", shape=(part.stop - part.start, *self.shape[1:]),
                             tiles=1, whole=self, row=part.start) for index, part in enumerate(rows))


def tile_rows(rows: int, tiles: int) -> list[slice]:
    """Ranges as equal as they can be."""
    ends = [rows * index // tiles for index in range(tiles + 1)]
    return [slice(*each) for each in pairwise(ends)]


@dataclass(frozen=True)
class SegmentBytes:
    """What a segment's forward leaves.

    output: bytes of y. kept: of what backward needs beside x and y. keeps_input, keeps_output: whether backward reads
    x, or y, itself, so that they live until then. forward, backward: what each holds on the way, beside the gradients
    of parameters; () where it is not known.

    part: of a computation in parts, how many come before. x of the first is its input, and y of the last its output,
    which alone keeps something; between them `output` is what has been taken beside x, and `upstream` the same on the
    way back (None: as `output`).
    """

    output: int
    kept: int = 0
    keeps_input: bool = True
    keeps_output: bool = False
    forward: Tape = ()
    backward: Tape = ()
    part: int = 0
    upstream: int | None = None


@dataclass(frozen=True)
class ActivationBytes:
    """What one microbatch takes.

    loss_kept: what the loss keeps beside its inputs and the targets, which it keeps as well; its backward turns the
    model's outputs into their own gradient, in place. loss, loss_backward: what these hold on the way. loss_parts: of
    divided outputs, what tensor parallel ranks tell each other of them; loss_part: what that takes on the way. ranks:
    those of a tensor parallel group.
    """

    inputs: int
    targets: int
    segments: tuple[SegmentBytes, ...]
    loss_kept: int
    loss: Tape = ()
    loss_backward: Tape = ()
    loss_parts: int = 0
    loss_part: Tape = ()
    ranks: int = 1

    def input(self, segment: int) -> int:
        """Of a segment, or (their number) of the loss."""
        return self.segments[segment - 1].output if segment else self.inputs

    @property
    def largest_kept(self) -> int:
        """Of the inputs that recompute may keep: of all computations but the first and the last. 0 if there are
        none."""
        begin = [place for place, segment in enumerate(self.segments) if not segment.part]
        return max(map(self.input, begin[1:-1]), default=0)

    @property
    def after_forward(self) -> int:
        """All that lives between forward and backward. Each x but the first is the y before it."""
        held = self.inputs if self.segments[0].keeps_input else 0
        for segment, after in zip(self.segments, self.segments[1:], strict=False):
            held += segment.output if not after.part and (segment.keeps_output or after.keeps_input) else 0
        kept = sum(segment.kept for segment in self.segments)
        return held + kept + self.segments[-1].output + self.loss_kept + self.targets


@dataclass(frozen=True)
class SegmentSpec:
    """One piece of computation and the names of the parameters it reads; of those that have tiles, the tiles'.

    Segments that read the same name share (tie) it. of: the name of what it is a part of, as its neighbours may be.
    sums, sums_back: whether its output, or the gradient of its input, is a summand, of which each tensor parallel rank
    has another.
    """

    name: str
    params: tuple[str, ...]
    of: str | None = None
    sums: bool = False
    sums_back: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """Parameters in the model's order, and the segments in the order of forward.

    activations: (shape of a microbatch, dtype) -> bytes; the shape is (samples,) or (samples, tokens). None: not known.
    tensor_size: of so many tensor parallel ranks this is what one has. divided: whether its outputs are a part of the
    classes.
    """

    params: tuple[ParamSpec, ...]
    segments: tuple[SegmentSpec, ...]
    activations: Callable[[tuple[int, ...], str], ActivationBytes] | None = None
    tensor_size: int = 1
    divided: bool = False

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.params, self.segments, self.activations))

    def __hash__(self) -> int:
        """Worked out once: plans look up what they know by the model."""
        return self._hash

    @property
    def psi(self) -> int:
        """Number of parameters, tied ones once: of all tensor parallel ranks together."""
        return sum((param.whole or param).numel for param in self.params)

    @property
    def pieces(self) -> tuple[ParamSpec, ...]:
        """The parameters, tiles in place of those that have them: what segments name."""
        return tuple(piece for param in self.params for piece in param.cut())

    @property
    def frozen_psi(self) -> int:
        """Of psi, what does not train."""
        return sum((param.whole or param).numel for param in self.params if param.frozen)


def freeze(spec: ModelSpec, patterns: Sequence[str]) -> ModelSpec:
    """`spec` with the parameters frozen, too, whose names match one of `patterns`, as file names do: `h.0.*`.

    ConfigError for a pattern that matches none.
    """
    names = [param.name for param in spec.params]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"`freeze` {pattern!r} matches no parameter of the model: their names are "
                              f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}; * stands for any "
                              "part of one")
    return replace(spec, params=tuple(
        replace(param, frozen=param.frozen or any(fnmatchcase(param.name, pattern) for pattern in patterns))
        for param in spec.params))


DECAYS: dict[str, Callable[[ParamSpec], bool]] = {  # rules of weight decay
    "matrices": lambda param: len(param.shape) > 1,  # not norms and biases: as GPT-2 is trained
    "all": lambda param: True,
}


def with_decay(spec: ModelSpec, rule: str) -> ModelSpec:
    """The model with `decay` said of every parameter: what it says itself, or else what the rule says. ConfigError for
    a rule that is none of `DECAYS`."""
    if rule not in DECAYS:
        raise ConfigError(f"`decay` {rule!r} is none of {', '.join(DECAYS)}: use one of these")
    return replace(spec, params=tuple(replace(param, decay=DECAYS[rule](param)) if param.decay is None else param
                                      for param in spec.params))
