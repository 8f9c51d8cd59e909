"""Training logs made by hand: the lists and plans are the real ones, times and losses are invented. Any number of ranks, without MPI."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mpizero.layout import ModelSpec, wrap
from mpizero.planner import Geometry, formula_after_backward, plan_memory, plan_traffic, sent_by_op, sent_bytes
from mpizero.schedule import STRATEGIES, show, training_lists
from mpizero.schedule.actions import AllReduceShard, Axis, Backward, Forward, OptimStep, Phase
from tests.schedule.toys import chain

SECONDS = {Forward: 2e-9, Backward: 4e-9, OptimStep: 1e-9}  # for each element
BYTES_A_SECOND = 4e8


def write_log(folder: Path, **options: Any) -> Path:
    """The three files; options as for `sample`."""
    folder.mkdir(parents=True, exist_ok=True)
    steps, summary, trace = sample(**options)
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "trace.json").write_text(json.dumps(trace))
    return folder


def sample(ranks: int = 4, units: int = 5, stage: str = "3", shards: int | None = None, steps: int = 50, capacity: int | None = None,
           accumulation: int = 1, spec: ModelSpec | None = None, skipped: tuple[int, ...] = (), **passes: Any
           ) -> tuple[list[dict], dict, dict]:
    """steps.jsonl's rows, summary.json and trace.json of a run on `ranks` ranks that never was."""
    shards = 1 if stage == "0" else shards or ranks
    wrapping = wrap(spec or chain(tuple(3000 + 1200 * (3 * i % 5) for i in range(units))), ranks)
    geometry = Geometry(wrapping, STRATEGIES[stage].placement, ranks // shards, shards, "float16")
    actions = training_lists(STRATEGIES[stage], wrapping, ranks // shards, shards, accumulation=accumulation, **passes).step()
    traffic = plan_traffic(actions, geometry)
    trace = {"step": steps - 1, "stage": stage, "model": "mlp", "dtype": "float16", "world_size": ranks, "capacity": capacity,
             "ranks": _Run(geometry, actions, ranks, shards).play()}
    done = trace["ranks"][0]["actions"]
    same = {"lr": 0.01, "loss_scale": 65536.0, "per_second": 5100.0, "live_bytes": sum(done[-1]["live"].values()),
            "peak_bytes": max(row["peak_bytes"] for row in done), "sent_bytes": sent_bytes(traffic)}
    rows = [{"step": i, "loss": 0.9 + 1.9 * math.exp(-i / 12) + 0.03 * math.sin(2.3 * i),
             "grad_norm": None if i in skipped else 0.4 + 3 * math.exp(-i / 9) + 0.1 * math.cos(3.1 * i), "skipped": i in skipped, **same}
            for i in range(steps)]
    return rows, _summary(geometry, trace, sent_by_op(traffic), actions, rows), trace


def _summary(geometry: Geometry, trace: dict, sent: dict, actions: list, rows: list) -> dict:
    """Every rank alike."""
    plan = plan_memory(actions, geometry)
    kinds = {kind: {"at_rest": size, "after_backward": plan.after_backward.get(kind, 0), "peak": plan.peak_by_kind[kind]}
             for kind, size in plan.at_rest.items()}
    memory = {"after_backward": plan.after_backward_bytes, "at_rest": plan.at_rest_bytes, "peak": plan.peak_bytes, "by_kind": kinds,
              "peak_action": show(plan.peak_action) if plan.peak_action else "start", "activation_peak": 20_000,
              "device_peak": max(row["peak_bytes"] for row in trace["ranks"][0]["actions"]),
              "planned_after_backward": plan.after_backward_bytes, "planned_at_rest": plan.at_rest_bytes, "planned_peak": plan.peak_bytes,
              "formula_after_backward": formula_after_backward(geometry)}
    traffic = {"sent_bytes_per_step": sum(sent.values()), "messages_per_step": 45, "planned_by_op": sent,
               "by_op": {**sent, "agree": 192 if trace["world_size"] > 1 else 0},
               "planned_sent_bytes_per_step": sum(sent.values()), "steps_off_plan": 0}
    return {"world_size": trace["world_size"], "stage": trace["stage"], "model": "mlp", "dtype": "float16", "shard_size": geometry.shards,
            "replicas": geometry.replicas, "batch_size": 16, "accumulation": 1, "seed": 0, "psi": geometry.wrapping.numel,
            "padded_psi": geometry.wrapping.padded_numel, "units": [unit.numel for unit in geometry.wrapping.units],
            "losses": [row["loss"] for row in rows], "eval_loss": 0.93, "skipped_steps": sum(row["skipped"] for row in rows),
            "weights_sha256": "ab" * 32, "replicas_equal": True, "mismatches": [], "memory": [memory] * trace["world_size"],
            "traffic": [traffic] * trace["world_size"]}


class _Run:
    """Ranks in step: a collective begins when each rank comes to it and ends when its last message has arrived."""

    def __init__(self, geometry: Geometry, actions: list, ranks: int, shards: int):
        self.geometry, self.actions, self.ranks = geometry, actions, ranks
        self.shard = [list(range(r - r % shards, r - r % shards + shards)) for r in range(ranks)]
        self.replicate = [list(range(r % shards, ranks, shards)) for r in range(ranks)]
        self.clock = [1e-5 * (r % 3) for r in range(ranks)]
        self.rows: list[dict] = [{"rank": r, "host": f"node{r // 8}", "groups": {"shard": self.shard[r], "replicate": self.replicate[r]},
                                  "actions": [], "collectives": []} for r in range(ranks)]

    def play(self) -> list[dict]:
        phase, activations = "start", 0
        plan = plan_memory(self.actions, self.geometry)
        sends = iter(plan_traffic(self.actions, self.geometry))
        for action, point in zip(self.actions, plan.points, strict=True):
            begin = list(self.clock)
            if isinstance(action, Phase):
                phase = action.name
            elif isinstance(action, Forward | Backward | OptimStep):
                activations = max(0, activations + {Forward: 4096, Backward: -4096}.get(type(action), 0))
                for rank in range(self.ranks):
                    uneven = 1 + 0.1 * ((7 * rank + len(self.rows[rank]["actions"])) % 4)
                    self.clock[rank] += SECONDS[type(action)] * self._numel(action) * uneven
            elif hasattr(action, "unit") and type(action).__name__ not in ("Reshard", "FreeGrad"):
                self._collective(action, next(sends), phase)
            live = {**point.live, "activation": activations, "workspace": 0}
            for rank, row in enumerate(self.rows):
                row["actions"].append({"action": show(action), "kind": type(action).__name__, "label": self._label(action), "phase": phase,
                                       "begin_s": begin[rank], "end_s": self.clock[rank], "live": live,
                                       "peak_bytes": point.peak_bytes + activations + 2048 * isinstance(action, Forward | Backward),
                                       "planned_live": point.live, "planned_peak_bytes": point.peak_bytes})
        return self.rows

    def _numel(self, action: Any) -> int:
        units = self.geometry.wrapping.stages[action.stage].units if hasattr(action, "stage") else (action.unit,)
        return sum(self.geometry.wrapping.units[unit].numel for unit in units) * (1 if hasattr(action, "stage") else 4)

    def _label(self, action: Any) -> str:
        if isinstance(action, Phase):
            return ""
        wrapping = self.geometry.wrapping
        return wrapping.stages[action.stage].name if hasattr(action, "stage") else wrapping.units[action.unit].name

    def _collective(self, action: Any, send: Any, phase: str) -> None:
        name = "replicate" if isinstance(action, AllReduceShard) or getattr(action, "axis", None) is Axis.REPLICATE else "shard"
        groups = self.replicate if name == "replicate" else self.shard
        begin = list(self.clock)
        each = {rank: {"op": send.op, "unit": self._label(action), "phase": phase, "group": name, "begin_s": begin[rank], "end_s": 0.0,
                       "bytes_sent": send.nbytes, "bytes_received": send.nbytes, "messages": send.rounds, "sends": [], "arrivals": []}
                for rank in range(self.ranks)}
        for _ in range(send.rounds):
            nbytes = send.nbytes // send.rounds
            now = list(self.clock)
            for rank in range(self.ranks):
                group = groups[rank]
                left, right = (group[(group.index(rank) + side) % len(group)] for side in (-1, 1))
                each[rank]["sends"].append({"to": right, "bytes": nbytes, "begin_s": now[rank]})
                self.clock[rank] = max(now[rank], now[left]) + 5e-6 + nbytes / BYTES_A_SECOND
                each[rank]["arrivals"].append({"from": left, "bytes": nbytes, "end_s": self.clock[rank]})
        for rank, record in each.items():
            self.clock[rank] += 1e-6
            record["end_s"] = self.clock[rank]
            self.rows[rank]["collectives"].append(record)
