"""What plans know of tensor parallel ranks: bytes of the first, closed forms of what they tell each other, seconds."""

from __future__ import annotations

import math
from itertools import product

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import Axis, MeshShape
from mpizero.layout.models import GPTConfig
from mpizero.machine import Machine
from mpizero.papers.activations import pytorch
from mpizero.planner.costs import machine_costs
from mpizero.planner.formulas import shared_inputs
from mpizero.planner.links import leaving
from mpizero.planner.model import OURS, PROGRAMS, frozen, gpt, mlp
from mpizero.planner.timeline import TENSOR, simulate
from mpizero.schedule import StepSettings, set_up
from mpizero.schedule.strategies import STRATEGIES

SMALL = gpt(4, 64, 4, 1000, context=32)


def test_what_divides_a_model():
    """`parts` says for which sizes there is a part, of every model with shapes."""
    for model in (SMALL, gpt(1, 12, 6, 9), mlp(12, 4, 3, 8), gpt(1, 12, 6, 12, tiles=2)):
        for size in range(2, 13):
            if model.parts % size == 0:
                part = model.divide(size)
                assert part.spec.tensor_size == size and part.spec.psi == model.spec.psi and part.divide is None
                assert part.parts == 1 and f"divided among {size} tensor parallel ranks" in part.name
            else:
                with pytest.raises(ConfigError):
                    model.divide(size)


def test_what_is_frozen_stays_so_when_it_is_divided():
    part = frozen(SMALL, ["h.0.*", "wpe*"]).divide(2)
    assert part.spec.frozen_psi == frozen(SMALL, ["h.0.*", "wpe*"]).spec.frozen_psi > 0
    assert [param.frozen for param in part.spec.params] == [
        param.name.startswith(("h.0.", "wpe")) for param in part.spec.params]


@pytest.mark.parametrize("size", [2, 4])
def test_operations_of_a_rank(size):
    """1/T of the matrices and of attention's scores; vectors that all hold are few."""
    part = SMALL.divide(size)
    for whole, own in ((SMALL.forward_flops, part.forward_flops), (SMALL.backward_flops, part.backward_flops)):
        copied = sum(param.numel for param in part.spec.params if param.copied) - 64 * 32  # positions cost nothing here
        assert sum(own) == pytest.approx(sum(whole) / size, abs=4 * (copied + 64 * 32))
    assert sum(part.forward_flops[1:-1]) * size >= sum(SMALL.forward_flops[1:-1])


