"""Where memory goes: model states, ZeRO's tables, activations, buffers, fragments. Needs neither ranks nor MPI.

Bytes of model states are planned by walking the actions that a rank would run; 02_zero_stages.py counts the same bytes
on real ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import claims
from claims import Demo, between, equal, holds, rounds_to

import figures
from mpizero.layout import wrap
from mpizero.papers import activations as act
from mpizero.papers import fragmentation, states
from mpizero.papers.states import GB, NAMES, stage_bytes
from mpizero.planner import MemoryPlan, plan_memory
from mpizero.planner.model import PlannedModel, flat, mlp
from mpizero.schedule import StepSettings, set_up
from mpizero.text import in_units, table

EXAMPLE = "python scripts/01_memory.py --json memory.json"
BILLION, TRILLION = 10**9, 10**12
SMALL = {"hidden": 1600, "batch": 32, "seq": 1024, "layers": 48}  # GPT-2 of 1.5B
LARGE = {"hidden": 8192, "batch": 32, "seq": 1024, "layers": 125}  # 100B


def bytes_per_parameter() -> Demo:
    """Demo 1."""
    plan, units = _planned(mlp(), "0", 4), wrap(mlp().spec, 4).units
    each, gpt2, kept = states.STATES, 1_500_000_000, states.bytes_per_parameter
    zero, lecture = "lecture 2.3; ZeRO sec. 3.1", "lecture 2.3"
    return Demo("Bytes of each parameter in mixed-precision Adam", "2.3", [
        equal("Model states as ZeRO counts them: 2 + 2 + K", zero, 16, kept(), "bytes a parameter"),
        equal("K: optimizer states, which only the update needs", zero, 12,
              each["master"] + each["exp_avg"] + each["exp_avg_sq"], "bytes a parameter"),
        equal("With a resident float32 gradient", "lecture 2.3; ZeRO-Infinity sec. 3; DeepSpeed's report", 20,
              kept(fp32_grad=True), "bytes a parameter"),
        equal("So 1B parameters take, on each GPU", lecture, 20.0, kept(fp32_grad=True) * BILLION / GB, "GB"),
        equal("Data parallelism of the 5-layer MLP, right after backward", lecture, 16.0,
              plan.after_backward_bytes / mlp().spec.psi, "bytes a parameter", how="planned"),
        equal("The float32 gradient lives for one unit's update: the peak is higher by 4 bytes a parameter of the "
              "largest unit", lecture, 4 * max(unit.numel for unit in units),
              plan.peak_bytes - plan.after_backward_bytes, "bytes", how="planned"),
        equal("GPT-2 of 1.5B: its float16 parameters", zero, 3.0, gpt2 * each["param"] / GB, "GB"),
        equal("GPT-2 of 1.5B: but its training takes, without activations", zero, 24.0, gpt2 * kept() / GB, "GB"),
        equal("GPT-2 of 1.5B: training over parameters", lecture, 8, kept() // each["param"], "times"),
    ], table(["state", "bytes", "type"], [[name, size, f"float{8 * size}"] for name, size in each.items()]),
        data={"states": each, "after_backward": plan.after_backward_bytes, "peak": plan.peak_bytes})


def table_1() -> Demo:
    """Demo 2."""
    cells, seven = states.table_1(), 7_500_000_000
    worst = max(cells, key=lambda cell: cell.difference)
    off = sum(abs(cell.computed - cell.printed) >= _last_digit(cell.printed / GB) * GB for cell in cells)
    floor = states.form("1")[0] * seven / GB
    walked = {stage: _planned(flat(seven), stage, 64).after_backward_bytes for stage in "0123"}
    source = "lecture 2.4; ZeRO table 1"
    return Demo("ZeRO's table 1, from the formulas", "2.4", [
        equal("Values in the table", source, 54, len(cells)),
        rounds_to("Largest relative difference to a printed value", source, "2.34",
                  100 * states.largest_difference(cells), "%"),
        holds("The value that differs most: 7.5B, P_os+g+p, 1024 ranks", source, "0.117 printed as 0.12",
              f"{worst.computed / GB:.4f} printed as {worst.printed / GB:g}", worst.computed == seven * 16 / 1024),
        equal("Printed values that are not the computed one, rounded or cut off", source, 0, off),
        *[rounds_to(f"7.5B on 64 ranks, {NAMES[stage]}", source, printed, stage_bytes(seven, stage, 64) / GB, "GB")
          for stage, printed in zip("0123", ("120", "31.4", "16.6", "1.88"), strict=True)],
        *[rounds_to(f"13B on 64 ranks, {NAMES[stage]}", "lecture exercise 1", printed,
                    stage_bytes(13 * BILLION, stage, 64) / GB, "GB")
          for stage, printed in zip("0123", ("208", "54.4", "28.8", "3.25"), strict=True)],
        rounds_to("1T on 1024 ranks, P_os+g+p", source, "15.6", stage_bytes(TRILLION, "3", 1024) / GB, "GB"),
        between("1T on 1024 ranks fits a V100 of 32 GB", "lecture 2.4", None, 32, stage_bytes(TRILLION, "3", 1024) / GB,
                "GB"),
        holds("Stage 1 has a floor: 7.5B never takes less than", "lecture 2.4", "30 GB on any number of ranks",
              f"{floor:g} GB; on a million ranks {stage_bytes(seven, '1', 10**6) / GB:.4f} GB", floor == 30),
        equal("7.5B on 64 ranks: walking the actions of a step gives the formulas' bytes", "lecture 3.5; ZeRO sec. 5",
              [stage_bytes(seven, stage, 64) for stage in walked], list(walked.values()), "bytes", how="planned"),
    ], _show_table_1(cells),
        "for the walk, 7.5B parameters are cut into 32 equal units; the formulas need no units.",
        {"01-model-states": lambda: figures.model_states(seven, cells)},
        {"cells": [vars(cell) for cell in cells], "planned_7.5B_64": walked})


def _planned(model: PlannedModel, stage: str, ranks: int) -> MemoryPlan:
    """A step of `model`, from the very list that ranks run."""
    step = set_up(model.spec, ranks, StepSettings(stage))
    return plan_memory(step.lists.step(), step.geometry)


def _show_table_1(cells: list[states.Cell]) -> str:
    """A row of computed values above each row of the paper's."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        for who, value in (("ours", cell.computed), ("ZeRO", cell.printed)):
            name = f"{NAMES[cell.stage]}: {states.form_text(cell.stage)}"
            rows.setdefault((cell.label, name, who), []).append(f"{value / GB:,.5g}")
    header = ["psi", "bytes on a rank", "GB", *[f"N = {ranks}" for ranks in states.TABLE_1_RANKS]]
    return table(header, [[*key, *row] for key, row in rows.items()])


