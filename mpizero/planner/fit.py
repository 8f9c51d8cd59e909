"""Does it fit, where, and how fast? Bytes are exact, from the lists of actions; seconds are an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mpizero.planner.candidate import Candidate
from mpizero.planner.links import leaving_bytes
from mpizero.planner.question import Question
from mpizero.planner.seconds import Estimate
from mpizero.planner.tiers import OFFLOADS, Offload
from mpizero.planner.traffic import sent_bytes
from mpizero.schedule import StepSettings

STAGES = ("0", "1", "2", "3")
CLOSE = 1.01  # rows within one percent of the fastest count as equally fast


class Divided(NamedTuple):
    """What comes of a tensor size. paced: as of `Row`."""

    paced: float
    device_bytes: int
    fits: bool  # unless something unknown is too large


@dataclass(frozen=True)
class Row:
    """One stage with one offload, at its best tensor and shard sizes. at_rest and peak: model-state bytes of a rank by
    tier. activations: None if unknown; device_bytes: the most on the device, with activations where they are known, and
    with gradients that are being reduced. host_bytes: leaving the busiest host in a step, all its ranks together.
    moved_bytes: of a rank between tiers in a step, over every link that they take."""

    stage: str
    offload: str
    tensor_size: int
    shard_size: int
    settings: StepSettings  # of the run
    at_rest: dict[str, int]
    peak: dict[str, int]
    needs: dict[str, int]  # as of `Candidate`
    activations: int | None
    device_bytes: int
    sent_bytes: int
    host_bytes: int
    moved_bytes: int
    seconds: float
    compute_seconds: float
    exposed_seconds: float
    exposed: dict[str, dict[str, float]]  # what a step waits for: phase -> resource -> seconds
    by_resource: dict[str, float]  # seconds that each resource is busy
    bound_by: str
    lacks: tuple[str, ...]  # tiers that are too small
    unknown: tuple[str, ...]  # tiers whose size was not told, and "activations"
    seconds_by_size: dict[int, float]  # of every shard size that was tried
    by_tensor_size: dict[int, Divided] = field(default_factory=dict)  # of every tensor size that was tried, the best

    @property
    def paced(self) -> float:
        """Seconds for as many samples as a step takes where the tensor size is 1: T ranks have a batch together, so
        they take a T-th of them."""
        return self.tensor_size * self.seconds

    @property
    def fits(self) -> bool | None:
        """None where it depends on something unknown."""
        return False if self.lacks else None if self.unknown else True

    @property
    def might_fit(self) -> bool:
        """It does, unless unknown activations are too large."""
        return not self.lacks and set(self.unknown) <= {"activations"}


def rows(question: Question) -> list[Row]:
    """Every stage with every offload that makes sense for it."""
    return [best_size(question, stage, offload) for stage in STAGES for offload in offloads(stage, question.offload)]


def offloads(stage: str, asked: Offload | None = None) -> list[Offload]:
    """What makes sense, or what is asked, if the stage can have it."""
    return [offload for offload in (OFFLOADS if asked is None else (asked,)) if stage in offload.stages]


def preferred(found: Sequence[Row], ranks: int) -> Row:
    """The fastest for as many samples; of equally fast ones the simplest, without offload, without tensor parallel
    ranks and with one shard group, then the one that sends least, then the one that moves least between tiers, then the
    one that needs least."""
    fastest = min(row.paced for row in found)
    return min((row for row in found if row.paced <= CLOSE * fastest),
               key=lambda row: (row.offload != "none", row.tensor_size, row.shard_size not in (1, ranks
                                // row.tensor_size), row.sent_bytes, row.moved_bytes, row.device_bytes))


def best_size(question: Question, stage: str, offload: Offload) -> Row:
    """The preferred one of the tensor and shard sizes that fit. If none does, the one that needs least."""
    found = [best_shard_size(part, stage, offload) for part in question.parts]
    fitting = [row for row in found if not row.lacks]
    best = preferred(fitting, question.ranks) if fitting else min(found, key=lambda row: row.device_bytes)
    return replace(best, by_tensor_size={row.tensor_size: Divided(row.paced, row.device_bytes, not row.lacks)
                                         for row in found})


def best_shard_size(question: Question, stage: str, offload: Offload) -> Row:
    """The preferred one of the shard sizes that fit. If none does, the one that needs least: the largest, but for what
    rings of our own take, which of two ranks is less than of more. question: of one tensor size."""
    candidates = [Candidate(question, stage, offload, size) for size in question.sizes(stage)]
    largest = candidates[-1]
    times = {candidate.size: candidate.estimate(largest) for candidate in candidates}
    tried = candidates[::-1] if question.ours else [largest]
    if not any(candidate.has_room for candidate in tried):
        return _row(min(tried, key=lambda candidate: candidate.activations[1]), times)
    found: list[Row] = []
    for candidate in sorted(candidates, key=lambda candidate: times[candidate.size].seconds):
        if found and times[candidate.size].seconds > CLOSE * found[0].seconds:
            break
        if candidate.has_room:
            found.append(_row(candidate, times))
    return preferred(found, question.ranks)


def anything_fits(question: Question) -> bool:
    """Whether stage 3 or 2 fits in its largest shard group: bytes alone, without the seconds."""
    candidates = (Candidate(part, stage, offload, part.sizes(stage)[-1]) for part in reversed(question.parts)
                  for stage in ("3", "2") for offload in offloads(stage, question.offload))
    return any(candidate.has_room and set(candidate.verdict[1]) <= {"activations"} for candidate in candidates)


def _row(chosen: Candidate, times: dict[int, Estimate]) -> Row:
    time, (kept, device), (lacks, unknown) = times[chosen.size], chosen.activations, chosen.verdict
    sends = [sent for phase in chosen.sends for sent in phase]
    leaving = leaving_bytes(sends, chosen.geometry.mesh, chosen.question.ranks_per_host)
    moved = sum(move.nbytes for move in chosen.tiers.moves)
    return Row(chosen.stage, chosen.offload.name, chosen.settings.tensor_size, chosen.size, chosen.settings,
               chosen.tiers.at_rest, chosen.tiers.peak, chosen.needs, kept, device, sent_bytes(sends), leaving, moved,
               time.seconds, time.compute_seconds, time.exposed_seconds, time.exposed, time.by_resource, time.bound_by,
               lacks, unknown, {size: each.seconds for size, each in times.items()})
