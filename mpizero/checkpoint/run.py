"""What a training run does about its checkpoints: goes on from one, or starts from weights, and saves."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, final

from mpizero.checkpoint.folder import complete, lock, remove_old
from mpizero.checkpoint.format import LATEST, step_name
from mpizero.checkpoint.init import init_weights
from mpizero.checkpoint.resume import Resumed, resume
from mpizero.checkpoint.save import save
from mpizero.checkpoint.together import together
from mpizero.engine.config import CheckpointSettings
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job
from mpizero.errors import CheckpointError
from mpizero.planner import plan_memory
from mpizero.planner.need import loading_bytes


@final
@dataclass
class Checkpoints:
    """said: lines for the user. saved: the last one in the folder of `save`, of this run or of the one that it goes on
    with. peaks: bytes that were live at most while loading and saving. lock: rank 0's, for as long as it is open."""

    job: Job
    run: str
    resumed: Resumed | None = None
    said: list[str] = field(default_factory=list)
    saved: Path | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    lock: TextIO | None = None

    @property
    def settings(self) -> CheckpointSettings:
        return self.job.settings.checkpoints

    @property
    def runs(self) -> tuple[str, ...]:
        """Whose work this is: the runs that it goes on with, and itself."""
        return (*(self.resumed.runs if self.resumed else ()), self.run)

    def after_step(self) -> str:
        """Save if it is time to; the line for the user, or "". Collective."""
        every = self.settings.save_every
        return self.save() if every and self.job.state.step % every == 0 else ""

    def save(self) -> str:
        """Save, unless that was done after this very step; the line for the user, or "". Collective."""
        folder = self.settings.save
        if folder is None or self.saved == Path(folder) / step_name(self.job.state.step):
            return ""
        begin, ledger = time.perf_counter(), self.job.ledger
        ledger.at("save")
        try:
            saved = save(self.job, folder, run=self.run, runs=self.runs[:-1])
        except CheckpointError as error:
            good = f"is `resume` {self.saved}" if self.saved else "of this run: none"
            raise CheckpointError(f"{error}; the last good checkpoint {good}") from None
        self.peaks["saving"] = max(self.peaks.get("saving", 0), ledger.action_peak_bytes)
        self.saved, keep = saved, self.settings.keep
        gone = [] if keep is None else together(self.job.world, lambda: remove_old(saved, keep, self.runs), only=0)[0]
        removed = f"; removed {', '.join(gone)}" if gone else ""
        return f"saved {saved} in {time.perf_counter() - begin:.2g} s{removed}"

    @property
    def last_words(self) -> str:
        """How to go on, where something was saved; else ""."""
        folder = self.settings.save
        if folder is None or self.saved is None:
            return ""
        return f"saved {self.saved}; go on with `resume` {shlex.quote(str(Path(folder) / LATEST))}"

    def facts(self) -> dict[str, Any]:
        """For the summary: where it began, what is saved, and bytes of each rank, counted and planned. Collective."""
        rest = plan_memory([], self.job.geometry).at_rest_bytes
        planned = {"saving": rest, "loading": rest + loading_bytes(self.job.geometry)}
        memory: dict[str, int] = {}
        for what, peak in self.peaks.items():
            memory |= {f"{what}_peak": peak, f"planned_{what}_peak": planned[what]}
        return {"resumed_from": str(self.resumed.folder) if self.resumed else None,
                "started_from": self.settings.init,
                "saved": str(self.saved) if self.saved else None, "memory": gather_data(self.job.world, memory)}


def begin_checkpoints(job: Job, run: str) -> Checkpoints:
    """Go on from the checkpoint, or start from the weights, that the settings name, and take hold of the folder of
    `save`. Collective.

    job: fresh; in place of it, take that of the result. CheckpointError for what `resume` and `init` refuse, and where
    another run saves into that folder.
    """
    found = Checkpoints(job, run)
    path, folder = found.settings.resume, found.settings.save
    if path is not None:
        found.resumed = resume(job, path)
        found.job, found.peaks["loading"] = found.resumed.job, job.ledger.action_peak_bytes
        found.said.append(found.resumed.said)
    if found.settings.init is not None:
        found.said.append(init_weights(job, found.settings.init))
        found.peaks["loading"] = job.ledger.action_peak_bytes
    if folder is not None:
        together(job.world, lambda: _hold(found, Path(folder)), only=0)
        if found.resumed and _same(found.resumed.folder.parent, folder):
            found.saved = Path(folder) / found.resumed.folder.name
    return found


def _hold(checkpoints: Checkpoints, folder: Path) -> None:
    """Rank 0's part."""
    checkpoints.lock = lock(folder, checkpoints.run)
    others = [path.name for path in complete(folder)]
    if others and not checkpoints.resumed:
        checkpoints.said.append(f"{folder} holds {', '.join(others[:3])}{' ...' if len(others) > 3 else ''} of another "
                                f"run, which stay; this one begins anew (`resume` {folder} goes on with it)")


def _same(one: Path, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
