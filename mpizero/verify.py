"""Prove the claims of ZeRO on real ranks: `mpirun -n 4 python -m mpizero.verify`.

Trains every strategy on 1 to N ranks and compares: results bit for bit with data parallelism, bytes with plan and
formula, traffic with plan and formula, replicas with each other, hybrid meshes with one process on the concatenated
batch; stage 3 with recompute; and with states and kept inputs off the device, where tiers and moves are held against
their plan. Then breaks stage 2 and must notice.
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
from mpizero.engine.export import whole_state
from mpizero.engine.job import prepare
from mpizero.engine.replicas import largest_difference
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from mpizero.output import check_writable, printer, write_json
from mpizero.proof import (
    COLUMNS, progress, show_fault, show_hybrids, show_offload, show_recompute, show_stages, show_whole,
)
from mpizero.rows import OFFLOADS, Logs, Row, compare, offload_row, recompute_row, run, stage_row
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
    "gpt": TrainConfig(model="gpt", dtype="float32", steps=6, layers=2, d_model=32, heads=2, context=16, batch_size=4,
                       overlap="off"),
}
# float32, relative: another order of additions, amplified by the steps. See _distance
TO_ROUNDING = {"loss": 1e-5, "state": 1e-4}
INTERVALS = (1, 2)  # of recompute, at stage 3


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    """Status 0 if every claim holds, 1 if one does not."""
    parser = Parser(prog="python -m mpizero.verify", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--model", choices=list(MODELS), default="mlp",
                        help="mlp: 5 layers, float16, 50 steps (mlp); gpt: a small GPT, float32, 6 steps")
    parser.add_argument("--json", metavar="FILE", help="write every row of the proof to this file")
    parser.add_argument("--log", metavar="DIR", help="write a log of each stage, on all ranks, into folders of DIR")
    words = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(words)
    config, world = MODELS[options.model], start()
    compare_flags(vars(options), world)
    on_rank_0(world, lambda: _check_outputs(options.json, options.log))
    proof = prove(config, world, options.log and Logs(options.log, ["mpizero.verify", *words]))
    if world.rank == 0 and options.json:
        write_json(options.json, proof)
    return 0 if proof["holds"] else 1


def _check_outputs(json: str | None, log: str | None) -> None:
    if log is not None:
        make_folder(log)
    check_writable("--json", json)


def prove(config: TrainConfig, world: Group, logs: Logs | None = None) -> dict[str, Any]:
    """All rows of the proof, printed by rank 0 as they come. Collective. Rank 0 has them all, and its verdict counts:
    `holds` is the same on every rank."""
    say, step = printer(world.rank), progress(_count_runs(world.size), world.rank)
    rows: list[Row] = []
    for size in range(1, world.size + 1):
        group = world.subgroup(range(size), f"verify{size}")
        if group is not None:
            rows += _rows_of(config, group, say, step, logs if size == world.size else None)
        barrier(world)
    if world.size > 1:
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
    whole = _against_one_process(config, group, step) if size > 1 else []
    step("")
    if whole:
        say(show_whole(whole))
    return [*stages, *hybrids, *again, *away, *whole]


def _against_one_process(config: TrainConfig, group: Group, step: Callable[[str], None]) -> list[Row]:
    """In float32, every mesh (F = 1 is data parallelism) against one process that computes the concatenated batch. Rows
    on rank 0 only."""
    config = replace(config, dtype="float32", stage="3")
    alone = group.subgroup([0], f"alone of {group.size}")
    step("one process on the concatenated batch")
    concatenated = replace(config, batch_size=config.batch_size * group.size)
    reference = None if alone is None else _states(concatenated, alone)
    barrier(group)
    rows: list[Row] = []
    for shards in _divisors(group.size):
        for stage in "123":
            step(f"{counted(group.size, 'rank')} against one process, stage {stage}")
            here = _states(replace(config, stage=stage, shard_size=shards), group)
            if reference is not None:
                rows.append({"row": "one process", "ranks": group.size, "stage": stage, "shard_size": shards,
                             **_distance(here, reference)})
    return rows


def _states(config: TrainConfig, group: Group) -> tuple[list[float], list[np.ndarray]]:
    """Losses of a run, and at its end master weights, exp_avg and the root of exp_avg_sq, (psi,) each."""
    job = prepare(config, group)
    losses = [record.loss for record in run_steps(job).records]
    master, exp_avg, exp_avg_sq = (np.concatenate([whole_state(unit, name) for unit in job.state.units])
                                   for name in ("master", "exp_avg", "exp_avg_sq"))
    return losses, [master, exp_avg, np.sqrt(exp_avg_sq)]


def _distance(here: tuple[list[float], list[np.ndarray]], reference: tuple[list[float], list[np.ndarray]]) -> Row:
    """Largest relative difference of a loss, and largest norm of the difference of a state over its norm."""
    loss = max(float(abs(a - b) / abs(b)) for a, b in zip(here[0], reference[0], strict=True))
    state = max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(here[1], reference[1], strict=True))
    return {"loss_difference": loss, "state_difference": state,
            "equal_to_rounding": loss <= TO_ROUNDING["loss"] and state <= TO_ROUNDING["state"]}


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


def _count_runs(ranks: int) -> int:
    """How often `step` is told something by `prove` where this many ranks are."""
    meshes = [len(_divisors(size)) for size in range(1, ranks + 1)]
    return sum(len(STRATEGIES) + 3 * (count - 1) + len(INTERVALS) + len(OFFLOADS) for count in meshes) \
        + sum(1 + 3 * count for count in meshes[1:]) + (ranks > 1)


def _all_true(row: Row) -> bool:
    return all(value for value in row.values() if isinstance(value, bool))


if __name__ == "__main__":
    run_main(main)
