"""What a training run is, as its user says it, and resolved: one frozen value each.

A field of `TrainConfig` is a flag of `python -m mpizero.train` and a key of its TOML file. Messages name fields in
backticks; the command line spells them as flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mpizero.dtypes import DTYPES, full_name, reduction
from mpizero.engine.optimizers import OptimSettings, defaults, having, parse_betas
from mpizero.errors import ConfigError
from mpizero.layout import check_policy, optimizer_spec, require_narrow
from mpizero.layout.models import GPTConfig, MLPSizes
from mpizero.layout.spec import DECAYS
from mpizero.quantities import parse_memory
from mpizero.schedule import STRATEGIES, StepSettings
from mpizero.schedule.compose import LARGEST

BY_MODEL: dict[str, dict[str, Any]] = {  # defaults that differ, and the sizes that a model has
    "mlp": {"hidden": 96, "steps": 50, "warmup": 0, "optimizer": "adam"},
    "gpt": {"layers": 4, "d_model": 128, "heads": 4, "context": 128, "steps": 300, "warmup": None,
            "optimizer": "adamw"},
}
SCALER: dict[str, Any] = {"loss_scale": 2.0**16, "growth_interval": 2000}  # as torch.amp.GradScaler
SIZES = ("hidden", "layers", "d_model", "heads", "context")
GPT_WARMUP = 10  # a tenth of the steps, where BY_MODEL names none


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
    """A `TrainConfig` with every default filled in and every size in numbers. device_memory: bytes. loss_scale,
    growth_interval: None but for float16. batch_size: samples of a rank in a microbatch, pads included. freeze: its
    patterns, side by side.

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
    check_replicas: int
    epochs: float | None = None
    end: int | None = None
    checkpoints: CheckpointSettings = CheckpointSettings()
    global_batch: int | None = None
    freeze: str | None = None
    eval_every: int = 0
    wrap: str | None = None

    def samples(self, ranks: int) -> int:
        """How many a step takes, on all ranks together."""
        return self.global_batch or ranks * self.batch_size * self.step.accumulation


