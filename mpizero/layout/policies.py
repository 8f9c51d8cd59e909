"""Wrapping by a word: `layer`, `block`, or a size below which segments share a unit.

Finer units need less memory while they are gathered; coarser ones make fewer, larger messages. FSDP
(arXiv:2304.11277), sec. 3.2.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpizero.dtypes import ITEMSIZE
from mpizero.errors import ConfigError
from mpizero.layout.spec import ModelSpec
from mpizero.layout.wrapping import Policy
from mpizero.quantities import parse_memory

LAYER, BLOCK = "layer", "block"


def named_policy(text: str | None, spec: ModelSpec, dtype: str) -> Policy | None:
    """The policy that `text` stands for: `layer`, a unit for each weight with its bias; `block` (or None), one for each
    segment; a size such as 4MB, in which neighbours share a unit until it has so many bytes of `dtype`. ConfigError for
    anything else."""
    check_policy(text)
    if text is None or text == BLOCK:
        return None
    if text == LAYER:
        return lambda name: name.rpartition(".")[0] or name
    units = _merged(spec, parse_memory(text) // ITEMSIZE[dtype])
    return lambda name: units[name]


def check_policy(text: str | None) -> None:
    """ConfigError unless it stands for a policy."""
    if text not in (None, LAYER, BLOCK):
        try:
            parse_memory(text or "")
        except ConfigError:
            raise ConfigError(f"`wrap` {text!r} is no way to make units: give {LAYER}, {BLOCK}, or a size such as "
                              "4MB, below which blocks share a unit") from None


def _merged(spec: ModelSpec, least: int) -> Mapping[str, str]:
    """Parameter -> unit. A unit takes segment after segment until it has `least` elements; what is left over at the
    end joins the last unit."""
    numel = {param.name: param.numel for param in spec.params}
    groups: list[list[str]] = [[]]  # of names of parameters, each at the first segment that reads it
    told: set[str] = set()
    for segment in spec.segments:
        if sum(numel[name] for name in groups[-1]) >= max(least, 1):
            groups.append([])
        groups[-1] += [name for name in dict.fromkeys(segment.params) if name in numel and name not in told]
        told.update(segment.params)
    if len(groups) > 1 and sum(numel[name] for name in groups[-1]) < least:
        rest = groups.pop()
        groups[-1] += rest
    return {name: f"unit{number}" for number, group in enumerate(groups) for name in group}
