"""The scripts one by one: claims of those that need no ranks come out; help, mistakes, and their parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.scripts.written import ALONE, DEMOS, SCRIPTS, written


@pytest.mark.parametrize("name", ALONE)
def test_scripts_that_need_no_ranks(load, capsys, tmp_path, name):
    assert load(name).main(["--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    data = written(tmp_path / "out.json", name)
    assert data["agree"] == data["claims"] > 20
    assert out.endswith(f"\n{data['claims']} claims, {data['agree']} agree\n") and "DISAGREES" not in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("name", ALONE)
def test_neither_numpy_nor_mpi_is_needed(launch, name):
    block = "import runpy, sys; sys.modules.update(numpy=None, mpi4py=None, matplotlib=None); "
    run = (f"sys.argv = ['x']; sys.path.insert(0, {str(SCRIPTS)!r}); "
           f"runpy.run_path('{SCRIPTS}/{name}.py', run_name='__main__')")
    # -S: nor any installed package, mpizero among them
    end = launch(None, "-S", "-c", block + run, env={"PYTHONPATH": None}, cwd=Path("/"))
    assert end.status == 0, end.output


@pytest.mark.parametrize("name", DEMOS)
def test_help(load, capsys, name):
    with pytest.raises(SystemExit, match="^0$"):
        load(name).main(["--help"])
    out = capsys.readouterr().out
    assert f"scripts/{name}.py --json" in out and "--demo K" in out


@pytest.mark.parametrize("ranks, name", [(None, "02_zero_stages"), (2, "03_fsdp"), (3, "07_master_weights")])
def test_too_few_ranks(launch, ranks, name):
    end = launch(ranks, SCRIPTS / f"{name}.py")
    started = "1 was" if ranks is None else f"{ranks} were"
    assert end.status == 2 and "Traceback" not in end.output, end.output
    command = f"mpirun -n 4 python scripts/{name}.py"
    assert end.stderr.count(f"mpizero: error: this script needs 4 ranks, and {started} started: {command}\n") == 1


@pytest.mark.parametrize("words, message", [
    (("--demo", "6"), "argument --demo"), (("--json", "/no/such/folder/out.json"), "cannot be written"),
    (("--speed",), "unrecognized arguments"),
])
def test_mistakes(launch, words, message):
    end = launch(None, SCRIPTS / "04_offload.py", *words)
    assert end.status == 2 and message in end.stderr and "Traceback" not in end.output, end.output


# -- the parts --------------------------------------------------------------------------------------------------------


def test_sixteen_bits(load):
    """`struct` rounds as NumPy does; bfloat16 as ml_dtypes."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    small = load("small_updates")
    for x in np.random.default_rng(0).normal(size=1000):
        assert small.half(x) == np.float16(x) and small.single(x) == np.float32(x)
        assert small.brain(x) == float(np.float32(x).astype(bfloat16))
    for ties in (1, 3):
        tie = 0.5 + ties * 2.0**-9
        assert small.brain(tie) == float(np.float32(tie).astype(bfloat16)) == 0.5 + (ties // 2) * 2.0**-7


def test_sums_in_the_order_of_the_rings(load):
    """Chunk c of two ranks: x[c+1] + x[c]; of integers any order is right."""
    meshes = load("meshes")
    values = meshes.np.arange(16 * meshes.NUMEL).reshape(16, meshes.NUMEL)
    for ranks, shards in ((4, 2), (16, 8), (4, 4), (4, 1)):
        assert (meshes.sum_in_order(values[:ranks].astype(float), shards) == values[:ranks].sum(axis=0)).all()
    assert meshes.distance(values[0] * 1.01, values[:1].astype(float)) == pytest.approx(0.01)
