"""The five-layer MLP and Adam in plain NumPy, written down without looking at the package."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def train(task, steps, batch, lr, widths=(32, 96, 96, 96, 96, 16)):
    """Losses of `steps` steps; step s trains on samples s*batch .. (s+1)*batch - 1."""
    rng = np.random.default_rng(0)
    pairs = list(pairwise(widths))
    gains = [6] * (len(pairs) - 1) + [1]  # uniform He initialisation before a ReLU
    params = [(rng.uniform(-1, 1, pair) * np.sqrt(gain / pair[0])).astype(np.float32)
              for pair, gain in zip(pairs, gains, strict=True)]
    params += [np.zeros(n, np.float32) for n in widths[1:]]
    moments = [[np.zeros_like(p), np.zeros_like(p)] for p in params]
    losses = []
    for t in range(1, steps + 1):
        loss, grads = _loss_and_grads(params, *task.train_batch(np.arange((t - 1) * batch, t * batch)))
        losses.append(loss)
        for p, g, (m, v) in zip(params, grads, moments, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            p -= (lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)).astype(np.float32)
    return losses


def _loss_and_grads(params, x, y):
    layers, rows = len(params) // 2, np.arange(len(y))
    inputs = [x]
    for k in range(layers):
        z = inputs[-1] @ params[k] + params[layers + k]
        inputs.append(np.maximum(z, 0) if k < layers - 1 else z)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = float(-np.log(p[rows, y]).mean())
    p[rows, y] -= 1
    dz, grads = p / len(y), [np.empty(0)] * len(params)
    for k in reversed(range(layers)):
        grads[k], grads[layers + k] = inputs[k].T @ dz, dz.sum(axis=0)
        dz = (dz @ params[k].T) * (inputs[k] > 0)
    return loss, grads
