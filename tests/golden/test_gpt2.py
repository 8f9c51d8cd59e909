"""GPT-2 files of another library, in all the forms in which they are around, load and give PyTorch's logits: gpt2.json
is made by `python -m tests.golden.make_gpt2` (torch 2.13.0, in float64)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mpizero.checkpoint.load import load_gpt
from mpizero.engine.gather import gather_data
from mpizero.engine.generate import generate, outputs
from tests.golden.gpt2 import MODELS, POSITIONS, places, tokens, weights

numpy_files = pytest.importorskip("safetensors.numpy")
GOLDEN = json.loads(Path(__file__).with_name("gpt2.json").read_text())
# Of logits up to 5, absolute: rounding to 24 bits, and sums in another order. Ten times what was measured, 1.8e-6, with
# OpenBLAS's kernels for Zen, Haswell, Nehalem and Prescott. The two likeliest tokens are 0.0097 apart, or more.
TOLERANCE = 2e-5


def hugging_face(name: str, form: str) -> dict[str, np.ndarray]:
    """The tensors of a file. network: GPT2Model's. whole: GPT2LMHeadModel's, with the masks and the tied matrix that
    older versions stored."""
    found = weights(name)
    if form == "network":
        return found
    context, masks = MODELS[name]["context"], {}
    for i in range(MODELS[name]["layers"]):
        masks[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, context, context), np.uint8))
        masks[f"h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
    return {f"transformer.{key}": value for key, value in (found | masks).items()} | {
        "lm_head.weight": found["wte.weight"]}


@pytest.mark.parametrize("name, form", [("bytes", "network"), ("bytes", "whole"), ("gpt2", "whole")])
def test_logits(group, shared_path, name, form):
    path, sizes, golden = shared_path / f"{group.size}.safetensors", MODELS[name], GOLDEN[name]
    if group.rank == 0:
        numpy_files.save_file(hugging_face(name, form), path, metadata={"format": "pt"})
        (shared_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": sizes["heads"]}))
    gather_data(group, None)  # now it is there
    loaded = load_gpt(path, group)
    assert (loaded.sizes.tied, loaded.sizes.vocab, loaded.guessed) == (True, sizes["vocab"], False)
    logits = outputs(loaded.job, tokens(name))[0].astype(np.float64)  # (T, V)
    assert logits.shape == (sizes["context"], sizes["vocab"])
    np.testing.assert_allclose(logits[np.ix_(POSITIONS, places(name))], golden["logits"], rtol=0, atol=TOLERANCE)
    assert logits.argmax(-1).tolist() == golden["likeliest"]
    np.testing.assert_allclose(np.log(np.exp(logits).sum(-1)), golden["log_sums"], rtol=0, atol=TOLERANCE)
    for length in (1, 7, sizes["context"]):
        prompt = tokens(name)[0, :length].tolist()
        written = generate(loaded.job, prompt, 1, context=sizes["context"], temperature=0)
        assert next(written) == golden["likeliest"][length - 1]
