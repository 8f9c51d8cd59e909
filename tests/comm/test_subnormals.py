"""A processor that takes small numbers for 0: found at start, on whichever rank, with the library that is to blame."""

from __future__ import annotations

import ctypes
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from mpizero.comm import subnormals

JOBS = Path(__file__).with_name("jobs.py")
DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV
# in a fenv_t of glibc: where the word stands; flush results to zero, take operands for zero
WORDS = {"x86_64": (28, 0x8000, 0x0040), "aarch64": (0, 1 << 24, 1 << 24)}


@pytest.fixture
def processor():
    """set(bits): of this thread's floating-point control word."""
    if platform.machine() not in WORDS or platform.libc_ver()[0] != "glibc":
        pytest.skip(f"where the control word stands is unknown here: {platform.machine()}")
    libm, state, place = ctypes.CDLL("libm.so.6"), ctypes.create_string_buffer(64), WORDS[platform.machine()][0]

    def set_bits(bits):
        libm.fegetenv(state)
        [word] = struct.unpack_from("<I", state, place)
        struct.pack_into("<I", state, place, word | bits)
        libm.fesetenv(state)

    yield set_bits
    libm.fesetenv(DEFAULT)


def test_all_is_well():
    assert subnormals.flushed() == [] and subnormals.trouble() == ""


def test_results_that_are_flushed(processor):
    """Sums and products; casts from float16 read subnormals, and make none."""
    processor(WORDS[platform.machine()][1])
    assert "float32 below 1.2e-38" in subnormals.flushed()


def test_operands_that_are_flushed(processor):
    processor(WORDS[platform.machine()][2])
    assert subnormals.flushed() == ["float32 below 1.2e-38", "float16 below 6.1e-5"]
    assert subnormals.trouble().startswith("float32 below 1.2e-38 and float16 below 6.1e-5")


def test_code_that_sets_the_processor(tmp_path):
    """What GCC and Clang make of it; and numbers that look alike."""
    def holds(code):
        (tmp_path / "lib.so").write_bytes(b"\x7fELF" + code + bytes(50))
        return subnormals._holds_fast_math(tmp_path / "lib.so")

    assert holds(bytes.fromhex("0fae5c24fc 814c24fc40800000 0fae5424fc c3"))
    assert holds(bytes.fromhex("0fae5c24fc 8b4424fc 0d40800000 894424fc 0fae5424fc c3"))
    assert not holds(bytes.fromhex("0fae5c24fc 814c24fc40800000 c3"))  # nothing is loaded
    assert not holds(bytes.fromhex("0fae5c24fc 814c24fc00800000 0fae5c24fc c3"))
    assert not subnormals._holds_fast_math(tmp_path / "none.so")


@pytest.fixture(scope="module")
def fast_math(tmp_path_factory):
    """A library that sets the processor when it is loaded, as GCC before 13 makes of any with -ffast-math."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("needs a C compiler for x86")
    folder = tmp_path_factory.mktemp("fast")
    (folder / "fast.c").write_text("""__attribute__((constructor)) static void set_fast_math(void) {
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }\n""")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", folder / "fast.c", "-o", folder / "libfast.so"], check=True)
    return folder / "libfast.so"


@pytest.mark.parametrize("n, ranks", [(None, "all ranks"), (3, "ranks [1]")])
def test_a_library_built_for_speed(launch, fast_math, n, ranks):
    """One sentence, also where one rank alone has loaded it: the ranks would train a mixture."""
    end = launch(n, JOBS, "loads_a_library_on_rank_1", env={"LIBRARY": str(fast_math)})
    assert end.status == 2, end.output
    [line] = [line for line in end.stderr.splitlines() if "mpizero" in line]
    assert line.startswith(f"mpizero: error: arithmetic on {ranks} flushes to 0 float32 below "
                           f"1.2e-38 and float16 below 6.1e-5 (suspected: {fast_math}), ")
    assert "-ffast-math" in line and "LD_PRELOAD" in line and "Traceback" not in end.output
