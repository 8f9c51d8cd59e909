"""Names and sizes of the floating-point types that parameters, gradients and messages use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpizero.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes


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
