"""ZeRO-R: activations, temporary buffers, working memory, fragments. Demos 4 and 5 of 01_memory.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import counted
from claims import Claim, Demo, between, definition, equal, holds, of_kind, rounds_to

import figures
from mpizero.layout import Axis, ModelSpec, ParamSpec, SegmentSpec
from mpizero.papers import activations as act
from mpizero.papers import fragmentation, states
from mpizero.papers.states import GB
from mpizero.planner import plan_memory
from mpizero.planner.model import PlannedModel, flat, gpt
from mpizero.planner.traffic import plan_traffic
from mpizero.quantities import in_units
from mpizero.schedule import StepSettings, set_up
from mpizero.schedule.actions import AllReduceGrad, Unshard
from mpizero.text import table

SMALL = {"hidden": 1600, "batch": 32, "seq": 1024, "layers": 48}  # GPT-2 of 1.5B
LARGE = {"hidden": 8192, "batch": 32, "seq": 1024, "layers": 125}  # 100B
BUFFERS = {"1.5B": (1_500_000_000, 6), "3B": (3 * GB, 12), "175B": (175 * GB, 700)}  # parameters, GB fused as printed
PIECE = 2.0  # GB: ZeRO-Infinity's contiguous pieces of memory


def activations_and_buffers(runs: counted.Runs) -> Demo:
    """Demo 4."""
    whole, kept, large = (2 * act.transformer_activations(**SMALL), act.recompute_checkpoints(**SMALL),
                          act.recompute_checkpoints(**LARGE))
    split, printed = act.partitioned(large, 16), act.PRINTED_100B_CHECKPOINTS
    operator = {hidden: _operator(hidden) for hidden in (8192, 16_384, 65_536)}
    extra = [_excess(flat(psi)) for psi, _ in BUFFERS.values()]
    source, buffers, working = "lecture 6.1; ZeRO sec. 6.1", "lecture 6.2; ZeRO sec. 3.2, 6.2", "lecture 6.4"
    rows = _rows(whole, kept, large, split, operator)
    return Demo("Activations, temporary buffers, working memory", "6.1, 6.2, 6.4", [
        rounds_to("1.5B, batch 32: 12 hd batch seq layers elements of float16 are about", "ZeRO sec. 3.2", "60",
                  whole / GB, "GB"),
        definition("1.5B: recompute keeps 2 bsz seq hd nl / ci bytes, a twelfth of that",
                   "formula of lecture 6.1; ZeRO-Infinity sec. 3", kept / GB, "GB"),
        between("125 blocks of width 8192 are 100B: parameters of their tensors, without embeddings",
                "lecture 6.1; ZeRO", 100, 101, 125 * _block(8192) / GB, "billion", kind="planned"),
        rounds_to("100B, MP 16: recompute keeps on each device, by that formula", "lecture 6.1", "67.1", large / GB,
                  "GB"),
        rounds_to("100B, MP 16: the same partitioned among the 16 devices (P_a)", "lecture 6.1", "4.2", split / GB,
                  "GB"),
        rounds_to("ZeRO prints 33 GB for the former; over the 16 devices that is, as it prints too", source, "2",
                  printed / 16 / GB, "GB", kind="published"),
        equal("Megatron's six all-reduces a block send so many times what P_a's one all-gather does: less than 10 % "
              "more", "lecture 6.1; ZeRO sec. 8", 12.0, _six_over_one(), "times", kind="planned"),
        definition("All gradients of 1.5B, 3B, 175B fused in float32, 4 psi bytes", buffers,
                   [size for _, size in BUFFERS.values()], "GB"),
        holds("A buffer of constant size (C_B) does not grow with the model: the update's float32 gradient",
              "lecture 6.2", "the same for 1.5B, 3B, 175B; not above DDP's 25 MB",
              ", ".join(f"{nbytes:,}" for nbytes in extra) + " bytes",
              len(set(extra)) == 1 and 0 < extra[0] <= 25_000_000, kind="planned"),
        *_operators(operator, working), *counted.residual(runs),
    ], table(["what", "ours", "printed"], rows),
        "1.5B is 48 blocks of width 1600, 100B is 125 of 8192; sequence 1024, batch 32, one checkpoint a block. The "
        "lecture's table is lost: its formulas are computed here. ZeRO's 8 GB follow another rule, about the square "
        "root of all activations. The formula gives twice ZeRO's 33 and 2 GB, for no stated reason: both are reported. "
        "Nor is the published tiling factor of 16 at hd 64K: by the formula a tile takes 4.29 GB, as much as the whole "
        "operator at 16K, which is said not to fit.",
        data={"rows": rows, "excess": extra})


def _operators(operator: Mapping[int, int], working: str) -> list[Claim]:
    source = f"{working}; ZeRO-Infinity sec. 3"
    return [
        *of_kind("planned", *[
            rounds_to(f"A Linear hd -> 4 hd, hd = {hidden:,}: parameters and gradients whole, in its backward", source,
                      printed, operator[hidden] / GB, "GB") for hidden, printed in ((8192, "1.1"), (65_536, "68.7"))]),
        holds("The closed form of it, 4 hd 4 hd bytes, gives the same", source, "the same",
              ", ".join(in_units(states.working_memory(hidden)) for hidden in operator),
              all(states.working_memory(hidden) == nbytes for hidden, nbytes in operator.items())),
        holds("In pieces of 2 GB, without tiling, hd = 8K is the largest power of two that fits",
              f"{working}; ZeRO-Infinity sec. 8", "8K fits, 16K does not",
              ", ".join(f"{hidden:,}: {in_units(operator[hidden])}" for hidden in (8192, 16_384)),
              operator[8192] <= PIECE * GB < operator[16_384], kind="planned"),
    ]


def _operator(hidden: int) -> int:
    """Bytes of a Linear hd -> 4 hd that its backward has whole: by walking a step at stage 3 on 16 ranks."""
    spec = ModelSpec((ParamSpec("fc.weight", (hidden, 4 * hidden)),), (SegmentSpec("fc", ("fc.weight",)),))
    step = set_up(spec, 16, StepSettings("3"))
    points = plan_memory(step.lists.step(), step.geometry).points
    return max(point.live["unsharded_param"] + point.live["unsharded_grad"] for point in points)


def _excess(model: PlannedModel) -> int:
    """Bytes of float32 gradient at the peak of data parallelism: what the update makes, by walking."""
    step = set_up(model.spec, 4, StepSettings("0"))
    return plan_memory(step.lists.step(), step.geometry).peak_by_kind["grad_fp32"]


def _block(hidden: int) -> int:
    """Parameters of a block of this width, with biases and norms."""
    return sum(param.numel for param in gpt(1, hidden, hidden // 64, 50_257).spec.params if param.name.startswith("h."))


def _six_over_one() -> float:
    """Bytes that a rank of 16 sends in six all-reduces of a unit, over those of one all-gather of it."""
    model = flat(2**20, 1).spec
    whole, parts = (set_up(model, 16, StepSettings(stage)).geometry for stage in "03")
    (reduce,), (gather,) = plan_traffic([AllReduceGrad(0, Axis.REPLICATE)], whole), plan_traffic([Unshard(0)], parts)
    return 6 * reduce.nbytes / gather.nbytes


def _rows(whole: int, kept: int, large: int, split: int | float, operator: Mapping[int, int]) -> list[list[str]]:
    return [["1.5B: all activations", in_units(whole), "about 60 GB"],
            ["1.5B: recompute, an input of each block", in_units(kept), "about 8 GB, by another rule"],
            ["100B: recompute, on each of 16 devices", in_units(large), in_units(act.PRINTED_100B_CHECKPOINTS)],
            ["100B: recompute, partitioned (P_a)", in_units(split), in_units(act.PRINTED_100B_PARTITIONED)],
            *[[f"{name}: fused float32 buffer", in_units(states.fused_buffer(psi)), f"{size} GB"]
              for name, (psi, size) in BUFFERS.items()],
            *[[f"one operator, hd = {hidden:,}", in_units(operator[hidden]), printed]
              for hidden, printed in ((8192, "1.1 GB"), (65_536, "68.7 GB"))]]


# -- fragments ---------------------------------------------------------------------------------------------------------


def fragments() -> Demo:
    """Demo 5."""
    plain, arena = fragmentation.forward(arena=False), fragmentation.forward(arena=True)
    source = "lecture 6.3; ZeRO sec. 3.2, 6.3"
    rows = [["copied into an arena" if each.arena else "where they come", each.capacity, each.free,
             100 * each.free_share, each.largest_hole, each.request, each.succeeds] for each in (plain, arena)]
    given = "sizes of ours"
    return Demo("Out of memory with a third of it free", "6.3", [
        *of_kind("simulated",
                 between("It happens that a request fails with so much free", source, 30, None, 100 * plain.free_share,
                         "%"),
                 holds("A request of less than half of what is free", source, "fails",
                       f"{_outcome(plain)}: {plain.request} of {plain.free}, but no hole is larger than "
                       f"{plain.largest_hole}", not plain.succeeds and plain.request < plain.free / 2),
                 holds("The same request, with checkpoints copied into one contiguous block (M_D)", source, "succeeds",
                       f"{_outcome(arena)}: the largest hole is {arena.largest_hole}",
                       arena.succeeds and arena.free == plain.free),
                 given=given),
    ], table(["checkpoints", "capacity", "free", "free %", "largest hole", "request", "succeeds"], rows),
        f"a first-fit allocator of {plain.capacity} units and {fragmentation.LAYERS} layers with temporaries of our "
        "own sizes: the lecture's are lost. It reports 44 % free, a largest hole of 260 and a request of 400 that "
        "fails. Demo 7 of 02_zero_stages.py has the same of a real step.",
        {"01-fragments": lambda: figures.fragments(plain, arena)}, {"outcomes": [asdict(plain), asdict(arena)]})


def _outcome(each: fragmentation.Outcome) -> str:
    return "succeeds" if each.succeeds else "fails"
