"""Prints the golden numbers of test_activations.py: bytes that PyTorch's autograd keeps, and the most while a loss is
computed and differentiated. Not a test.

    pip install torch==2.13.0 numpy && python tests/papers/golden_torch.py
"""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

SIZES = {"d_model": 64, "heads": 4, "context": 32, "batch": 3, "vocab": 96}
H, A, S, B, V = SIZES.values()


class Block(nn.Module):
    """GPT-2's, as nanoGPT writes it."""

    def __init__(self, eager: bool):
        super().__init__()
        self.eager, drop = eager, 0.1 if eager else 0.0
        self.ln_1, self.ln_2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.qkv, self.proj = nn.Linear(H, 3 * H), nn.Linear(H, H)
        self.fc, self.out, self.drop = nn.Linear(H, 4 * H), nn.Linear(4 * H, H), nn.Dropout(drop)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(B, S, A, H // A).transpose(1, 2) for part in self.qkv(x).split(H, dim=2))
        if self.eager:
            scores = q @ k.transpose(-2, -1) * (H // A) ** -0.5
            mask = torch.ones(S, S, dtype=torch.bool).tril()
            y = self.drop(F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(B, S, H))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attention(self.ln_1(x)))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln_2(x)))))


def kept(module: nn.Module, x: torch.Tensor) -> int:
    """Bytes of storages that backward needs, parameters and the input's gradient aside."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # no storage's address is used again
        return tensor

    alive: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return sum(held.values())


class Peak(TorchDispatchMode):
    """The most bytes of storages that live at the end of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[object, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.live[storage._cdata] = (torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes())
        self.live = {key: (ref, size) for key, (ref, size) in self.live.items() if not ref.expired()}
        self.most = max(self.most, sum(size for _, size in self.live.values()))
        return out


def loss_peak() -> int:
    """While cross-entropy in float32 of 16-bit logits, as Hugging Face and torchtitan compute it, is differentiated:
    beside the logits."""
    leaf, targets = torch.randn(B * S, V, dtype=torch.bfloat16, requires_grad=True), torch.randint(V, (B * S,))
    logits = leaf * 1  # as a model returns them
    with Peak() as peak:
        F.cross_entropy(logits.float(), targets).backward()
    return peak.most


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True)
    head = nn.Sequential(nn.LayerNorm(H), nn.Linear(H, V, bias=False))
    found = {name: kept(Block(eager).bfloat16(), x * 1) for name, eager in (("flash", False), ("eager", True))}
    print(json.dumps({"torch": torch.__version__, **SIZES, **found, "head": kept(head.bfloat16(), x * 1),
                      "loss": loss_peak()}))
