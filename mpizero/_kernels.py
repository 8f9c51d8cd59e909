"""Which of OpenBLAS's kernels suit the processor best, where its own choice does not.

AMD's Zen 4 has AVX-512, but runs its instructions in two halves. OpenBLAS then takes the AVX-512 kernels it has for
Intel; those for AVX2 are 3 to 7 % faster there. Measured: 104 instead of 100 GFLOP/s in the products of a GPT of d 512,
99 instead of 93 at d 128. OpenBLAS chooses when it is loaded, so this too must run before NumPy is imported. Set
OPENBLAS_CORETYPE to choose yourself.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
ENOUGH = 8192  # bytes that hold the first processor's lines; all processors' can be a megabyte
ZEN_3_AND_4 = "25"  # AMD's family; only Zen 4 has AVX-512


def kernels_for_processor(environ: MutableMapping[str, str] = os.environ, cpuinfo: Path = CPUINFO) -> None:
    """Ask OpenBLAS for its AVX2 kernels on Zen 4; what the user has set stays."""
    try:
        with cpuinfo.open("rb") as file:
            lines = file.read(ENOUGH).decode("ascii", "replace").splitlines()
    except OSError:
        return
    fields = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in reversed(lines))}
    if fields.get("vendor_id") == ["AuthenticAMD"] and fields.get("cpu family") == [ZEN_3_AND_4] \
            and "avx512f" in fields.get("flags", []):
        environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