@pytest.mark.parametrize("eager", [False, True])
def test_pytorch_s_of_a_rank_by_hand(eager):
    """Korthikanti (arXiv:2205.05198), sec. 4.2.1: s b h (10 + 24/T + 5 a s/(h T)) bytes a block with dropout, without
    flash attention; and 16 of statistics a token, which they leave out."""
    config, batch, seq, heads, h = GPTConfig(3, 64, 4, 32, 1000), 2, 32, 4, 64
    tokens = batch * seq
    for size in (1, 2, 4):
        table = pytorch(config, (batch, seq), "float16", eager=eager, parts=size)
        blocks = table.segments[1:-1]
        kept = sum(each.kept + each.output for each in blocks)
        scores = 5 * heads * seq if eager else 4 * heads
        assert kept == 3 * tokens * ((10 if eager else 8) * h + 24 * h // size + scores // size + 16)
        assert len(blocks) == (3 if size == 1 else 6) and table.ranks == size
        assert table.segments[-1].output == tokens * 2 * 1000 // size
        assert table.loss_kept == 3 * 4 * tokens * 1000 // size


def test_activations_of_every_program_have_a_part():
    for program, size in product(PROGRAMS, (2, 4)):
        whole, part = SMALL.activations(program, 2, "float16"), SMALL.divide(size).activations(program, 2, "float16")
        assert part.after_forward < whole.after_forward and len(part.segments) == 2 * 4 + 2


def test_sums_of_a_block():
    """Two each way; with recompute three more of five, as the last of a recompute is not needed; P_a adds a gather,
    which is a tenth."""
    assert (shared_inputs(1) - 4, shared_inputs(1, 1) - 4, shared_inputs(1, 1, True) - 4) == (8, 10, 11)
    assert shared_inputs(6, 3) == 4 + 6 * 8 + 2 * 2 * (2 * 3 - 1)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("flags", ["", "--recompute", "--recompute --partition-activations",
                                   "--recompute --recompute-interval 3 --partition-activations"])
def test_what_is_sent_is_the_closed_forms(plan, flags, size):
    """At every stage, on meshes with replicas too."""
    for stage in STRATEGIES:
        shards = "" if stage == "0" else "--shard-size 2"
        found, _ = plan(f"traffic --gpt 4,64,4,1000 --context 32 --ranks 16 --batch-size 3 --stage {stage} "
                        f"--tensor-size {size} {shards} {flags}")
        forms = found["formulas"]
        assert found["tensor_size"] == size and found["replicas"] == 16 // size // (1 if stage == "0" else 2)
        assert found["sent_bytes"] == sum(form["bytes"] for form in forms.values())


def test_inside_a_host_tensor_parallel_ranks_send_nothing_out(plan):
    asked = "traffic --gpt 2,64,4,1000 --context 32 --ranks 8 --batch-size 3 --stage 3 --tensor-size 4"
    inside, across = (plan(f"{asked} --ranks-per-host {each}")[0] for each in (4, 2))
    forms = {name: form["bytes"] for name, form in inside["formulas"].items()}
    assert inside["host_bytes"] == 4 * forms["a step"] and inside["sent_bytes"] == across["sent_bytes"]
    shared = forms["tensor ranks: activations"] + forms["tensor ranks: gradients of copies"]
    assert across["host_bytes"] == 2 * forms["a step"] + shared  # one of two ranks is the last of its host


@pytest.mark.parametrize("tensor", [1, 2, 3, 4, 6])
def test_the_busiest_host_is_among_those_that_are_looked_at(tensor):
    for replicate, shard in product(range(1, 5), repeat=2):
        mesh = MeshShape(replicate, shard, tensor)
        for per_host in range(1, mesh.ranks):
            every = [range(begin, min(begin + per_host, mesh.ranks)) for begin in range(0, mesh.ranks, per_host)]
            for axis in Axis:
                most = max(sum(mesh.successor(rank, axis) not in host for rank in host) for host in every)
                assert max(host[axis] for host in leaving(mesh, per_host)) == most


# -- seconds ----------------------------------------------------------------------------------------------------------


def test_costs_of_what_ranks_share_by_hand():
    """An all-reduce of b s h elements of 2 bytes among 4, inside a host."""
    model, machine = SMALL.divide(4), Machine(intra_alpha=1e-6)
    made = set_up(model.spec, 8, StepSettings("3", tensor_size=4, recompute=True, partition_activations=True))
    table = model.activations(OURS, 3, "float16")
    costs = machine_costs(model, made.geometry, machine, 96, 8, table)
    flow = 2 * 96 * 64
    ring = 3 * 1e-6 + flow / 4 * 3 / 450e9
    assert costs.all_reduce_activation == pytest.approx([2 * ring] * 9 + [0])
    assert costs.all_reduce_input_grad == pytest.approx([0] + [2 * ring] * 9)
    assert costs.gather_kept == pytest.approx([0] + [ring] * 9)
    assert set(costs.all_gather_loss) == {3 * 1e-6 + 3 * 96 * 4 * 3 / 450e9}
    copied = [unit for unit, layout in enumerate(made.wrapping.units) if layout.copied]
    kept = made.wrapping.units[copied[0]].padded_numel // 2  # of 2 shards
    assert costs.all_reduce_copied[copied[0]] == pytest.approx(6 * 1e-6 + 2 * 2 * kept / 4 * 3 / 450e9)
    slow = machine_costs(model, made.geometry, machine, 96, 2, table)  # each ring leaves both its hosts
    assert slow.gather_kept[1] == pytest.approx(3 * 1e-5 + flow / 4 * 3 / 50e9)


def test_a_timeline_draws_them_on_a_stream_of_their_own():
    """The very sum of what they cost, one after the other: the next computation needs each."""
    model = SMALL.divide(2)
    made = set_up(model.spec, 4, StepSettings("3", tensor_size=2))
    table = model.activations(OURS, 3, "float16")
    costs = machine_costs(model, made.geometry, Machine(), 96, 8, table)
    timeline = simulate(made.lists.step(), made.geometry, costs)
    copied = [unit for unit, layout in enumerate(made.wrapping.units) if layout.copied]
    assert TENSOR in timeline.streams
    assert timeline.busy(TENSOR) == pytest.approx(
        math.fsum([*costs.all_reduce_activation, *costs.all_reduce_input_grad, costs.all_gather_loss[0],
                   *(costs.all_reduce_copied[unit] for unit in copied)]))


def test_timeline_takes_it_too(plan):
    asked = "timeline --gpt 2,64,4,1000 --context 32 --ranks 4 --batch-size 2"
    plain, divided = plan(asked)[0], plan(f"{asked} --tensor-size 2 --recompute --partition-activations")
    found, out = divided
    assert {event["stream"] for event in found["events"]} - {event["stream"] for event in plain["events"]} == {"tensor"}
    assert found["tensor_size"] == 2 and "F 2, T 2" in out
    assert any(event["action"].startswith("GatherKept") for event in found["events"])


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked, words", [
    ("memory --params 1e6 --ranks 4 --tensor-size 2", "--tensor-size 2 divides heads, columns and vocabulary, which a "
                                                      "model of 32 equal units does not tell"),
    ("memory --gpt 1,8,4,9 --ranks 4 --tensor-size 2", "--tensor-size 2 does not divide the vocabulary of 9"),
    ("memory --gpt 1,9,3,8 --ranks 4 --tensor-size 2", "--tensor-size 2 does not divide heads 3"),
    ("memory --gpt 1,8,4,8 --ranks 3 --tensor-size 2", "replicate * shard * tensor(2) = 3 ranks has no solution"),
    ("memory --gpt 1,8,4,8 --ranks 4 --tensor-size 2 --tiles 2", "both cut the same matrices"),
    ("memory --gpt 1,8,4,8 --ranks 4 --tensor-size 2 --partition-activations", "add --recompute"),
    ("traffic --gpt 1,8,4,8 --ranks 4 --tensor-size 2", "whose bytes follow from --batch-size: name it"),
    ("timeline --tensor-size 2", "--tensor-size is of a model, and none is named"),
    ("timeline --model 13b --ranks 4 --tensor-size 2", "--tensor-size 2 divides heads, columns and vocabulary"),
])
def test_what_cannot_be_is_a_sentence(capsys, asked, words):
    from mpizero.plan.__main__ import main
    assert main(asked.split()) == 2
    out, err = capsys.readouterr()
    assert words in err and not out and err.count("\n") == 1
