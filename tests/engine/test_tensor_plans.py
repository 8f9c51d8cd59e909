"""What `plan` says of tensor parallel ranks is what such a run counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from tests.engine.runs import GPT, MLP

TEXTS = replace(GPT, heads=4, steps=1, dtype="float16", loss_scale=1.0)
LINEARS = replace(MLP, steps=1, hidden=96, loss_scale=1.0)  # no step is skipped


@pytest.mark.parametrize("group", [4], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("stage, flags, more", [
    ("3", "--recompute --partition-activations", {"recompute": True, "partition_activations": True}),
    ("1", "--overlap on", {"overlap": "on"})], ids=["parts", "overlap"])
def test_a_plan_is_of_the_run(group, few_held_out, plan, stage, flags, more):
    """Bytes of the device, and of all that a rank sends."""
    for size, config, model in ((2, TEXTS, "--gpt 2,8,4,256 --context 6"), (4, TEXTS, "--gpt 2,8,4,256 --context 6"),
                                (2, LINEARS, "--model mlp")):
        job = prepare(replace(config, stage=stage, tensor_size=size, **more), group)
        summary = summarise(job, run_steps(job))
        if group.rank > 0:  # who prints nothing
            continue
        asked = f"{model} --ranks 4 --stage {stage} --tensor-size {size} --batch-size {config.batch_size} {flags}"
        memory, traffic = plan(f"memory {asked}")[0], plan(f"traffic {asked}")[0]
        assert memory["activations"]["device_peak"] == memory["tiers"]["device"]["peak"] == max(
            rank["device_peak"] for rank in summary["memory"])
        assert memory["at_rest"] == summary["memory"][0]["at_rest"] and memory["psi"] == summary["psi"]
        assert {rank["sent_bytes_per_step"] for rank in summary["traffic"]} == {traffic["sent_bytes"]}
