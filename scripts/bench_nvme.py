"""How fast states in files are streamed, beside a plain sequential copy in the same folder, in the same run.

    python scripts/bench_nvme.py --nvme DIR --size 1GiB

The copy reads one file and writes another, a request of 1 MiB at a time, past the page cache where the file system can:
what a disk gives whoever reads and writes in turn. A stream reads every block of a state and writes it back, with its
checksums, as an update does. Both are timed in turn, and medians compared.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import time
from pathlib import Path

from mpizero.cli import spelled
from mpizero.layout import HOST, NVME
from mpizero.layout.files import FILE_BLOCK, Space, paged
from mpizero.memory.files import StateFile
from mpizero.memory.ledger import Ledger
from mpizero.memory.links import CHUNK, make_links
from mpizero.memory.regions import Storage, make_lanes
from mpizero.quantities import in_units, parse_bytes

NAMES = ("master", "exp_avg", "exp_avg_sq")


def measure(folder: str, nbytes: int, repeat: int) -> dict[str, float | bool]:
    """Bytes a second, read and written together, of a copy and of streams; their ratio, by medians."""
    source, target = StateFile(folder, "the copy"), StateFile(folder, "the copy")
    numel = nbytes // len(NAMES) // 4
    offsets = [place * paged(4 * numel) for place in range(len(NAMES))]
    states = StateFile(folder, "the stream")
    for file in (source, target, states):
        file.reserve(len(NAMES) * paged(4 * numel))
    links, ledger = make_links({}, lambda: None), Ledger(tier="host")
    lanes = make_lanes(dict.fromkeys(NAMES, paged(4 * min(numel, FILE_BLOCK))), ledger)
    spaces = {(0, name): Space(0, name, offset, numel, "float32") for name, offset in zip(NAMES, offsets, strict=True)}
    storage = Storage(states, links[HOST, NVME], links[NVME, HOST], lanes, spaces, Ledger(tier="nvme"))
    regions = [storage.region(0, name, "optim", "0") for name in NAMES]

    page = memoryview(mmap.mmap(-1, CHUNK))
    for offset in range(0, source.nbytes, CHUNK):  # room that was never written is not read from the disk
        source.write(offset, page[: min(CHUNK, source.nbytes - offset)], "")

    def copy() -> None:
        for offset in range(0, source.nbytes, CHUNK):
            part = page[: min(CHUNK, source.nbytes - offset)]
            source.read(offset, part, "")
            target.write(offset, part, "")

    def stream() -> None:
        for _ in zip(*(region.blocks(slice(0, numel), writes=True) for region in regions), strict=True):
            pass

    rates: dict[str, list[float]] = {"copy": [], "stream": []}
    for name in ("copy", "stream") * (1 + repeat):  # the first round writes to blocks that are new
        begin = time.perf_counter()
        {"copy": copy, "stream": stream}[name]()
        rates[name].append(2 * source.nbytes / (time.perf_counter() - begin))
    copied, streamed = (statistics.median(rates[name][1:]) for name in ("copy", "stream"))
    return {"copy_bytes_per_s": copied, "stream_bytes_per_s": streamed, "ratio": streamed / copied,
            "direct": states.direct}


@spelled()
def main() -> None:
    """Print a line; with --json, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvme", metavar="DIR", default=".", help="the folder (default: this one)")
    parser.add_argument("--size", type=parse_bytes, default=512 << 20, help="bytes of states (512MiB)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (5)")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    found = measure(arguments.nvme, arguments.size, arguments.repeat)
    copied, streamed = (in_units(round(found[f"{name}_bytes_per_s"])) for name in ("copy", "stream"))
    way = "past" if found["direct"] else "through"
    print(f"copy {copied}/s, states {streamed}/s read and written ({way} the page cache): {found['ratio']:.0%}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
