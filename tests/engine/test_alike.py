"""Ranks that were started differently: one sentence that names what, who, and the values."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mpizero.data import TeacherTask
from mpizero.engine import alike
from mpizero.engine.alike import compare_flags, differences
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.engine.versions import sources, versions
from mpizero.errors import ConfigError, DataError
from mpizero.nn.mlp import mlp
from tests.engine.runs import GPT, MLP

# name, a configuration, and the value that the last rank has instead: each trained a mixture or hung
SETTINGS = [("lr", MLP, 1e-4), ("clip", MLP, 1.0), ("weight_decay", MLP, 0.1), ("batch_size", MLP, 5), ("seed", GPT, 3),
            ("heads", GPT, 4), ("steps", MLP, 9), ("accumulation", MLP, 2), ("dtype", MLP, "float32"),
            ("stage", MLP, "3"), ("context", GPT, 5), ("warmup", MLP, 2), ("optimizer", MLP, "adamw"),
            ("check_replicas", MLP, 1), ("backward_prefetch", MLP, 1), ("hidden", MLP, 12)]


def last(group) -> bool:
    return group.rank == group.size - 1


@pytest.mark.parametrize(("name", "config", "other"), SETTINGS, ids=[row[0] for row in SETTINGS])
def test_a_setting_that_differs(group, name, config, other):
    if group.size == 1:
        pytest.skip("one rank cannot differ")
    mine = replace(config, **{name: other}) if last(group) else config
    with pytest.raises(ConfigError, match=f"ranks were started differently: `{name}` is .* on rank.* on rank"):
        prepare(mine, group)


def test_ranks_and_values_are_named(group):
    if group.size < 3:
        pytest.skip("fewer ranks need no list")
    others = f"ranks 0-{group.size - 2}"
    with pytest.raises(ConfigError, match=re.escape(f"`lr` is 0.01 on {others}, 0.0001 on rank {group.size - 1}. ")):
        prepare(replace(MLP, lr=1e-4 if last(group) else 1e-2), group)


def test_a_model_of_another_kind_is_named_first(group):
    if group.size == 1:
        pytest.skip("one rank cannot differ")
    with pytest.raises(ConfigError, match="started differently: `model` is mlp on .*, gpt on rank .*; "):
        prepare(GPT if last(group) else MLP, group)


def test_only_one_rank_times_its_actions(group):
    if group.size == 1:
        pytest.skip("one rank cannot differ")
    with pytest.raises(ConfigError, match=r"`log` \(given or not\) is False on .* True on"):
        prepare(replace(MLP, log="folder" if last(group) else None), group)


def test_what_may_differ(group):
    config = replace(MLP, device_memory=f"{64 + group.rank}MiB", json="a" if group.rank else None)
    assert prepare(config, group).settings.device_memory == (64 + group.rank) << 20


def test_an_edited_checkout_on_one_host(group, monkeypatch):
    if group.size == 1:
        pytest.skip("one rank cannot differ")
    if last(group):
        monkeypatch.setattr(alike, "versions", lambda: versions() | {"sources": "0123456789ab"})
    with pytest.raises(ConfigError, match=r"the version of sources is [0-9a-f]{12} on .*, 0123456789ab on rank"):
        prepare(MLP, group)


def test_flags_of_other_commands(group):
    if group.size == 1:
        pytest.skip("one rank cannot differ")
    compare_flags({"repeat": 3, "json": group.rank, "run": print}, group)
    with pytest.raises(ConfigError, match="started differently: `repeat` is 3 on .*, 4 on rank"):
        compare_flags({"repeat": 4 if last(group) else 3}, group)


def test_a_policy_that_differs(group):
    if group.size == 1:
        pytest.skip("one rank cannot differ")
    policy = (lambda name: "all") if last(group) else None
    with pytest.raises(ConfigError, match=r"the model differs between ranks: unit 0 is layers.0: .* on .*, all: "):
        prepare(MLP, group, policy=policy)


def test_data_that_differs(group):
    if group.size == 1:
        pytest.skip("one rank cannot differ")
    with pytest.raises(DataError, match=f"something else on rank {group.size - 1} than on rank 0"):
        prepare(MLP, group, task=Task(mlp(hidden=10), TeacherTask(int(last(group)))))


def test_many_differences_are_counted():
    every = [dict.fromkeys("abcde", 0), dict.fromkeys("abcd", 1)]
    assert differences(every, "aa") == (
        "a is 0 on rank 0, 1 on rank 1; b is 0 on rank 0, 1 on rank 1; c is 0 on rank 0, 1 on rank 1; 2 more")
    assert differences([every[0], every[0]], "ab") == ""
    assert differences([{"a": 0}, {"a": 1}, {"a": 0}], "aaa") == "a is 0 on ranks 0, 2, 1 on rank 1"
    assert differences([{"a": 0}, {"a": 0, "b": 1}], "aa") == "b is not given on rank 0, 1 on rank 1"


def test_hosts_are_named_where_there_are_several():
    found = differences([{"a": 0}, {"a": 0}, {"a": 1}, {"a": 0}], ["x", "x", "y", "y"])
    assert found == "a is 0 on ranks 0-1 on x, 3 on y, 1 on rank 2 on y"


def test_sources_follow_names_and_contents(tmp_path):
    def digest(**files: str) -> str:
        folder = tmp_path / "_".join(files)
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return sources(folder)

    assert digest(a="1", b="2") != digest(a="1", c="2")
    assert digest(d="1") != digest(e="1") and digest(a="1", b="2") == digest(b="2", a="1")
    before = digest(f="1")
    assert digest(f="2") != before
