"""The most that a run needs of a device, all kinds of memory together, and for what: steps, evaluation, digests, and
what comes before the first step. Each of these begins and ends with what rests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import (
    HOST, MASTER, NVME, READ_BLOCK, REPLICATED, ActivationBytes, Geometry, ParamSpec, rounding_block_numel,
    stored_states,
)
from mpizero.planner.footprint import plan_memory
from mpizero.planner.stored import at_rest
from mpizero.schedule import Setup
from mpizero.schedule.actions import Action, show

REST = "rest"  # what is done where nothing takes more than what rests


class Peak(NamedTuple):
    """The most bytes at a time, and the action, or what else is done then."""

    nbytes: int
    during: str


def highest(peaks: Iterable[Peak | None]) -> Peak | None:
    """The first of the highest. None where one is not known."""
    known = list(peaks)
    if not known or any(peak is None for peak in known):
        return None
    return max((peak for peak in known if peak is not None), key=lambda peak: peak.nbytes)


def host_peak(actions: Iterable[Action], geometry: Geometry, activations: ActivationBytes | None) -> Peak:
    """Of the host's memory, of the rank that needs most: nothing but steps takes any beside what rests."""
    actions = list(actions)
    plans = [plan_memory(actions, geometry.at(place), activations, tier=HOST) for place in geometry.representatives]
    most = max(plans, key=lambda plan: plan.device_peak_bytes)
    return Peak(most.device_peak_bytes, show(most.device_peak_action) if most.device_peak_action else REST)


def rest(geometry: Geometry) -> Peak:
    """What a rank keeps between steps."""
    return Peak(sum(at_rest(geometry).values()), REST)


def actions_peak(actions: Iterable[Action], geometry: Geometry, activations: ActivationBytes | None) -> Peak | None:
    """Of a list. None where the plan does not know all that its computations take."""
    plan = plan_memory(actions, geometry, activations)
    action = plan.device_peak_action
    return Peak(plan.device_peak_bytes, show(action) if action else REST) if plan.exact else None


def step_peak(setup: Setup, activations: ActivationBytes) -> Peak:
    """Of a run of whose computations the plan knows all that they take, of the rank that needs most: of its steps and
    digests; for evaluation and the initial values take no more."""
    places = [setup.geometry.at(shard_rank) for shard_rank in setup.geometry.representatives]
    found = highest(peak for place in places for peak in (
        actions_peak(setup.lists.longest(), place, activations), digest_peak(place)))
    assert found is not None, "the tables of this project know it all"
    return found


def digest_peak(geometry: Geometry) -> Peak:
    """Of the digests of master weights and the optimizer's states: a whole unit of one of them at a time, where ranks
    keep parts, or keep it in files; and a whole parameter, where tensor parallel ranks do."""
    sizes = {state.name: ITEMSIZE[state.dtype] for state in geometry.stored}
    largest = max({MASTER.name: geometry.itemsize, **sizes}.values())  # which are the parameters, unless stored
    parts = geometry.placement.optim is not REPLICATED or geometry.placement.tiers.optimizer is NVME
    gathered = max(((geometry.itemsize if unit.frozen else largest)
                    * ((unit.padded_numel if parts else 0) + max(map(_put_together, unit.params), default=0))
                    for unit in geometry.wrapping.units), default=0)
    return Peak(rest(geometry).nbytes + gathered, "digest")


def _put_together(param: ParamSpec) -> int:
    """Elements, of a parameter of which tensor parallel ranks have parts: these, and of columns a copy in order."""
    if param.whole is None or param.tile:
        return 0
    return param.whole.numel * (2 if param.columns else 1)


def loading_bytes(geometry: Geometry) -> int:
    """The most that reading master weights takes beside what rests; never more than the largest unit."""
    return max([scratch_bytes(geometry), *(rounding_bytes(unit, geometry)
                                           for unit in range(len(geometry.wrapping.units)))])


def scratch_bytes(geometry: Geometry) -> int:
    """Of the buffer that files are read through."""
    largest = max((unit.padded_numel for unit in geometry.wrapping.units), default=0)
    return max(min(READ_BLOCK, largest * geometry.itemsize), 16)


def rounding_bytes(unit: int, geometry: Geometry) -> int:
    """Of rounding the unit's master weights into its parameters: two float32 blocks, where it goes block by block."""
    rounds = (geometry.dtype == "float16" and not geometry.wrapping.units[unit].frozen
              and MASTER in stored_states(geometry.optimizer, geometry.dtype))
    return 2 * 4 * rounding_block_numel(geometry.kept(unit, geometry.placement.optim)) if rounds else 0
