"""What the doctor says of one subject."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """What was seen of a subject; how bad that is; the cure, "" where nothing is to be done.

    level: a warning costs time, or may end a later run; with an error runs are slow out of all proportion, wrong, or
    not where they should be.
    """

    subject: str
    level: str
    seen: str
    cure: str = ""


def wrong(findings: Iterable[Finding]) -> bool:
    """Whether there is an error among them."""
    return any(finding.level == ERROR for finding in findings)
