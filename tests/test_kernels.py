"""For which processors OpenBLAS is told which kernels to take."""

from __future__ import annotations

import pytest

from mpizero._kernels import kernels_for_processor


def cpuinfo(folder, *, vendor="AuthenticAMD", family=25, flags="avx2 avx512f avx512_bf16", more=""):
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: one: or other\n"
                    f"flags\t\t: fpu {flags}\n\n{more}")
    return path


@pytest.mark.parametrize("processor, told", [
    ({}, True),
    ({"more": "processor\t: 1\n" + "x" * 100_000}, True),
    ({"more": "processor\t: 1\nvendor_id\t: AuthenticAMD\ncpu family\t: 2"}, True),  # cut off within a line
    ({"flags": "avx2"}, False),  # Zen 3
    ({"family": 26}, False),  # Zen 5, whose AVX-512 is whole
    ({"vendor": "GenuineIntel"}, False),
])
def test_zen_4_alone(tmp_path, processor, told):
    environ = {}
    kernels_for_processor(environ, cpuinfo(tmp_path, **processor))
    assert environ == ({"OPENBLAS_CORETYPE": "Haswell"} if told else {})


def test_what_the_user_has_set_stays(tmp_path):
    environ = {"OPENBLAS_CORETYPE": "Zen"}
    kernels_for_processor(environ, cpuinfo(tmp_path))
    assert environ == {"OPENBLAS_CORETYPE": "Zen"}


def test_no_such_file(tmp_path):
    environ = {}
    kernels_for_processor(environ, tmp_path / "cpuinfo")
    assert environ == {}
