"""Training logs made by hand: the lists and plans are the real ones, times and losses are invented.

Any number of ranks, without MPI.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mpizero.engine.simulated import simulated
from mpizero.layout import ActivationBytes, Axis, ModelSpec, SegmentBytes
from mpizero.memory.kinds import ACTIVATION, ACTIVATIONS, KEPT_INPUT, UNSHARDED_GRAD, WORKSPACE
from mpizero.planner import (
    Geometry,
    MemoryPlan,
    formula_after_backward,
    plan_memory,
    plan_traffic,
    sent_by_op,
    sent_bytes,
)
from mpizero.planner.costs import OF_SEGMENTS
from mpizero.planner.traffic import Sent
from mpizero.report.log import Log
from mpizero.schedule import StepSettings, effect_of, set_up, show
from mpizero.schedule.actions import Action, Agree, LoadBatch, Loss, LossBackward, Phase
from mpizero.schedule.effect import Work
from tests.schedule.toys import chain

# of each kind of work, for each element
SECONDS = {"forward": 2e-9, "recompute": 2e-9, "backward": 4e-9, "optim_step": 4e-9, "download": 1e-9, "upload": 1e-9,
           "download_kept": 1e-9, "upload_kept": 1e-9}
OTHER_SECONDS = {LoadBatch: 2e-6, Loss: 4e-6, LossBackward: 3e-6}
BYTES_A_SECOND = 4e8


def write_log(folder: Path, run: str | None = None, **options: Any) -> Path:
    """The files; options as for `sample`. run: an identifier; without, a log of an older version, with three files."""
    folder.mkdir(parents=True, exist_ok=True)
    steps, summary, trace = sample(**options)
    own = {} if run is None else {"run": run}
    if run is not None:
        (folder / "run.json").write_text(json.dumps(begun(run, summary)))
    (folder / "steps.jsonl").write_text("".join(json.dumps(own | row) + "\n" for row in steps))
    (folder / "summary.json").write_text(json.dumps(own | summary))
    (folder / "trace.json").write_text(json.dumps(own | trace))
    return folder


def log_of(folder="log", **options) -> Log:
    """The same without files; options as for `sample`."""
    steps, summary, trace = sample(**options)
    return Log(folder, steps, summary, trace)


def begun(run: str, summary: dict[str, Any]) -> dict[str, Any]:
    """run.json."""
    ranks = summary["world_size"]
    return {"run": run, "began": "2026-11-30T03:15:02+00:00", "command": "python -m mpizero.train --stage 3",
            **{key: summary[key] for key in ("model", "stage", "world_size", "psi")},
            "mesh": {"replicate": summary["replicas"], "shard": summary["shard_size"]}, "hosts": ["node0"] * ranks,
            "mpi": "MPICH 5.0.2", "versions": {"mpizero": "0.1.0"}, "data": "teacher task",
            "settings": {"lr": 0.01, "clip": None, "no_sync": False, "stage": summary["stage"]}}


def sample(ranks: int = 4, units: int = 5, stage: str = "3", shards: int | None = None, steps: int = 50,
           capacity: int | None = None, accumulation: int = 1, spec: ModelSpec | None = None,
           skipped: tuple[int, ...] = (), activations_planned: bool = True, **passes: Any
           ) -> tuple[list[dict], dict, dict]:
    """steps.jsonl's rows, summary.json and trace.json of a run on `ranks` ranks that never was."""
    spec = spec or chain(tuple(3000 + 1200 * (3 * i % 5) for i in range(units)))
    setup = set_up(spec, ranks, StepSettings(stage, shards, accumulation, **passes))
    geometry, actions = setup.geometry, setup.lists.step()
    counted = plan_memory(actions, geometry, _activations(len(geometry.wrapping.segments)))
    plan = plan_memory(actions, geometry)
    traffic = plan_traffic(actions, geometry)
    trace = {"step": steps - 1, "stage": stage, "model": "mlp", "dtype": "float16", "world_size": ranks,
             "capacity": capacity, "ranks": _Run(geometry, counted, counted if activations_planned else plan).play()}
    trace["simulated"] = simulated(actions, trace["ranks"], geometry)
    done = trace["ranks"][0]["actions"]
    same = {"lr": 0.01, "loss_scale": 65536.0, "per_second": 5100.0, "live_bytes": sum(done[-1]["live"].values()),
            "peak_bytes": max(row["peak_bytes"] for row in done), "sent_bytes": sent_bytes(traffic)}
    rows = [{"step": i, "loss": 0.9 + 1.9 * math.exp(-i / 12) + 0.03 * math.sin(2.3 * i),
             "grad_norm": None if i in skipped else 0.4 + 3 * math.exp(-i / 9) + 0.1 * math.cos(3.1 * i),
             "skipped": i in skipped, **same} for i in range(steps)]
    return rows, _summary(geometry, trace, sent_by_op(traffic), plan, rows), trace


