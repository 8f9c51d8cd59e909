"""What a tensor parallel rank has of each parameter: together all of it, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.layout import Axis, MeshShape, ParamSpec, Strided, flatten, mesh_shape, wrap
from mpizero.layout.models import GPTConfig, MLPSizes, gpt_spec, mlp_spec
from mpizero.layout.tensor import TensorPlace

GPT = GPTConfig(layers=2, d_model=24, heads=6, context=5, vocab=36)


def elements(param, begin, end):
    """Of the whole parameter, in order."""
    return [element for where in param.elements(begin, end) for _, first, count in where.runs()
            for element in range(first, first + count)]


@given(size=st.integers(1, 4), blocks=st.integers(1, 3), width=st.integers(1, 3), rows=st.integers(1, 3),
       data=st.data())
def test_parts_are_all_of_it_once(size, blocks, width, rows, data):
    param = ParamSpec("w", (rows * size, blocks * width * size))
    numbers = np.arange(param.numel).reshape(param.shape)
    for cut in (TensorPlace.rows, lambda place, param: place.columns(param, blocks)):
        parts = [cut(TensorPlace(rank, size), param) for rank in range(size)]
        found = [elements(part, 0, part.numel) for part in parts]
        assert sorted(sum(found, [])) == list(range(param.numel))
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, parts[0].numel)] * 2)))
        assert elements(parts[-1], begin, end) == found[-1][begin:end]
        for part, mine in zip(parts, found, strict=True):
            row = np.ix_(*map(np.unique, np.unravel_index(mine, param.shape)))
            assert np.array_equal(numbers[row].ravel(), mine) and numbers[row].shape == part.shape


def test_each_of_three_matrices_side_by_side_is_divided_head_by_head():
    part = TensorPlace(1, 2).columns(ParamSpec("c_attn", (1, 12)), blocks=3)
    assert elements(part, 0, 6) == [2, 3, 6, 7, 10, 11]
    assert part.columns == Strided(2, 2, 3, 4)


@pytest.mark.parametrize("size", [2, 3])
def test_units_hold_what_is_divided_or_what_is_copied(size):
    spec = gpt_spec(GPT, place=TensorPlace(1, size))
    units = {unit.name: unit for unit in wrap(spec, 12).units}
    assert list(units) == ["embedding", "embedding copied", "h.0 copied", "h.0", "h.1 copied", "h.1", "head"]
    assert [name for name, unit in units.items() if unit.copied] == [name for name in units
                                                                     if "copied" in name or name == "head"]
    assert all(unit.padded_numel % 12 == 0 for unit in units.values())
    assert spec.psi == gpt_spec(GPT).psi
    copied = sum(param.numel for param in spec.params if param.copied)
    assert sum(param.numel for param in spec.params) == (spec.psi - copied) // size + copied


def test_a_flat_parameter_names_runs_of_whole_ones():
    whole = ParamSpec("w", (2, 6))
    unit = flatten("u", [TensorPlace(1, 2).columns(whole), TensorPlace(1, 2).rows(ParamSpec("r", (4, 1)))], 2)
    assert list(unit.pieces(slice(1, 8))) == [
        (whole, Strided(4, 2), slice(1, 3)), (whole, Strided(9, 3), slice(3, 6)),
        (ParamSpec("r", (4, 1)), Strided(2, 2), slice(6, 8))]
    assert list(unit.pieces(slice(0, 6))) == [(whole, Strided(3, 3, 2, 6), slice(0, 6))]
    assert unit.decayed(slice(0, 8)) == ((0, 8),)


def test_a_range_of_columns_is_a_rest_of_a_row_whole_rows_and_a_part_of_one():
    whole = ParamSpec("w", (4, 6))
    unit = flatten("u", [TensorPlace(1, 2).columns(whole)], 2)
    assert list(unit.pieces(slice(1, 11))) == [
        (whole, Strided(4, 2), slice(1, 3)), (whole, Strided(9, 3, 2, 6), slice(3, 9)),
        (whole, Strided(21, 2), slice(9, 11))]


@pytest.mark.parametrize("make, what", [
    (lambda place: gpt_spec(GPTConfig(heads=3, d_model=6), place=place), "`heads` 3"),
    (lambda place: gpt_spec(GPTConfig(heads=4, vocab=255), place=place), "the vocabulary of 255"),
    (lambda place: mlp_spec(MLPSizes(hidden=9), place=place), "`hidden` 9"),
    (lambda place: mlp_spec(MLPSizes(layers=1, classes=3), place=place), "`classes` 3")])
def test_what_does_not_divide_is_a_sentence(make, what):
    with pytest.raises(ConfigError, match=f"`tensor_size` 2 does not divide {what}, .*use `tensor_size` 1 or 3"):
        make(TensorPlace(0, 2))


@pytest.mark.parametrize("make", [gpt_spec, mlp_spec])
def test_tiles_and_tensor_parallel_ranks_cut_the_same(make):
    with pytest.raises(ConfigError, match="`tiles` 2 and `tensor_size` 2 both cut the same matrices"):
        make(tiles=2, place=TensorPlace(0, 2))


# -- the mesh ---------------------------------------------------------------------------------------------------------


def test_tensor_parallel_ranks_are_neighbours():
    mesh = mesh_shape(12, 3, 2)
    assert mesh == MeshShape(2, 3, 2) and mesh.data_ranks == 6
    assert mesh.groups(Axis.TENSOR)[:2] == [range(0, 2), range(2, 4)]
    assert mesh.groups(Axis.SHARD)[:2] == [range(0, 6, 2), range(1, 7, 2)]
    assert mesh.groups(Axis.REPLICATE)[0] == range(0, 12, 6)
    assert [mesh.data_rank(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert mesh_shape(12, None, 2) == MeshShape(1, 6, 2)


def test_who_is_alike():
    mesh = MeshShape(2, 1, 2)
    assert mesh.alike([Axis.REPLICATE]) == [(0, 2), (1, 3)]
    assert mesh.alike([Axis.REPLICATE, Axis.TENSOR]) == [(0, 1, 2, 3)]


@pytest.mark.parametrize("sizes, words", [
    ((6, None, 4), r"replicate \* shard \* tensor\(4\) = 6 ranks has no solution: use `tensor_size` 1 or 2 or 3 or 6, "
                   "or `ranks` 8"),
    ((8, 3, 2), r"replicate \* shard\(3\) \* tensor\(2\) = 8 ranks has no solution: use `shard_size` 1 or 2 or 4, "
                "or `ranks` 12")])
def test_a_mesh_that_has_no_solution_says_the_equation_and_the_cure(sizes, words):
    with pytest.raises(ConfigError, match=words):
        mesh_shape(*sizes)
