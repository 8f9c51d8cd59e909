"""Several runs on one page: what may be compared, what differs, and pictures of exactly that."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpizero.checkpoint.alike import FREE
from mpizero.report.__main__ import main, report
from mpizero.report.compare import HOW, compare, differences, names, tables, verdicts
from mpizero.report.log import Log, read_log
from mpizero.report.overlay import RUN_COLORS, draw_kinds, draw_losses, draw_sent
from mpizero.report.page import SOURCES, page_of_several
from tests.report.colors import EYES, distance
from tests.report.drawn import outside, overlaps, texts
from tests.report.sample import begun, sample, write_log
from tests.report.test_page import SVG, Reader


def log(stage: str, seed: int = 0, **options) -> Log:
    """A log with run.json, as a run of that stage would have written it."""
    steps, summary, trace = sample(units=3, stage=stage, steps=6, **options)
    about = begun(f"run-{stage}", summary)
    about["settings"] |= {"seed": seed, "dtype": "float16", "batch_size": 16, "shard_size": options.get("shards"),
                          "accumulation": options.get("accumulation", 1)}
    return Log(Path(f"logs/{stage}"), steps, summary, trace, about)


@pytest.fixture
def stages():
    return [log(stage) for stage in "0123"]


def apart(log: Log, **steps: float) -> Log:
    """The same log with losses that are greater by so much in some steps."""
    rows = [row | {"loss": row["loss"] + steps.get(f"step{row['step']}", 0.0)} for row in log.steps]
    return replace(log, steps=rows)


def test_a_global_batch_is_what_a_step_takes():
    """Whatever ranks and microbatches make of it."""
    logs = [log("2"), log("2", ranks=2), log("2", ranks=2)]
    for other, total in zip(logs[1:], (64, 37), strict=True):
        other.run["settings"]["global_batch"] = total
    assert [run.differs for run in compare(logs)] == ["", "", "samples in a step is 37, not 64"]


def test_names_are_the_settings_that_differ(stages):
    assert names(stages) == ["stage 0", "stage 1", "stage 2", "stage 3"]
    assert names([log("2"), log("3"), log("3", shards=2)]) == ["stage 2", "stage 3", "stage 3, shard size 2"]
    assert names([log("3", ranks=2, shards=2), log("3", ranks=4, shards=2)]) == ["2 ranks", "4 ranks"]
    assert names([log("1"), log("1")]) == ["1 (1)", "1 (2)"]
    strange = log("2", seed=3)
    strange.run["settings"] |= {"lr": 0.5, "clip": 1.0, "steps": 8}
    assert names([stages[0], strange]) == ["0", "2"]  # too many settings differ: the folders tell


def test_same_bits_are_said_to_be_exactly_zero(stages):
    said = verdicts(compare(stages))
    assert said == ["stage 1, stage 2 and stage 3: all 6 losses are those of stage 0, bit for bit: the difference is "
                    "exactly zero.",
                    "The master weights at the end are those of stage 0, bit for bit: stage 1, stage 2 and stage 3."]


def test_a_run_that_differs_is_named_with_step_and_size(stages):
    tiny = math.ulp(stages[2].steps[4]["loss"])
    stages[2] = apart(stages[2], step4=tiny)
    stages[3] = apart(stages[3], step2=0.25, step3=-0.5)
    stages[3].summary["weights_sha256"] = "cd" * 32
    said = verdicts(compare(stages))
    assert said[0].startswith("stage 1: all 6 losses are those of stage 0, bit for bit")
    assert said[1] == (f"stage 2: the loss differs from that of stage 0 in 1 of 6 steps, first in step 5, by at most "
                       f"{tiny:.2g}.")
    assert said[2] == "stage 3: the loss differs from that of stage 0 in 2 of 6 steps, first in step 3, by at most 0.5."
    assert said[-1] == "The master weights at the end are others: stage 3."


@pytest.mark.parametrize("other, words", [
    (log("2", seed=1), "seed is 1, not 0"),
    (log("2", accumulation=2), "samples in a step is 128, not 64"),
    (log("2", ranks=2), "samples in a step is 32, not 64"),
])
def test_what_trains_something_else_is_not_compared(stages, other, words):
    runs = compare([stages[0], other])
    (said,) = verdicts(runs)
    assert "trains something else than" in said and said.endswith(words + ".")
    figure = draw_losses({run.name: run.losses for run in runs}, [run.name for run in runs if not run.differs])
    assert "nothing to compare" in [text for text, _, _ in texts(figure)] and not figure.axes[1].lines


def test_what_trains_the_same_is_compared(stages):
    """A setting of a run that may go on with another one, unless it says from which weights or how long. Tiles change
    the order of additions alone, which a run that goes on is told."""
    assert {*HOW} == {*FREE, "tiles"} - {"init", "end"}
    other = log("2")
    other.run["settings"] |= {"save": "runs/a", "eval_every": 5}
    assert not compare([stages[0], other])[1].differs


def test_the_same_batch_cut_otherwise_is_compared(stages):
    other = log("0", ranks=2, accumulation=2)
    assert not compare([stages[0], other])[1].differs


@pytest.mark.parametrize(("options", "what"), [
    ({"ranks": 2, "accumulation": 2}, "number of ranks and number of microbatches"), ({"shards": 2}, "mesh")])
def test_another_order_of_additions_is_the_reason_that_is_given(stages, options, what):
    """Not for runs that should be the same, bit for bit."""
    first, other = log("1", shards=1), apart(log("3", **options), step1=1e-4)
    (said, *_) = verdicts(compare([first, other]))
    assert said.endswith(f" With another {what} the same terms are added in another order, and each sum is rounded to "
                         "float16, which later steps amplify: bits are the same across stages, not across that.")
    assert "order" not in verdicts(compare([first, apart(log("3", shards=4), step1=1e-4)]))[0]


def test_differences():
    first = {0: 1.0, 1: 2.0, 2: None, 3: None, 5: 1.0}
    assert differences(first, {1: 2.5, 2: None, 3: 1.0, 4: 1.0, 5: None}) == {1: 0.5, 2: 0.0, 3: math.inf, 5: math.inf}


def test_losses_are_drawn_with_their_differences(stages):
    stages[3] = apart(stages[3], step2=0.25)
    figure = draw_losses({run.name: run.losses for run in compare(stages)})
    loss, difference = figure.axes
    assert [list(line.get_ydata()) for line in loss.lines] == [[row["loss"] for row in each.steps] for each in stages]
    assert [list(line.get_ydata()) for line in difference.lines] == [[0.0] * 6] * 3 + [[0, 0, 0.25, 0, 0, 0]]
    assert difference.get_title(loc="left") == "Not zero: stage 3"
    assert {line.get_solid_capstyle() for line in loss.lines} == {"butt"}  # else thick ones touch texts of the legend
    widths = [line.get_linewidth() for line in loss.lines]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 4
    words = [text for text, _, _ in texts(draw_losses({run.name: run.losses for run in compare(stages[:3])}))]
    assert "exactly zero in every step: the same bits" in words


def heights(axes, width) -> np.ndarray:
    """Of the bars that are so wide."""
    return np.array([bar.get_height() for bar in axes.patches if bar.get_width() == pytest.approx(width)])


def test_memory_stands_in_the_outline_of_its_plan(stages):
    axes = draw_kinds(compare(stages)).axes[0]
    counted = [each.summary["memory"][0] for each in stages]
    stacked = heights(axes, 0.6).reshape(-1, 4)
    assert np.allclose(stacked.sum(axis=0) * 1e3, [row["after_backward"] for row in counted])
    for row, kind in zip(stacked, ("param", "optim", "grad", "unsharded_grad"), strict=True):
        assert np.allclose(row * 1e3, [rank["by_kind"][kind]["after_backward"] for rank in counted])
    assert np.allclose(heights(axes, 0.66) * 1e3, [row["planned_after_backward"] for row in counted])
    marks = [segment[0][1] * 1e3 for lines in axes.collections for segment in lines.get_segments()]
    assert np.allclose(marks, [row[key] for key in ("peak", "device_peak") for row in counted])


def test_traffic_has_lines_at_2_psi_and_3_psi(stages):
    stages[3].summary["traffic"] = [dict(row) for row in stages[3].summary["traffic"]]
    stages[3].summary["traffic"][2].update(between_hosts_bytes_per_step=20_000, sent_bytes_per_step=10**6)
    axes = draw_sent(compare(stages)).axes[0]
    marks = [segment[0][1] for lines in axes.collections for segment in lines.get_segments()]
    psi = stages[0].summary["padded_psi"]
    unit = 1e6
    assert np.allclose(np.array(marks) * unit, [volume * psi * 2 * 3 / 4 for volume in (2, 3) for _ in range(4)])
    stacked = heights(axes, 0.6).reshape(-1, 4).sum(axis=0) * unit
    assert np.allclose(stacked[:3], marks[0] * unit) and stacked[3] == pytest.approx(marks[-1] * unit)
    assert np.allclose(heights(axes, 0.66), np.array([marks[0]] * 3 + [marks[-1]]))
    assert np.allclose(heights(axes, 0.3) * unit, [0, 0, 0, 20_000])


def test_names_of_five_stages_stand_level():
    """As `verify --log` draws them: upright they would take a third of the picture."""
    runs = compare([log(stage) for stage in ("0", "1", "1-allreduce", "2", "3")])
    for draw in (draw_kinds, draw_sent):
        found = [label for label in draw(runs).axes[0].get_xticklabels() if label.get_text()]
        assert [label.get_rotation() for label in found] == [0.0] * 5
        assert found[2].get_text() == "stage\n1-allreduce"


@pytest.mark.parametrize("count", [2, 5, 8])
def test_pictures_are_readable(count):
    """With names as long as they get."""
    stages = [log(stage, shards=shards) for stage in "123" for shards in (4, 2, 1)][:count]
    runs = compare(stages)
    for figure in (draw_losses({run.name: run.losses for run in runs}), draw_kinds(runs), draw_sent(runs)):
        found = texts(figure)
        assert not overlaps(found) and not outside(figure, found) and figure.get_figwidth() == 6


@pytest.mark.parametrize("eyes", EYES)
def test_runs_can_be_told_apart(eyes):
    assert min(distance(one, other, eyes) for one, other in itertools.combinations(RUN_COLORS, 2)) > 15


def test_tables(stages):
    for each, seconds in zip(stages, (0.5, 0.25, 0.125, 1.0), strict=True):
        each.steps[:] = [row | {"seconds": seconds, "per_second": 64 / seconds} for row in each.steps]
    stages[1].run.update(mpi="Open MPI v5.0.11")
    runs, differing = tables(compare(stages))
    assert [row["run"] for row in runs.rows] == ["stage 0", "stage 1", "stage 2", "stage 3"]
    assert [row["seconds"] for row in runs.rows] == [3.0, 1.5, 0.75, 6.0]
    assert [row["per_second"] for row in runs.rows] == [128, 256, 512, 64]
    assert [row["sent"] for row in runs.rows] == [each.summary["traffic"][0]["sent_bytes_per_step"] for each in stages]
    assert all(set(row) == set(runs.columns) for row in runs.rows)
    shown = {row["what"]: list(row.values())[1:] for row in differing.rows}
    assert shown == {"stage": ["0", "1", "2", "3"],
                     "MPI": ["MPICH 5.0.2", "Open MPI v5.0.11", "MPICH 5.0.2", "MPICH 5.0.2"]}


def test_the_page(stages):
    runs = compare([*stages[:3], replace(stages[3], summary=None, notes=("Torn.",))])
    reader = Reader(page_of_several(runs, dict.fromkeys(("loss", "memory", "traffic"), SVG), tables(runs)))
    text = "\n".join(reader.texts)
    assert "4 runs: stage 0, stage 1, stage 2, stage 3" in reader.texts and reader.elements.count("img") == 3
    assert "stage 3: Torn." in text and "stage 3: The run did not end" in text and "exactly zero" in text
    assert reader.links == list(SOURCES.values()) and len(reader.loaded) == 3
    assert {link.rpartition("/")[2] for link in reader.links} == {"", "1910.02054", "2101.06840", "2104.07857",
                                                                  "2304.11277"}


# -- the command ------------------------------------------------------------------------------------------------------


def test_one_folder_of_logs_or_all_that_is_in_it(tmp_path, capsys):
    for stage in "02":
        write_log(tmp_path / f"stage{stage}", run=f"run-{stage}", units=3, steps=4, stage=stage)
    report([str(tmp_path), "--json", str(tmp_path / "tables.json")])
    out = capsys.readouterr().out
    assert "exactly zero" in out and f"wrote {tmp_path}/report.html" in out
    data = json.loads((tmp_path / "tables.json").read_text())
    assert [row["run"] for row in data["runs"]] == ["stage 0", "stage 2"] and len(data["files"]) == 7
    first = (tmp_path / "report.html").read_bytes()
    report([str(path) for path in sorted(tmp_path.iterdir())])  # DIR/*, with the report in it
    assert (tmp_path / "report.html").read_bytes() == first


def test_mistakes(tmp_path, capsys):
    one, other = (write_log(tmp_path / name / "log", units=3, steps=2) for name in ("a", "b"))
    assert main([str(one), str(other)]) == 2
    assert "the logs lie in several folders: say with --out DIR" in capsys.readouterr().err
    assert main([str(one), str(other), "--out", str(tmp_path / "out")]) == 0
    assert main([str(one), str(tmp_path / "nowhere")]) == 2 and "nowhere does not exist" in capsys.readouterr().err
    with (tmp_path / "file").open("w"):
        assert main([str(tmp_path / "file")]) == 2


def test_older_logs_have_less_to_say(tmp_path):
    """No run.json: settings are those of the summary."""
    folders = [write_log(tmp_path / stage, units=3, steps=3, stage=stage) for stage in "12"]
    runs = compare([read_log(folder) for folder in folders])
    assert [run.name for run in runs] == ["stage 1", "stage 2"] and not runs[1].differs
    assert tables(runs)[0].rows[0]["began"] is None


@pytest.mark.launches
def test_under_mpirun_one_rank_works_and_speaks(launch, tmp_path):
    folder = write_log(tmp_path / "log", units=3, steps=2)
    end = launch(2, "-m", "mpizero.report", folder)
    assert end.status == 0 and end.stdout.count("report.html") == 1 and not end.stderr, end.output
