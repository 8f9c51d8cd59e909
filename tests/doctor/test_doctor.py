"""`python -m mpizero.doctor` as a user meets it."""

from __future__ import annotations

import json

import pytest

from mpizero.doctor.__main__ import parser
from mpizero.doctor.fit import Timing
from mpizero.doctor.machine import as_machine
from mpizero.doctor.show import findings_text, rate_text, verdict
from mpizero.doctor.findings import Finding
from mpizero.machine import Route
from mpizero.plan.__main__ import main as plan
from tests.comm.test_start import other_mpirun

NARROW = {"COLUMNS": "72"}


@pytest.mark.launches
def test_ranks_measure_and_a_plan_reads(launch, tmp_path, capsys):
    path = tmp_path / "machine.json"
    end = launch(2, "-m", "mpizero.doctor", "--json", path, env=NARROW | {"OMP_NUM_THREADS": "1"}, timeout=120)
    found = json.loads(path.read_text())
    wrong = any(each["level"] == "error" for each in found["findings"])
    assert end.status == int(wrong) and end.stdout.count("all ranks at once") == 1, end.output
    assert {each["subject"] for each in found["findings"]} >= {
        "mpirun", "threads", "placement", "cores", "binding", "BLAS", "versions", "memory", "inside hosts"}
    rates, rings = found["machine"], found["rings"]
    assert 1e8 < rates["peak_flops"] < 1e13 and 1e7 < rates["intra_bandwidth"] < 1e12 and rates["nics"] == 1
    assert found["ranks_per_host"] == 2 and found["measured"]["ranks"] == 2 and set(found["measured"]["hosts"])
    assert {ring["op"] for ring in rings} == {"all_gather", "reduce_scatter"} and len(rings) == 16
    for ring in rings:  # the model of all plans
        told = as_machine(rates).ring_seconds(ring["nbytes"], 2, Route(0, 2))
        assert ring["predicted"] == told == Timing(**{name: ring[name] for name in Timing.__dataclass_fields__}
                                                   ).predicted(as_machine(rates))
    asked = "--params 13e9 --ranks 64 --machine".split()
    assert plan(["fit", "--device-memory", "80GB", *asked, str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "64 ranks, 2 a host" in out and "Measured on 2 ranks of 1 host" in out and "H100" not in out
    assert plan(["timeline", *asked, str(path), "--dtype", "float32"]) == 0


@pytest.mark.launches
def test_alone(launch, tmp_path, capsys):
    path = tmp_path / "machine.json"
    end = launch(None, "-m", "mpizero", "doctor", "--json", path, env={"OMP_NUM_THREADS": "1"}, timeout=120)
    assert end.status == 0 and "1 rank on 1 host" in end.stdout and "Traceback" not in end.output, end.output
    assert "intra_bandwidth" not in json.loads(path.read_text())["machine"]
    assert plan(["fit", "--params", "1e9", "--ranks", "4", "--device-memory", "8GB", "--machine", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{path}: machine has no intra_bandwidth" in error and "--intra-bandwidth" in error and "mpirun" in error


@pytest.mark.launches
def test_under_a_strange_mpirun(launch):
    """The facts that need no MPI, then the cure, by the first rank; status 1."""
    library = launch(None, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())").stdout
    if not library.startswith(("MPICH", "Open MPI")) or library.startswith("MPICH Version:      4"):
        pytest.skip(f"what others do under a strange mpirun is theirs: {library[:40]}")
    ends = [launch(None, "-m", "mpizero.doctor", env={name: value.format(rank=rank)
                                                      for name, value in other_mpirun(library).items()})
            for rank in (0, 1)]
    assert [end.status for end in ends] == [1, 1] and not ends[1].output, ends[1].output
    assert "BLAS" in ends[0].stdout and "but not for the MPI library of this process" in ends[0].stderr
    assert "start it with" in ends[0].stderr and "nothing is wrong" not in ends[0].output


@pytest.mark.launches
@pytest.mark.parametrize("words, text", [(["--jsn", "x"], "did you mean --json?"),
                                         (["--json", "/nowhere/x"], "--json /nowhere/x cannot be written")])
def test_mistakes(launch, words, text):
    end = launch(None, "-m", "mpizero.doctor", *words)
    assert end.status == 2 and text in end.stderr and "Traceback" not in end.output


def test_help_has_examples():
    told = parser().format_help()
    assert "mpirun -n 4 python -m mpizero.doctor --json machine.json" in told and "plan fit" in told
    assert "Exit status: 0 if nothing is wrong" in " ".join(told.split())


def test_findings_as_they_are_read():
    told = [Finding("cores", "ok", "all is well"), Finding("BLAS", "warning", "too many threads", "use fewer", ("a",)),
            Finding("binding", "error", "words " * 20 + "end", "let go " * 15)]
    text = findings_text(told, 60, 2)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 60 and lines[0].startswith("ERROR    binding  words")
    assert lines[-1] == "ok       cores    all is well" and "too many threads (on a)" in text
    assert "\n                  cure: use fewer\n" in text and "\n" + " " * 24 + "let go" in text
    assert "(on a)" not in findings_text(told, 60, 1)
    assert verdict(told) == "1 error and 1 warning: the cures stand above" and verdict(told[:1]) == "nothing is wrong"


@pytest.mark.parametrize("value, unit, text", [(1.234e10, "FLOP/s", "12.3 GFLOP/s"), (5e5, "B/s", "500 kB/s"),
                                               (8.5e7, "elements/s", "85 M elements/s"), (2e12, "B/s", "2 TB/s"),
                                               (12, "B/s", "12 B/s")])
def test_rates_are_read(value, unit, text):
    assert rate_text(value, unit) == text