def _option(default: Any, help: str, **more: Any) -> Any:
    """A field that is a flag; `more` goes to argparse."""
    return field(default=default, metadata={"help": help, **more})


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
    hidden: int | None = _option(None, "width of the MLP's hidden layers (96)", type=int)
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
    backward_prefetch: int = _option(0, "units gathered ahead in backward: memory for time, if collectives overlap (0; "
                                     "stage 3 alone gathers)", type=int, metavar="DEPTH")
    forward_prefetch: int = _option(0, "the same in forward (0)", type=int, metavar="DEPTH")
    keep_last_unit: bool = _option(False, "keep the last unit gathered between forward and backward",
                                   action="store_true")
    limit_all_gathers: int | None = _option(None, "units gathered at once, unless a segment needs more (no limit)",
                                            type=int, metavar="K")
    overlap: str = _option("auto", "collectives go on while a rank computes: on, off, or where ranks are on several "
                           "hosts (auto)", choices=["auto", "on", "off"])
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

    @property
    def step_settings(self) -> StepSettings:
        """What shapes the lists of actions."""
        told = {field.name: getattr(self, field.name) for field in fields(StepSettings)}
        told["overlap"] = self.overlap == "on"  # auto: until the ranks have met
        return StepSettings(**{name: value for name, value in told.items() if (name, value) != ("accumulation", None)})

    def resolved(self, steps: int | None = None, ranks: int | None = None) -> Settings:
        """Every default filled in. `ConfigError` for values that can never work.

        steps: what `epochs` come to, once the data is known; before, as many as there can be. ranks: likewise, to
        divide a `global_batch` among; before, it is left as it is.
        """
        self._check_types()
        scaler: dict[str, Any] = SCALER if self.dtype == "float16" else dict.fromkeys(SCALER)
        chosen = {name: default if getattr(self, name) is None else getattr(self, name)
                  for name, default in (self._defaults() | scaler).items()}
        if self.epochs is not None and self.steps is None:
            chosen["steps"] = LARGEST - 1 if steps is None else steps
        if chosen["warmup"] is None:
            chosen["warmup"] = chosen["steps"] // GPT_WARMUP
        self._check(chosen)
        self._check_optimizer(chosen)
        sizes = {name: chosen[name] for name in SIZES if name in chosen}
        betas, momentum = chosen.get("betas"), chosen.get("momentum")
        betas = None if betas is None else ",".join(map(str, parse_betas(betas)))
        optim = OptimSettings(chosen["optimizer"], chosen["weight_decay"], chosen["lr"], chosen["warmup"], self.clip,
                              self.decay, betas, None if momentum is None else float(momentum),
                              self.no_master_weights)
        memory = None if self.device_memory is None else parse_memory(self.device_memory)
        wire, sums = reduction(self.dtype, self.reduce_dtype, self.sum_dtype)
        batch_size, step = self._divided(ranks)
        return Settings(self.model, (MLPSizes if self.model == "mlp" else GPTConfig)(**sizes), step,
                        optim, self.dtype, wire, sums, chosen["loss_scale"], chosen["growth_interval"], self.data,
                        batch_size, chosen["steps"], self.seed, memory, self.check_replicas, self.epochs,
                        checkpoints=CheckpointSettings(self.save, self.save_every, self.keep, self.resume,
                                                       self.init),
                        global_batch=self.global_batch, freeze=" ".join(self.freeze) or None,
                        eval_every=self.eval_every, wrap=self.wrap)

    def _divided(self, ranks: int | None) -> tuple[int, StepSettings]:
        """Samples of a rank in a microbatch, and the settings of a step, in which microbatches are counted: as few as
        take a `global_batch` in, unless the user has said how many. ConfigError where they do not take it in."""
        total, most, step = self.global_batch, self.batch_size, self.step_settings
        if total is None or ranks is None:
            return most, step
        if self.accumulation is None:
            step = replace(step, accumulation=-(-total // (ranks * most)))
        slots = ranks * step.accumulation  # places for a batch of a rank
        if total > slots * most:
            raise ConfigError(f"`global_batch` {total:,} is more than {ranks} ranks * `batch_size` {most:,} * "
                              f"`accumulation` {step.accumulation:,} = {slots * most:,} samples: use `batch_size` "
                              f"{-(-total // slots)}, or `accumulation` {-(-total // (ranks * most))}, or leave "
                              "`accumulation` out")
        return -(-total // slots), step

    def _defaults(self) -> dict[str, Any]:
        """Of the model, and of the optimizer. ConfigError for an optimizer that there is not, or that cannot be
        sharded."""
        of_model = BY_MODEL[self.model]
        return of_model | defaults(self.optimizer or of_model["optimizer"], self.model)

    def _check_types(self) -> None:
        """ConfigError for values that no flag could give: where Python code makes the configuration."""
        if not isinstance(self.freeze, tuple) or not all(isinstance(pattern, str) for pattern in self.freeze):
            raise ConfigError(f"`freeze` {self.freeze!r} is no tuple of patterns: give one, as in ('h.0.*',)")
        for option in (option for option in fields(self) if option.name != "freeze"):
            value, allowed = getattr(self, option.name), option.metadata.get("choices")
            wanted = (bool,) if "action" in option.metadata else NUMBERS.get(option.metadata.get("type"), (str,))
            optional = value is None and option.default is None
            # a bool is an int to Python
            if not optional and (not isinstance(value, wanted) or isinstance(value, bool) != (wanted == (bool,))):
                raise ConfigError(f"`{option.name}` {value!r} is a {type(value).__name__}: give a {wanted[0].__name__}")
            if not optional and allowed and value not in allowed:
                raise ConfigError(f"`{option.name}` {value!r} is none of {', '.join(allowed)}: use one of these")

    def _check(self, chosen: Mapping[str, Any]) -> None:
        """ConfigError for values that can never work, but for those of `step_settings`, which check themselves."""
        for name in SIZES:
            if getattr(self, name) is not None and name not in BY_MODEL[self.model]:
                other = next(model for model, defaults in BY_MODEL.items() if name in defaults)
                raise ConfigError(f"`{name}` is a size of `model` {other}, not of `model` {self.model}: leave it out, "
                                  "or choose that model")
        for name, (holds, rule) in RULES.items():
            value = chosen.get(name, getattr(self, name))
            if value is not None and not (abs(value) < LARGEST and holds(value)):  # a NaN is not below
                raise ConfigError(f"`{name}` {value} is impossible: it must be {rule}, and below 2^40")
        if self.warmup is not None and self.warmup > chosen["steps"]:
            raise ConfigError(f"`warmup` {self.warmup} is longer than `steps` {chosen['steps']}: shorten it")
        self._check_paths()
        check_policy(self.wrap)
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(f"`epochs` {self.epochs:g} and `steps` {self.steps} both say how long to train: leave "
                              "one of them out")
        self._check_scale()

    def _check_scale(self) -> None:
        for name in SCALER if self.dtype != "float16" else ():
            if getattr(self, name) is not None:
                raise ConfigError(f"`{name}` {getattr(self, name)} has no meaning with `dtype` {self.dtype}, whose "
                                  "gradients need no loss scale: leave it out, or use `dtype` float16")

    def _check_optimizer(self, chosen: Mapping[str, Any]) -> None:
        """ConfigError for settings that another optimizer has, or another `dtype`."""
        optimizer_spec(chosen["optimizer"], self.momentum)  # raises
        if self.betas is not None and "betas" not in chosen:
            raise ConfigError(f"`betas` are a setting of `optimizer` {having('betas')}, not of {chosen['optimizer']}: "
                              "leave them out, or choose that optimizer")
        if self.no_master_weights:
            require_narrow(self.dtype)

    def _check_paths(self) -> None:
        for name, what in (("log", "folder"), ("json", "file"), ("save", "folder"), ("resume", "checkpoint"),
                           ("tensorboard", "folder"), ("init", "checkpoint or a file of weights")):
            if getattr(self, name) == "":
                raise ConfigError(f"`{name}` is empty: name a {what}, or leave it out")
        if self.resume is not None and self.init is not None:
            raise ConfigError("`resume` and `init` both say where weights come from: leave `init` out to go on with a "
                              "run, or `resume` to begin one")
        for name in ("save_every", "keep"):
            if getattr(self, name) is not None and self.save is None:
                raise ConfigError(f"`{name}` {getattr(self, name)} needs `save`, the folder of checkpoints: name it")


NUMBERS: Mapping[Any, tuple[type, ...]] = {int: (int,), float: (float, int)}


def _at_least(bound: int) -> tuple[Callable[[float], bool], str]:
    return lambda value: value >= bound, f"at least {bound}"


_POSITIVE: tuple[Callable[[float], bool], str] = (lambda value: value > 0, "above 0")
RULES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    **{name: _at_least(1) for name in (*SIZES, "batch_size", "global_batch", "log_every", "save_every", "keep",
                                       *SCALER)},
    **{name: _at_least(0) for name in ("steps", "warmup", "weight_decay", "check_replicas", "eval_every", "seed")},
    "epochs": _POSITIVE,
    "lr": _POSITIVE,
    "clip": _POSITIVE,
}
