"""Where memory goes: model states, ZeRO's tables, activations, buffers, fragments. Needs neither ranks nor MPI.

With --runs, what the ranks of small_runs.py counted stands beside the formulas.

Bytes of model states are planned by walking the actions that a rank would run, and held against closed forms and what
the papers print; 02_zero_stages.py counts the same bytes on real ranks. Demos 4 and 5 stand in residual.py, demo 6 in
small_updates.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import claims
import counted
from claims import Demo, between, definition, equal, holds, of_kind, rounds_to
from residual import activations_and_buffers, fragments
from small_updates import small_updates

import figures
from mpizero.papers import compare, states
from mpizero.papers.states import GB, NAMES
from mpizero.planner import MemoryPlan, plan_memory
from mpizero.planner.model import PlannedModel, flat, gpt, mlp
from mpizero.schedule import StepSettings, set_up
from mpizero.text import table

EXAMPLE = "python scripts/01_memory.py --json memory.json"
BILLION, TRILLION = 10**9, 10**12
FORMS = {"0": (16, 0), "1": (4, 12), "2": (2, 14), "3": (0, 16)}  # a psi + b psi/N: the lecture's formulas
CUT = 4  # equal units of a model of which only the size is known; the formulas need none


def bytes_per_parameter(runs: counted.Runs) -> Demo:
    """Demo 1."""
    model, gpt2 = mlp(), gpt(48, 1600, 25, 50_257)
    plan, half, shaped = (_planned(each, "0", 4) for each in (model, flat(1_500_000_000), gpt2))
    kinds = [plan.after_backward[kind] / model.spec.psi for kind in ("param", "grad", "optim")]
    zero_2 = compare.deepspeed(BILLION, 1, "2", 0)
    others = [zero_2.device_bytes / BILLION if zero_2 else 0.0,
              compare.megatron(BILLION, 1, "1", "float16")[0].device_bytes / BILLION]
    zero, lecture = "lecture 2.3; ZeRO sec. 3.1", "lecture 2.3"
    return Demo("Bytes of each parameter in mixed-precision Adam", "1, 2.3", [
        definition("Parameters, gradients, and K for optimizer states: master weights, two moments", zero, [2, 2, 12],
                   "bytes a parameter"),
        *of_kind("planned", equal("The 5-layer MLP under data parallelism keeps of parameters, gradients, optimizer "
                                  "states, right after backward", zero, [2.0, 2.0, 12.0], kinds, "bytes a parameter"),
                 equal("The float32 gradient lives for one unit's update: the peak is higher by 4 bytes a parameter of "
                       "the largest, which has 9312", lecture, 37_248, plan.peak_bytes - plan.after_backward_bytes,
                       "bytes"),
                 between("GPT-2 of 1.5B: 48 blocks of width 1600 have", zero, 1.5, 1.6, gpt2.spec.psi / BILLION,
                         "billion parameters"),
                 equal("1.5B parameters take in float16", zero, 3.0, half.after_backward["param"] / GB, "GB"),
                 equal("but their training takes, without activations", zero, 24.0, half.after_backward_bytes / GB,
                       "GB"),
                 equal("GPT-2, tensor by tensor: training over parameters", lecture, 8.0,
                       shaped.after_backward_bytes / shaped.after_backward["param"], "times"),
                 between("So from GPT-2 on a card of 16 GB does not hold the states (one of 32 GB does)", "lecture 1",
                         16, 32, shaped.after_backward_bytes / GB, "GB")),
        *counted.states(runs),
        equal("With a resident float32 gradient: what DeepSpeed's and Megatron's own formulas give for one rank",
              "lecture 2.3; ZeRO-Infinity sec. 3", [20.0, 20.0], others, "bytes a parameter", kind="published"),
        definition("So 1B parameters take, on each GPU", lecture,
                   states.bytes_per_parameter(fp32_grad=True) * BILLION / GB, "GB"),
    ], table(["state", "bytes", "type"], [[name, size, f"float{8 * size}"] for name, size in states.STATES.items()]),
        "1.5B is rounded down: the shape has 1.56B. Our runs keep no float32 gradient, so the 20 bytes are others'.",
        data={"states": states.STATES, "after_backward": plan.after_backward_bytes, "peak": plan.peak_bytes})


def table_1() -> Demo:
    """Demo 2."""
    cells, seven = states.table_1(), 7_500_000_000
    sizes = {cell: int(float(cell.label[:-1]) * BILLION) for cell in cells}
    walked = {cell: _walk(sizes[cell], cell.stage, cell.count) for cell in cells}
    apart = {cell: abs(walked[cell] - cell.printed) / cell.printed for cell in cells}
    worst = max(cells, key=apart.__getitem__)
    off = sum(abs(walked[cell] - cell.printed) >= _last_digit(cell.printed / GB) * GB for cell in cells)
    padded = max(abs(walked[cell] - cell.computed) / (16 * CUT * cell.count) for cell in cells)
    fits = [stage for stage in "0123" if _walk(13 * BILLION, stage, 64) <= 80 * GB]
    shrink = {stage: _walk(seven, stage, 64) / _walk(seven, stage, 1024) for stage in "123"}
    source = "lecture 2.4; ZeRO table 1"
    return Demo("ZeRO's table 1, by walking a step for each of its 54 values", "2.4", [
        equal("Formulas from the strategies' placements, a psi + b psi/N: those of the lecture", "lecture 2.4, 9",
              [FORMS[stage] for stage in "0123"], [states.form(stage) for stage in "0123"]),
        holds("Walking the actions of a step gives the formulas' bytes, but for padding: 54 values",
              "lecture 3.5; ZeRO sec. 5", "less than N elements of 16 bytes a unit",
              f"at most {padded:.3g} N", padded < 1, kind="planned"),
        *of_kind("planned", rounds_to("Largest relative difference to a printed value", source, "2.34",
                                      100 * apart[worst], "%"),
                 holds("The value that differs most: 7.5B, P_os+g+p, 1024 ranks", source, "0.117 printed as 0.12",
                       f"{walked[worst] / GB:.3f} printed as {worst.printed / GB:g}",
                       (sizes[worst], worst.stage, worst.count) == (seven, "3", 1024)),
                 equal("Printed values that are not the planned one, rounded or cut off", source, 0, off),
                 *[rounds_to(f"7.5B on 64 ranks, {NAMES[stage]}", source, printed, _walk(seven, stage, 64) / GB, "GB")
                   for stage, printed in zip("0123", ("120", "31.4", "16.6", "1.88"), strict=True)],
                 *[rounds_to(f"13B on 64 ranks, {NAMES[stage]}", "lecture exercise 1", printed,
                             _walk(13 * BILLION, stage, 64) / GB, "GB")
                   for stage, printed in zip("0123", ("208", "54.4", "28.8", "3.25"), strict=True)],
                 equal("13B on 64 cards of 80 GB: stages that fit", "lecture exercise 1", "1 2 3", " ".join(fits)),
                 between("13B, stage 1 leaves of 80 GB for activations and buffers about 25: between",
                         "lecture exercise 1", 25, 26, 80 - _walk(13 * BILLION, "1", 64) / GB, "GB"),
                 rounds_to("1T on 1024 ranks, P_os+g+p: fits a V100 of 32 GB", source, "15.6",
                           _walk(TRILLION, "3", 1024) / GB, "GB"),
                 between("Stage 1 has a floor of 30 GB: 7.5B on a million ranks", "lecture 2.4", 30, 30.1,
                         _walk(seven, "1", 2**20) / GB, "GB"),
                 holds("Stage 3 alone falls in proportion: 7.5B from 64 to 1024 ranks", "lecture 2.4",
                       "16 times; stages 1 and 2 have floors",
                       ", ".join(f"stage {stage}: {value:.4g}" for stage, value in shrink.items()) + " times",
                       round(shrink["3"], 3) == 16 and max(shrink["1"], shrink["2"]) < 1.2)),
    ], _show_table_1(cells), f"models of which only the size is known are cut into {CUT} equal units.",
        {"01-model-states": lambda: figures.model_states(seven, cells)},
        {"cells": [{**vars(cell), "walked": walked[cell]} for cell in cells]})


def _planned(model: PlannedModel, stage: str, ranks: int) -> MemoryPlan:
    """A step of `model`, from the very list that ranks run."""
    step = set_up(model.spec, ranks, StepSettings(stage))
    return plan_memory(step.lists.step(), step.geometry)


@cache
def _walk(psi: int, stage: str, ranks: int) -> int:
    """Bytes of model states after backward on a rank, of `psi` parameters in equal units."""
    return _planned(flat(psi, CUT), stage, ranks).after_backward_bytes


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
    cells, source, printed = states.table_2(), "lecture 2.5; ZeRO table 2", states.TABLE_2
    by = {(cell.count, cell.stage): cell.computed / BILLION for cell in cells}
    most = {stage: _largest(stage) / BILLION for stage in "0123"}
    ran = {mp: 100 * size / (mp * most["1"]) for mp, size in states.TABLE_2_MEASURED.items()}
    rows = [[f"{mp} x {states.TABLE_2_RANKS}", *[f"{by[mp, stage]:.5g}, {row[stage]:g}" for stage in "0123"],
             f"{states.TABLE_2_MEASURED[mp]:g}"] for mp, row in printed.items()]
    return Demo("ZeRO's table 2: the largest model in devices of 32 GB", "2.5", [
        *of_kind("planned", *[
            rounds_to(f"MP 1, 64 ranks, {NAMES[stage]}: the largest model whose plan fits", source, size, most[stage],
                      "billion parameters")
            for stage, size in zip("0123", ("2", "7.6", "14.4", "128"), strict=True)],
            rounds_to("MP 16, 1024 devices, P_os+g+p: 2T", source, "2.0", 16 * most["3"] / 1000,
                      "trillion parameters")),
        between("Division, 32 GB over the formulas' bytes a parameter, finds other models than the search: by", "ours",
                None, 0.1, max(100 * abs(most[stage] / by[1, stage] - 1) for stage in "0123"), "%"),
        equal("MP 16: the paper multiplies what it printed for MP 1, but for 2T", source,
              [printed[16][stage] for stage in "012"], [round(16 * printed[1][stage], 1) for stage in "012"],
              "billion parameters", kind="published"),
        between("Largest difference of the 20 values by division to the paper's, which prints 1T for 1.02T: at most "
                "that of 1.024", source, None, 2.4000001, 100 * states.largest_difference(cells), "%"),
        holds("What really ran with P_os at MP 1 (6.2B) is below the theory, for activations, buffers and fragments "
              "take room: at every MP the same share of it, within a point", source, "one share, below 100 %",
              ", ".join(f"MP {mp}: {share:.1f} %" for mp, share in ran.items()),
              max(ran.values()) < 100 and max(ran.values()) - min(ran.values()) < 1, kind="published"),
    ], table(["MP x N_d", *[NAMES[stage] for stage in "0123"], "ran (P_os)"], rows)
        + "\nbillions of parameters: ours, the paper's",
        data={"cells": [vars(cell) for cell in cells], "searched": most})


def _largest(stage: str) -> int:
    """Parameters of the largest model whose plan fits 32 GB on each of 64 ranks, to one part in ten thousand."""
    fits, fails = 0, 2**38
    while fails - fits > fails // 10_000:
        middle = (fits + fails) // 2
        if _planned(flat(middle, CUT), stage, states.TABLE_2_RANKS).after_backward_bytes <= states.TABLE_2_DEVICE:
            fits = middle
        else:
            fails = middle
    return fits


COUNTED = (bytes_per_parameter, activations_and_buffers)
DEMOS = (bytes_per_parameter, table_1, table_2, activations_and_buffers, fragments, small_updates)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every claim agrees."""
    asked = claims.options(__doc__, EXAMPLE, len(DEMOS), argv, runs=True)
    return claims.tell(asked, __doc__, [partial(demo, asked.runs) if demo in COUNTED else demo for demo in DEMOS])


if __name__ == "__main__":
    claims.alone(main)
