"""Peaks of a run on every tier, and what it moves between them: as its summary counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, HOST, NVME, ActivationBytes, Geometry, Tier
from mpizero.layout.files import file_bytes, spaces
from mpizero.plan.command import is_made, train_flags
from mpizero.plan.options import Options, wrapped
from mpizero.planner import moved_by_link, plan_memory
from mpizero.planner.model import OURS, PlannedModel
from mpizero.planner.need import digest_peak
from mpizero.planner.stored import at_rest
from mpizero.planner.tiers import TIERS
from mpizero.quantities import in_units
from mpizero.schedule import Course, Setup
from mpizero.text import table

WORDS = {DEVICE: "device", HOST: "host", NVME: "NVMe"}


def tiers_of(model: PlannedModel, step: Setup, options: Options, batch: int | None) -> dict[str, Any]:
    """Keys tiers (of each its bytes at rest and at the peak, and how much of the memory that was told is left),
    tiers_exact (whether that is all that a run takes), file_bytes, moved_bytes (in a step, by link) and train (the
    flags of such a run). Of the rank that needs most. ConfigError where kept inputs move that nobody knows."""
    table = own_table(model, step, batch)
    told = {DEVICE: options["device_memory"], HOST: options["host_memory"], NVME: None}
    tiers = {}
    for tier in TIERS:
        rest, peak = (max(values) for values in zip(*(_bytes(step, place, table, tier) for place in _places(step)),
                                                    strict=True))
        limit = told[tier]
        tiers[str(tier)] = {"at_rest": rest, "peak": peak, "left_bytes": None if limit is None else limit - peak}
    return {"tiers": tiers, "tiers_exact": table is not None,
            "file_bytes": max(file_bytes(spaces(place, table, step.lists.shelved)) for place in _places(step)),
            "moved_bytes": steady_moves(step, table), "made_by_train": is_made(model),
            "train": " ".join(train_flags(model, step.settings, options, batch))}


def own_table(model: PlannedModel, step: Setup, batch: int | None) -> ActivationBytes | None:
    """What a microbatch takes in a run of ours. None where nobody knows, ConfigError where kept inputs then move."""
    if batch is not None and OURS in model.programs:
        return model.activations(OURS, batch, step.geometry.dtype)
    if step.geometry.placement.tiers.checkpoints is not DEVICE:
        raise ConfigError("`offload` moves inputs that recompute keeps, whose bytes follow from the shapes of --gpt "
                          "or --model mlp, and from `batch_size`: name these")
    return None


def steady_moves(step: Setup, table: ActivationBytes | None) -> dict[str, int]:
    """By link, both directions together, in a step that comes again and again, of the rank that moves most."""
    late = step.lists.delay is not None
    course = Course(late=late, catches_up=late)
    moves = [moved_by_link(step.lists.along(course), place, table, step.lists.before(course))
             for place in _places(step)]
    return max(moves, key=lambda each: sum(each.values()))


def _places(step: Setup) -> list[Geometry]:
    return [step.geometry.at(shard_rank) for shard_rank in step.geometry.representatives]


def _bytes(step: Setup, place: Geometry, table: ActivationBytes | None, tier: Tier) -> tuple[int, int]:
    """At rest and at the peak, all kinds together."""
    peak = plan_memory(step.lists.longest(), place, table, tier).device_peak_bytes
    return sum(at_rest(place, tier).values()), max(peak, digest_peak(place).nbytes) if tier is DEVICE else peak


def show_tiers(answer: Mapping[str, Any]) -> str:
    """Device, host and files, moves, and the run."""
    rows = [[WORDS[tier], found["at_rest"], found["peak"], _left(found["left_bytes"])]
            for tier in TIERS if (found := answer["tiers"][tier])["peak"] or found["left_bytes"] is not None]
    kinds = "all kinds together" if answer["tiers_exact"] else "without activations and what computing takes"
    moved = ", ".join(f"{nbytes:,} bytes {link}" for link, nbytes in answer["moved_bytes"].items() if nbytes)
    lines = [table([f"a rank, {kinds}", "at rest", "peak", "left"], rows)]
    if answer["file_bytes"]:
        lines.append(f"Its file has room for {answer['file_bytes']:,} bytes.")
    if moved:
        lines += wrapped(f"Moved in a step, both directions together: {moved}.")
    if answer["tiers_exact"]:
        made = "" if answer["made_by_train"] else ", with a model of your own"
        lines += wrapped(f"The run{made}: mpizero.train {answer['train']}")
    return "\n".join(lines)


def _left(nbytes: int | None) -> str:
    if nbytes is None:
        return ""
    return in_units(nbytes) if nbytes >= 0 else f"{in_units(-nbytes)} too little"
