"""What an optimizer keeps, and K, from its declaration."""

from __future__ import annotations

import pytest

from mpizero.dtypes import ITEMSIZE
from mpizero.errors import ConfigError
from mpizero.layout import (
    ADAM,
    MASTER,
    OPTIMIZERS,
    OptimizerSpec,
    StateSpec,
    optimizer_bytes,
    optimizer_spec,
    require_elements,
    require_narrow,
    stored_states,
)
from mpizero.layout.states import UNSHARDABLE


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


@pytest.mark.parametrize("name, momentum, half, alone, full", [
    ("adam", None, 12, 8, 8), ("adamw", None, 12, 8, 8), ("lion", None, 8, 4, 4), ("sgd", None, 8, 4, 4),
    ("sgd", 0.9, 8, 4, 4), ("sgd", 0.0, 4, 0, 0),
])
def test_k(name, momentum, half, alone, full):
    """Beside 16-bit parameters, the same without master weights, and beside float32."""
    spec, without = optimizer_spec(name, momentum), optimizer_spec(name, momentum, master=False)
    assert [optimizer_bytes(spec, "bfloat16"), optimizer_bytes(without, "float16"), optimizer_bytes(spec, "float32"),
            optimizer_bytes(without, "float32")] == [half, alone, full, full]
    assert MASTER not in stored_states(without, "float16") and spec.name == without.name == name


def test_what_cannot_be_sharded_is_refused():
    assert not OPTIMIZERS.keys() & UNSHARDABLE.keys()
    for name, spec in UNSHARDABLE.items():
        for ask in (lambda: optimizer_spec(name), lambda: require_elements(spec)):
            with pytest.raises(ConfigError, match=f"{name} updates a {spec.sees.value} at a time .{spec.why}., but a"):
                ask()
    for spec in OPTIMIZERS.values():
        require_elements(spec)


def test_no_master_weights_is_for_16_bits():
    for dtype in ("float16", "bfloat16"):
        require_narrow(dtype)
    with pytest.raises(ConfigError, match="`no_master_weights` means nothing with `dtype` float32"):
        require_narrow("float32")
