"""Plans of models of which some parameters are frozen: closed forms by hand, and the commands."""

from __future__ import annotations

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import freeze
from mpizero.machine import Machine
from mpizero.plan.__main__ import main
from mpizero.planner import formula_after_backward, formula_sent, plan_memory, plan_traffic, sent_bytes
from mpizero.planner.costs import machine_costs
from mpizero.planner.model import PlannedModel
from mpizero.planner.seconds import loads
from mpizero.schedule import STRATEGIES
from tests.schedule.toys import chain, setup, tied

SIZES = (800, 400, 1600)


@pytest.mark.parametrize("stage", list(STRATEGIES))
@pytest.mark.parametrize("patterns", [["p0"], ["p1"], ["p2"], ["p0", "p1"], ["p0", "p2"]])
@pytest.mark.parametrize(("ranks", "shards"), [(1, 1), (4, 4), (8, 2)])
def test_plan_equals_formula(stage, patterns, ranks, shards):
    for spec in (chain(SIZES), tied()):
        made = setup(stage, freeze(spec, patterns), ranks, shards)
        actions = made.lists.step()
        for geometry in map(made.geometry.at, range(shards)):
            assert plan_memory(actions, geometry).after_backward_bytes == formula_after_backward(geometry)
            assert sent_bytes(plan_traffic(actions, geometry)) == formula_sent(geometry, made.strategy.volume)


def test_numbers_by_hand():
    """800 frozen in front, 400 + 1,600 that train, on 4 ranks."""
    formulas = {stage: (formula_after_backward(made.geometry), formula_sent(made.geometry, made.strategy.volume))
                for stage in STRATEGIES for made in [setup(stage, freeze(chain(SIZES), ["p0"]), 4)]}
    two = 2 * 2 * 2000 * 3 // 4  # a ring passes 3/4 of 2,000 elements on, twice
    assert formulas == {"0": (16 * 2000 + 2 * 800, two), "1": (4 * 2000 + 12 * 500 + 2 * 800, two),
                        "1-allreduce": (4 * 2000 + 12 * 500 + 2 * 800, two * 3 // 2),
                        # rank 0 owns what is frozen, sent in forward alone; it ends the chain of the unit of 400
                        "3-broadcast": (2 * 800, 2 * 800 + 2 * 2 * 1600 + 2 * 2000),
                        "2": (2 * 2000 + 14 * 500 + 2 * 800, two), "3": (16 * 500 + 2 * 200, two * 3 // 2 + 2 * 600)}


def test_seconds_of_a_backward_are_those_of_the_inputs_gradient_where_nothing_trains():
    plain, frozen = (machine_costs(PlannedModel("chain", spec), setup("3", spec, 4).geometry, Machine(), 10, 8)
                     for spec in (chain(SIZES), freeze(chain(SIZES), ["p1"])))
    assert frozen.forward == plain.forward and frozen.backward[0] == plain.backward[0]
    assert frozen.backward[1] == plain.backward[1] / 2 == frozen.forward[1]


def test_what_is_computed_with_is_counted_once():
    made = setup("3", freeze(tied(), ["p0", "p1"]), 4)
    forward, backward, update = (load for load in loads(made.lists.step(), made.geometry) if load.phase != "zero_grad")
    assert (forward.forward, backward.backward, update.updated) == ([0, 1, 2], [2], [2])


def test_the_commands(plan):  # noqa: F811
    found, out = plan("memory --model mlp --ranks 4 --stage 3 --freeze layers.0* --freeze *.4.bias")
    frozen, trained = 3168 + 16, 32_656 - 3168 - 16
    assert found["frozen_psi"] == frozen and f"32,656 parameters ({frozen:,} frozen) in 6 units" in out
    assert found["after_backward"] == found["formula"] == 16 * trained // 4 + 2 * frozen // 4
    assert found["formula_without_padding"] == found["formula"] and f"2 psi/N of the {frozen:,} that are" in out
    assert plan("memory --model mlp --ranks 4 --stage 1 --freeze layers.0*")[0]["formula_without_padding"] == (
        4 * (32_656 - 3168) + 12 * (32_656 - 3168) // 4 + 2 * 3168)
    found, _ = plan("traffic --model mlp --ranks 4 --stage 3 --freeze layers.0* --ranks-per-host 2")
    assert list(found["formulas"]) == ["a step"] and found["formulas"]["a step"]["bytes"] == found["sent_bytes"]
    found, out = plan("fit --params 8e9 --freeze unit.?.* --ranks 8 --device-memory 80GB")
    assert found["frozen_psi"] == 2_500_003_840 and "(2,500,003,840 frozen)" in out


def test_a_pattern_that_matches_nothing(capsys):
    assert main(["memory", "--model", "mlp", "--ranks", "4", "--freeze", "conv*"]) == 2
    assert "--freeze 'conv*' matches no parameter of the model: their names are layers.0.w" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        freeze(chain(), ["p3"])
