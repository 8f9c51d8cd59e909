"""What entry points share: errors in the words of flags, files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import re

import pytest

from mpizero.cli import FLAGS, GROUPS, Parser, add_train_flags, as_flags, spelled, train_config
from mpizero.errors import ConfigError
from mpizero.output import check_writable, finite, write_json
from mpizero.plan.__main__ import main as plan
from mpizero.text import readable


def parse(*words):
    parser = Parser()
    add_train_flags(parser)
    return train_config(parser, words)


@spelled()
def fail(words, text):
    parse(*words)
    raise ConfigError(text)


@pytest.mark.parametrize("words, text, said", [
    ((), "`batch_size` 3 and `ranks`, `config`", "--batch-size 3 and mpirun -n, --config"),
    ((), "`shape` and `nothing` are no fields", "`shape` and `nothing` are no fields"),
    (("--data", "`lr`.npz"), "`data` `lr`.npz is empty, but `lr` is not", "--data `lr`.npz is empty, but --lr is not"),
    (("--data=x `log` `lr`",), "`data` 'x `log` `lr`' is empty", "--data 'x `log` `lr`' is empty"),
])
def test_fields_are_flags_but_what_the_user_wrote_stands(monkeypatch, words, text, said):
    monkeypatch.setattr(Parser, "words", set())
    with pytest.raises(ConfigError) as error:
        fail(words, text)
    assert str(error.value) == said == as_flags(text)


def test_so_does_what_a_toml_file_says(tmp_path, monkeypatch):
    monkeypatch.setattr(Parser, "words", set())
    (tmp_path / "run.toml").write_text('data = "`steps`.npz"')
    with pytest.raises(ConfigError, match="--data `steps`.npz is empty"):
        fail(("--config", str(tmp_path / "run.toml")), "`data` `steps`.npz is empty")


def test_a_toml_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbfsteps = 7\n")
    assert parse("--config", str(tmp_path / "run.toml")).steps == 7


@pytest.mark.parametrize("flag", ["log", "json"])
def test_an_empty_name(flag):
    with pytest.raises(ConfigError, match=f"`{flag}` is empty: name a"):
        parse(f"--{flag}", "")


def test_asking_whether_a_file_can_be_written_leaves_nothing(tmp_path):
    check_writable("--json", tmp_path / "new.json")
    check_writable("--json", "/dev/null")
    assert list(tmp_path.iterdir()) == []
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "no" / "new.json", "No such file or directory"),
                        (tmp_path / ("n" * 300), "File name too long")):
        with pytest.raises(ConfigError, match=f"--json .* cannot be written: {words}"):
            check_writable("--json", path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_takes_no_file(tmp_path):
    (tmp_path / "s.json").write_text("old")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="Permission denied"):
            check_writable("--json", tmp_path / "s.json")  # which is replaced, not written
    finally:
        tmp_path.chmod(0o700)


def test_a_file_that_cannot_be_written_is_named_with_its_flag(tmp_path):
    (tmp_path / "s.json.part").mkdir()
    write_json(tmp_path / "s.json", {"loss": 1.0})
    assert json.loads((tmp_path / "s.json").read_text()) == {"loss": 1.0}
    with pytest.raises(ConfigError, match="--json /dev/full cannot be written: No space left on device"):
        write_json("/dev/full", {"loss": 1.0})
    with pytest.raises(ConfigError, match="`log` .*/s.json.part cannot be written: Is a directory"):
        write_json(tmp_path / "s.json.part", {}, "`log`")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "s.json.part"]


def test_names_that_are_not_utf_8():
    name = os.fsdecode(b"na\xffme")
    assert readable(name) == "na\\udcffme" and readable("häme") == "häme"
    assert finite({"files": [name, float("nan")]}) == {"files": ["na\\udcffme", None]}


def flags() -> Parser:
    parser = Parser(prog="train")
    add_train_flags(parser)
    return parser


def test_every_flag_is_in_one_group():
    assert sorted(name for names in GROUPS.values() for name in names.split()) == sorted(FLAGS)


def test_help_says_each_default():
    """Of the flags that take a value, the value, or in words what happens without."""
    text = " ".join(flags().format_help().split())
    for default in ("(2)", "(mlp)", "(16)", "(1)", "(float16)", "(0)", "(unlimited)", "(mlp 50, gpt 300)"):
        assert default in text


@pytest.mark.parametrize(("typed", "meant"), [("fp16", "float16"), ("bf16", "bfloat16"), ("FP32", "float32"),
                                              ("float32", "float32")])
def test_what_people_type(typed, meant):
    assert train_config(flags(), ["--dtype", typed]).dtype == meant


@pytest.mark.parametrize("command", ["memory --ranks 4 --dtype {}", "memory --ranks 4 --reduce-dtype {}",
                                     "units --ranks 4 --dtype {}", "timeline --ranks 4 --dtype {}",
                                     "fit --ranks 4 --device-memory 80GB --dtype {}"])
def test_what_people_type_for_a_plan(command, tmp_path):
    answers = [tmp_path / "alias", tmp_path / "name"]
    for path, dtype in zip(answers, ("FP32", "float32"), strict=True):
        assert plan([*command.format(dtype).split(), "--model", "mlp", "--json", str(path)]) == 0
    assert answers[0].read_text() == answers[1].read_text()


def test_a_flag_of_another_command_is_no_mistyped_one():
    """`--steps` has letters of `--help`."""
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --steps 2 \(see verify --help\)$"):
        Parser(prog="verify").parse_args(["--steps", "2"])


def test_a_flag_that_a_command_does_not_know_is_told_by_it():
    top = Parser(prog="plan")
    sub = top.add_subparsers(dest="command").add_parser("fit", prog="plan fit")
    sub.add_argument("--ranks")
    assert top.parse_args(["fit", "--ranks", "3"]).ranks == "3"
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --rank-s 3: did you mean --ranks\? \(see plan"):
        top.parse_args(["fit", "--rank-s", "3"])


@pytest.mark.parametrize(("words", "says"), [
    (["--batchsize", "4"], "did you mean --batch-size?"), (["--stages=3"], "did you mean --stage?"),
    (["--lrr", "1"], "did you mean --lr?"), (["--helper"], "did you mean --help?"),
    (["--xyzzy"], "unrecognized arguments: --xyzzy (see train --help)"),
    (["--dtype", "fp8"], "invalid choice: 'fp8'"),
])
def test_mistyped_flags(words, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        train_config(flags(), words)


def test_a_flag_that_may_be_given_again(tmp_path):
    """In a file a list, or one; flags win over the file's, and are not added to them."""
    assert parse().freeze == () and parse("--freeze", "a*", "--freeze", "b").freeze == ("a*", "b")
    path = tmp_path / "run.toml"
    for text, patterns in (('freeze = ["a", "b.*"]', ("a", "b.*")), ('freeze = "a"', ("a",)), ("freeze = []", ())):
        path.write_text(text)
        assert parse("--config", str(path)).freeze == patterns
    path.write_text('freeze = ["a", "b"]\nsteps = 3')
    config = parse("--config", str(path), "--freeze", "c")
    assert (config.freeze, config.steps) == (("c",), 3)
    for text in ("freeze = [[1]]", "freeze = true", 'steps = ["3"]'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="must be a number or a string"):
            parse("--config", str(path))
    assert parse("--global-batch", "37").accumulation is None
