"""A rank's file in small, for tests: blocks of `BLOCK` elements."""

from __future__ import annotations

import mmap
import os

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import HOST, NVME
from mpizero.layout.files import PAGE, Space, paged
from mpizero.memory import regions
from mpizero.memory.files import StateFile
from mpizero.memory.ledger import Ledger
from mpizero.memory.links import make_links
from mpizero.memory.regions import Storage, make_lanes

BLOCK = 2048  # elements: a page of float16, two of float32


def storage(folder, monkeypatch, numel, names=("master",), dtype="float32", limits=None):
    """(storage, a region for each name, the host's ledger); as if blocks were small."""
    monkeypatch.setattr(regions, "FILE_BLOCK", BLOCK)
    host, size = Ledger(tier="host"), ITEMSIZE[dtype]
    file, links = StateFile(folder, "rank 3"), make_links(limits or {}, lambda: None)
    file.reserve(len(names) * paged(numel * size))
    lanes = make_lanes(dict.fromkeys(names, paged(BLOCK * size)), host)
    spaces = {(0, name): Space(0, name, place * paged(numel * size), numel, dtype) for place, name in enumerate(names)}
    made = Storage(file, links[HOST, NVME], links[NVME, HOST], lanes, spaces, Ledger(tier="nvme"))
    return made, [made.region(0, name, "optim", "layers.2") for name in names], host


def poke(file, offset, change):
    """Change a byte of the file behind its back."""
    page, start = mmap.mmap(-1, PAGE), offset // PAGE * PAGE
    os.preadv(file.fd, [page], start)
    page[offset - start] = change(page[offset - start])
    os.pwritev(file.fd, [page], start)
