"""What the doctor says of one subject."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """What was seen of a subject; how bad that is; the cure, "" where nothing is to be done; on which hosts, () where
    it concerns all of them together.

    level: a warning costs time, or may end a later run; with an error runs are slow out of all proportion, wrong, or
    not where they should be.
    """

    subject: str
    level: str
    seen: str
    cure: str = ""
    hosts: tuple[str, ...] = ()


def wrong(findings: Iterable[Finding]) -> bool:
    """Whether there is an error among them."""
    return any(finding.level == ERROR for finding in findings)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """What is the same on several hosts, once."""
    found: dict[Finding, list[str]] = {}
    for each in findings:
        found.setdefault(replace(each, hosts=()), []).extend(each.hosts)
    return [replace(each, hosts=tuple(hosts)) for each, hosts in found.items()]
