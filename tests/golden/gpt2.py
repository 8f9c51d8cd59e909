"""GPT-2s whose weights follow a rule that NumPy and PyTorch compute alike, bit for bit: no file is needed to know
them."""

from __future__ import annotations

import math

import numpy as np

# what differs from each other: a vocabulary of bytes, and GPT-2's own
MODELS = {"bytes": {"layers": 2, "d_model": 24, "heads": 3, "context": 11, "vocab": 256},
          "gpt2": {"layers": 1, "d_model": 16, "heads": 4, "context": 9, "vocab": 50_257}}
POSITIONS, PLACES = (0, 1, 6, 8), 12


def shapes(layers: int, d_model: int, heads: int, context: int, vocab: int) -> dict[str, tuple[int, ...]]:
    """As Hugging Face's GPT2Model names them: Conv1D, so (in, out)."""
    c = d_model
    found: dict[str, tuple[int, ...]] = {"wte.weight": (vocab, c), "wpe.weight": (context, c)}
    for i in range(layers):
        found |= {f"h.{i}.ln_1.weight": (c,), f"h.{i}.ln_1.bias": (c,),
                  f"h.{i}.attn.c_attn.weight": (c, 3 * c), f"h.{i}.attn.c_attn.bias": (3 * c,),
                  f"h.{i}.attn.c_proj.weight": (c, c), f"h.{i}.attn.c_proj.bias": (c,),
                  f"h.{i}.ln_2.weight": (c,), f"h.{i}.ln_2.bias": (c,),
                  f"h.{i}.mlp.c_fc.weight": (c, 4 * c), f"h.{i}.mlp.c_fc.bias": (4 * c,),
                  f"h.{i}.mlp.c_proj.weight": (4 * c, c), f"h.{i}.mlp.c_proj.bias": (c,)}
    return found | {"ln_f.weight": (c,), "ln_f.bias": (c,)}


def weights(name: str) -> dict[str, np.ndarray]:
    """Float32 numbers between -1/2 and 1/2 (of norms' weights between 1/2 and 3/2): multiples of 2^-16, from a
    counter by integer arithmetic alone."""
    found, start = {}, 1
    for param, shape in shapes(**MODELS[name]).items():
        numel = math.prod(shape)
        count = np.arange(start, start + numel, dtype=np.uint64)
        mixed = count * np.uint64(0x9E3779B97F4A7C15)  # modulo 2^64
        mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        values = (mixed >> np.uint64(48)).astype(np.float32) * np.float32(2**-16) - np.float32(0.5)
        one = ".ln_" in f".{param}" and param.endswith("weight")
        found[param] = (values + np.float32(one)).reshape(shape)
        start += numel
    return found


def tokens(name: str) -> np.ndarray:
    """A full context of them, int64 (1, T)."""
    sizes = MODELS[name]
    return np.arange(1, sizes["context"] + 1, dtype=np.int64)[None] ** 5 * 7919 % sizes["vocab"]


def places(name: str) -> list[int]:
    """Tokens whose logits are kept: the first, the last, and others all over the vocabulary."""
    vocab = MODELS[name]["vocab"]
    return [0, vocab - 1, *(int(i * 0.618 % 1 * vocab) for i in range(1, PLACES - 1))]
