"""scripts/compare_commits.py: what of two summaries is a difference."""

from __future__ import annotations

from dataclasses import replace

from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from tests.engine.runs import MLP


def test_two_runs_of_one_configuration_are_equal(group, load):
    """Whatever the clock says, and whichever run it was; one element of another digest is told."""
    differences = load("compare_commits").differences

    def summary(config, run):
        job = prepare(config, group)
        return {"run": run, **summarise(job, run_steps(job))}

    one, again, other = summary(MLP, "a"), summary(MLP, "b"), summary(replace(MLP, seed=1), "a")
    assert one["seconds"] != again["seconds"] and list(differences(one, again)) == []
    assert {"weights_sha256", "losses.0"} <= {key for kind, key, *_ in differences(one, other) if kind == "different"}
