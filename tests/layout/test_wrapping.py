"""Wrapping: each parameter in one unit, each segment with the units it needs, each gradient complete once."""

from __future__ import annotations

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec, Strided, named_policy, wrap

SPEC = ModelSpec(
    tuple(ParamSpec(name, (size,)) for name, size in (("wte", 7), ("wpe", 3), ("a.w", 5), ("a.b", 2), ("ln", 1))),
    (SegmentSpec("embedding", ("wte", "wpe")), SegmentSpec("a", ("a.w", "a.b")), SegmentSpec("head", ("ln", "wte"))),
)


def names(wrapping):
    return [[param.name for param in unit.params] for unit in wrapping.units]


def test_a_unit_per_segment_and_the_tied_weight_belongs_to_the_first():
    wrapping = wrap(SPEC, 2)
    assert names(wrapping) == [["wte", "wpe"], ["a.w", "a.b"], ["ln"]]
    assert [segment.units for segment in wrapping.segments] == [(0,), (1,), (2, 0)]
    # the tied unit's gradient is complete last of all
    assert [segment.completes for segment in wrapping.segments] == [(0,), (1,), (2,)]
    assert wrapping.numel == SPEC.psi == 18 and wrapping.padded_numel == 20


@pytest.mark.parametrize(("params", "reads", "policy", "message"), [
    (("a", "b"), ("a",), lambda name: name, "no segment of the model reads b:"),
    (("a", "b"), ("a",), [["a"], ["b"]], "no segment of the model reads b:"),
    (("a", "a"), ("a",), None, "more than one parameter a:"),
    (("a",), ("a", "c"), None, "segment only reads c, which the model does not have"),
])
def test_a_model_that_does_not_fit_together(params, reads, policy, message):
    spec = ModelSpec(tuple(ParamSpec(name, (3,)) for name in params), (SegmentSpec("only", reads),))
    with pytest.raises(ConfigError, match=message):
        wrap(spec, 2, policy)


def test_one_unit_for_everything():
    wrapping = wrap(SPEC, 4, lambda name: "all")
    assert len(wrapping.units) == 1 and wrapping.units[0].padded_numel == 20
    assert [segment.completes for segment in wrapping.segments] == [(0,), (), ()]


def test_lists_of_names():
    wrapping = wrap(SPEC, 1, [["wte"], ["wpe", "ln"], ["a.b", "a.w"]])
    assert names(wrapping) == [["wte"], ["wpe", "ln"], ["a.w", "a.b"]]  # units and parameters in the model's order
    assert [segment.units for segment in wrapping.segments] == [(0, 1), (2,), (1, 0)]


@pytest.mark.parametrize("lists", [[["wte", "wpe", "a.w", "a.b"]], [["wte", "wpe", "a.w", "a.b", "ln", "ln"]],
                                   [["wte", "wpe", "a.w", "a.b", "ln", "typo"]],
                                   [["wte", "wpe"], ["wte", "a.w", "a.b", "ln"]]])
def test_lists_must_name_each_parameter_once(lists):
    with pytest.raises(ConfigError, match=r"exactly once; look at: (ln|typo|wte)"):
        wrap(SPEC, 1, lists)


TILED = ModelSpec(
    (ParamSpec("in", (3,)), ParamSpec("a.w", (5, 2), tiles=2), ParamSpec("a.b", (2,)), ParamSpec("b.w", (2, 9))),
    (SegmentSpec("first", ("in",)), SegmentSpec("a[0]", ("a.b", "a.w[0]"), "a"),
     SegmentSpec("a[1]", ("a.b", "a.w[1]"), "a"), SegmentSpec("b", ("b.w",), "b")))


@pytest.mark.parametrize("policy, units", [
    (None, [["in"], ["a.w[0]"], ["a.w[1]"], ["a.b"], ["b.w"]]),
    (named_policy("layer", TILED, "float16"), [["in"], ["a.w[0]"], ["a.w[1]"], ["a.b"], ["b.w"]]),
    (named_policy("10B", TILED, "float16"), [["in", "a.b"], ["a.w[0]"], ["a.w[1]"], ["b.w"]]),
    ([["in", "a.b", "b.w"]], [["in", "a.b", "b.w"], ["a.w[0]"], ["a.w[1]"]])], ids=["segment", "layer", "10B", "lists"])
def test_each_tile_is_a_unit_and_the_rest_as_the_policy_says(policy, units):
    wrapping = wrap(TILED, 2, policy)
    assert names(wrapping) == units
    tiles = [tuple(wrapping.units[unit].name for unit in segment.tiles) for segment in wrapping.segments]
    assert tiles == [(), ("a.w[0]",), ("a.w[1]",), ()]
    assert [segment.continues for segment in wrapping.segments] == [False, False, True, False]
    assert wrapping.numel == TILED.psi == 33


def test_a_tile_of_a_parameter_is_a_range_of_it():
    first, second = TILED.pieces[1:3]
    assert [(tile.shape, list(tile.elements(0, 2))) for tile in (first, second)] == [
        ((2, 2), [Strided(0, 2)]), ((3, 2), [Strided(4, 2)])]
    unit = next(unit for unit in wrap(TILED, 4).units if unit.name == "a.w[1]")
    assert list(unit.pieces(slice(2, 8))) == [(TILED.params[1], Strided(6, 4), slice(2, 6))]
