"""Prove the claims of ZeRO on real ranks: `mpirun -n 4 python -m mpizero.verify`.

Trains every strategy on 1 to N ranks and compares: results bit for bit with data parallelism, bytes with plan and
formula, traffic with plan and formula, replicas with each other, hybrid meshes with one process on the concatenated
batch; stage 3 with recompute; and with states and kept inputs off the device, where tiers and moves are held against
their plan. Then breaks stage 2 and must notice. Two tensor parallel ranks are tried at two stages; --tensor-size tries
so many, at every stage and mesh.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mpizero.cli import Parser, on_rank_0, spelled
from mpizero.comm import Group, all_gather_values, barrier, run_main, start
from mpizero.engine.alike import compare_flags
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.replicas import largest_difference
from mpizero.engine.resolve import resolve
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError
from mpizero.layout.models import GPTConfig, gpt_spec, mlp_spec
from mpizero.layout.tensor import TensorPlace
from mpizero.output import check_writable, printer, write_json
from mpizero.proof import (
    COLUMNS, progress, show_fault, show_hybrids, show_kept, show_offload, show_recompute, show_stages, show_tensor,
    show_whole,
)
from mpizero.rows import (
    OFFLOADS, Logs, Row, against_one_process, compare, kept_row, offload_row, recompute_row, run, stage_row, tensor_row,
)
from mpizero.runlog import make_folder
from mpizero.schedule import STRATEGIES, IllegalSchedule, validate
from mpizero.schedule.actions import AllGatherParam
from mpizero.text import counted, readable

EXAMPLE = """examples:
  mpirun -n 4 python -m mpizero.verify
  mpirun -n 4 python -m mpizero.verify --log runs/proof && python -m mpizero.report runs/proof
  mpirun -n 4 python -m mpizero.verify --model gpt --json proof.json"""

# without overlap, so that bytes are the same wherever ranks are
MODELS = {
    "mlp": TrainConfig(model="mlp", steps=50, overlap="off"),
    "gpt": TrainConfig(model="gpt", dtype="float32", steps=6, layers=2, d_model=32, heads=4, context=16, batch_size=4,
                       overlap="off"),
}
INTERVALS = (1, 2)  # of recompute, at stage 3
PAIR, FEW = 2, [("0", None), ("3", None)]  # tensor parallel ranks, and stages, that are tried unless asked for more
KEEPS: list[dict[str, Any]] = [{"tensor_size": 1}, {}, {"partition_activations": True}]  # ways to keep inputs


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    """Status 0 if every claim holds, 1 if one does not."""
    parser = Parser(prog="python -m mpizero.verify", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--model", choices=list(MODELS), default="mlp",
                        help="mlp: 5 layers, float16, 50 steps (mlp); gpt: a small GPT, float32, 6 steps")
    parser.add_argument("--tensor-size", type=int, metavar="T",
                        help="try T tensor parallel ranks alone, on each number of ranks that T divides")
    parser.add_argument("--json", metavar="FILE", help="write every row of the proof to this file")
    parser.add_argument("--log", metavar="DIR", help="write a log of each stage, on all ranks, into folders of DIR")
    words = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(words)
    config, world = MODELS[options.model], start()
    compare_flags(vars(options), world)
    if options.tensor_size is not None:
        config = replace(config, tensor_size=options.tensor_size)
        _check_tensor_size(config, world.size, options.log)
    on_rank_0(world, lambda: _check_outputs(options.json, options.log))
    proof = prove(config, world, options.log and Logs(options.log, ["mpizero.verify", *words]))
    if world.rank == 0 and options.json:
        write_json(options.json, proof)
    return 0 if proof["holds"] else 1


def _check_outputs(json: str | None, log: str | None) -> None:
    if log is not None:
        make_folder(log)
    check_writable("--json", json)


def _check_tensor_size(config: TrainConfig, ranks: int, log: str | None) -> None:
    size = config.tensor_size
    if not 2 <= size <= ranks:
        raise ConfigError(f"`tensor_size` {size} cannot be tried on {counted(ranks, 'rank')}: give a number from 2 up "
                          "to that of the ranks, as of mpirun -n 4")
    if log is not None:
        raise ConfigError("`log` takes the stages without tensor parallel ranks: leave out `tensor_size`")
    sizes = resolve(config, ranks=1).sizes
    place = TensorPlace(0, size)
    gpt_spec(sizes, place=place) if isinstance(sizes, GPTConfig) else mlp_spec(sizes, place=place)  # what it divides


def prove(config: TrainConfig, world: Group, logs: Logs | None = None) -> dict[str, Any]:
    """All rows of the proof, printed by rank 0 as they come. Collective. Rank 0 has them all, and its verdict counts:
    `holds` is the same on every rank. With tensor parallel ranks it is a proof about these alone."""
    tensor, rows, say = config.tensor_size, list[Row](), printer(world.rank)
    step = progress(_count_runs(world.size, tensor), world.rank)
    for size in range(tensor, world.size + 1, tensor):
        group = world.subgroup(range(size), f"verify{size}")
        if group is not None and tensor > 1:
            rows += _tensor_rows(config, group, _meshes(size // tensor), say, step)
        elif group is not None:
            rows += _rows_of(config, group, say, step, logs if size == world.size else None)
        barrier(world)
    if tensor == 1 and world.size % PAIR == 0:
        rows += _tensor_rows(replace(config, tensor_size=PAIR), world, FEW, say, step)
    if tensor == 1 and world.size > 1:
        step("a fault")
        fault = _fault_row(config, world)
        step("")
        say(show_fault(fault))
        rows.append(fault)
    true = sum(map(_all_true, rows))
    holds = bool(all_gather_values(world, np.array([true == len(rows)]))[0, 0])
    if logs is not None:
        say(f"\nlogs of each stage on {counted(world.size, 'rank')} are in {readable(logs.folder)}; one picture of all:"
            f"\n  python -m mpizero.report {readable(shlex.quote(logs.folder))}")
    verdict = f"{'every claim holds' if holds else 'SOME CLAIMS DO NOT HOLD'}: {true} of {len(rows)} rows"
    if world.size == 1:
        verdict += (", on 1 rank, where nothing is sharded or sent and the fault is not tried: start several with "
                    "mpirun -n 4 python -m mpizero.verify")
    say("\n" + textwrap.fill(verdict, COLUMNS, break_on_hyphens=False))
    return {"holds": holds, "model": config.model, "rows": rows}


def _rows_of(config: TrainConfig, group: Group, say: Callable[[str], None], step: Callable[[str], None],
             logs: Logs | None) -> list[Row]:
    """The claims on the ranks of a group. Those about one process are on rank 0 only. step: is told what comes next, ""
    before something is said."""
    size = group.size
    stages = [stage_row("stage", replace(config, stage=stage), group, step, logs) for stage in STRATEGIES]
    compare(stages, stages[0])
    step("")
    say(f"\n{counted(size, 'rank')}, {config.model}, {config.dtype}, {config.steps} steps; {group.library}")
    say(show_stages(stages))
    hybrids = [stage_row("hybrid", replace(config, stage=stage, shard_size=shards), group, step)
               for shards in _divisors(size) if shards < size for stage in "123"]
    compare([row for row in hybrids if row["shard_size"] == 1], stages[0])  # F = 1 is data parallelism
    step("")
    if hybrids:
        say(show_hybrids(hybrids))
    again = [recompute_row(replace(config, stage="3", recompute=True, recompute_interval=interval), group, step)
             for interval in INTERVALS]
    compare(again, stages[0])
    step("")
    say(show_recompute(again))
    away = [offload_row(replace(config, stage="3"), offload, group, step) for offload in OFFLOADS]
    compare(away, stages[0])
    step("")
    say(show_offload(away))
    meshes = [(stage, shards) for shards in _divisors(size) for stage in "123"]
    whole = against_one_process(config, group, meshes, step) if size > 1 else []
    step("")
    if whole:
        say(show_whole(whole))
    return [*stages, *hybrids, *again, *away, *whole]


def _meshes(size: int) -> list[tuple[str, int | None]]:
    """Stages on `size` ranks, each with its shards: one for each rank first, and the first of all data parallelism."""
    _, *others = reversed(_divisors(size))
    return [(stage, None) for stage in STRATEGIES] + [(stage, shards) for shards in others for stage in "123"]


def _tensor_rows(config: TrainConfig, group: Group, meshes: Sequence[tuple[str, int | None]],
                 say: Callable[[str], None], step: Callable[[str], None]) -> list[Row]:
    """The claims where tensor parallel ranks compute each batch together. meshes: stages and shards, stage 0 first."""
    stages = [tensor_row(stage_row("tensor", replace(config, stage=stage, shard_size=shards), group, step))
              for stage, shards in meshes]
    compare(stages, stages[0])
    step("")
    say(f"\n{counted(group.size, 'rank')}, {config.tensor_size} of which compute a batch together, {config.model}, "
        f"{config.dtype}, {config.steps} steps")
    say(show_tensor(stages))
    config = replace(config, stage="3")
    whole, again, parts = (tensor_row(kept_row(replace(config, recompute=True, **keeps), group, step))
                           for keeps in KEEPS)
    compare([again, parts], stages[0])
    parts["keeps_its_share"] = parts["kept_inputs"] * config.tensor_size == whole["kept_inputs"]
    step("")
    say(show_kept([whole, again, parts]))
    one = against_one_process(config, group, meshes, step)
    step("")
    if one:
        say(show_whole(one))
    return [*stages, whole, again, parts, *one]


def _fault_row(config: TrainConfig, world: Group) -> Row:
    """Stage 2 whose gather after the update is forgotten: no crash, no error, but replicas drift. The checksums must
    tell."""
    config = replace(config, stage="2")
    _, right = run(config, world)
    job = prepare(config, world)
    forgetful = replace(job.lists, update=[action for action in job.lists.update
                                           if not isinstance(action, AllGatherParam)])
    try:
        validate(forgetful.step(), job.geometry)
        refused = ""
    except IllegalSchedule as error:
        refused = str(error)
    job = replace(job, lists=forgetful)  # past the validator
    wrong = summarise(job, run_steps(job))
    return {"row": "fault", "ranks": world.size, "stage": "2",
            "loss": wrong["losses"][-1], "right_loss": right["losses"][-1],
            "eval_loss": wrong["eval_loss"], "right_eval_loss": right["eval_loss"],
            "largest_difference": largest_difference(job.world, job.state.units),
            "validator_says": refused, "validator_refuses": bool(refused), "mismatches": wrong["mismatches"],
            "checksums_detect_it": not wrong["replicas_equal"] and right["replicas_equal"]}


def _divisors(size: int) -> list[int]:
    return [divisor for divisor in range(1, size + 1) if size % divisor == 0]


def _count_runs(ranks: int, tensor: int) -> int:
    """How often `step` is told something by `prove` where this many ranks are."""
    if tensor > 1:
        return sum(_count_tensor(len(_meshes(size))) for size in range(1, ranks // tensor + 1))
    meshes = [len(_divisors(size)) for size in range(1, ranks + 1)]
    return sum(len(STRATEGIES) + 3 * (count - 1) + len(INTERVALS) + len(OFFLOADS) for count in meshes) \
        + sum(1 + 3 * count for count in meshes[1:]) + (ranks > 1) + (ranks % PAIR == 0 and _count_tensor(len(FEW)))


def _count_tensor(meshes: int) -> int:
    return 2 * meshes + len(KEEPS) + 1


def _all_true(row: Row) -> bool:
    return all(value for value in row.values() if isinstance(value, bool))


if __name__ == "__main__":
    run_main(main)
