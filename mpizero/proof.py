"""What `verify` prints: tables of at most 100 columns, and how far it is."""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpizero.schedule import STRATEGIES
from mpizero.text import table

COLUMNS = 100
EVERY = 10.0  # seconds between lines that say how far it is, where they stay
Row = dict[str, Any]
COUNTED = (  # headings of columns, each with the key of a row, or several, of which all must be true
    ("after\nbackward", "after_backward"), ("= plan,\nformula", ("bytes_equal_plan", "bytes_equal_formula")),
    ("peak", "peak"), ("sent in\na step", "sent"),
    ("= plan,\nformula", ("traffic_equals_plan", "traffic_equals_formula")), ("messages", "messages"),
    ("replicas\nequal", "replicas_equal"),
)
OF_TENSOR = (*COUNTED[:4], ("\n= plan", "traffic_equals_plan"), *COUNTED[5:])
HEADINGS = [heading for heading, _ in COUNTED]
SAME = "same bits\nas stage 0"
DP = {"weights": "weights_equal_dp", "moments": "moments_equal_dp", "losses": "losses_equal_dp"}


def show_stages(rows: list[Row]) -> str:
    """Every stage with all ranks in one shard group."""
    return "bytes of model states and messages, of the rank that has most\n" + _table(
        ["stage", SAME, *HEADINGS], [[row["stage"], _same(row), *_counts(row)] for row in rows])


def show_hybrids(rows: list[Row]) -> str:
    """Replicas of shard groups."""
    return "\n" + _table(["hybrid:\nstage", "replicas\nx shards", SAME, *HEADINGS],
                         [[row["stage"], _mesh(row), _same(row), *_counts(row)] for row in rows])


def show_recompute(rows: list[Row]) -> str:
    """Stage 3 whose segments keep their inputs alone, one input for so many of them."""
    return "\n" + _table(["recompute:\nstage", "segments\nan input", SAME, "inputs\nkept", "= plan", *HEADINGS[2:]],
                         [[row["stage"], row["interval"], _same(row), row["kept_inputs"],
                           row["kept_inputs_equal_plan"] and row["bytes_equal_plan"], *_counts(row)[2:]]
                          for row in rows])


def show_offload(rows: list[Row]) -> str:
    """Stage 3 with something on the host or in files: all kinds of memory, workspace too."""
    names = {"optimizer": "optimizer", "params": "all states", "checkpoints": "kept inputs"}
    return "\n" + _table(["stage", "off the device", SAME, "device\npeak", "host\npeak", "nvme\npeak",
                          "moved,\nhost", "moved,\nnvme", "= plan", "replicas\nequal"],
                         [[row["stage"], "{}: {}".format(names[what], where), _same(row), row["device_peak"],
                           row["host_peak"], row["nvme_peak"], *row["moved"].values(),
                           row["tiers_equal_plan"] and row["moves_equal_plan"], row["replicas_equal"]]
                          for row in rows for what, where in [row["offload"].split(",")[0].split("=")]])


def show_tensor(rows: list[Row]) -> str:
    """Tensor parallel ranks at stages and meshes: without a formula for what they send."""
    return "bytes of model states and messages, of the rank that has most\n" + _table(
        ["stage", "replicas x\nshards x T", SAME, *(heading for heading, _ in OF_TENSOR)],
        [[row["stage"], _mesh(row), _same(row), *_counts(row, OF_TENSOR)] for row in rows])


def show_kept(rows: list[Row]) -> str:
    """Recompute of one rank alone, of tensor parallel ranks, and of these with a part of each input. What one rank
    keeps has T parts."""
    return "\n" + _table(["recompute at stage 3,\ninputs kept", "T", SAME, "inputs\nkept", "= plan", "1 / T",
                          "sent in\na step", "= plan"],
                         [[row["kept_as"], row["tensor_size"], _same(row), row["kept_inputs"],
                           row["kept_inputs_equal_plan"] and row["bytes_equal_plan"], row.get("keeps_its_share", "-"),
                           row["sent"], row["traffic_equals_plan"]] for row in rows])