def _activations(segments: int) -> ActivationBytes:
    """Invented: each segment keeps its input, and as many bytes again."""
    return ActivationBytes(inputs=2048, targets=256, segments=(SegmentBytes(output=2048, kept=2048),) * segments,
                           loss_kept=512)


def _summary(geometry: Geometry, trace: dict, sent: dict, plan: MemoryPlan, rows: list) -> dict:
    """Every rank alike."""
    kinds = {kind: {"at_rest": size, "after_backward": plan.after_backward.get(kind, 0),
                    "peak": plan.peak_by_kind[kind]} for kind, size in plan.at_rest.items()}
    memory = {"after_backward": plan.after_backward_bytes, "at_rest": plan.at_rest_bytes, "peak": plan.peak_bytes,
              "by_kind": kinds, "peak_action": show(plan.peak_action) if plan.peak_action else "start",
              "activation_peak": 20_000,
              "device_peak_by_kind": {**plan.peak_by_kind, "activation": 20_000, "workspace": 7},
              "device_peak_action": "Backward(1, mb=0)", "planned_device_peak": None,
              "planned_device_peak_action": None,
              "device_peak": max(row["peak_bytes"] for row in trace["ranks"][0]["actions"]),
              "planned_after_backward": plan.after_backward_bytes, "planned_at_rest": plan.at_rest_bytes,
              "planned_peak": plan.peak_bytes, "formula_after_backward": formula_after_backward(geometry)}
    traffic = {"sent_bytes_per_step": sum(sent.values()), "messages_per_step": 45, "planned_by_op": sent,
               "by_op": {**sent, "agree": 192 if trace["world_size"] > 1 else 0},
               "formula_sent_bytes_per_step": sum(sent.values()),
               "planned_sent_bytes_per_step": sum(sent.values()), "steps_off_plan": 0,
               "moved_bytes_per_step": {"device-host": 0, "host-nvme": 0},
               "planned_moved_bytes_per_step": {"device-host": 0, "host-nvme": 0},
               "between_hosts_bytes_per_step": 0, "planned_between_hosts_bytes_per_step": 0}
    return {"world_size": trace["world_size"], "stage": trace["stage"], "model": "mlp", "dtype": "float16",
            "reduce_dtype": "float16", "sum_dtype": "float16",
            "shard_size": geometry.shards, "replicas": geometry.replicas, "batch_size": 16, "accumulation": 1,
            "seed": 0, "psi": geometry.wrapping.numel, "padded_psi": geometry.wrapping.padded_numel,
            "trained_padded_psi": geometry.wrapping.padded_numel, "frozen_psi": 0,
            "gathered_more": 0, "offload": None,
            "units": [unit.numel for unit in geometry.wrapping.units], "losses": [row["loss"] for row in rows],
            "eval_loss": 0.93, "skipped_steps": sum(row["skipped"] for row in rows), "weights_sha256": "ab" * 32,
            "replicas_equal": True, "mismatches": [], "memory": [memory] * trace["world_size"],
            "traffic": [traffic] * trace["world_size"]}


