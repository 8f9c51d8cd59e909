"""--machine FILE: plans with a machine's own rates, and mistakes in such a file."""

from __future__ import annotations

import json

import pytest

from mpizero.plan.__main__ import main

RATES = {"peak_flops": 1e10, "efficiency": 0.5, "memory_bandwidth": 8e9, "update_bandwidth": 2e9,
         "intra_bandwidth": 4e9, "intra_alpha": 1e-6}
HOST = {"host_bandwidth": 2e9, "host_adam": 1e8}
BETWEEN = {"alpha": 1e-4, "inter_bandwidth": 1e8, "nics": 2}
MODEL = "--params 1e9 --units 10 --ranks 8"


@pytest.fixture
def plan(capsys, tmp_path):
    """plan(command, machine, more=...): (the JSON, what was printed, errors) with that file's `machine` and other
    keys."""
    def run(command, machine, **more):
        path, file = tmp_path / "answer.json", tmp_path / "own.json"
        file.write_text(machine if isinstance(machine, str) else json.dumps({"machine": machine, **more}))
        status = main([*command.split(), "--machine", str(file), "--json", str(path)])
        out, err = capsys.readouterr()
        assert status == (2 if err else 0) and "Traceback" not in err
        return json.loads(path.read_text()) if not err else None, " ".join(out.split()), err
    return run


@pytest.mark.parametrize("command", ["fit --device-memory 80GB", "timeline", "units", "traffic --stage 3"])
def test_own_rates_in_place_of_an_h100s(plan, command):
    found, out, _ = plan(f"{command} {MODEL}", RATES | BETWEEN | HOST, ranks_per_host=2,
                         sources={"alpha": "measured here"})
    assert {name: found["machine"][name] for name in RATES | BETWEEN} == RATES | BETWEEN
    assert found["ranks_per_host"] == 2 and found["sources"]["alpha"] == "measured here"
    assert "Measured here: 100 us a message" in out and "1 us a message inside a host" in out
    assert "own.json: " in out and "H100" not in out and "2 NICs a host" in out and found["measured"]["dtypes"] == []


def test_seconds_follow_the_file(plan):
    """Of a timeline without overlap: computing, two gathers and a reduction of 10 units, and the update of 28 bytes."""
    own = RATES | {"intra_alpha": 1e-2}
    found, _, _ = plan(f"timeline {MODEL} --tokens 10 --no-overlap --ranks-per-host 8", own)
    computing, update = 6 * 1e9 * 10 / (1e10 * 0.5), 28 * 1e9 / 8 / 2e9
    ring = 7 * 1e-2 + 2e8 * 7 / 8 / 4e9
    assert found["finish"] == pytest.approx(computing + update + 29 * ring, rel=1e-3)  # the last unit is kept
    own |= BETWEEN | {"alpha": 0.5}
    between, _, _ = plan(f"timeline {MODEL} --tokens 10 --no-overlap --ranks-per-host 4", own)
    far = 7 * 0.5 + 2e8 * 7 / 8 / 1e8
    assert between["finish"] == pytest.approx(computing + update + 29 * far, rel=1e-3)


def test_rates_of_the_dtype(plan):
    own = {"float32": {"peak_flops": 4e10, "efficiency": 0.25, "host_adam": 5e7}}
    wide, out, _ = plan(f"fit {MODEL} --device-memory 80GB --dtype float32", RATES, by_dtype=own)
    assert (wide["machine"]["peak_flops"], wide["machine"]["efficiency"]) == (4e10, 0.25)
    assert wide["machine"]["host_adam"] == 5e7
    assert wide["machine"]["update_bandwidth"] == 2e9 and "40 GFLOP/s" in out and "of 16-bit operands" not in out
    assert plan(f"fit {MODEL} --device-memory 80GB", RATES, by_dtype=own)[0]["machine"]["peak_flops"] == 1e10
    assert "of 16-bit operands" in plan(f"fit {MODEL} --device-memory 80GB --dtype float32", RATES)[1]


