"""GPT-2 against PyTorch: numbers made once by `python tests/nn/golden_torch.py` (torch 2.13.0, float64)."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.nn.gpt import GPTConfig, gpt
from tests.nn.helpers import loss_and_gradients

GOLDEN_LOSS = 3.0177561496503555
GOLDEN_NORMS = {  # of gradients
    "wte.weight": 1.793733335634,
    "wpe.weight": 1.279750582306,
    "h.0.ln_1.weight": 0.2196733520325,
    "h.0.ln_1.bias": 0.2912250874668,
    "h.0.attn.c_attn.weight": 2.108064098513,
    "h.0.attn.c_attn.bias": 0.8391571255724,
    "h.0.attn.c_proj.weight": 1.738944533798,
    "h.0.attn.c_proj.bias": 1.380489719156,
    "h.0.ln_2.weight": 0.2887168586584,
    "h.0.ln_2.bias": 0.3085360467603,
    "h.0.mlp.c_fc.weight": 2.033063224493,
    "h.0.mlp.c_fc.bias": 0.7848898972672,
    "h.0.mlp.c_proj.weight": 1.850591480817,
    "h.0.mlp.c_proj.bias": 1.339212997519,
    "h.1.ln_1.weight": 0.1573157801122,
    "h.1.ln_1.bias": 0.2601290340439,
    "h.1.attn.c_attn.weight": 1.027195704439,
    "h.1.attn.c_attn.bias": 0.7147207482052,
    "h.1.attn.c_proj.weight": 0.7109497253652,
    "h.1.attn.c_proj.bias": 0.7084784841291,
    "h.1.ln_2.weight": 0.3037369345897,
    "h.1.ln_2.bias": 0.2885115231206,
    "h.1.mlp.c_fc.weight": 2.984731573155,
    "h.1.mlp.c_fc.bias": 0.911281920499,
    "h.1.mlp.c_proj.weight": 0.6393182904764,
    "h.1.mlp.c_proj.bias": 0.478999362368,
    "ln_f.weight": 0.4417384221417,
    "ln_f.bias": 0.3809043402046,
}
GOLDEN_ELEMENTS = {  # of gradients, by their flat position
    "wte.weight": {
        0: -0.085920731849, 81: 0.087186284635, 31: -0.012185536686, 112: -0.439880746087, 62: -0.054811861344},
    "wpe.weight": {
        0: 0.129038463593, 51: 0.003899971721, 19: 0.058596846092, 71: 0.014185333461, 39: -0.021697000022},
    "h.0.ln_1.weight": {
        0: 0.074008273474, 7: 0.122229727057, 2: -0.006979381729, 10: -0.050746233981, 5: 0.062104172444},
    "h.0.ln_1.bias": {
        0: 0.087804577079, 7: 0.117381153782, 2: -0.065088273492, 10: 0.050046735114, 5: -0.11517168757},
    "h.0.attn.c_attn.weight": {
        0: -0.011997536953, 266: -0.003776341852, 101: 0.017622178013, 368: -0.003848725794, 203: -0.010102811255},
    "h.0.attn.c_attn.bias": {
        0: -0.018816298781, 22: 0.0, 8: 0.001151083962, 30: 0.326147813234, 16: 0.0},
    "h.0.attn.c_proj.weight": {
        0: 0.033171549462, 88: -0.18097452855, 33: -0.150175870348, 122: -0.050493168452, 67: -0.030979176774},
    "h.0.attn.c_proj.bias": {
        0: -0.138707084475, 7: 0.039814646161, 2: 0.464629649434, 10: 0.291084723012, 5: 0.555660299416},
    "h.0.ln_2.weight": {
        0: -0.036698174029, 7: -0.032190432368, 2: 0.084627591935, 10: 0.012303004342, 5: -0.142274203933},
    "h.0.ln_2.bias": {
        0: 0.08928726672, 7: -0.075268576429, 2: 0.069290250798, 10: -0.016848640585, 5: 0.11117676936},
    "h.0.mlp.c_fc.weight": {
        0: 0.10912193058, 355: 0.025101315479, 135: 0.214352566742, 491: 0.025474193874, 271: 0.012706311985},
    "h.0.mlp.c_fc.bias": {
        0: -0.212073575473, 29: 0.028555329753, 11: -0.052935829483, 40: 0.116875956388, 22: -0.041725355834},
    "h.0.mlp.c_proj.weight": {
        0: -0.089267509389, 355: -0.033335674426, 135: 0.052175669038, 491: 0.016945093814, 271: -0.033631539137},
    "h.0.mlp.c_proj.bias": {
        0: -0.305769237396, 7: 0.240308326494, 2: 0.269849777975, 10: 0.423677612633, 5: 0.275537225325},
    "h.1.ln_1.weight": {
        0: 0.069209820241, 7: 0.018159566362, 2: 0.071340312011, 10: 0.002054388895, 5: -0.031490409518},
    "h.1.ln_1.bias": {
        0: -0.094419967704, 7: -0.046774873356, 2: 0.102361156359, 10: 0.068468981947, 5: 0.02168146807},
    "h.1.attn.c_attn.weight": {
        0: 0.001013572085, 266: -0.000357774304, 101: 0.072076680652, 368: 0.000499005467, 203: -0.00058558921},
    "h.1.attn.c_attn.bias": {
        0: -0.000711963228, 22: 0.0, 8: 0.00093199223, 30: 0.199076334544, 16: 0.0},
    "h.1.attn.c_proj.weight": {
        0: -0.010636901175, 88: -0.085000668024, 33: -0.032535291601, 122: -0.02802351155, 67: -0.014035278615},
    "h.1.attn.c_proj.bias": {
        0: 0.03260323906, 7: 0.319197935767, 2: -0.020828485837, 10: 0.12049690874, 5: 0.139415425446},
    "h.1.ln_2.weight": {
        0: 0.146503748003, 7: -0.138388175606, 2: -0.002100678414, 10: 0.123724989539, 5: 0.011540226563},
    "h.1.ln_2.bias": {
        0: -0.111452013895, 7: 0.113249534269, 2: 0.040168113088, 10: 0.100357162381, 5: -0.017028066568},
    "h.1.mlp.c_fc.weight": {
        0: 0.040244537667, 355: 0.057157282416, 135: -0.023066302882, 491: -0.092457941876, 271: -0.036918406391},
    "h.1.mlp.c_fc.bias": {
        0: -0.043695086966, 29: -0.024399337315, 11: -0.058687467458, 40: -0.035747638757, 22: -0.157439291369},
    "h.1.mlp.c_proj.weight": {
        0: -0.026402376662, 355: 0.002409760915, 135: 0.015068047279, 491: 0.035303364895, 271: 0.006217220866},
    "h.1.mlp.c_proj.bias": {
        0: 0.209984558768, 7: 0.042681974501, 2: -0.106104084518, 10: -0.13932002708, 5: 0.156274157119},
    "ln_f.weight": {
        0: 0.061839352716, 7: 0.139462834188, 2: 0.127573804032, 10: 0.120451466358, 5: 0.152509101305},
    "ln_f.bias": {
        0: -0.008281551136, 7: -0.107961643914, 2: -0.137335928566, 10: 0.09117705922, 5: 0.146116599837},
}

# Of the loss, and of a gradient against its norm: a few thousand roundings of 1e-16 and 6e-8.
TOLERANCES = {np.float64: 1e-11, np.float32: 2e-5}


def golden_parameters(model):
    """Values anyone can make without our generator: 0.3 sin(1), 0.3 sin(2), ... in order; plus 1 in norms' weights."""
    start, params = 1, {}
    for param in model.spec.params:
        values = 0.3 * np.sin(np.arange(start, start + param.numel, dtype=np.float64)).reshape(param.shape)
        params[param.name] = values + 1 if ".ln_" in "." + param.name and param.name.endswith("weight") else values
        start += param.numel
    return params


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_loss_and_gradients_equal_pytorch(dtype):
    model, tolerance = gpt(GPTConfig(layers=2, d_model=12, heads=3, context=7, vocab=11)), TOLERANCES[dtype]
    x = np.arange(28).reshape(4, 7) ** 2 % 11
    targets = np.where(x == 4, -1, (x * 3 + 1) % 11)
    params = {name: value.astype(dtype) for name, value in golden_parameters(model).items()}
    loss, views = loss_and_gradients(model, params, x, targets)
    assert loss == pytest.approx(GOLDEN_LOSS, rel=tolerance)
    assert set(views) == set(GOLDEN_NORMS) == set(GOLDEN_ELEMENTS)
    for name, norm in GOLDEN_NORMS.items():
        gradient, elements = views[name].astype(np.float64).ravel(), GOLDEN_ELEMENTS[name]
        assert np.linalg.norm(gradient) == pytest.approx(norm, rel=tolerance), name
        assert {i: gradient[i] for i in elements} == pytest.approx(elements, rel=0, abs=tolerance * norm), name
