"""GPT-2 against PyTorch: numbers made once by `python tests/nn/golden_torch.py` (torch 2.13.0, float64)."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.nn.gpt import GPTConfig, gpt
from tests.nn.helpers import loss_and_gradients

GOLDEN_LOSS = 3.0177561496503555
GOLDEN_NORMS = {  # of gradients
    "wte.weight": 1.7937333356339753,
    "wpe.weight": 1.279750582305969,
    "h.0.ln_1.weight": 0.21967335203248595,
    "h.0.ln_1.bias": 0.291225087466811,
    "h.0.attn.c_attn.weight": 2.108064098512535,
    "h.0.attn.c_attn.bias": 0.8391571255724372,
    "h.0.attn.c_proj.weight": 1.7389445337980982,
    "h.0.attn.c_proj.bias": 1.380489719155787,
    "h.0.ln_2.weight": 0.2887168586584494,
    "h.0.ln_2.bias": 0.30853604676034546,
    "h.0.mlp.c_fc.weight": 2.03306322449328,
    "h.0.mlp.c_fc.bias": 0.7848898972671501,
    "h.0.mlp.c_proj.weight": 1.8505914808172657,
    "h.0.mlp.c_proj.bias": 1.3392129975193192,
    "h.1.ln_1.weight": 0.15731578011222416,
    "h.1.ln_1.bias": 0.26012903404392446,
    "h.1.attn.c_attn.weight": 1.0271957044392912,
    "h.1.attn.c_attn.bias": 0.7147207482051512,
    "h.1.attn.c_proj.weight": 0.7109497253652174,
    "h.1.attn.c_proj.bias": 0.7084784841291308,
    "h.1.ln_2.weight": 0.3037369345896792,
    "h.1.ln_2.bias": 0.28851152312058664,
    "h.1.mlp.c_fc.weight": 2.9847315731548254,
    "h.1.mlp.c_fc.bias": 0.9112819204990263,
    "h.1.mlp.c_proj.weight": 0.639318290476398,
    "h.1.mlp.c_proj.bias": 0.47899936236800905,
    "ln_f.weight": 0.4417384221417282,
    "ln_f.bias": 0.38090434020461583,
}


def golden_parameters(model):
    """Values anyone can make without our generator: 0.3 sin(1), 0.3 sin(2), ... in order; plus 1 for the weights of norms."""
    start, params = 1, {}
    for param in model.spec.params:
        values = 0.3 * np.sin(np.arange(start, start + param.numel, dtype=np.float64)).reshape(param.shape)
        params[param.name] = values + 1 if ".ln_" in "." + param.name and param.name.endswith("weight") else values
        start += param.numel
    return params


@pytest.mark.parametrize("dtype,tolerance", [(np.float64, 1e-11), (np.float32, 2e-5)])  # a few thousand roundings of 1e-16 and 6e-8
def test_loss_and_gradients_equal_pytorch(dtype, tolerance):
    model = gpt(GPTConfig(layers=2, d_model=12, heads=3, context=7, vocab=11))
    x = np.arange(28).reshape(4, 7) ** 2 % 11
    targets = np.where(x == 4, -1, (x * 3 + 1) % 11)
    params = {name: value.astype(dtype) for name, value in golden_parameters(model).items()}
    loss, views = loss_and_gradients(model, params, x, targets)
    assert loss == pytest.approx(GOLDEN_LOSS, rel=tolerance)
    assert set(views) == set(GOLDEN_NORMS)
    for name, view in views.items():
        assert np.linalg.norm(view.astype(np.float64)) == pytest.approx(GOLDEN_NORMS[name], rel=tolerance), name
