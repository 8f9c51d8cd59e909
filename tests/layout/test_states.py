"""What an optimizer keeps, and K, from its declaration."""

from __future__ import annotations

import pytest

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import ADAM, MASTER, OPTIMIZERS, OptimizerSpec, StateSpec, optimizer_bytes, stored_states


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize(("dtype", "k", "names"), [
    ("float16", 12, ["master", "exp_avg", "exp_avg_sq"]),
    ("bfloat16", 12, ["master", "exp_avg", "exp_avg_sq"]),
    ("float32", 8, ["exp_avg", "exp_avg_sq"]),
    ("float64", 12, ["master", "exp_avg", "exp_avg_sq"]),
])  # fmt: skip
def test_adam(name, dtype, k, names):
    """K = 12 beside 16-bit parameters, ZeRO (arXiv:1910.02054) sec. 3.1; float32 ones are their own master weights."""
    optimizer = OPTIMIZERS[name]
    assert [state.name for state in stored_states(optimizer, dtype)] == names
    assert all(state.dtype == "float32" for state in stored_states(optimizer, dtype))
    assert optimizer_bytes(optimizer, dtype) == k


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_k_follows_the_declaration(dtype):
    """A momentum kept in 16 bits: 2 bytes, and 4 more where there are master weights; without states these alone."""
    momentum = OptimizerSpec("sgd", (StateSpec("momentum", "bfloat16"),))
    master = 0 if dtype == MASTER.dtype else 4
    assert optimizer_bytes(momentum, dtype) == 2 + master
    assert optimizer_bytes(OptimizerSpec("plain", ()), dtype) == master
    assert stored_states(momentum, dtype) == (*([MASTER] if master else []), *momentum.states)


def test_names():
    assert OPTIMIZERS["adam"] is ADAM and all(spec.name == name for name, spec in OPTIMIZERS.items())
