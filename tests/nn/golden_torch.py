"""Prints the golden numbers of test_golden.py from PyTorch's own operators and autograd, in float64. Not a test.

Of each gradient its norm, and the elements at `places`: these tell a wrong sign or order, which no norm does.

    pip install torch==2.13.0 numpy && python tests/nn/golden_torch.py
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, CONTEXT, VOCAB, BATCH = 2, 12, 3, 7, 11, 4
SHAPES = {"wte.weight": (VOCAB, WIDTH), "wpe.weight": (CONTEXT, WIDTH)}
for i in range(LAYERS):
    for name, shape in {"ln_1.weight": (WIDTH,), "ln_1.bias": (WIDTH,), "attn.c_attn.weight": (WIDTH, 3 * WIDTH),
                        "attn.c_attn.bias": (3 * WIDTH,), "attn.c_proj.weight": (WIDTH, WIDTH),
                        "attn.c_proj.bias": (WIDTH,), "ln_2.weight": (WIDTH,), "ln_2.bias": (WIDTH,),
                        "mlp.c_fc.weight": (WIDTH, 4 * WIDTH), "mlp.c_fc.bias": (4 * WIDTH,),
                        "mlp.c_proj.weight": (4 * WIDTH, WIDTH), "mlp.c_proj.bias": (WIDTH,)}.items():  # fmt: skip
        SHAPES[f"h.{i}.{name}"] = shape
SHAPES |= {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}


def parameters():
    """0.3 sin(1), 0.3 sin(2), ... over all parameters in order; plus 1 for the weights of norms."""
    start, params = 1, {}
    for name, shape in SHAPES.items():
        values = 0.3 * torch.sin(torch.arange(start, start + math.prod(shape), dtype=torch.float64)).reshape(shape)
        start += values.numel()
        params[name] = (values + 1 if ".ln_" in "." + name and name.endswith("weight") else values).requires_grad_()
    return params


def loss_of(p, x, targets):
    h = p["wte.weight"][x] + p["wpe.weight"]
    for i in range(LAYERS):
        def norm(x, name):
            return F.layer_norm(x, (WIDTH,), p[f"h.{i}.{name}.weight"], p[f"h.{i}.{name}.bias"], 1e-5)

        def affine(x, name):
            return x @ p[f"h.{i}.{name}.weight"] + p[f"h.{i}.{name}.bias"]

        q, k, v = (part.view(BATCH, CONTEXT, HEADS, -1).transpose(1, 2)
                   for part in affine(norm(h, "ln_1"), "attn.c_attn").split(WIDTH, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH)
        h = h + affine(a, "attn.c_proj")
        h = h + affine(F.gelu(affine(norm(h, "ln_2"), "mlp.c_fc"), approximate="tanh"), "mlp.c_proj")
    logits = F.layer_norm(h, (WIDTH,), p["ln_f.weight"], p["ln_f.bias"], 1e-5) @ p["wte.weight"].T
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-1)


def places(count):
    """Five positions, spread so that they fall into different rows and columns of a matrix."""
    return [int(i * 0.618 % 1 * count) for i in range(5)]


if __name__ == "__main__":
    p = parameters()
    x = torch.arange(BATCH * CONTEXT).reshape(BATCH, CONTEXT) ** 2 % VOCAB
    targets = torch.where(x == 4, -1, (x * 3 + 1) % VOCAB)
    loss = loss_of(p, x, targets)
    loss.backward()
    print("GOLDEN_LOSS =", loss.item())
    print("GOLDEN_NORMS = {  # of gradients")
    for name in p:
        print(f'    "{name}": {p[name].grad.norm().item():.13g},')
    print("}\nGOLDEN_ELEMENTS = {  # of gradients, by their flat position")
    for name in p:
        flat = p[name].grad.reshape(-1)
        elements = ", ".join(f"{i}: {round(flat[i].item(), 12) + 0.0}" for i in places(len(flat)))
        print(f'    "{name}": {{\n        {elements}}},')
    print("}")
