"""Tiles: the same result to rounding for every number of them, the same bits at every stage, planned to the byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mpizero.checkpoint.resume import resume
from mpizero.checkpoint.save import save
from mpizero.data import TeacherTask
from mpizero.engine.export import sha256
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError, OutOfDeviceMemory
from mpizero.memory.kinds import UNSHARDED_GRAD, UNSHARDED_PARAM
from mpizero.nn.mlp import mlp
from mpizero.schedule import STRATEGIES
from tests.engine.plans import run_as_planned
from tests.engine.runs import GPT, MLP, dealt, run
from tests.engine.test_need import dies_below, fits_exactly

SMALL = replace(MLP, hidden=7, steps=2, clip=0.5, batch_size=2, tiles=3)
TEXTS = replace(GPT, layers=1, d_model=6, steps=2, batch_size=1, tiles=4)
OPTIONS = {
    "float16": (SMALL, {"accumulation": 2, "overlap": "on", "backward_prefetch": 2, "forward_prefetch": 1}),
    "bfloat16": (TEXTS, {"dtype": "bfloat16", "accumulation": 2, "no_sync": True, "sum_dtype": "float32"}),
    "recompute": (TEXTS, {"recompute": True, "accumulation": 2, "overlap": "on"}),
    "interval": (SMALL, {"recompute": True, "recompute_interval": 2}),
    "offload": (TEXTS, {"offload": "params=cpu,optimizer=cpu", "overlap": "on", "recompute": True}),
    "checkpoints": (TEXTS, {"offload": "optimizer=cpu,checkpoints=cpu", "recompute": True, "accumulation": 2}),
    "limited": (TEXTS, {"backward_prefetch": 9, "limit_all_gathers": 2, "keep_last_unit": True, "overlap": "on"}),
    "frozen": (replace(TEXTS, layers=2, tiles=2), {
        "freeze": ("w?e.*", "h.0.ln*", "h.0.*bias", "h.0.attn.c_attn*", "h.1.mlp.c_fc.*"), "recompute": True,
        "wrap": "2kB"}),
}
ALL_OFF = {"offload": "params=cpu,optimizer=cpu", "stage": "3"}


@pytest.mark.parametrize("config", [SMALL, TEXTS], ids=lambda config: config.model)
def test_same_bits_at_every_stage(group, config):
    """Planned to the byte as well, with uneven tiles: 3 of 7 and 32 rows, 4 of 6."""
    outcomes = [run_as_planned(replace(config, stage=stage), group)[1] for stage in STRATEGIES]
    assert all(result == outcomes[0] for result in outcomes)
    assert len(set(outcomes[0].losses)) == config.steps


@pytest.mark.parametrize("group", [1, 4], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("name", OPTIONS)
def test_same_bits_whatever_else_is_set(group, name):
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    config, options = OPTIONS[name]
    config = replace(config, **options, stage="3")
    plain = replace(config, stage="0", recompute=False, recompute_interval=1, offload=None, limit_all_gathers=None)
    assert run_as_planned(config, group)[1] == run(plain, group)[1]


@pytest.mark.parametrize("config", [replace(SMALL, dtype="float32", clip=None), TEXTS], ids=lambda config: config.model)
def test_another_number_of_tiles_changes_rounding_alone(group, config):
    """Of what is drawn not even that; of the first loss and norm a few of float32's 6e-8 (seen: 2e-7)."""
    digests, firsts = set(), []
    for tiles in (1, 2, 5):
        job = prepare(replace(config, tiles=tiles, stage="3"), group)
        digests.add(sha256(job.task.model.spec, job.state.units, "master"))
        record, = run_steps(job, steps=1).records
        firsts.append((record.loss, record.grad_norm))
    assert len(digests) == 1
    np.testing.assert_allclose(firsts[1:], [firsts[0]] * 2, rtol=2e-6)


@dealt("tiles", [1, 2, 4, 8])
def test_whole_parameters_and_gradients_are_those_of_a_tile(group, few_held_out, tiles):
    """4 hd hd bytes of a Linear hd -> hd in float16 (MSWM: ZeRO-Infinity, sec. 3), over T; and its bias, two bytes a
    feature each."""
    config = replace(MLP, hidden=64, batch_size=1, steps=2, tiles=tiles, **ALL_OFF)
    job, _ = run_as_planned(config, group)
    working = job.ledger.peak[UNSHARDED_PARAM] + job.ledger.peak[UNSHARDED_GRAD]
    pads = 2 * 2 * group.size * 2
    assert 0 <= working - (4 * 64 * 64 // tiles + 2 * 2 * 64) < pads


def test_a_width_that_does_not_fit_untiled_trains_tiled(group, few_held_out):
    """In exactly what is planned, and in not a byte less."""
    config = replace(MLP, hidden=128, batch_size=2, steps=2, dtype="float32", tiles=4, **ALL_OFF)
    need = fits_exactly(config, group)
    dies_below(config, group, need)
    narrow = fits_exactly(replace(config, hidden=64, tiles=1), group)
    assert need.nbytes < 1.3 * narrow.nbytes
    for tiles in (1, 2):
        with pytest.raises(OutOfDeviceMemory, match="needs .*: use .*`tiles`"):
            prepare(replace(config, tiles=tiles, device_memory=f"{need.nbytes}B"), group)


def test_recompute_gathers_tiles_for_itself(group):
    """Once in forward, once for the recompute and once for backward, but for the last of a block, which is there."""
    job = prepare(replace(TEXTS, stage="3", recompute=True), group)
    run_steps(job, steps=1)
    gathers = Counter(record.unit for record in job.log.records if record.op == "all_gather")
    of_block = {name: count for name, count in gathers.items() if name.startswith("h.0")}
    assert of_block == {"h.0": 2, "h.0.mlp.c_proj.weight[3]": 2,
                        **{f"h.0.{linear}.weight[{tile}]": 3 for tile in range(4)
                           for linear in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
                           if (linear, tile) != ("mlp.c_proj", 3)}}


def test_a_run_goes_on_with_another_number_of_tiles(group, shared_path):
    """A checkpoint does not know of them; that they are others is told."""
    early = prepare(replace(SMALL, stage="3", steps=3), group)
    run_steps(early, steps=1)
    path = save(early, shared_path)
    found = resume(prepare(replace(SMALL, stage="2", tiles=1, steps=3), group), path)
    assert "; tiles 3 -> 1" in found.said
    digests = {sha256(job.task.model.spec, job.state.units, name) for job in (early, found.job)
               for name in ("master", "exp_avg")}
    assert len(digests) == 2
    losses = [[record.loss for record in run_steps(job).records] for job in (early, found.job)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-2)  # float16


@pytest.mark.parametrize("change, said", [
    ({"tiles": 0}, "`tiles` 0 is impossible: it must be at least 1"),
    ({"tiles": 8}, "`tiles` 8 is more than the 7 rows of layers.1.weight, .* use `tiles` 7 at most")])
def test_numbers_that_cannot_be(group, change, said):
    with pytest.raises(ConfigError, match=said):
        prepare(replace(SMALL, **change), group)


def test_a_model_of_ones_own_has_its_own(group):
    task = Task(mlp(hidden=7), TeacherTask(0))
    with pytest.raises(ConfigError, match="`tiles` 3 cuts the matrices of the built-in models"):
        prepare(SMALL, group, task=task)
    tiled = Task(mlp(hidden=7, tiles=3), TeacherTask(SMALL.seed))
    assert run(SMALL, group, task=tiled)[1] == run(SMALL, group)[1]