def show_whole(rows: list[Row]) -> str:
    """Meshes against one process."""
    mesh = "replicas x\nshards x T" if rows[0]["tensor_size"] > 1 else "replicas\nx shards"
    return "\n" + _table(["one process,\nfloat32: stage", mesh, "losses\ndiffer by",
                          "weights, moments\ndiffer by", "to\nrounding"],
                         [[row["stage"], _mesh(row), row["loss_difference"], row["state_difference"],
                           row["equal_to_rounding"]] for row in rows])


def _same(row: Row) -> bool | str:
    """Whether weights, moments and losses are those of data parallelism; what is not; - where nobody asked."""
    if DP["weights"] not in row:
        return "-"
    other = [what for what, key in DP.items() if not row[key]]
    return f"NO: {', '.join(other)}" if 0 < len(other) < len(DP) else not other


def _counts(row: Row, columns: Sequence[tuple[str, str | tuple[str, ...]]] = COUNTED) -> list[Any]:
    return [row[key] if isinstance(key, str) else all(row[each] for each in key) for _, key in columns]


def _mesh(row: Row) -> str:
    shards, tensor = row["shard_size"], row["tensor_size"]
    return f"{row['ranks'] // shards // tensor} x {shards}" + (f" x {tensor}" if tensor > 1 else "")


def _table(headings: Sequence[str], rows: Iterable[list[Any]]) -> str:
    """Headings of two lines; rows that differ in their stage alone are one."""
    merged: dict[str, list[Any]] = {}
    for row in rows:
        (merged.setdefault(repr(row[1:]), [[], *row[1:]]))[0].append(row[0])
    rows = [["all" if len(stages) == len(STRATEGIES) else ", ".join(stages), *rest]
            for stages, *rest in merged.values()]
    parts = [("\n" + heading).split("\n")[-2:] for heading in headings]
    widest = [max(part, key=len) for part in parts]  # of which the table makes its columns
    _, *body = table(widest, rows).split("\n")
    widths = [len(dashes) for dashes in body[0].split("  ")]
    right = [all(type(row[column]) in (int, float) for row in rows) for column in range(len(widths))]
    lines = ["  ".join(part[line].strip().rjust(width) if to_right else part[line].strip().ljust(width)
                       for part, width, to_right in zip(parts, widths, right, strict=True)).rstrip() for line in (0, 1)]
    return "\n".join([*lines, *body])


def progress(total: int, rank: int) -> Callable[[str], None]:
    """A function that tells on rank 0's standard error what is being done. On a terminal it is a line that the next one
    replaces, and "" takes it away. Elsewhere, as below an mpirun, it is a line of its own now and then."""
    if rank or sys.stderr is None:
        return lambda what: None
    done, terminal, told = iter(range(1, total + 1)), sys.stderr.isatty(), [-math.inf]

    def step(what: str) -> None:
        number, now = next(done, total) if what else 0, time.monotonic()
        if terminal:
            sys.stderr.write(f"\r\033[Krun {number} of {total}: {what}" if what else "\r\033[K")
        elif what and now - told[0] >= EVERY:
            told[0] = now
            sys.stderr.write(f"run {number} of {total}: {what}\n")
        sys.stderr.flush()

    return step


def show_fault(row: Row) -> str:
    """The run whose gather was forgotten."""
    said = [f"the validator refuses the list: {row['validator_says'] or 'NO'}",
            f"run all the same: last loss {row['loss']:.4f} (right: {row['right_loss']:.4f}), held-out "
            f"{row['eval_loss']:.4f} (right: {row['right_eval_loss']:.4f}), largest difference between replicas "
            f"{row['largest_difference']:.4f}",
            f"checksums detect it: {'yes: ' + row['mismatches'][0] if row['checksums_detect_it'] else 'NO'}"]
    return "\n".join([f"\nfault: stage 2 without the all-gather after the update, {row['ranks']} ranks",
                      *(textwrap.fill(text, COLUMNS, initial_indent="  ", subsequent_indent="    ") for text in said)])
