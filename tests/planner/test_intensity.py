"""Operations of a list: those of the formulas, whatever moves."""

from __future__ import annotations

import pytest

from mpizero.planner.intensity import operations
from mpizero.planner.model import gpt
from mpizero.schedule import StepSettings, set_up


@pytest.mark.parametrize("offload", [None, "params=cpu,optimizer=cpu"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_forward_backward_and_again(offload, overlap, accumulation):
    """Of every microbatch; of what is computed again the segments between the first and the last."""
    model = gpt(4, 16, 2, 32, 8)
    fixed = {"offload": offload, "overlap": overlap, "accumulation": accumulation}
    for recompute, again in ((False, 0), (True, sum(model.forward_flops[1:-1]))):
        step = set_up(model.spec, 2, StepSettings("3", recompute=recompute, **fixed))
        expected = 10 * accumulation * (sum(model.forward_flops) + sum(model.backward_flops) + again)
        assert operations(step.lists.step(), step.geometry, model, 10) == expected
