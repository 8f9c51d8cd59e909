"""Writes gpt2.json: logits of the GPT-2s of gpt2.py by PyTorch, in float64, which test_gpt2.py compares. Not a test.

    python -m venv VENV && VENV/bin/pip install torch==2.13.0 numpy && VENV/bin/python -m tests.golden.make_gpt2
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.golden.gpt2 import MODELS, POSITIONS, places, tokens, weights
from tests.golden.make import gpt_logits, short

FILE = Path(__file__).with_name("gpt2.json")

if __name__ == "__main__":
    golden = {}
    for name, sizes in MODELS.items():
        params = {param: torch.from_numpy(values).double() for param, values in weights(name).items()}
        logits = gpt_logits(params, torch.from_numpy(tokens(name)), sizes["layers"], sizes["heads"])[0]
        golden[name] = {"logits": [[short(logits[t, token].item()) for token in places(name)] for t in POSITIONS],
                        "likeliest": logits.argmax(-1).tolist(),
                        "log_sums": [short(value) for value in torch.logsumexp(logits, -1).tolist()]}
    FILE.write_text(json.dumps(golden, indent=1) + "\n")
