"""Models without arrays are the models that are trained."""

from __future__ import annotations

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import wrap
from mpizero.nn.gpt import GPTConfig
from mpizero.nn.gpt import gpt as real_gpt
from mpizero.nn.mlp import mlp as real_mlp
from mpizero.planner import model


def facts(spec, shape):
    """Parameters, segments, and what each leaves in memory."""
    return spec.params, spec.segments, [spec.activations(shape, dtype) for dtype in ("float16", "bfloat16", "float32")]


@pytest.mark.parametrize("tied", [True, False])
def test_gpt_is_nns(tied):
    planned, trained = model.gpt(3, 8, 2, 11, context=6, tied=tied), real_gpt(GPTConfig(3, 8, 2, 6, 11, tied))
    assert facts(planned.spec, planned.shape(5)) == facts(trained.spec, (5, 6)) and planned.context == 6


def test_mlp_is_nns():
    for planned, trained in ((model.mlp(), real_mlp()), (model.mlp(hidden=7, layers=3), real_mlp(hidden=7, layers=3))):
        assert facts(planned.spec, planned.shape(5)) == facts(trained.spec, (5,)) and planned.context == 1
    assert model.mlp().spec.psi == 32_656


def test_gpt2_medium():
    assert model.gpt(24, 1024, 16, 50_257).spec.psi == 354_823_168
    assert model.gpt(24, 1024, 16, 50_257).largest_leaf == 50_257 * 1024


def test_lectures_13b():
    spec = model.blocks().spec
    assert spec.psi == 12_746_752_000 and [param.numel for param in spec.params[:2]] == [163_840_000, 314_572_800]
    assert 2 * spec.psi == 25_493_504_000  # M = 25.49 GB


@pytest.mark.parametrize("psi, units", [
    (7_500_000_000, 32), (13_000_000_000, 32), (10, 32), (1024, 7), (1025, 7), (10**6, 1)])
def test_flat_units_are_equal_but_for_the_rest(psi, units):
    sizes = [param.numel for param in model.flat(psi, units).spec.params]
    assert sum(sizes) == psi and len(sizes) <= units
    assert len(set(sizes[:-1])) <= 1 and max(sizes) == sizes[0] >= sizes[-1]


@pytest.mark.parametrize("psi", [7_500_000_000, 13_000_000_000, 128_000_000_000, 10**12])
def test_round_numbers_need_no_padding(psi):
    assert wrap(model.flat(psi).spec, 64).padded_numel == psi


def test_equal_units_can_be_cut_again():
    assert model.flat(10**9, 32).cut(8).spec == model.flat(10**9, 8).spec
    assert model.mlp().cut is None and model.gpt(1, 8, 2, 5).cut is None


def test_operations_of_a_forward():
    """2 a parameter, tied ones with the head, and 4 s h a block for attention: 6 psi + 12 L h s a step."""
    planned = model.gpt(2, 8, 2, 11, context=6)
    block = 12 * 8 * 8 + 13 * 8
    assert planned.forward_flops == (2 * 6 * 8, 2 * block + 4 * 6 * 8, 2 * block + 4 * 6 * 8, 2 * (11 * 8 + 16))
    assert 3 * sum(planned.forward_flops) == 6 * planned.spec.psi + 12 * 2 * 8 * 6
    assert sum(model.flat(10**6, 7).forward_flops) == 2 * 10**6
    untied = model.gpt(2, 8, 2, 11, context=6, tied=False)
    assert 3 * sum(untied.forward_flops) == 6 * untied.spec.psi + 12 * 2 * 8 * 6


def test_tiles_divide_operations_and_keep_their_sum():
    """Attention's stand at its own part. What a program keeps is the same as well."""
    whole, cut = (model.gpt(2, 8, 2, 11, context=6, tiles=tiles) for tiles in (1, 3))
    assert sum(cut.forward_flops) == sum(whole.forward_flops) and len(cut.forward_flops) == 2 + 2 * (4 * 3 + 1)
    assert cut.forward_flops[4] == 4 * 6 * 8  # after three tiles of c_attn
    for program in whole.programs:
        tables = [each.activations(program, 2, "float16") for each in (whole, cut)]
        assert len(tables[1].segments) == len(cut.spec.segments)
        assert tables[0].after_forward == tables[1].after_forward
    assert sum(model.mlp(tiles=4).forward_flops) == sum(model.mlp().forward_flops)


def test_heads_must_divide():
    with pytest.raises(ConfigError, match="use `d_model` 9 or 12"):
        model.gpt(1, 10, 3, 5)