class _Run:
    """Ranks in step: a collective begins when each rank comes to it and ends when its last message has arrived."""

    def __init__(self, geometry: Geometry, counted: MemoryPlan, planned: MemoryPlan):
        """The counts are those of another plan, which knows activations whether or not `planned` does."""
        self.geometry, self.counted, self.planned = geometry, counted, planned
        ranks = range(geometry.mesh.ranks)
        self.clock = [1e-5 * (r % 3) for r in ranks]
        self.rows: list[dict] = [{"rank": r, "host": f"node{r // 8}", "clock_offset_s": 0.0,
                                  "clock_uncertainty_s": 0.0, "groups": self._groups(r), "actions": [],
                                  "collectives": [], "moves": [], "updates": []} for r in ranks]

    def play(self) -> list[dict]:
        phase, activations = "start", 0
        sends = iter(plan_traffic([point.action for point in self.counted.points], self.geometry))
        for counted, planned in zip(self.counted.points, self.planned.points, strict=True):
            action = counted.action
            effect = effect_of(action, self.geometry)
            work = effect.work
            begin = list(self.clock)
            if isinstance(action, Phase):
                phase = action.name
            elif effect.sends is None:
                self._compute(action, work)
            else:
                self._collective(action, next(sends), phase)
            workspace = 2048 if work is not None and work.kind in OF_SEGMENTS else 0
            after = sum(counted.live[kind] for kind in ACTIVATIONS)
            most, activations = counted.peak_bytes + max(activations, after) + workspace, after
            states = sum(counted.live.values()) - activations
            peak = {**counted.live, UNSHARDED_GRAD: counted.live[UNSHARDED_GRAD] + counted.peak_bytes - states,
                    ACTIVATION: most - workspace - counted.peak_bytes - counted.live[KEPT_INPUT],
                    WORKSPACE: workspace}
            about = {"action": show(action), "kind": type(action).__name__, "work": None if work is None else work.kind,
                     "computes": (effect.sends is None and effect.shares is None
                                  and not isinstance(action, Agree | Phase)),
                     "label": self._label(action), "phase": phase, "live": {**counted.live, WORKSPACE: 0},
                     "peak_bytes": most, "peak_live": peak, "planned_live": planned.live,
                     "planned_peak_bytes": planned.peak_bytes}
            for rank, row in enumerate(self.rows):
                row["actions"].append({"begin_s": begin[rank], "end_s": self.clock[rank], **about})
        return self.rows

    def _compute(self, action: Action, work: Work | None) -> None:
        seconds = OTHER_SECONDS.get(type(action), 0.0)
        if work is not None:
            wrapping = self.geometry.wrapping
            units = wrapping.segments[work.index].units if hasattr(action, "segment") else (work.index,)
            seconds = SECONDS.get(work.kind, 1e-9) * sum(wrapping.units[unit].numel for unit in units)
        for rank, row in enumerate(self.rows):
            self.clock[rank] += seconds * (1 + 0.1 * ((7 * rank + len(row["actions"])) % 4))

    def _groups(self, rank: int) -> dict[str, list[int]]:
        return {str(axis): list(self.geometry.mesh.group(rank, axis)) for axis in Axis}

    def _label(self, action: Any) -> str:
        wrapping = self.geometry.wrapping
        if hasattr(action, "segment"):
            return wrapping.segments[action.segment].name
        return wrapping.units[action.unit].name if hasattr(action, "unit") else ""

    def _collective(self, action: Action, send: Sent, phase: str) -> None:
        mesh, ranks = self.geometry.mesh, range(len(self.rows))
        right = [mesh.successor(rank, send.axis) for rank in ranks]
        each = {rank: {"op": send.op, "unit": self._label(action), "phase": phase, "group": str(send.axis),
                       "begin_s": self.clock[rank], "end_s": 0.0, "bytes_sent": send.nbytes,
                       "bytes_received": send.nbytes, "messages": send.rounds, "exposed_s": 0.0, "sends": [],
                       "arrivals": []}
                for rank in ranks}
        for _ in range(send.rounds):
            nbytes = send.nbytes // send.rounds
            now = list(self.clock)
            for rank in ranks:
                left = right.index(rank)
                each[rank]["sends"].append({"to": right[rank], "bytes": nbytes, "begin_s": now[rank]})
                self.clock[rank] = max(now[rank], now[left]) + 5e-6 + nbytes / BYTES_A_SECOND
                each[rank]["arrivals"].append({"from": left, "bytes": nbytes, "end_s": self.clock[rank]})
        for rank, record in each.items():
            self.clock[rank] += 1e-6
            record["end_s"] = self.clock[rank]
            record["exposed_s"] = record["end_s"] - record["begin_s"]
            self.rows[rank]["collectives"].append(record)
