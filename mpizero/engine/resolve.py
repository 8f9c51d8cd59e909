"""From what a user says to settings with all filled in, or to the sentence that says why they can never work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from mpizero.dtypes import reduction
from mpizero.engine.config import (
    BY_MODEL, SIZES, CheckpointSettings, Settings, TrainConfig, width_or_widths,
)
from mpizero.engine.optimizers import OptimSettings, defaults, having, parse_betas
from mpizero.errors import ConfigError
from mpizero.layout import NVME, check_policy, offload_text, optimizer_spec, parse_offload, require_narrow
from mpizero.layout.links import parse_limits
from mpizero.layout.models import GPTConfig, MLPSizes, parse_hidden
from mpizero.quantities import parse_memory
from mpizero.schedule import StepSettings
from mpizero.schedule.settings import LARGEST

SCALER: dict[str, Any] = {"loss_scale": 2.0**16, "growth_interval": 2000}  # as torch.amp.GradScaler
GPT_WARMUP = 10  # a tenth of the steps, where BY_MODEL names none


def _step_settings(config: TrainConfig) -> StepSettings:
    """What shapes the lists of actions."""
    told = {field.name: getattr(config, field.name) for field in fields(StepSettings)}
    told["overlap"] = config.overlap == "on"  # auto: until the ranks have met
    told["offload"] = offload_text(parse_offload(config.offload))
    return StepSettings(**{name: value for name, value in told.items() if (name, value) != ("accumulation", None)})


def resolve(config: TrainConfig, steps: int | None = None, ranks: int | None = None) -> Settings:
    """Every default filled in. `ConfigError` for values that can never work.

    steps: what `epochs` come to, once the data is known; before, as many as there can be. ranks: likewise, those that
    have batches of their own, to divide a `global_batch` among; before, it is left as it is.
    """
    _check_types(config)
    scaler: dict[str, Any] = SCALER if config.dtype == "float16" else dict.fromkeys(SCALER)
    chosen = {name: default if getattr(config, name) is None else getattr(config, name)
              for name, default in (_defaults(config) | scaler).items()}
    if config.epochs is not None and config.steps is None:
        chosen["steps"] = LARGEST - 1 if steps is None else steps
    if chosen["warmup"] is None:
        chosen["warmup"] = chosen["steps"] // GPT_WARMUP
    _check(config, chosen)
    _check_optimizer(config, chosen)
    sizes = {name: chosen[name] for name in SIZES if name in chosen}
    if "hidden" in sizes:
        sizes["hidden"] = parse_hidden(str(sizes["hidden"]))
    betas, momentum = chosen.get("betas"), chosen.get("momentum")
    betas = None if betas is None else ",".join(map(str, parse_betas(betas)))
    optim = OptimSettings(chosen["optimizer"], chosen["weight_decay"], chosen["lr"], chosen["warmup"], config.clip,
                          config.decay, betas, None if momentum is None else float(momentum),
                          config.no_master_weights)
    device, host = (None if size is None else parse_memory(size) for size in (config.device_memory, config.host_memory))
    parse_limits(config.limit)
    wire, sums = reduction(config.dtype, config.reduce_dtype, config.sum_dtype)
    batch_size, step = _divided(config, ranks)
    return Settings(
        model=config.model,
        sizes=(MLPSizes if config.model == "mlp" else GPTConfig)(**sizes),
        step=step,
        optim=optim,
        dtype=config.dtype,
        reduce_dtype=wire,
        sum_dtype=sums,
        loss_scale=chosen["loss_scale"],
        growth_interval=chosen["growth_interval"],
        data=config.data,
        batch_size=batch_size,
        steps=chosen["steps"],
        seed=config.seed,
        device_memory=device,
        host_memory=host,
        check_replicas=config.check_replicas,
        epochs=config.epochs,
        checkpoints=CheckpointSettings(config.save, config.save_every, config.keep, config.resume, config.init),
        global_batch=config.global_batch,
        freeze=" ".join(config.freeze) or None,
        eval_every=config.eval_every,
        wrap=config.wrap,
        limit=config.limit,
        host_threads=config.host_threads,
        tiles=config.tiles,
    )


def _divided(config: TrainConfig, ranks: int | None) -> tuple[int, StepSettings]:
    """Samples of a rank in a microbatch, and the settings of a step, in which microbatches are counted: as few as take
    a `global_batch` in, unless the user has said how many. ConfigError where they do not take it in."""
    total, most, step = config.global_batch, config.batch_size, _step_settings(config)
    if total is None or ranks is None:
        return most, step
    if config.accumulation is None:
        step = replace(step, accumulation=-(-total // (ranks * most)))
    slots = ranks * step.accumulation  # places for a batch of a rank
    if total > slots * most:
        raise ConfigError(f"`global_batch` {total:,} is more than {ranks} ranks * `batch_size` {most:,} * "
                          f"`accumulation` {step.accumulation:,} = {slots * most:,} samples: use `batch_size` "
                          f"{-(-total // slots)}, or `accumulation` {-(-total // (ranks * most))}, or leave "
                          "`accumulation` out")
    return -(-total // slots), step


def _defaults(config: TrainConfig) -> dict[str, Any]:
    """Of the model, and of the optimizer. ConfigError for an optimizer that there is not, or that cannot be sharded."""
    of_model = BY_MODEL[config.model]
    return of_model | defaults(config.optimizer or of_model["optimizer"], config.model)


def _check_types(config: TrainConfig) -> None:
    """ConfigError for values that no flag could give: where Python code makes the configuration."""
    if not isinstance(config.freeze, tuple) or not all(isinstance(pattern, str) for pattern in config.freeze):
        raise ConfigError(f"`freeze` {config.freeze!r} is no tuple of patterns: give one, as in ('h.0.*',)")
    for option in (option for option in fields(config) if option.name != "freeze"):
        value, allowed = getattr(config, option.name), option.metadata.get("choices")
        wanted = (bool,) if "action" in option.metadata else NUMBERS.get(option.metadata.get("type"), (str,))
        optional = value is None and option.default is None
        # a bool is an int to Python
        if not optional and (not isinstance(value, wanted) or isinstance(value, bool) != (wanted == (bool,))):
            raise ConfigError(f"`{option.name}` {value!r} is a {type(value).__name__}: give a {wanted[0].__name__}")
        if not optional and allowed and value not in allowed:
            raise ConfigError(f"`{option.name}` {value!r} is none of {', '.join(allowed)}: use one of these")


def _check(config: TrainConfig, chosen: Mapping[str, Any]) -> None:
    """ConfigError for values that can never work, but for those of `StepSettings`, which check themselves."""
    for name in SIZES:
        if getattr(config, name) is not None and name not in BY_MODEL[config.model]:
            other = next(model for model, defaults in BY_MODEL.items() if name in defaults)
            raise ConfigError(f"`{name}` is a size of `model` {other}, not of `model` {config.model}: leave it out, "
                              "or choose that model")
    for name, (holds, rule) in RULES.items():
        value = chosen.get(name, getattr(config, name))
        if isinstance(value, int | float) and not (abs(value) < LARGEST and holds(value)):  # a NaN is not below
            raise ConfigError(f"`{name}` {value} is impossible: it must be {rule}, and below 2^40")
    if config.warmup is not None and config.warmup > chosen["steps"]:
        raise ConfigError(f"`warmup` {config.warmup} is longer than `steps` {chosen['steps']}: shorten it")
    _check_paths(config)
    _check_files(config)
    check_policy(config.wrap)
    if config.allocator is not None and config.device_memory is None:
        raise ConfigError(f"`allocator` {config.allocator} gives buffers their addresses on a device, whose size it "
                          "must know: add `device_memory`, or leave it out")
    if config.epochs is not None and config.steps is not None:
        raise ConfigError(f"`epochs` {config.epochs:g} and `steps` {config.steps} both say how long to train: leave "
                          "one of them out")
    _check_scale(config)


def _check_scale(config: TrainConfig) -> None:
    for name in SCALER if config.dtype != "float16" else ():
        if getattr(config, name) is not None:
            raise ConfigError(f"`{name}` {getattr(config, name)} has no meaning with `dtype` {config.dtype}, whose "
                              "gradients need no loss scale: leave it out, or use `dtype` float16")


def _check_optimizer(config: TrainConfig, chosen: Mapping[str, Any]) -> None:
    """ConfigError for settings that another optimizer has, or another `dtype`."""
    optimizer_spec(chosen["optimizer"], config.momentum)  # raises
    if config.betas is not None and "betas" not in chosen:
        raise ConfigError(f"`betas` are a setting of `optimizer` {having('betas')}, not of {chosen['optimizer']}: "
                          "leave them out, or choose that optimizer")
    if config.no_master_weights:
        require_narrow(config.dtype)


def _check_paths(config: TrainConfig) -> None:
    for name, what in (("log", "folder"), ("json", "file"), ("save", "folder"), ("resume", "checkpoint"),
                       ("tensorboard", "folder"), ("nvme", "folder"), ("init", "checkpoint or a file of weights")):
        if getattr(config, name) == "":
            raise ConfigError(f"`{name}` is empty: name a {what}, or leave it out")
    if config.resume is not None and config.init is not None:
        raise ConfigError("`resume` and `init` both say where weights come from: leave `init` out to go on with a "
                          "run, or `resume` to begin one")
    for name in ("save_every", "keep"):
        if getattr(config, name) is not None and config.save is None:
            raise ConfigError(f"`{name}` {getattr(config, name)} needs `save`, the folder of checkpoints: name it")


def _check_files(config: TrainConfig) -> None:
    in_files = NVME in vars(parse_offload(config.offload)).values()
    if in_files and config.nvme is None:
        raise ConfigError(f"`offload` {config.offload} needs files: name the folder for them with `nvme`, on a disk of "
                          "each host")
    if config.nvme is not None and not in_files:
        raise ConfigError(f"`nvme` {config.nvme} is a folder for files of `offload`, of which there are none: "
                          "use `offload` optimizer=nvme, or leave it out")


NUMBERS: Mapping[Any, tuple[type, ...]] = {int: (int,), float: (float, int), width_or_widths: (int, str)}


def _at_least(bound: int) -> tuple[Callable[[float], bool], str]:
    return lambda value: value >= bound, f"at least {bound}"


_POSITIVE: tuple[Callable[[float], bool], str] = (lambda value: value > 0, "above 0")
RULES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    **{name: _at_least(1) for name in (*SIZES, "batch_size", "global_batch", "log_every", "save_every", "keep",
                                       "host_threads", "tiles", *SCALER)},
    **{name: _at_least(0) for name in ("steps", "warmup", "weight_decay", "check_replicas", "eval_every", "seed")},
    "epochs": _POSITIVE,
    "lr": _POSITIVE,
    "clip": _POSITIVE,
}
