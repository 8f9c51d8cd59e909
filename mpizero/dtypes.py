"""Names and sizes of the floating-point types that parameters, gradients and messages use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpizero.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes
DTYPES = ("float16", "bfloat16", "float32")  # in which models train
ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}


def full_name(text: str) -> str:
    """`bfloat16` for `bf16`, `BF16`; what is no alias stands as it is."""
    return ALIASES.get(text.lower(), text)


def reduction(dtype: str, reduce_dtype: str | None = None, sum_dtype: str | None = None) -> tuple[str, str]:
    """What gradients of `dtype` are sent as (None: as they are) and what their sums are made and kept in (None: as
    sent). ConfigError for what loses more than it saves.
    """
    wire = reduce_dtype or dtype
    sums = sum_dtype or wire
    if wire == "float16" != dtype:
        raise ConfigError(f"`reduce_dtype` float16 cannot hold gradients of `dtype` {dtype}: no loss scale keeps them "
                          "between 6e-8 and 65,504; use `reduce_dtype` bfloat16 or float32")
    if sums not in (wire, "float32"):
        raise ConfigError(f"`sum_dtype` {sums} cannot be used where gradients are sent as {wire}: sums are made in "
                          "what is sent or in float32; use `sum_dtype` float32, or leave it out")
    return wire, sums


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype called `name`. bfloat16 comes from ml_dtypes (extra `bf16`)."""
    import numpy as np

    if name not in ITEMSIZE:
        raise ConfigError(f"dtype {name!r} is unknown: use one of {', '.join(ITEMSIZE)}")
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise ConfigError("bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
