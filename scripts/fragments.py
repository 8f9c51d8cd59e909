"""A real step that ends for lack of memory with a third of the device free, for 02_zero_stages.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claims import Demo, between, holds, of_kind
from mpizero.errors import Fragmented
from mpizero.memory.addresses import ARENA, FIRST_FIT
from mpizero.text import table

if TYPE_CHECKING:
    from mpizero.comm import Group

HIDDEN = ",".join(map(str, range(64, 88)))  # each layer is a little wider than the one before
GROWING: dict[str, Any] = {"model": "mlp", "hidden": HIDDEN, "batch_size": 96}
EQUAL: dict[str, Any] = {"model": "gpt", "layers": 8, "d_model": 32, "context": 32, "batch_size": 4}
BOTH: dict[str, Any] = {"stage": "3", "recompute": True, "dtype": "float32", "offload": "params=cpu,optimizer=cpu",
                        "steps": 2}
LARGE = "64MB"  # where nothing is scarce
WORSE, CLOSE = 1.3, 1.1  # ours: times the bytes that live at most


def fragments(world: Group) -> Demo:
    """Demo 7."""
    plain, _, _ = _run(world, GROWING, None, None)
    rows, extents = [], {}
    for name, model, allocator in (("growing MLP", GROWING, FIRST_FIT), ("growing MLP", GROWING, ARENA),
                                   ("GPT", EQUAL, FIRST_FIT)):
        _, peak, extent = _run(world, model, allocator, LARGE)
        extents[name, allocator] = extent / peak
        rows.append([name, allocator, peak, extent, extent / peak])
    size = f"{(rows[0][3] + rows[1][3]) // 2}B"
    try:
        _run(world, GROWING, FIRST_FIT, size)
        failed = None
    except Fragmented as error:
        failed = error
    cured, _, _ = _run(world, GROWING, ARENA, size)
    source, share = "lecture 6.3; ZeRO sec. 3.2, 6.3", 0.0 if failed is None else 100 * failed.free / failed.capacity
    return Demo("Out of memory with a third of it free, in a real step", "6.3", [
        *of_kind("counted",
                 between("A step fails for lack of memory with so much of the device free", source, 30, None, share,
                         "%"),
                 holds("What is asked for then is less than half of what is free", source, "fails",
                       "succeeds" if failed is None else f"fails: {failed.asked:,} of {failed.free:,} bytes, in "
                       f"{failed.holes} holes, the largest of {failed.largest:,}",
                       failed is not None and failed.largest < failed.asked < failed.free / 2)),
        holds("On the same device with kept inputs and gradients apart (M_D), compared with no addresses at all",
              source, "trains, the same bits", f"trains, {'the same bits' if cured == plain else 'others'}",
              cured == plain, kind="measured"),
        *of_kind("counted",
                 between("The device that first fit needs, over the bytes that live at most", "ours", WORSE, None,
                         extents["growing MLP", FIRST_FIT], "times"),
                 between("with the arena", "ours", None, CLOSE, extents["growing MLP", ARENA], "times"),
                 between("Blocks that are all equal, a GPT's, leave holes that the next one fills: first fit "
                         "needs", "ours", None, CLOSE, extents["GPT", FIRST_FIT], "times"))],
        table(["model", "allocator", "bytes at most", "device needed", "ratio"], rows),
        f"an MLP of {len(HIDDEN.split(','))} hidden layers, each one wider than the last, at stage 3 with recompute "
        f"and states off the device; that {WORSE} times is much and {CLOSE} little. Devices of {size}.",
        data={"rows": rows})


def _run(world: Group, model: dict[str, Any], allocator: str | None, size: str | None) -> tuple[str, int, int]:
    """Digest of the weights, and of rank 0 the most bytes that lived and the device that would have done for them."""
    from mpizero.engine.config import TrainConfig
    from mpizero.engine.job import prepare
    from mpizero.engine.summary import summarise
    from mpizero.engine.trainer import run_steps

    job = prepare(TrainConfig(**model, **BOTH, allocator=allocator, device_memory=size), world)
    summary = summarise(job, run_steps(job))
    return summary["weights_sha256"], summary["memory"][0]["device_peak"], summary["memory"][0]["device_extent"] or 0
