"""May a run go on from a checkpoint? What would change its result may not differ: an error says both values. What may
differ though it changes the result is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mpizero.checkpoint.read import Checkpoint
from mpizero.checkpoint.save import params_of
from mpizero.engine.alike import SHOWN, flat
from mpizero.engine.job import Job
from mpizero.errors import CheckpointError

# Settings that change no bit, or only the order of additions (ranks, shard_size, tensor_size, wrap, no_sync); and where
# data lies.
FREE = ("stage", "shard_size", "no_sync", "backward_prefetch", "forward_prefetch", "keep_last_unit",
        "limit_all_gathers", "overlap", "recompute", "recompute_interval", "partition_activations", "bucket_size",
        "tensor_size", "wrap", "offload", "device_memory", "allocator", "host_memory", "host_threads", "limit",
        "check_replicas", "eval_every", "data", "end", "save", "save_every", "keep", "resume", "init")
# Those that a run may change on its way.
TOLD = ("steps", "epochs", "lr", "warmup", "clip", "batch_size", "global_batch", "accumulation", "tiles")
# Those that end an update which is under way, so that they change results where updates are delayed.
ENDING = ("save_every", "eval_every", "check_replicas")


def check_alike(job: Job, checkpoint: Checkpoint) -> None:
    """CheckpointError where going on would give another result than the run that was saved: all settings but those in
    `FREE` and `TOLD`, data, parameters, states."""
    here, there = settings_of(job), checkpoint.about["settings"]
    if checkpoint.about.get("weights_only"):
        raise CheckpointError(f"{checkpoint.folder} holds weights alone, which no run has left: start from them with "
                              "`init`, not `resume`")
    found = [f"`{name}` is {value}, but was {there[name]}" for name, value in here.items()
             if name not in FREE + TOLD and name in there and there[name] != value]
    if (here["epochs"] is None) != (there.get("epochs") is None):
        found.append(f"`epochs` is {_given(here['epochs'])}, but was {_given(there.get('epochs'))}")
    if found:
        more = [f"{len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise CheckpointError(f"this run cannot go on from {checkpoint.folder}: {'; '.join(found[:SHOWN] + more)}. "
                              "Give the same, or begin anew without `resume`")
    _check_data(job, checkpoint)
    _check_params(job, checkpoint)


def changes(job: Job, checkpoint: Checkpoint) -> list[str]:
    """`lr 0.002 -> 0.001` of each setting in `TOLD` that is another now, and of the global batch, which may be so
    because there are more ranks or fewer."""
    here, there = settings_of(job), checkpoint.about["settings"]
    told = TOLD + (ENDING if here["delayed_update_after"] is not None else ())
    found = [f"{name.replace('_', '-')} {_given(there[name])} -> {_given(here[name])}" for name in told
             if name in there and there[name] != here[name]]
    if there.get("batch_size") and there.get("accumulation"):
        saved = there.get("global_batch") or (
            there["batch_size"] * there["accumulation"] * checkpoint.about["world_size"])
        found += [f"samples a step {saved:,} -> {job.samples:,}"] if saved != job.samples else []
    return found


def settings_of(job: Job) -> dict[str, Any]:
    """As a checkpoint holds them."""
    return json.loads(json.dumps(flat(job.settings)))


def _given(value: Any) -> Any:
    return "not given" if value is None else value


def _check_data(job: Job, checkpoint: Checkpoint) -> None:
    data, saved = job.task.data, checkpoint.about["data"]
    if saved.get("fingerprint") != data.fingerprint:
        raise CheckpointError(f"`data` has the fingerprint {data.fingerprint} ({data.describe()}), but "
                              f"{checkpoint.folder} was trained on {saved.get('fingerprint')} "
                              f"({saved.get('describe')}): give the same files, or begin anew without `resume`")


def _check_params(job: Job, checkpoint: Checkpoint) -> None:
    """Names, shapes, and what is kept of each."""
    here = {param.name: param for param in params_of(job)}
    for name in [*here, *checkpoint.params]:
        ours = here[name].shape if name in here else None
        if ours != checkpoint.params.get(name):
            raise CheckpointError(f"parameter {name} has shape {_given(ours)} in this model, but "
                                  f"{_given(checkpoint.params.get(name))} in {checkpoint.folder}: use the same model")
    for name, param in here.items():
        if param.states != checkpoint.kept[name]:
            raise CheckpointError(f"{checkpoint.folder} holds {_states(checkpoint.kept[name])} of {name}, but this run "
                                  f"keeps {_states(param.states)} ({job.optimizer.spec.name}): use the same optimizer")


def _states(states: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in states.items()) or "nothing"