def _last_digit(printed: float) -> float:
    """One unit of the last digit that is printed: 0.1 of 31.4."""
    return 10.0 ** -len(f"{printed:.12g}".partition(".")[2])


def table_2() -> Demo:
    """Demo 3."""
    cells, source = states.table_2(), "lecture 2.5; ZeRO table 2"
    by = {(cell.count, cell.stage): cell.computed / BILLION for cell in cells}
    rows = [[f"{mp} x {states.TABLE_2_RANKS}",
             *[f"{by[mp, stage]:.5g}, {states.TABLE_2[mp][stage]:g}" for stage in "0123"], f"{ran:g}"]
            for mp, ran in states.TABLE_2_MEASURED.items()]
    return Demo("ZeRO's table 2: the largest model in devices of 32 GB", "2.5", [
        *[rounds_to(f"MP 1, 64 ranks, {NAMES[stage]}", source, printed, by[1, stage], "billion parameters")
          for stage, printed in zip("0123", ("2", "7.6", "14.4", "128"), strict=True)],
        rounds_to("MP 16, 1024 devices, P_os+g+p: 2T", source, "2.0", by[16, "3"] / 1000, "trillion parameters"),
        equal("MP 16, the other three: the paper multiplies what it printed for MP 1", source, [32.0, 121.6, 230.4],
              [round(16 * round(by[1, stage], 1), 1) for stage in "012"], "billion parameters"),
        between("Largest difference of the 20 values to the paper's, which prints 1T and 2T for 1.02T and 2.05T",
                source, None, 2.5, 100 * states.largest_difference(cells), "%"),
        between("What really ran with P_os at MP 1 is below the theory, for activations, buffers and fragments take "
                "room", source, None, by[1, "1"], states.TABLE_2_MEASURED[1], "billion parameters", how="published"),
    ], table(["MP x N_d", *[NAMES[stage] for stage in "0123"], "ran (P_os)"], rows)
        + "\nbillions of parameters: ours, the paper's",
        data={"cells": [vars(cell) for cell in cells]})


