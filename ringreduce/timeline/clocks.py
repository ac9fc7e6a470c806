"""One clock for the ranks of all hosts.

Ranks of one boot share a CLOCK_MONOTONIC. Between hosts, each clock question gives bounds of the difference of two
clocks at one instant: the answerer read its clock after the question left and before the answer came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.offsets import Bounds, Offset, fit
from ringreduce.timeline.record_file import CLOCK, RankRecords

UNKNOWN_NS = -1
_WIDEST_NS = 2**59
"""In place of an unknown width, where widths are compared: wider than any difference of two times."""


@dataclass(frozen=True)
class Clock:
    """How the clock of one rank reads in that of the reference rank.

    Attributes:
        source: "reference"; "same host"; "pings"; "wall clocks": nothing better is known of two hosts.
        half_width_ns: how wrong a translated time can be; 0: it is the same clock; -1: nobody knows.
    """

    source: str
    half_width_ns: int
    offset: Offset

    def to_job(self, ns: np.ndarray) -> np.ndarray:
        """Times of this rank's clock (ns, int64) as times of the reference rank's. It keeps their order."""
        return self.offset.apply(ns)


@dataclass(frozen=True)
class _Host:
    """The ranks of one boot, and their clock questions: one row each, with the boot's index of who was asked."""

    files: list[RankRecords]
    questions: np.ndarray
    asked: np.ndarray


def clocks_of(files: Sequence[RankRecords]) -> dict[int, Clock]:
    """The clock of each rank; the reference is that of the lowest rank.

    A host without questions to or from the reference host is reached over a third one, the fewest hosts in between.
    """
    hosts = _hosts(files)
    found = {0: Clock("reference", 0, Offset.constant(0))} if hosts else {}
    waiting = deque(found)
    while waiting:
        via = waiting.popleft()
        for index in range(len(hosts)):
            bounds = _bounds(hosts, index, via, found[via]) if index not in found else None
            if bounds is not None and len(bounds.at_ns):
                offset, error = fit(bounds, *_extent(hosts[index].files))
                found[index] = Clock("pings", error + found[via].half_width_ns, offset)
                waiting.append(index)
    result: dict[int, Clock] = {}
    for index, host in enumerate(hosts):
        clock = found.get(index) or _wall_clock(host.files[0], hosts[0].files[0])
        result |= {file.rank: clock for file in host.files}
    for file in hosts[0].files[1:] if hosts else ():
        result[file.rank] = Clock("same host", 0, Offset.constant(0))
    return result


def have_met(files: Sequence[RankRecords], others: Sequence[RankRecords]) -> bool:
    """Whether the ranks of two boots asked each other for the time while both wrote these files.

    An answer of an earlier run is older than the file of the one that was asked, or no time of its boot at all.
    """
    both = [(_answers(files, others), _written(others)), (_answers(others, files), _written(files))]
    shares = [np.mean((begin <= times) & (times <= end)) for times, (begin, end) in both if len(times)]
    return bool(shares) and bool(min(shares) > 0.5)


def half_widths(clocks: Mapping[int, Clock]) -> np.ndarray:
    """By rank, in ns: how wrong its translated times can be; of an unknown clock, and of no rank, by any amount."""
    widths = np.full(max(clocks, default=0) + 1, _WIDEST_NS)
    for rank, clock in clocks.items():
        if clock.half_width_ns != UNKNOWN_NS:
            widths[rank] = clock.half_width_ns
    return widths


def _answers(files: Sequence[RankRecords], asked: Sequence[RankRecords]) -> np.ndarray:
    """What those that were asked read on their clock."""
    questions = np.concatenate([file.records[file.records["type"] == CLOCK] for file in files])
    answers: np.ndarray = questions["started_ns"][np.isin(questions["peer"], [file.rank for file in asked])]
    return answers


def _written(files: Sequence[RankRecords]) -> tuple[int, int]:
    """When these files were begun, and when the last of them ended."""
    return min(file.monotonic_ns for file in files), _extent(files)[1]


def _hosts(files: Sequence[RankRecords]) -> list[_Host]:
    """By boot, that of the lowest rank first."""
    by_boot: dict[str, list[RankRecords]] = {}
    for file in sorted(files, key=lambda file: file.rank):
        by_boot.setdefault(file.boot, []).append(file)
    host_of = np.full(max((file.size for file in files), default=0) + 1, -1)
    for index, group in enumerate(by_boot.values()):
        host_of[[file.rank for file in group]] = index
    hosts = []
    for group in by_boot.values():
        questions = np.concatenate([file.records[file.records["type"] == CLOCK] for file in group])
        hosts.append(_Host(group, questions, host_of[questions["peer"]]))
    return hosts


def _bounds(hosts: Sequence[_Host], index: int, via: int, clock: Clock) -> Bounds:
    """Of the job's time minus host `index`'s, from questions both ways between it and `via`, whose clock is known."""
    here, there = hosts[index], hosts[via]
    ours = here.questions[here.asked == via]
    answered = clock.to_job(ours["started_ns"])
    theirs = there.questions[there.asked == index]
    sent, received = clock.to_job(theirs["called_ns"]), clock.to_job(theirs["ended_ns"])
    middle = ours["called_ns"] + (ours["ended_ns"] - ours["called_ns"]) // 2
    return Bounds(
        np.concatenate([middle, theirs["started_ns"]]),
        np.concatenate([answered - ours["ended_ns"], sent - theirs["started_ns"]]),
        np.concatenate([answered - ours["called_ns"], received - theirs["started_ns"]]),
    )


def _extent(files: Sequence[RankRecords]) -> tuple[int, int]:
    """The first and the last time in these files, in ns."""
    times = [
        (int(file.records["called_ns"].min()), int(file.records["ended_ns"].max()))
        for file in files
        if len(file.records)
    ]
    # Without a record there is no question either, but one that another host asked.
    known = times or [(file.monotonic_ns, file.monotonic_ns) for file in files]
    return min(begin for begin, _ in known), max(end for _, end in known)


def _wall_clock(file: RankRecords, reference: RankRecords) -> Clock:
    offset = (file.realtime_ns - file.monotonic_ns) - (reference.realtime_ns - reference.monotonic_ns)
    return Clock("wall clocks", UNKNOWN_NS, Offset.constant(offset))