def test_flags_win(plan):
    found, out, _ = plan(f"fit {MODEL} --device-memory 80GB --peak-flops 2TFLOPs --nics 1 --alpha 7us", RATES | BETWEEN)
    assert (found["machine"]["peak_flops"], found["machine"]["nics"], found["machine"]["alpha"]) == (2e12, 1, 7e-6)
    assert found["sources"]["peak_flops"] == "flags" and "Flags: 2 TFLOP/s" in out


def test_one_host_was_measured(plan):
    """Between hosts something is assumed, loudly; inside one nothing need be."""
    found, out, _ = plan(f"fit {MODEL} --device-memory 80GB", RATES, ranks_per_host=4)
    machine = found["machine"]
    assert (machine["alpha"], machine["inter_bandwidth"], machine["nics"]) == (5e-5, 1.25e9, 1)
    assert "has no rates between hosts: give --alpha and --inter-bandwidth" in out and "10 Gb/s" in out
    _, out, _ = plan(f"fit {MODEL} --device-memory 80GB --inter-bandwidth 3GB/s", RATES, ranks_per_host=4)
    assert "has no rates between hosts: give --alpha, or" in out
    inside, out, _ = plan(f"fit {MODEL} --device-memory 80GB", RATES)
    assert inside["ranks_per_host"] == 8 and "between hosts: give" not in out and "Ethernet" not in out
    assert "measured with 4 ranks a host" in plan(f"fit {MODEL} --device-memory 80GB --ranks-per-host 8", RATES,
                                                  ranks_per_host=4)[1]


def test_memory_that_an_update_makes_use_of(plan):
    slow, fast = (plan(f"timeline {MODEL} --no-overlap --ranks-per-host 8", rates)[0]["finish"]
                  for rates in (RATES, RATES | {"update_bandwidth": None}))
    assert slow - fast == pytest.approx(28 * 1e9 / 8 * (1 / 2e9 - 1 / 8e9), rel=1e-6)


@pytest.mark.parametrize("machine, more, text", [
    ({"peak_flop": 1e9}, {}, "machine has no field 'peak_flop': did you mean peak_flops?"),
    (RATES | {"peak_flops": -1}, {}, "machine.peak_flops = -1 must be a number above 0"),
    (RATES | {"peak_flops": "1 T"}, {}, 'machine.peak_flops = "1 T" must be a number above 0'),
    (RATES | {"peak_flops": 10**400}, {}, "must be a number above 0, at most 1e30"),
    (RATES | {"alpha": 1e308}, {}, "must be a number above 0, at most 1e30"),
    (RATES | {"alpha": True}, {}, "machine.alpha = true must be"),
    (RATES | {"alpha": float("nan")}, {}, "machine.alpha = NaN must be"),
    (RATES | {"efficiency": 1.5}, {}, "machine.efficiency = 1.5 must be a share above 0, at most 1"),
    (RATES | {"nics": 1.5}, {}, "machine.nics = 1.5 must be a whole number"),
    (RATES | {"all_nics": 1}, {}, "machine.all_nics = 1 must be true or false"),
    (RATES, {"ranks_per_host": 0}, "ranks_per_host = 0 must be a whole number"),
    (RATES, {"by_dtype": {"float16": {"alpha": 1}}}, "by_dtype.float16 has no field 'alpha'"),
    (RATES, {"by_dtype": {"float16": []}}, "by_dtype.float16 = [] must be a table"),
    (RATES, {"sources": 3}, "sources = 3 must be a table"),
    ([], {}, "has no table 'machine'"), ("[]", {}, "has no table 'machine'"), ("{", {}, "is not JSON"),
    ({"alpha": 1e-6}, {}, "machine has no peak_flops"),
    (RATES | {"intra_bandwidth": None}, {}, "give --intra-bandwidth, or measure"),
])
def test_mistakes_in_a_file(plan, machine, more, text):
    _, _, error = plan(f"fit {MODEL} --device-memory 80GB", machine, **more)
    assert "own.json" in error and text in error and error.count("\n") == 1


def test_other_mistakes(plan, capsys):
    assert "are two machines: leave one out" in plan(f"fit {MODEL} --gpu h100", RATES)[2]
    assert main(f"fit {MODEL} --device-memory 8GB --machine /nowhere".split()) == 2
    assert "--machine: /nowhere cannot be read: No such file" in capsys.readouterr().err
