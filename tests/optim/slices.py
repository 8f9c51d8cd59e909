"""Flat slices to update, and references in Python floats."""

from __future__ import annotations

import math

import numpy as np

from mpizero.dtypes import numpy_dtype
from mpizero.memory.ledger import Uncounted
from mpizero.optim import SGD, Adam, Lion

MEM = Uncounted()
EVERY = [Adam(), Adam((0.8, 0.95), eps=1e-6), Adam(betas=(0.0, 0.0)), Adam(weight_decay=0.1),
         Adam(weight_decay=0.1, decoupled=False), SGD(), SGD(0.0), SGD(0.5, weight_decay=0.1),
         SGD(0.0, weight_decay=0.1), Lion(), Lion((0.95, 0.5), weight_decay=0.1), Lion((0.0, 0.0))]


def weights(n, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32).astype(numpy_dtype(dtype))


def states(optimizer, n):
    """Zeros, by name."""
    return {state.name: np.zeros(n, np.float32) for state in optimizer.spec.states}


def grads(n, steps, dtype="float32", seed=1):
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-4, 1, n)
    return [(rng.standard_normal(n) * size).astype(numpy_dtype(dtype)) for _ in range(steps)]


def by_the_book(optimizer, w, s, g, lr, t):
    """One step of what papers and PyTorch write, element by element in float64: w and s (name -> list) change."""
    {"adam": adam, "adamw": adam, "sgd": sgd, "lion": lion}[optimizer.spec.name](optimizer, w, s, g, lr, t)


def adam(hyper, w, s, g, lr, t):
    """Kingma & Ba algorithm 1, Loshchilov & Hutter algorithm 2."""
    b1, b2 = hyper.betas
    m, v = s["exp_avg"], s["exp_avg_sq"]
    for i in range(len(w)):
        gi = g[i] if hyper.decoupled else g[i] + hyper.weight_decay * w[i]
        if hyper.decoupled:
            w[i] -= lr * hyper.weight_decay * w[i]
        m[i] = b1 * m[i] + (1 - b1) * gi
        v[i] = b2 * v[i] + (1 - b2) * gi * gi
        m_hat, v_hat = m[i] / (1 - b1**t), v[i] / (1 - b2**t)
        w[i] -= lr * m_hat / (math.sqrt(v_hat) + hyper.eps)


def sgd(hyper, w, s, g, lr, t):
    """The pseudocode of torch.optim.SGD, without dampening and Nesterov: the first momentum is the gradient."""
    for i in range(len(w)):
        gi = g[i] + hyper.weight_decay * w[i]
        if hyper.momentum != 0:
            b = gi if t == 1 else hyper.momentum * s["momentum_buffer"][i] + gi
            s["momentum_buffer"][i] = gi = b
        w[i] -= lr * gi


def lion(hyper, w, s, g, lr, t):
    """Chen et al. (arXiv:2302.06675) algorithm 2: c, then the step with decay beside the sign, then m."""
    b1, b2 = hyper.betas
    m = s["exp_avg"]
    for i in range(len(w)):
        c = b1 * m[i] + (1 - b1) * g[i]
        w[i] -= lr * ((c > 0) - (c < 0) + hyper.weight_decay * w[i])
        m[i] = b2 * m[i] + (1 - b2) * g[i]
