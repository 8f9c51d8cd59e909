"""Whether a run fits its host and its device: refused where not, before anything is made."""

from __future__ import annotations

from mpizero.comm import Group
from mpizero.engine.config import Settings
from mpizero.engine.gather import gather_data
from mpizero.engine.need import Tables, run_need
from mpizero.engine.task import Task
from mpizero.errors import ConfigError, OutOfDeviceMemory
from mpizero.layout import DEVICE, HOST, NVME, ActivationBytes, Axis
from mpizero.memory.host import available_bytes
from mpizero.planner.need import Peak, host_peak
from mpizero.planner.tiers import plan_tiers
from mpizero.quantities import in_units
from mpizero.schedule import Setup
from mpizero.text import counted


def check_host(setup: Setup, world: Group) -> None:
    """OutOfDeviceMemory where this host has no room for the model states of its ranks. Before any rank fills some of
    it."""
    actions, geometry, here = setup.lists.longest(), setup.geometry, world.hosts[world.rank]
    plans = {shard_rank: plan_tiers(actions, geometry.at(shard_rank)).peak for shard_rank in geometry.representatives}
    peaks = {shard_rank: peak[DEVICE] + peak[HOST] for shard_rank, peak in plans.items()}
    planned = [peaks[geometry.like(geometry.mesh.coordinate(rank, Axis.SHARD))]
               for rank, host in enumerate(world.hosts) if host == here]
    available = available_bytes()
    if available is not None and sum(planned) > available:
        raise OutOfDeviceMemory(f"the model states of {counted(len(planned), 'rank')} on this host come to "
                                f"{in_units(sum(planned))} ({in_units(max(planned))} each), but it has "
                                f"{in_units(available)} of memory left: use a smaller model, a higher `stage`, or more "
                                "hosts")


def check_inputs(setup: Setup, sizes: ActivationBytes | None, task: Task) -> None:
    """ConfigError where inputs are kept in files, but nobody knows how much room they take there."""
    if sizes is None and setup.geometry.placement.tiers.checkpoints is NVME:
        raise ConfigError(f"`offload` {setup.settings.offload} reserves room in files for inputs that are kept, but "
                          f"the model {task.model.name} does not tell how large they are: give its spec `activations`, "
                          "or use checkpoints=cpu")


def check_room(setup: Setup, task: Task, settings: Settings, sizes: Tables, world: Group) -> None:
    """OutOfDeviceMemory on every rank where the run needs more than a device or a rank's part of the host has. Of one
    whose plan does not know all that it takes, the ledger tells when it comes to that. Collective."""
    if settings.device_memory is not None:
        need = run_need(setup.lists, setup.geometry, task, settings, sizes)
        _check_tier("device", need, settings.device_memory, "use a higher `stage`, more ranks, a smaller `batch_size`, "
                    "`offload`, `tiles`, or a larger `device_memory`", world)
    if settings.host_memory is not None:
        need = host_peak(setup.lists.longest(settings.steps), setup.geometry, sizes.train)
        _check_tier("host", need, settings.host_memory, "use more ranks, a higher `stage`, or a larger `host_memory`",
                    world)


def _check_tier(tier: str, need: Peak | None, has: int, cure: str, world: Group) -> None:
    """Of tensor parallel ranks one needs more than another: all look at the one that needs most."""
    every = [Peak(*peak) for peak in gather_data(world, need) if peak is not None]
    need = max(every, key=lambda peak: peak.nbytes, default=None)
    if need is not None and need.nbytes > has:
        raise OutOfDeviceMemory(f"out of {tier} memory: the run needs {need.nbytes:,} bytes on a rank (at "
                                f"{need.during}), and `{tier}_memory` has {has:,}: {cure}")
