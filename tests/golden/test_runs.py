"""The engine's runs beside PyTorch's: losses, norms, learning rates, loss scales, weights and moments.

All stages share one trainer, so no comparison of them with each other finds an error in it. golden.json is made by
`python -m tests.golden.make` (torch 2.13.0, in float64). The same global batch goes to 1, 2, 3 and 4 ranks. That all
stages compute the same bits is shown elsewhere (tests/engine/test_stages.py); so of each run two are compared here.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mpizero.engine.config import TrainConfig
from mpizero.engine.export import whole_state
from mpizero.engine.job import Job, prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.task import Task
from mpizero.engine.trainer import StepRecord, run_steps
from mpizero.nn.gpt import gpt
from tests.golden.text import FixedText

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
STAGES = ("0", "1", "1-allreduce", "2", "3")
TWO_STAGES = [(name, stage) for name, other in zip(GOLDEN, itertools.cycle(("0", "3", "1", "1-allreduce")))
              for stage in ("2", other)]
BETA1 = 0.9  # PyTorch's default


@dataclass(frozen=True)
class Tolerance:
    """records: relative, of losses and norms. state: of the elements of an array, relative to the largest compared."""

    records: float
    state: float


# Four times or more what was measured, the largest of all runs, stages and numbers of ranks, with OpenBLAS's kernels
# for Zen, Haswell, SkylakeX, Nehalem and Prescott.
TOLERANCE = {
    "float32": Tolerance(2e-6, 3e-5),  # rounding to 24 bits, and sums in another order: 3.0e-7, 6.4e-6
    "float16": Tolerance(3e-3, 2e-2),  # activations are rounded here and not there: 4.9e-4, 2.2e-3
    "bfloat16": Tolerance(2e-2, 1e-1),  # the same with 8 times the rounding: 1.9e-3, 1.3e-2
}
RATE = 1e-12  # relative, of learning rates: a few float64 operations


def fixed_task(config: TrainConfig) -> Task | None:
    """The GPT reads the text that golden.json was made from; None: what the configuration names."""
    sizes = resolve(config).sizes
    return Task(gpt(sizes), FixedText(sizes.context, config.seed), target="token") if config.model == "gpt" else None


def whole(job: Job, buffer: str) -> dict[str, np.ndarray]:
    """Parameter -> float32 array of `buffer` (master, or one of the optimizer's). Collective over the job's ranks.

    The one place here that knows how the engine keeps them.
    """
    arrays: dict[str, np.ndarray] = {}
    for unit in job.executor.units:
        if buffer in unit.states:  # frozen ones have no moments
            arrays |= unit.layout.views(whole_state(unit, buffer))
    return arrays


def trained(name: str, stage: str, group) -> tuple[Job, list[StepRecord]]:
    """The run of that name, each rank of the group computing its part of the global batch."""
    run = GOLDEN[name]
    told = run["config"] | {"freeze": tuple(run["config"].get("freeze", ()))}
    config = TrainConfig(**told, stage=stage, batch_size=run["samples"] // group.size)
    job = prepare(config, group, task=fixed_task(config))
    return job, run_steps(job).records


def assert_close(here: np.ndarray, there: list[float], tolerance: float, what: str) -> None:
    """here: (n,); there: n numbers of PyTorch."""
    wrong = np.abs(here.astype(np.float64) - there).max()
    assert wrong <= tolerance * np.abs(there).max(), f"{what}: {here.tolist()} here, {there} there"


@pytest.mark.parametrize("name, stage", TWO_STAGES)
def test_run_equals_pytorchs(group, name, stage):
    run = GOLDEN[name]
    dtype = run["config"].get("dtype", "float16")
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    job, records = trained(name, stage, group)
    for here, there in zip(records, run["records"], strict=True):
        assert (here.loss_scale, here.skipped) == (there["loss_scale"], there["skipped"]), here
        assert here.lr == pytest.approx(there["lr"], rel=RATE), here
        assert here.loss == pytest.approx(there["loss"], rel=TOLERANCE[dtype].records), here
        if not there["skipped"]:
            assert here.grad_norm == pytest.approx(there["grad_norm"], rel=TOLERANCE[dtype].records), here
    for buffer in ("master", *(state.name for state in job.optimizer.spec.states)):
        arrays = whole(job, buffer)
        expected = {parameter: there for parameter, there in run["state"].items() if buffer in there}
        assert set(arrays) == set(expected)
        for parameter, there in expected.items():
            here = arrays[parameter].flat[there["at"]]
            assert_close(here, there[buffer], TOLERANCE[dtype].state, f"{buffer} of {parameter}")


@pytest.mark.parametrize("stage", STAGES)
def test_first_gradient_equals_pytorchs(group, stage):
    """After one step exp_avg is 1 - beta1 times the gradient: AdamW adds no decay to it, and nothing is clipped."""
    job, _ = trained("gpt first gradient", stage, group)
    arrays, tolerance = whole(job, "exp_avg"), TOLERANCE["float32"].state
    for name, there in GOLDEN["gpt first gradient"]["gradient"].items():
        gradient = arrays[name].astype(np.float64) / (1 - BETA1)
        assert np.linalg.norm(gradient) == pytest.approx(there["norm"], rel=tolerance), name
        assert_close(gradient.flat[there["at"]], there["elements"], tolerance, name)


def test_runs_show_what_they_are_made_for():
    """Some steps are clipped and some are not; some overflow between others: a rerun of make.py could lose that."""
    for name, run in GOLDEN.items():
        if "clip" in run["config"]:
            assert {record["grad_norm"] > run["config"]["clip"] for record in run["records"]} == {True, False}, name
    skipped = [record["skipped"] for record in GOLDEN["mlp overflow"]["records"]]
    assert skipped == [True, False, True, False, False, False]
