"""The scripts, and what they write."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.launch import ROOT

SCRIPTS = ROOT / "scripts"
DEMOS = {"01_memory": 6, "02_zero_stages": 7, "03_fsdp": 4, "04_offload": 5, "06_published": 3,
         "07_master_weights": 3}
ALONE = ["01_memory", "04_offload", "06_published"]  # need no ranks
CALL = ("-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))")  # so that `launch` can run a shell


def written(path: Path, name: str) -> dict:
    """What a script has written, which must be whole."""
    data = json.loads(path.read_text())
    every = [claim for demo in data["demos"] for claim in demo["claims"]]
    claims = [claim for claim in every if claim["agrees"] is not None]
    assert data["claims"] == len(claims) and data["agree"] == sum(claim["agrees"] for claim in claims)
    assert all(demo["claims"] for demo in data["demos"]) and all(claim["source"] for claim in every)
    for claim in every:  # a simulation says what it assumes; what holds by definition agrees with nothing
        assert (claim["kind"] == "simulated") == bool(claim["given"]), claim
        assert claim["agrees"] is None if claim["kind"] == "definition" else bool(claim["found"]) == (
            claim["agrees"] is not None), claim
    for kind, each in data["kinds"].items():
        assert each == {"claims": sum(claim["kind"] == kind for claim in claims),
                        "agree": sum(claim["kind"] == kind and claim["agrees"] for claim in claims),
                        "shown": sum(claim["kind"] == kind and claim["agrees"] is None for claim in every)}
    assert sum(each["claims"] for each in data["kinds"].values()) == data["claims"]
    assert [demo["demo"] for demo in data["demos"]] == list(range(1, DEMOS[name] + 1))
    return data
