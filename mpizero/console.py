"""What a training run says on its terminal: what runs where, a line a step, and at the end the proof in few columns."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpizero.comm import needlessly_spread, spread
from mpizero.dtypes import ITEMSIZE
from mpizero.engine.config import Settings
from mpizero.engine.job import Job
from mpizero.engine.trainer import StepRecord
from mpizero.layout import DEVICE, OWNED, REPLICATED, Axis, MeshShape
from mpizero.memory.kinds import ACTIVATIONS, MODEL_STATE, WORKSPACE
from mpizero.planner import formula_sizes
from mpizero.quantities import in_units
from mpizero.schedule import STRATEGIES, StepSettings
from mpizero.schedule.actions import Recompute
from mpizero.text import counted, numbers, precision, ranks_on, table

WIDTH = 100  # columns where no terminal tells, and the most that text takes
BETWEEN = "between_hosts_bytes_per_step"  # a key of a rank's traffic
LONG = 20.0  # seconds; a run that takes longer says how much is left
OF_GATHERS = ("backward_prefetch", "forward_prefetch", "keep_last_unit", "limit_all_gathers")


def wrapped(text: str, indent: str = "  ") -> str:
    """A paragraph in lines of the terminal's width."""
    return textwrap.fill(text, _width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _width() -> int:
    terminal = sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty()
    columns = shutil.get_terminal_size((WIDTH, 0)).columns if terminal else WIDTH
    return max(min(columns, WIDTH), 40)


def header(job: Job) -> str:
    """What runs where."""
    settings, world, wrapping = job.settings, job.world, job.wrapping
    mesh = f"{counted(job.geometry.replicas, 'replica')} x {counted(job.geometry.shards, 'shard')}"
    if job.geometry.tensors > 1:
        mesh += f" x {job.geometry.tensors} tensor parallel ranks"
    lines = [
        f"{world.library}; {counted(world.size, 'rank')}: {ranks_on(world.hosts)}",
        f"model {job.task.model.name}: psi = {job.task.model.spec.psi:,} parameters{_frozen(job)}{_part(job)} in "
        f"{counted(len(wrapping.units), 'unit')}, {wrapping.padded_numel - wrapping.numel} of padding; "
        f"{precision(vars(settings))}; {job.task.data.describe()}",
        f"stage {settings.step.stage}: {mesh}; {_batch(job)}{_overlap(job)}",
    ]
    if job.storage is not None:
        file = job.storage.file
        lines.append(f"files in {job.config.nvme}: {in_units(file.nbytes)} of rank 0, "
                     f"{'past' if file.direct else 'through'} the page cache")
    if world.size == 1:
        lines.append("1 rank: nothing is sharded or sent; start several with mpirun -n 4 python -m mpizero.train ...")
    lines += [f"note: {note}" for note in _across_hosts(world.hosts, job.mesh.shape)]
    lines += [f"note: {note}" for note in _without_effect(settings)]
    if settings.step.recompute and not any(isinstance(action, Recompute) for action in job.lists.accumulate):
        lines.append("note: --recompute has no effect: no segment that trains lies between the first and the last")
    return "\n".join(map(wrapped, lines))


def _overlap(job: Job) -> str:
    """Nothing where nobody would expect any."""
    return "; collectives overlap with computation" if job.settings.step.overlap and job.world.size > 1 else ""


def _frozen(job: Job) -> str:
    frozen = job.task.model.spec.frozen_psi
    return f" ({frozen:,} frozen)" if frozen else ""


def _part(job: Job) -> str:
    """Of a tensor parallel rank."""
    return f", {job.wrapping.numel:,} of them a rank's part," if job.geometry.tensors > 1 else ""


def _batch(job: Job) -> str:
    """`16 samples a rank x 2 microbatches = 128 a step`; with what is only there to fill up ranks and microbatches."""
    settings, ranks, tensor = job.settings, job.mesh.shape.data_ranks, job.geometry.tensors
    pads = replace(settings, global_batch=None).samples(ranks) - job.samples
    one = "a rank" if tensor == 1 else f"for each {tensor} tensor parallel ranks"
    return (f"{counted(settings.batch_size, 'sample')} {one} x {counted(settings.step.accumulation, 'microbatch')} = "
            f"{job.samples:,} a step" + (f" and {counted(pads, 'pad')} that {'weigh' if pads > 1 else 'weighs'} nothing"
                                         if pads else ""))


def _across_hosts(hosts: Sequence[str], shape: MeshShape) -> list[str]:
    """Of groups that span hosts and might not."""
    notes, each = [], "--shard-size ranks" if shape.tensor == 1 else "--shard-size times --tensor-size ranks"
    if groups := needlessly_spread(hosts, shape):
        notes.append(f"the shard group of ranks {numbers(groups[0])} spans hosts although it would fit into one: give "
                     f"each host a multiple of {each}")
    if groups := spread(hosts, shape, Axis.TENSOR):
        notes.append(f"tensor parallel ranks {numbers(groups[0])} span hosts, so the sums of activations of every "
                     "computation cross them: give each host a multiple of --tensor-size ranks, or use a smaller one")
    return notes


def _without_effect(settings: Settings) -> list[str]:
    """Of flags that were given and change nothing."""
    step, plain, notes = settings.step, StepSettings(), []
    idle = [f"--{name.replace('_', '-')}" for name in OF_GATHERS if getattr(step, name) != getattr(plain, name)]
    if idle and STRATEGIES[step.stage].placement.params is REPLICATED:
        notes.append(f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect, since stage {step.stage} "
                     "keeps whole parameters and gathers none in forward and backward: use --stage 3")
    if step.no_sync and step.accumulation == 1:
        notes.append("--no-sync has no effect with one microbatch a step: use --accumulation 2 or more")
    if step.delayed_update_after is not None and step.delayed_update_after >= settings.steps:
        notes.append(f"--delayed-update-after {step.delayed_update_after} has no effect, since the run has "
                     f"{counted(settings.steps, 'step')}: give a smaller number")
    if settings.host_threads is not None and step.placement.tiers.optimizer is DEVICE:
        notes.append("--host-threads has no effect, since updates run on the device: use --offload optimizer=cpu")
    return notes


# -- a line a step ----------------------------------------------------------------------------------------------------


@dataclass
class StepLines:
    """Makes a line of each step. total: steps of the run; what: a target. told: bytes and scale as the last line had
    them, since they are said where they change. seconds: of `steps` steps so far."""

    total: int
    what: str
    told: tuple[str, ...] = ()
    seconds: float = 0.0
    steps: int = 0

    def count(self, record: StepRecord) -> None:
        """Take a step into the estimate of the time that is left."""
        self.seconds += record.seconds
        self.steps += 1

    def line(self, record: StepRecord) -> str:
        """For people: `step 12/50  loss 1.7495  norm 2.94  lr 8.1e-03  23 ms  696 samples/s`."""
        number = f"{record.step + 1:>{len(str(self.total))}}/{self.total}"
        norm = "overflow: skipped" if record.skipped else f"norm {record.grad_norm:#.3g}"
        parts = [f"step {number}", f"loss {record.loss:.4f}", norm, f"lr {record.lr:.1e}",
                 f"{duration(record.seconds):>6}", f"{record.per_second:,.0f} {self.what}s/s"]
        scale = [f"loss scale {record.loss_scale:,.0f}"] if record.loss_scale != 1 else []
        now = (f"mem {in_units(record.peak_bytes)}", f"sent {in_units(record.sent_bytes)}", *scale)
        parts += [text for text in now if text not in self.told]
        self.told = now
        parts += [] if record.eval_loss is None else [f"held-out loss {record.eval_loss:.4f}"]
        left = (self.total - record.step - 1) * self.seconds / max(self.steps, 1)
        if self.seconds + left > LONG and left > 0:
            parts.append(f"{duration(left)} left")
        return _folded(parts)


def key_values(record: StepRecord, what: str) -> str:
    """For machines: every field as key=value."""
    return (f"step={record.step:<4d} loss={record.loss:.6f} grad_norm={record.grad_norm:.4e} lr={record.lr:.3e} "
            f"loss_scale={record.loss_scale:g} skipped={int(record.skipped)} {what}_per_s={record.per_second:.0f} "
            f"seconds={record.seconds:.6f} live_bytes={record.live_bytes} peak_bytes={record.peak_bytes} "
            f"sent_bytes={record.sent_bytes}"
            + "".join(f" {part}_s={seconds:.6f}" for part, seconds in record.seconds_by.items())
            + ("" if record.eval_loss is None else f" eval_loss={record.eval_loss:.6f}"))


def _folded(parts: Sequence[str]) -> str:
    """Parts side by side, on a second line where the terminal is too narrow."""
    lines, width = [""], _width()
    for part in parts:
        if lines[-1] and len(lines[-1]) + 2 + len(part) > width:
            lines.append("    ")
        lines[-1] += ("  " if lines[-1].strip() else "") + part
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """`0.8 ms`, `23 ms`, `1.4 s`, `7 min`, `3.2 h`."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.00995 else f"{seconds * 1e3:.1f} ms"
    if seconds < 99.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def shares(ranks: Sequence[Mapping[str, float]]) -> str:
    """Where the time of the steps went: `compute 61 %, update 3 %, ...`. ranks: of each the seconds by part."""
    totals = {part: sum(rank[part] for rank in ranks) for part in ranks[0]}
    seconds = sum(totals.values())
    if not seconds:
        return ""
    parts = ", ".join(f"{part} {100 * share / seconds:.0f} %" for part, share in totals.items())
    return wrapped(f"of the steps' time, mean of ranks: {parts}")


# -- the proof --------------------------------------------------------------------------------------------------------


def proof(summary: Mapping[str, Any]) -> str:
    """The tables at the end: counted bytes beside planned ones; ranks that counted the same share a row."""
    ran = bool(summary["losses"])
    equal = "yes" if summary["replicas_equal"] else "NO: " + "; ".join(summary["mismatches"][:3])
    return "\n\n".join([
        "model states, bytes of a rank: counted, and whether plan and formula say the same\n"
        + _states(summary["memory"], ran),
        wrapped("device memory, bytes of a rank, at the one moment when it was highest in all: model states may have "
                "been higher at another (peak above); workspace: temporaries", "") + "\n" + _device(summary["memory"]),
        *([_elsewhere(summary)] if ran and summary["offload"] else []),
        _sent(summary) if ran else "sent in a step: no step has run",
        f"replicas equal: {equal}\nweights sha256 {summary['weights_sha256']}",
    ])


def _states(ranks: Sequence[Mapping[str, Any]], ran: bool) -> str:
    """ran: whether there was a step, and so a backward."""
    def row(rank: Mapping[str, Any]) -> tuple[object, ...]:
        planned = all(rank[what] == rank[f"planned_{what}"] for what in ("at_rest", "after_backward", "peak"))
        formula = rank["after_backward"] == rank["formula_after_backward"]
        return (rank["at_rest"], rank["after_backward"] if ran else "-", rank["peak"], planned, formula if ran else "-")

    return _grouped(["at rest", "after backward", "peak", "= plan", "= formula"], ranks, row)


def _device(ranks: Sequence[Mapping[str, Any]]) -> str:
    def row(rank: Mapping[str, Any]) -> tuple[object, ...]:
        live = rank["device_peak_by_kind"]
        states, activations = (sum(live.get(kind, 0) for kind in kinds) for kinds in (MODEL_STATE, ACTIVATIONS))
        planned = rank["planned_device_peak"]
        return (states, activations, live[WORKSPACE], rank["device_peak"],
                "-" if planned is None else planned == rank["device_peak"], rank["device_peak_action"])

    return _grouped(["model states", "activations", "workspace", "in all", "= plan", "while"], ranks, row)


def _elsewhere(summary: Mapping[str, Any]) -> str:
    """Off the device: what lives there, and what moves."""
    ranks = [memory | traffic for memory, traffic in zip(summary["memory"], summary["traffic"], strict=True)]
    links = [link for link in ranks[0]["moved_bytes_per_step"]
             if any(rank[f"{planned}moved_bytes_per_step"][link] for rank in ranks for planned in ("", "planned_"))]

    def row(rank: Mapping[str, Any]) -> tuple[object, ...]:
        moved, planned = rank["moved_bytes_per_step"], rank["planned_moved_bytes_per_step"]
        return (rank["host_peak"], rank["host_peak"] == rank["planned_host_peak"],
                *(value for link in links for value in (moved[link], moved[link] == planned[link])))

    columns = [title for link in links for title in (link, "= plan")]
    return ("off the device, bytes of a rank: at the peak of the host, and moved in a step over each link\n"
            + _grouped(["host peak", "= plan", *columns], ranks, row))


def _sent(summary: Mapping[str, Any]) -> str:
    """Traffic of a step, with the formula where it is about such a step."""
    ranks = summary["traffic"]
    leaves = any(rank[key] for rank in ranks for key in (BETWEEN, f"planned_{BETWEEN}"))  # there are several hosts
    ops = sorted({op for rank in ranks for op in rank["planned_by_op"]})

    def row(rank: Mapping[str, Any]) -> tuple[object, ...]:
        sent = rank["sent_bytes_per_step"]
        planned = (sent == rank["planned_sent_bytes_per_step"] and rank[BETWEEN] == rank[f"planned_{BETWEEN}"]
                   and not rank["steps_off_plan"])
        return (*(rank["by_op"].get(op, 0) for op in ops), sent, *([rank[BETWEEN]] if leaves else []), planned,
                rank["messages_per_step"])

    agreed = max((sum(rank["by_op"].values()) - rank["sent_bytes_per_step"] for rank in ranks), default=0)
    lines = [f"sent in a step, bytes of a rank (and {agreed:,} to agree on loss, norm and overflow)",
             _grouped([*ops, "sent", *(["to other hosts"] if leaves else []), "= plan", "messages"], ranks, row)]
    if formula := _formula(summary):
        lines.append(wrapped(formula))
    return "\n".join(lines)


def _formula(summary: Mapping[str, Any]) -> str:
    """What the papers say of it; "" where they speak of other steps, or other bytes were sent."""
    if any(rank["sent_bytes_per_step"] != rank["formula_sent_bytes_per_step"] for rank in summary["traffic"]):
        return ""
    placement, volume = STRATEGIES[summary["stage"]].placement, STRATEGIES[summary["stage"]].volume
    shards, replicas, more = summary["shard_size"], summary["replicas"], summary["gathered_more"]
    psi = f"psi = {summary['trained_padded_psi']:,} with padding{', of what trains' if summary['frozen_psi'] else ''}"
    dtypes = [summary[name] for name in ("dtype", "reduce_dtype", "sum_dtype")]
    sizes = formula_sizes(placement, volume, *dtypes)
    if placement.params is OWNED:
        return _of_owners(sizes, dtypes[-1], shards, replicas, psi)
    times, across, each, what = str(volume), "2", "", f"elements of {ITEMSIZE[summary['dtype']]} bytes"
    if len(set(dtypes)) > 1:
        times, across, each, what = _sum(sizes), _sum(map(ITEMSIZE.__getitem__, dtypes[1:])), f"{sizes[-1]} ", "bytes"
    if shards == 1:
        return f"= {across} (N-1)/N psi {what}: N = {replicas}, {psi}"
    share, sizes_of = ("(N-1)/N", f"N = {shards}") if replicas == 1 else (
        "(F-1)/F", f"F = {shards} shards, R = {replicas} replicas")
    terms = [f"{times} {share} psi", *([f"{each}{share} g"] if more else []),
             *([f"{across} (R-1)/R psi/F"] if replicas > 1 else [])]
    note = f", g = {more:,} gathered more: a tied unit at each further use, and what is frozen" if more else ""
    return f"= {' + '.join(terms)} {what}: {sizes_of}, {psi}{note}"


def _sum(sizes: Iterable[int]) -> str:
    return f"({' + '.join(map(str, sizes))})"


def _of_owners(sizes: Sequence[int], sum_dtype: str, shards: int, replicas: int, psi: str) -> str:
    """Of all ranks together: each for itself has a formula of its own."""
    wire, total = sizes[0], ITEMSIZE[sum_dtype]
    across = f" + ({wire} + {total}) (R-1) psi" if replicas > 1 else ""
    return (f"= in all {'R ' if replicas > 1 else ''}(F-1) ({' + '.join(map(str, sizes))} + {total}/F) psi{across} "
            f"bytes, where each unit is used once: F = {shards} ranks of which each unit has one owner"
            f"{f', R = {replicas} replicas' if replicas > 1 else ''}, {psi}")


def _grouped(names: Sequence[str], ranks: Sequence[Mapping[str, Any]],
             row: Callable[[Mapping[str, Any]], tuple[object, ...]]) -> str:
    """A table with one row for all ranks whose figures are equal."""
    by_row: dict[tuple[object, ...], list[int]] = {}
    for rank, facts in enumerate(ranks):
        by_row.setdefault(row(facts), []).append(rank)
    return table(["ranks", *names], [[numbers(same), *figures] for figures, same in by_row.items()])
