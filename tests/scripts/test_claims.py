"""What a claim is: when it agrees, what is counted, and how the report tells one that does not come out."""

from __future__ import annotations

import numpy as np
import pytest


def test_comparisons(load):
    claims = load("claims")
    assert claims.rounds_to("", "", "1.88", 1.875).agrees and claims.rounds_to("", "", "2.0", 2).agrees
    assert not claims.rounds_to("", "", "1.88", 1.8749).agrees and not claims.rounds_to("", "", "1.880", 1.875).agrees
    assert not claims.rounds_to("", "", "1.88", float("nan")).agrees
    assert not claims.rounds_to("", "", "31.4", 31.46).agrees
    assert claims.between("", "", 1, 2, 2).agrees
    assert claims.between("", "", None, 2, -5).agrees and claims.between("", "", 1, None, 1).agrees
    assert not claims.between("", "", 1, 2, 2.01).agrees and not claims.between("", "", 1, None, 0.99).agrees
    assert not claims.between("", "", 1, 2, float("nan")).agrees
    assert claims.between("", "", 1, None, np.float64(0.5)).agrees is False  # a NumPy bool is no JSON
    assert claims.equal("", "", [1, 2], [1, 2]).agrees and not claims.equal("", "", [1, 2], [2, 1]).agrees
    assert claims.between("", "", None, 0.5, 12_345_678, "s").claimed == "at most 0.5 s"
    assert claims.equal("", "", 12_345_678, 2.5, "s").claimed == "12,345,678 s"


def test_kinds(load):
    claims = load("claims")
    every = [claims.equal("", "", 1, 1, kind="counted"), claims.equal("", "", 1, 2, kind="counted"),
             *claims.of_kind("simulated", claims.equal("", "", 1, 1), given="a machine"), claims.definition("", "", 1),
             claims.quoted("", "", 1)]
    assert claims.tally(every) == {
        "counted": {"claims": 2, "agree": 1, "shown": 0}, "simulated": {"claims": 1, "agree": 1, "shown": 0},
        "published": {"claims": 0, "agree": 0, "shown": 1}, "definition": {"claims": 0, "agree": 0, "shown": 1}}
    ours = [claims.holds("", source, "", "", True) for source in ("ours", "ours, after lecture 4.3", "lecture 4.3")]
    assert claims.count_ours([*ours, claims.definition("", "ours", 1)]).startswith("2 of them ours: ")
    assert every[2].given == "a machine" and every[3].agrees is None is every[4].agrees


@pytest.mark.parametrize("made", [[], ["definition"], ["quoted"]])
def test_no_claims_are_no_success(load, made):
    """Nor is a definition."""
    claims = load("claims")
    demo = claims.Demo("title", "1", [getattr(claims, name)("text", "source", 1) for name in made])
    assert claims.tell(claims.options("Doc.", "", 1, []), "Doc.", [lambda: demo]) == 1


def test_the_report_of_a_claim_that_does_not_come_out(load, tmp_path):
    claims, report = load("claims"), load("write_report")
    made = claims.Demo("title", "1.2", [
        claims.equal("one | two", "source", 1, 2), claims.equal("three", "source", 3, 3, kind="counted"),
        claims.definition("four", "source", 4), claims.quoted("five", "source", 5)])
    asked = claims.options("Doc.", "example", 1, ["--json", str(tmp_path / "01_memory.json")])
    assert claims.tell(asked, "Doc.", [lambda: made]) == 1
    for name in ("02_zero_stages", "03_fsdp", "04_offload", "06_published", "07_master_weights"):
        (tmp_path / f"{name}.json").write_text((tmp_path / "01_memory.json").read_text())
    assert report.main([str(tmp_path)]) == 1
    text = (tmp_path / "report.md").read_text()
    assert "**12 claims, 6 agree.**" in text and "No figures: matplotlib is not installed" in text
    row = "| one \\| two | source | 1 | computed: 2 | **NO** |"
    assert text.count(row) == 12 and text.split("\n## ")[1].count(row) == 6  # first of all, and in its place
    assert text.count("| four | source | 4 | definition | not counted |") == 6
    assert "| definition | 0 | 0 | 6 |" in text and "| published, numbers against each other | 0 | 0 | 6 |" in text
    assert "arithmetic | 6 | 0 | 0 |" in text and "traffic log | 6 | 6 | 0 |" in text
