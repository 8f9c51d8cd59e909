"""Which of our models names and shapes belong to, and GPT-2's names as other libraries write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mpizero.errors import CheckpointError
from mpizero.layout.models import GPTConfig, MLPSizes, gpt_spec, mlp_spec
from mpizero.layout.spec import ModelSpec

Shape = tuple[int, ...]

EMBEDDING, OUTPUT = "wte.weight", "lm_head.weight"
PREFIX = "transformer."  # of a GPT-2 with its output matrix; without it, that of the network below
MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)", re.ASCII)  # constants of the causal mask
BLOCK = re.compile(r"h\.(\d{1,9})\.", re.ASCII)
LINEAR = re.compile(r"layers\.(\d{1,9})\.weight", re.ASCII)
HEAD_SIZE = 64  # features of a head in all four GPT-2s
COMPUTED = {"model_type": ("gpt2",), "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "layer_norm_epsilon": (1e-5,), "scale_attn_weights": (True,), "add_cross_attention": (False,),
            "scale_attn_by_inverse_layer_idx": (False,), "reorder_and_upcast_attn": (False,)}  # key of config.json


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Our name of each parameter -> the file's. What a GPT-2 stores beside parameters is left out."""
    names = list(names)
    if PREFIX + EMBEDDING not in names and EMBEDDING not in names:
        return {name: name for name in names}
    plain = {name.removeprefix(PREFIX): name for name in names}
    return {ours: theirs for ours, theirs in plain.items() if not MASK.fullmatch(ours)}


def sizes_of(shapes: Mapping[str, Shape]) -> tuple[str, dict[str, Any]] | None:
    """Our model with these parameters, and its sizes, as far as shapes tell: not the heads. None if it is none of
    ours; whether all parameters are as they should be, `check_shapes` says."""
    table, positions = shapes.get(EMBEDDING, ()), shapes.get("wpe.weight", ())
    blocks = {match[1] for name in shapes if (match := BLOCK.match(name))}
    if len(table) == len(positions) == 2 and blocks:
        return "gpt", {"layers": len(blocks), "d_model": table[1], "context": positions[0], "vocab": table[0],
                       "tied": OUTPUT not in shapes}
    weights = {int(match[1]): shape for name, shape in shapes.items() if (match := LINEAR.fullmatch(name))}
    first, last = weights.get(0, ()), weights.get(len(weights) - 1, ())
    if len(first) == len(last) == 2:
        widths = [shape[1] for _, shape in sorted(weights.items()) if len(shape) == 2][:-1]
        hidden = first[1] if len(set(widths)) <= 1 else ",".join(map(str, widths))
        return "mlp", {"hidden": hidden, "layers": len(weights), "inputs": first[0], "classes": last[1]}
    return None


def model_of(shapes: Mapping[str, Shape], heads: int | None, path: object) -> GPTConfig | MLPSizes:
    """Sizes of the model that these parameters make. heads: None: as many as GPT-2 has for its width. CheckpointError
    where they make none of ours, or leave the heads open."""
    found = sizes_of(shapes)
    if found is None:
        names = ", ".join(list(shapes)[:3])
        raise CheckpointError(f"{path} holds neither a GPT-2 nor an MLP of ours: its parameters are {names or 'none'}"
                              f"{' ...' if len(shapes) > 3 else ''}")
    model, sizes = found
    if model == "mlp":
        mlp = MLPSizes(**sizes)
        check_shapes(mlp_spec(mlp), shapes, path)
        return mlp
    width = sizes["d_model"]
    if heads is None and width % HEAD_SIZE:
        raise CheckpointError(f"{path} does not say how many heads its {width} features are divided into, and shapes "
                              "do not tell: give `heads`")
    heads = width // HEAD_SIZE if heads is None else heads
    if heads < 1 or width % heads:
        raise CheckpointError(f"{path} has {width} features, which cannot be divided into `heads` {heads}: every head "
                              "takes as many; give another number")
    gpt = GPTConfig(**sizes, heads=heads)
    check_shapes(gpt_spec(gpt), shapes, path)
    return gpt


def check_shapes(spec: ModelSpec, shapes: Mapping[str, Shape], path: object, cure: str = "") -> None:
    """CheckpointError for the first parameter of which model and file have not the same shape. cure: what to do."""
    here = {param.name: tuple((param.whole or param).shape) for param in spec.params}
    for name in [*here, *shapes]:
        ours, theirs = here.get(name), shapes.get(name)
        if ours != theirs:
            raise CheckpointError(f"parameter {name[:100]} {_has(ours)} in this model, but {_has(theirs)} in {path}"
                                  f"{cure}")


def _has(shape: Shape | None) -> str:
    return "does not exist" if shape is None else f"has shape {shape}"


def heads_beside(config: Any, path: object) -> int | None:
    """Heads of a GPT-2, as a config.json of Hugging Face has them. CheckpointError for a variant that computes
    something else."""
    if not isinstance(config, dict):
        return None
    for key, known in COMPUTED.items():
        if config.get(key, known[0]) not in known:
            raise CheckpointError(f"{path} says {key} {str(config[key])[:40]!r}, but mpizero computes GPT-2 with "
                                  f"{known[0]!r} alone: take weights of such a model")
    heads = config.get("n_head")
    return heads if type(heads) is int and heads > 0 else None
