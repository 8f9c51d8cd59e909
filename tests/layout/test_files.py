"""Where states lie in a rank's file, and the buffers of the host, by hand."""

from __future__ import annotations

import pytest

from mpizero.layout.files import BUFFERS, FILE_BLOCK, PAGE, Space, buffer_bytes, file_bytes, lanes, spaces
from mpizero.optim.norms import NORM_BLOCK
from mpizero.layout import UPDATE_BLOCK
from tests.schedule.toys import chain, setup

BIG = 3 * FILE_BLOCK


def geometry(stage, offload, *sizes, **options):
    return setup(stage, chain(sizes), 2, offload=offload, **options).geometry


def test_blocks_are_whole_blocks_of_updates_and_pages():
    assert FILE_BLOCK % UPDATE_BLOCK == FILE_BLOCK % NORM_BLOCK == 2 * FILE_BLOCK % PAGE == 0


def test_spaces_one_after_the_other_by_pages():
    found = spaces(geometry("3", "params=nvme,optimizer=nvme", 3000, 10))
    assert found[:5] == (Space(0, "param", 0, 1500, "float16"), Space(0, "grad", 4096, 1500, "float16"),
                         Space(0, "master", 8192, 1500, "float32"), Space(0, "exp_avg", 16384, 1500, "float32"),
                         Space(0, "exp_avg_sq", 24576, 1500, "float32"))
    assert found[5] == Space(1, "param", 32768, 5, "float16") and len(found) == 10
    assert found[0].nbytes == 3000


@pytest.mark.parametrize("stage, offload, options, names", [
    ("2", "optimizer=nvme", {}, "grad master exp_avg exp_avg_sq"),
    ("2", "optimizer=nvme", {"shards": 1}, "grad master exp_avg exp_avg_sq upload"),
    ("3", "params=nvme,optimizer=nvme", {"dtype": "float32"}, "param grad exp_avg exp_avg_sq"),
    # parameters on the device cannot be what is updated
    ("3", "optimizer=nvme", {"dtype": "float32"}, "grad master exp_avg exp_avg_sq"),
    ("3", "params=cpu,optimizer=cpu", {}, ""), ("3", None, {}, ""),
])
def test_lanes(stage, offload, options, names):
    assert list(lanes(geometry(stage, offload, 3000, **options))) == names.split()


def test_room():
    found = geometry("3", "params=nvme,optimizer=nvme", 2 * BIG, 10)
    assert file_bytes(spaces(found)) == 16 * BIG + 5 * PAGE  # whole pages of each, and a page for each small one
    assert buffer_bytes(found) == BUFFERS * FILE_BLOCK * (2 + 2 + 3 * 4)
    assert buffer_bytes(geometry("3", "params=nvme,optimizer=nvme", 10)) == BUFFERS * 5 * PAGE
    on_host = geometry("3", "params=nvme,optimizer=nvme,checkpoints=cpu", 2 * BIG, 10, recompute=True)
    assert spaces(on_host, None, {1: False}) == spaces(found)  # kept inputs lie in the host's memory
