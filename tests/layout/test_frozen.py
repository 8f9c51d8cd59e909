"""Frozen parameters: by pattern or by the model's own word, in units of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import freeze, wrap
from tests.layout.test_wrapping import SPEC, names


def frozen(spec):
    return [param.name for param in spec.params if param.frozen]


def test_patterns_are_those_of_file_names():
    assert frozen(freeze(SPEC, ["w*"])) == ["wte", "wpe"]
    assert frozen(freeze(SPEC, ["*.w", "l?"])) == ["a.w", "ln"]
    assert frozen(freeze(freeze(SPEC, ["ln"]), ["a.[bc]"])) == ["a.b", "ln"]
    assert freeze(SPEC, []) == SPEC and frozen(SPEC) == []


def test_a_pattern_that_matches_nothing():
    with pytest.raises(ConfigError, match=r"`freeze` 'A.w' matches no parameter of the model: their names are wte, wp"):
        freeze(SPEC, ["wte", "A.w"])


def test_nothing_left_to_train():
    with pytest.raises(ConfigError, match="all 5 parameters are frozen, so there is nothing to train"):
        wrap(freeze(SPEC, ["*"]), 2)


@pytest.mark.parametrize("policy", [None, lambda name: "all", lambda name: name])
def test_a_unit_is_of_one_kind(policy):
    wrapping = wrap(freeze(SPEC, ["wte", "a.b"]), 2, policy)
    for index, unit in enumerate(wrapping.units):
        assert {param.frozen for param in unit.params} == {unit.frozen} == {index not in wrapping.trained}
    assert wrapping.numel == 18 and wrapping.frozen_numel == 9


def test_units_keep_their_names_and_order():
    wrapping = wrap(freeze(SPEC, ["wte", "a.*"]), 2)
    assert [unit.name for unit in wrapping.units] == ["embedding frozen", "embedding", "a", "head"]
    assert names(wrapping) == [["wte"], ["wpe"], ["a.w", "a.b"], ["ln"]]
    assert [segment.units for segment in wrapping.segments] == [(0, 1), (2,), (3, 0)]
    assert [segment.trains for segment in wrapping.segments] == [(1,), (), (3,)]
    assert [segment.completes for segment in wrapping.segments] == [(1,), (), (3,)]


@pytest.mark.parametrize(("patterns", "backward"), [
    ([], [True, True, True]), (["wte"], [True, True, True]), (["w*"], [False, True, True]),
    (["w*", "a.*"], [False, False, True]), (["a.*", "ln"], [True, True, True]),
])
def test_a_segment_has_a_backward_if_it_or_one_before_it_trains(patterns, backward):
    assert [segment.backward for segment in wrap(freeze(SPEC, patterns), 2).segments] == backward


def test_a_model_without_parameters_runs_as_it_is():
    bare = replace(SPEC, params=(), segments=tuple(replace(segment, params=()) for segment in SPEC.segments))
    assert all(segment.backward for segment in wrap(bare, 2).segments)
