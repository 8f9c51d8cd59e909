"""What a step leaves out for frozen units: gradients, reductions, updates, and the backward of what lies before."""

from __future__ import annotations

import pytest

from mpizero.layout import freeze
from mpizero.schedule import STRATEGIES, IllegalSchedule, show
from mpizero.schedule.actions import AllGatherParam, Backward, Forward, FreeGrad, OptimStep, ReduceScatterGrad, Save
from tests.schedule.toys import chain, check, setup, step, tied


def shown(actions):
    return [show(action) for action in actions]


@pytest.mark.parametrize("stage", list(STRATEGIES))
def test_only_units_that_train_are_reduced_updated_and_freed(stage):
    actions, _ = step(stage, freeze(chain(), ["p1"]), 4)
    reduced = {action.unit for action in actions if "Grad(" in show(action) and not isinstance(action, FreeGrad)}
    assert reduced == {0, 2}
    for kind in (OptimStep, FreeGrad):
        assert [action.unit for action in actions if isinstance(action, kind)] == [0, 2]
    assert [action.segment for action in actions if isinstance(action, Backward)] == [2, 1, 0]  # 1: for what is before


@pytest.mark.parametrize("stage", list(STRATEGIES))
@pytest.mark.parametrize("accumulation", [1, 2])
def test_nothing_goes_back_beyond_the_first_segment_that_trains(stage, accumulation):
    actions, _ = step(stage, freeze(chain(), ["p0"]), 4, accumulation=accumulation)
    for mb in range(accumulation):
        assert [action.segment for action in actions if isinstance(action, Backward) and action.mb == mb] == [2, 1]
        saved = {action.segment: action.save for action in actions if isinstance(action, Forward) and action.mb == mb}
        assert saved == {0: Save.NOTHING, 1: Save.ALL, 2: Save.ALL}


def test_stage_3_gathers_what_is_frozen_where_it_is_read():
    """Once where it needs no backward, else twice; whatever the passes."""
    for options in ({}, {"backward_prefetch": 1, "forward_prefetch": 1}, {"limit_all_gathers": 1}):
        actions, _ = step("3", freeze(chain(), ["p0", "p2"]), 4, **options)
        text = shown(actions)
        assert [text.count(f"Unshard({unit})") for unit in range(3)] == [1, 2, 2]
        assert [text.count(f"ReduceScatterGrad({unit})") for unit in range(3)] == [0, 1, 0]
    kept, _ = step("3", freeze(chain(), ["p0", "p2"]), 4, keep_last_unit=True)
    assert shown(kept).count("Unshard(2)") == 1


def test_a_frozen_tied_unit_is_gathered_at_each_use_and_never_reduced():
    actions, _ = step("3", freeze(tied(), ["p0"]), 4)
    text = shown(actions)
    assert [text.count(f"{action}(0)") for action in ("Unshard", "ReduceScatterGrad", "OptimStep")] == [3, 0, 0]


def test_a_list_that_trains_a_frozen_unit_is_refused():
    actions, geometry = step("2", freeze(chain(), ["p1"]), 4)
    place = next(i for i, action in enumerate(actions) if isinstance(action, OptimStep))
    with pytest.raises(IllegalSchedule, match=r"OptimStep\(1\): it reads reduced\[1\], which is not there"):
        check([*actions[:place], OptimStep(1), *actions[place:]], geometry)
    place = next(i for i, action in enumerate(actions) if isinstance(action, ReduceScatterGrad))
    with pytest.raises(IllegalSchedule, match=r"ReduceScatterGrad\(1\): it reads grad\[1\], which is not there"):
        check([*actions[:place], ReduceScatterGrad(1), *actions[place:]], geometry)


def test_a_forgotten_gather_of_what_trains_is_still_found():
    actions, geometry = step("2", freeze(chain(), ["p1"]), 4)
    left = [action for action in actions if action != AllGatherParam(2)]
    with pytest.raises(IllegalSchedule, match="unit 2 must be gathered after its update"):
        check(left, geometry)


def test_two_steps_in_a_row_leave_frozen_parameters_current():
    made = setup("3", freeze(chain(), ["p1"]), 4)
    check([*made.lists.step(), *made.lists.step()], made.geometry)