def activations_and_buffers() -> Demo:
    """Demo 4."""
    whole, kept = 2 * act.transformer_activations(**SMALL), act.recompute_checkpoints(**SMALL)
    large = act.recompute_checkpoints(**LARGE)
    split = act.partitioned(large, 16)
    megatron, gather = act.partitioned_traffic(LARGE["seq"], LARGE["hidden"])
    sizes = {"1.5B": 1_500_000_000, "3B": 3 * BILLION, "175B": 175 * BILLION}
    fused = {name: states.fused_buffer(psi) for name, psi in sizes.items()}
    operator = {hidden: states.working_memory(hidden) for hidden in (8192, 65_536)}
    half, buffers = "lecture 6.1; ZeRO sec. 6.1", "lecture 6.2; ZeRO sec. 3.2, 6.2"
    working = "lecture 6.4; ZeRO-Infinity sec. 3"
    rows = _activation_rows(whole, kept, large, split) + _buffer_rows(fused, operator)
    return Demo("Activations, temporary buffers, working memory", "6.1, 6.2, 6.4", [
        rounds_to("1.5B, batch 32: 12 hd batch seq layers elements of float16 are about", "lecture 6.1; ZeRO sec. 3.2",
                  "60", whole / GB, "GB"),
        rounds_to("1.5B: recompute keeps 2 bsz seq hd nl / ci bytes", "lecture 6.1 (its formula); ZeRO-Infinity sec. 3",
                  "5.03", kept / GB, "GB"),
        rounds_to("100B, MP 16: recompute keeps on each device, by that formula", "lecture 6.1", "67.1", large / GB,
                  "GB"),
        rounds_to("100B, MP 16: the same partitioned among the 16 devices (P_a)", "lecture 6.1", "4.2", split / GB,
                  "GB"),
        rounds_to("ZeRO prints 33 GB for the former: the formula gives, for no stated reason, more by a factor of",
                  half, "2.0", large / act.PRINTED_100B_CHECKPOINTS),
        rounds_to("ZeRO prints 2 GB for the latter: the formula gives more by a factor of", half, "2.1",
                  split / act.PRINTED_100B_PARTITIONED),
        between("P_a sends seq hd a block, beside Megatron's 12 seq hd", "lecture 6.1; ZeRO sec. 8", None, 10,
                100 * gather / megatron, "% more"),
        *[rounds_to(f"All gradients of {name} fused in float32", buffers, printed, fused[name] / GB, "GB")
          for name, printed in (("1.5B", "6"), ("3B", "12"), ("175B", "700"))],
        *[rounds_to(f"Parameters and gradients of a Linear hd -> 4 hd, hd = {hidden:,}", working, printed,
                    operator[hidden] / GB, "GB")
          for hidden, printed in ((8192, "1.1"), (65_536, "68.7"))],
    ], table(["what", "ours", "printed"], rows),
        "1.5B is 48 blocks of width 1600, 100B is 125 blocks of width 8192; sequence 1024, one checkpoint a block. The "
        "lecture's table is lost: its formulas are computed here. ZeRO's 8 GB follow another rule, about the square "
        "root of all activations. Both ZeRO's 33 and 2 GB and the formula's values are reported; nothing is fitted.",
        data={"rows": rows})


def _activation_rows(whole: int, kept: int, large: int, split: int | float) -> list[list[str]]:
    return [["1.5B: all activations", in_units(whole), "about 60 GB"],
            ["1.5B: recompute, an input of each block", in_units(kept), "about 8 GB, by another rule"],
            ["100B: recompute, on each of 16 devices", in_units(large), in_units(act.PRINTED_100B_CHECKPOINTS)],
            ["100B: recompute, partitioned (P_a)", in_units(split), in_units(act.PRINTED_100B_PARTITIONED)]]


def _buffer_rows(fused: Mapping[str, int], operator: Mapping[int, int]) -> list[list[str]]:
    return [*[[f"{name}: fused float32 buffer", in_units(nbytes), in_units(nbytes)] for name, nbytes in fused.items()],
            *[[f"one operator, hd = {hidden:,}", in_units(nbytes), printed]
              for (hidden, nbytes), printed in zip(operator.items(), ("1.1 GB", "68.7 GB"), strict=True)]]


def fragments() -> Demo:
    """Demo 5."""
    plain, arena = fragmentation.forward(arena=False), fragmentation.forward(arena=True)
    source = "lecture 6.3; ZeRO sec. 3.2, 6.3"
    rows = [["copied into an arena" if each.arena else "where they come", each.capacity, each.free,
             100 * each.free_share, each.largest_hole, each.request, each.succeeds] for each in (plain, arena)]
    return Demo("Out of memory with a third of it free", "6.3", [
        between("Free when a request fails all the same", source, 30, None, 100 * plain.free_share, "%"),
        holds("A request of less than half of what is free", source, "fails",
              f"{_outcome(plain)}: {plain.request} of {plain.free}, but no hole is larger than {plain.largest_hole}",
              not plain.succeeds and plain.request < plain.free / 2),
        holds("The same request, with checkpoints copied into one contiguous block (M_D)", source, "succeeds",
              f"{_outcome(arena)}: the largest hole is {arena.largest_hole}",
              arena.succeeds and arena.free == plain.free),
    ], table(["checkpoints", "capacity", "free", "free %", "largest hole", "request", "succeeds"], rows),
        f"a first-fit allocator of {plain.capacity} units and {fragmentation.LAYERS} layers with temporaries of our "
        "own sizes: the lecture's are lost. It reports 44 % free, a largest hole of 260 and a request of 400 that "
        "fails.",
        {"01-fragments": lambda: figures.fragments(plain, arena)}, {"outcomes": [vars(plain), vars(arena)]})


def _outcome(each: fragmentation.Outcome) -> str:
    return "succeeds" if each.succeeds else "fails"


DEMOS = (bytes_per_parameter, table_1, table_2, activations_and_buffers, fragments)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every claim agrees."""
    asked = claims.options(__doc__, EXAMPLE, len(DEMOS), argv)
    return claims.tell(asked, __doc__, DEMOS)


if __name__ == "__main__":
    claims.alone(main)
