"""The list of mutations is well-formed: each can be planted today, and the tests that must notice are there. That they
do takes minutes: python tests/mutations/run.py."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.mutations.run import ROOT, BadList, Mutation, read_list

MUTATIONS = read_list()


def test_there_are_many_over_every_package():
    assert len(MUTATIONS) >= 75
    changes = {(each.file, each.after, each.old, each.new) for each in MUTATIONS}
    assert len({each.name for each in MUTATIONS}) == len(changes) == len(MUTATIONS)
    mutated = {each.file.split("/")[1] for each in MUTATIONS}
    packages = {path.parent.name for path in (ROOT / "mpizero").glob("*/__init__.py")}
    assert mutated >= packages | {"cli.py", "train.py", "verify.py", "bench.py"}


def test_each_changes_one_line_and_its_tests_are_there():
    """One test for all: hundreds more would have to be collected on every rank."""
    for mutation in MUTATIONS:
        check(mutation)


def check(mutation):
    text = (ROOT / mutation.file).read_text()
    changed = mutation.planted(text)
    before, after = text.splitlines(), changed.splitlines()
    assert len(before) == len(after) and sum(one != other for one, other in zip(before, after, strict=True)) == 1
    if mutation.file.endswith(".py"):
        compile(changed, mutation.file, "exec")
    file, _, test = shlex.split(mutation.tests)[0].partition("::")
    assert mutation.ranks in range(5)
    assert re.search(rf"^def {test.partition('[')[0] or 'test_'}", (ROOT / file).read_text(), re.MULTILINE)


def test_what_cannot_be_planted_is_an_error():
    text = "a = 1\nb = 1\n"
    assert Mutation("", "f", "= 1", "= 2", "", after="b").planted(text) == "a = 1\nb = 2\n"
    for old, after in (("= 1", ""), ("= 3", ""), ("= 1", "c"), ("a =", "b")):
        with pytest.raises(BadList, match="is not there, or not once"):
            Mutation("", "f", old, "= 2", "", after=after).planted(text)
