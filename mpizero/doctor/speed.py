"""How fast ranks compute, update and copy: each alone, or all at once as in training."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mpizero.comm import Group, all_gather_values, barrier
from mpizero.doctor.host import read
from mpizero.dtypes import numpy_dtype
from mpizero.engine.update_rate import DTYPES, adam
from mpizero.layout.models import GPTConfig
from mpizero.memory.ledger import Uncounted
from mpizero.nn.gpt import gpt
from mpizero.nn.ops.gradients import Gradients
from mpizero.nn.ops.matmul import matmul
from mpizero.optim import ALONE
from mpizero.planner.model import gpt as planned_gpt

EACH = 0.2  # seconds for one kind of work, or a call
SIDE = 512  # of square matrices
BLOCK = GPTConfig(layers=1, d_model=256, heads=4, context=128, vocab=2)
SAMPLES = 2
ELEMENTS = 2**21  # that are updated: more than caches hold
COPIED = 2**25  # bytes
MEM = Uncounted()
Call = Callable[[], object]


@dataclass(frozen=True)
class Speeds:
    """What each rank does in a second while all do the same. busy: cores that other programs keep busy on its host,
    seen by each host's first rank, nan for the others. alone: operations in float32 of each host's first rank
    while the others sleep, again nan for those. matmul, block: operations by dtype; of plain products, and of a GPT
    block, forward and backward. update: elements by dtype, of Adam in one thread, as a rank runs it. copied: bytes."""

    busy: tuple[float, ...]
    alone: tuple[float, ...]
    matmul: dict[str, tuple[float, ...]]
    block: dict[str, tuple[float, ...]]
    update: dict[str, tuple[float, ...]]
    copied: tuple[float, ...]


def measure(world: Group) -> Speeds:
    """The same on every rank. Collective."""
    first = world.hosts.index(world.hosts[world.rank]) == world.rank
    barrier(world)
    busy = all_gather_values(world, np.array([busy_cores() if first else math.nan]))[:, 0].tolist()
    alone = _each(world, _matmul("float32") if first else None, 2 * SIDE**3)
    matmuls, blocks, updates = {}, {}, {}
    for dtype in DTYPES:
        matmuls[dtype] = _each(world, _matmul(dtype), 2 * SIDE**3)
        blocks[dtype] = _each(world, _block(dtype), block_flops())
        updates[dtype] = _each(world, partial(adam(dtype, ELEMENTS), ALONE), ELEMENTS)
    source, target = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)
    return Speeds(tuple(busy), alone, matmuls, blocks, updates,
                  _each(world, lambda: np.copyto(target, source), COPIED))


def _each(world: Group, call: Call | None, work: float) -> tuple[float, ...]:
    """`work` a second of each rank that has a `call`."""
    barrier(world)
    rate = math.nan if call is None else work / seconds(call)
    return tuple(all_gather_values(world, np.array([rate]))[:, 0].tolist())


def busy_cores(stat: Path = Path("/proc/stat"), during: float = 0.3) -> float:
    """How many cores of this host are busy meanwhile, nan where the system does not say. This process sleeps."""
    begin = _ticks(stat)
    time.sleep(during)
    (idle, total), end = begin, _ticks(stat)
    cores = os.cpu_count() or 1
    return cores * (1 - (end[0] - idle) / (end[1] - total)) if end[1] > total else math.nan


def _ticks(stat: Path) -> tuple[int, int]:
    """(idle, all) of all cores together."""
    numbers = [int(number) for number in read(stat).partition("\n")[0].split()[1:9]]
    return (sum(numbers[3:5]), sum(numbers)) if len(numbers) > 4 else (0, 0)


def seconds(call: Call) -> float:
    """Mean of a call, after one that warms up: a median would not see the turns of ranks that share a core."""
    call()
    count, begin = 0, time.perf_counter()
    while not count or time.perf_counter() - begin < EACH:
        call()
        count += 1
    return (time.perf_counter() - begin) / count


def _matmul(dtype: str) -> Call:
    a, b, out = (np.full((SIDE, SIDE), 0.5, numpy_dtype(dtype)) for _ in range(3))
    return lambda: matmul(a, b, out, MEM)


def block_flops() -> int:
    """Of forward and backward, as a plan counts them."""
    model = planned_gpt(1, BLOCK.d_model, BLOCK.heads, BLOCK.vocab, BLOCK.context)
    return (model.forward_flops[1] + model.backward_flops[1]) * SAMPLES * BLOCK.context


def _block(dtype: str) -> Call:
    model, kind = gpt(BLOCK), numpy_dtype(dtype)
    segment, names = model.segments[1], model.spec.segments[1].params
    params = {name: model.initial(name, 0).astype(kind) for name in names}
    grads = {name: np.zeros_like(value) for name, value in params.items()}
    x = np.full((SAMPLES, BLOCK.context, BLOCK.d_model), 0.5, kind)

    def step() -> None:
        y, context = segment.forward(params, x, MEM)
        segment.backward(params, context, y, Gradients(grads, set()), MEM)

    return step
