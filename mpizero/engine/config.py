"""What a training run is, as its user says it, and resolved: one frozen value each.

A field of `TrainConfig` is a flag of `python -m mpizero.train` and a key of its TOML file. Messages name fields in
backticks; the command line spells them as flags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from mpizero.dtypes import DTYPES, full_name
from mpizero.engine.optimizers import OptimSettings
from mpizero.layout.models import GPTConfig, MLPSizes
from mpizero.layout.spec import DECAYS
from mpizero.memory.addresses import ALLOCATORS
from mpizero.schedule import STRATEGIES, StepSettings

BY_MODEL: dict[str, dict[str, Any]] = {  # defaults that differ, and the sizes that a model has
    "mlp": {"hidden": 96, "steps": 50, "warmup": 0, "optimizer": "adam"},
    "gpt": {"layers": 4, "d_model": 128, "heads": 4, "context": 128, "steps": 300, "warmup": None,
            "optimizer": "adamw"},
}
SIZES = ("hidden", "layers", "d_model", "heads", "context")


@dataclass(frozen=True)
class CheckpointSettings:
    """save: folder of checkpoints. save_every: steps between two; None: at the end only. keep: how many complete ones
    stay; None: all. resume: the one to go on from. init: the one, or the safetensors file, whose weights to start
    from."""

    save: str | None = None
    save_every: int | None = None
    keep: int | None = None
    resume: str | None = None
    init: str | None = None


@dataclass(frozen=True)
class Settings:
    """A `TrainConfig` with every default filled in and every size in numbers: see `resolve`. device_memory: bytes.
    loss_scale, growth_interval: None but for float16. batch_size: samples of a rank in a microbatch, pads included.
    freeze: its patterns, side by side.

    epochs, end: where `epochs` was given, the number of the first training sample that is not seen any more; steps
    follow from it (see `samples.with_epochs`). Else None.
    """

    model: str
    sizes: MLPSizes | GPTConfig
    step: StepSettings
    optim: OptimSettings
    dtype: str
    reduce_dtype: str
    sum_dtype: str
    loss_scale: float | None
    growth_interval: int | None
    data: str | None
    batch_size: int
    steps: int
    seed: int
    device_memory: int | None
    host_memory: int | None
    check_replicas: int
    epochs: float | None = None
    end: int | None = None
    checkpoints: CheckpointSettings = CheckpointSettings()
    global_batch: int | None = None
    freeze: str | None = None
    eval_every: int = 0
    wrap: str | None = None
    limit: str | None = None
    host_threads: int | None = None
    tiles: int = 1

    def samples(self, ranks: int) -> int:
        """How many a step takes, on all `ranks` together that have batches of their own."""
        return self.global_batch or ranks * self.batch_size * self.step.accumulation


def _option(default: Any, help: str, **more: Any) -> Any:
    """A field that is a flag; `more` goes to argparse."""
    return field(default=default, metadata={"help": help, **more})


def width_or_widths(text: str) -> int | str:
    """A number, if it is one: `resolve` reads the rest, and has the words for what is wrong."""
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else text


@dataclass(frozen=True)
class TrainConfig:
    """None stands for a default that depends on the model or the optimizer (see BY_MODEL, BY_OPTIMIZER), or for `off`.

    `save`, `save_every`, `keep`, `resume`, `init`, `print_actions`, `log`, `log_every`, `log_format` and `json` are for
    the command to heed. Of them `prepare` takes that there is a `log`: then actions and messages are timed, for
    `trace`. Whoever calls `run_steps` saves, and writes what it reports, himself.
    """

    stage: str = _option("2", "what is sharded: 0 nothing (data parallel), 1 optimizer, 2 and gradients, 3 and "
                         "parameters; 1-allreduce, 3-broadcast: the same as lectures draw it", choices=list(STRATEGIES))
    model: str = _option("mlp", "mlp: 5 Linear layers on a teacher's task; gpt: GPT-2's architecture on bytes of text",
                         choices=list(BY_MODEL))
    hidden: int | str | None = _option(None, "width of the MLP's hidden layers (96), or of each, as in 64,128,256",
                                       type=width_or_widths)
    layers: int | None = _option(None, "blocks of the GPT (4)", type=int)
    d_model: int | None = _option(None, "width of the GPT (128)", type=int)
    heads: int | None = _option(None, "attention heads of the GPT (4)", type=int)
    context: int | None = _option(None, "bytes of text that the GPT sees at once (128)", type=int)
    data: str | None = _option(None, "gpt: any file or folder, as bytes (the standard library's source); mlp: FILE.npz "
                               "with x and y", metavar="PATH")
    steps: int | None = _option(None, "steps to train (mlp 50, gpt 300)", type=int)
    epochs: float | None = _option(None, "in place of steps: passes over the training data, each sample once a pass "
                                   "(without it text is drawn with replacement)", type=float, metavar="E")
    freeze: tuple[str, ...] = _option((), "parameters that stay as they are, by name, as in 'h.0.*' (may be given "
                                      "again)", action="append", metavar="PATTERN")
    batch_size: int = _option(16, "samples of a rank in a microbatch; with --global-batch the most of them", type=int)
    accumulation: int | None = _option(None, "microbatches in a step (1; with --global-batch as many as it takes)",
                                       type=int)
    global_batch: int | None = _option(None, "samples of a step on all ranks together, whatever their number "
                                       "(ranks x batch size x accumulation)", type=int, metavar="B")
    no_sync: bool = _option(False, "reduce gradients once a step, not every microbatch: less traffic, whole gradients "
                            "kept", action="store_true")
    shard_size: int | None = _option(None, "F: ranks that share one copy of the state (all; stages 1 to 3)", type=int,
                                     metavar="F")
    wrap: str | None = _option(None, "what is gathered together: layer (a weight and its bias), block, or a size such "
                               "as 4MB, below which blocks share a unit (block)", metavar="HOW")
    tiles: int = _option(1, "cut the matrix of every Linear into T parts, gathered, used and freed one after the other "
                         "at stage 3: 1/T of the memory that the largest needs (1)", type=int, metavar="T")
    backward_prefetch: int = _option(0, "units gathered ahead in backward: memory for time, if collectives overlap (0; "
                                     "stage 3 alone gathers)", type=int, metavar="DEPTH")
    forward_prefetch: int = _option(0, "the same in forward (0)", type=int, metavar="DEPTH")
    keep_last_unit: bool = _option(False, "keep the last unit gathered between forward and backward",
                                   action="store_true")
    limit_all_gathers: int | None = _option(None, "units gathered at once, unless a segment needs more (no limit)",
                                            type=int, metavar="K")
    overlap: str = _option("auto", "collectives go on while a rank computes: on, off, or where ranks are on several "
                           "hosts (auto)", choices=["auto", "on", "off"])
    tensor_size: int = _option(1, "T: neighbours that compute each batch together, with 1/T of every matrix each (1; "
                               "ranks = replicas x F x T)", type=int, metavar="T")
    recompute: bool = _option(False, "keep the inputs of segments alone, and compute the rest again in backward: a "
                              "third more computing for less memory", action="store_true")
    recompute_interval: int = _option(1, "with it, the input of every K-th segment alone; stage 3 then gathers K units "
                                      "at once in backward (1)", type=int, metavar="K")
    partition_activations: bool = _option(False, "of each of these inputs a tensor parallel rank keeps 1/T, and "
                                          "gathers it back", action="store_true")
    bucket_size: str | None = _option(None, "reduce gradients through one buffer of this size, as in 25MiB: small "
                                      "units share it, a large one is cut; all: of the model's size (each unit alone)",
                                      metavar="SIZE")
    dtype: str = _option("float16", "of parameters, activations and gradients",
                         type=full_name, choices=DTYPES)
    reduce_dtype: str | None = _option(None, "what gradients are sent as to be summed over ranks (as dtype)",
                                       type=full_name, choices=DTYPES)
    sum_dtype: str | None = _option(None, "what they are summed in over ranks and microbatches, and kept in (as "
                                    "reduce-dtype); float32 sums of 16-bit messages do not lose more with more ranks",
                                    type=full_name, choices=DTYPES)
    loss_scale: float | None = _option(None, "of the first step in float16, which alone has one; an overflow halves it "
                                       "and skips the step (65536)", type=float, metavar="S")
    growth_interval: int | None = _option(None, "steps in a row without overflow after which the loss scale doubles "
                                          "(2000)", type=int, metavar="K")
    no_master_weights: bool = _option(False, "16-bit parameters are updated themselves, without float32 master weights",
                                      action="store_true")
    optimizer: str | None = _option(None, "adam, adamw, sgd or lion; adam and sgd add weight decay to the gradient, "
                                    "adamw and lion shrink the weights (mlp adam, gpt adamw)", metavar="NAME")
    momentum: float | None = _option(None, "of sgd; 0: none, and no state (0.9)", type=float)
    betas: str | None = _option(None, "of adam and adamw (0.9,0.999), of lion (0.9,0.99)", metavar="B1,B2")
    weight_decay: float | None = _option(None, "weight decay (mlp and sgd 0; gpt 0.01, with lion 0.1)", type=float)
    decay: str = _option("matrices", "what it shrinks: matrices alone, so neither norms nor biases, or all parameters",
                         choices=list(DECAYS))
    lr: float | None = _option(None, "peak learning rate; falls to a tenth along a cosine (mlp 1e-2, gpt 2e-3; sgd "
                               "0.1; lion: mlp 3e-3, gpt 5e-4)", type=float)
    warmup: int | None = _option(None, "steps of linear warm-up (mlp 0, gpt a tenth of the steps)", type=int)
    clip: float | None = _option(None, "largest global norm of the gradient (no clipping)", type=float, metavar="NORM")
    seed: int = _option(0, "of weights, data and order", type=int)
    device_memory: str | None = _option(None, "capacity of each rank's device, as in 64MiB or 80G (unlimited)",
                                        metavar="SIZE")
    allocator: str | None = _option(None, "give each buffer an address on the device: first-fit, or arena, which keeps "
                                    "what lasts apart from what comes and goes (none: bytes alone are counted)",
                                    choices=list(ALLOCATORS))
    check_replicas: int = _option(0, "every K steps compare checksums of what ranks must keep alike (0: never)",
                                  type=int, metavar="K")
    eval_every: int = _option(0, "every K steps compute the held-out loss, as after the last (0: never)", type=int,
                              metavar="K")
    save: str | None = _option(None, "save checkpoints into this folder: at the end, and where a signal ends the run",
                               metavar="DIR")
    save_every: int | None = _option(None, "and every K steps (no)", type=int, metavar="K")
    keep: int | None = _option(None, "remove all but the last N checkpoints of this run (keep all)", type=int,
                               metavar="N")
    resume: str | None = _option(None, "go on from this checkpoint, on any number of ranks and at any stage: "
                                 "DIR/latest, DIR or DIR/step-...", metavar="PATH")
    init: str | None = _option(None, "start from these weights, of the same sizes, at step 0: a checkpoint, or a "
                               "safetensors file with GPT-2's names", metavar="PATH")
    offload: str | None = _option(None, "what rests off the device: optimizer=cpu, or at stage 3 "
                                  "params=cpu,optimizer=cpu; with --recompute checkpoints=cpu, its inputs; nvme for "
                                  "cpu: in files (none)", metavar="WHAT=WHERE")
    nvme: str | None = _option(None, "the folder, one on each host, in which what `offload` has as ...=nvme rests, in "
                               "files without names", metavar="DIR")
    delayed_update_after: int | None = _option(None, "from step S on (0: the first) each update goes on beside the "
                                               "next step, which reads parameters of one update less: other results "
                                               "(never)", type=int, metavar="S")
    host_memory: str | None = _option(None, "the same of what a rank keeps in the host's memory (unlimited)",
                                      metavar="SIZE")
    host_threads: int | None = _option(None, "threads of a rank's update where that runs on the host; changes no bit "
                                       "(1)", type=int, metavar="T")
    limit: str | None = _option(None, "slow the links between tiers down to those of another machine, as in host=3GB/s "
                                "(no)", metavar="LINK=RATE")
    debug: bool = _option(False, "compare each collective with other ranks' before it runs, and fill new and freed "
                          "storage with NaN: finds what runs on after it went wrong, and is slow", action="store_true")
    print_actions: bool = _option(False, "print the list of actions that a step runs", action="store_true")
    log: str | None = _option(None, "write run.json, steps.jsonl, summary.json and trace.json (one step, timed) into "
                              "this folder; an older run's move to DIR/older", metavar="DIR")
    log_every: int = _option(1, "print and log every K-th step, and the last (1)", type=int, metavar="K")
    log_format: str = _option("text", "lines of steps on the terminal: text for people, kv for grep (text)",
                              choices=["text", "kv"])
    tensorboard: str | None = _option(None, "write TensorBoard's event files into this folder, a step at a time",
                                      metavar="DIR")
    json: str | None = _option(None, "write the summary to this file", metavar="FILE")
