"""What a check has to say, and how a list of it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: the group of lines it belongs to.
        status: "ok"; "note" for what may slow down or surprise; "problem" for what will fail.
        hint: what to do about a note or a problem.
    """

    topic: str
    name: str
    value: str
    status: str = "ok"
    hint: str = ""


def verdict(findings: Sequence[Finding]) -> str:
    """The last line of the report."""
    return ", ".join(_counted(status, sum(f.status == status for f in findings)) for status in ("problem", "note"))


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """The report as aligned text: a topic, a name and a value each; hints on lines of their own."""
    topics = max(len(finding.topic) for finding in findings)
    names = max(len(finding.name) for finding in findings)
    last = ""
    for finding in findings:
        if last and finding.topic != last:
            yield ""
        topic = "" if finding.topic == last else finding.topic
        mark = "" if finding.status == "ok" else f"{finding.status}: "
        indent = f"{topic:<{topics}}  {finding.name:<{names}}  "
        yield f"{indent}{mark}{finding.value}".rstrip()
        if finding.hint:
            yield f"{'':<{len(indent)}}-> {finding.hint}"
        last = finding.topic


def _counted(word: str, count: int) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"
