"""The measurement: layouts one after another; in each, rounds in which everyone has a turn at every size.

The machine's noise changes from second to second, so what is compared is taken next to each other: each round begins
with the goodput of a link, and at each size the competitors follow one another in an order that turns with the round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any

from ringreduce.lab.lab import Lab
from ringreduce.lab.network import Counters, address

from .competitors import LINK, Competitor, Job
from .jobs import Running, Unanswered

NUMBERS = count(1)
GIVEN_UP = 2  # a competitor that has failed so often in a layout gets no more turns there
WARMUP = 1  # trains of calls
TRAINS = 3
BUSY_NBYTES = 24 << 20  # a train of a large size reduces about so much
STREAM_NBYTES = 24 << 20  # 0.2 s at 1 Gbit/s
STREAMS = 3  # in each round; the best counts, as noise only takes from what a link can do


@dataclass(frozen=True)
class Cell:
    """One competitor's turn at one size in one round of one layout."""

    round: int
    each: int
    """Ranks per host."""
    nbytes: int
    competitor: Competitor
    status: str
    """ok | timeout | failed"""
    goodput: float
    """Of a link, in this round: bytes per second."""
    seconds: Sequence[Sequence[float]] = ()
    """By rank: of a call, on the average of each train."""
    cpu_seconds: Sequence[Sequence[float]] = ()
    """Likewise, of the processor."""
    wrong: int = 0
    """Elements, over all ranks and calls."""
    calls: int = 0
    """Those that the counters have seen: warm-up included."""
    crossed: Counters = field(default_factory=lambda: Counters({}))
    text: str = ""

    @property
    def time_s(self) -> float:
        """The slowest rank's median."""
        return max(median(trains) for trains in self.seconds)

    @property
    def cpu_s(self) -> float:
        """Of a call: all ranks' together, each one's median."""
        return sum(median(trains) for trains in self.cpu_seconds)


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    competitors: Sequence[Competitor]
    layouts: Sequence[int]
    """Ranks per host, each a layout of its own."""
    sizes: Sequence[int]
    rounds: int
    calls: int | None
    """Of a train; None: by size."""
    deadline_s: float
    """Of a cell."""


@dataclass
class Measured:
    """All cells, every round's goodput (bytes per second), and how the libraries name themselves."""

    cells: list[Cell] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def calls(nbytes: int) -> int:
    """Calls of a train: 20 of a small size, 3 of 8 MiB and more."""
    return max(3, min(20, BUSY_NBYTES // nbytes))


def measure(lab: Lab, plan: Plan, counters: Callable[[], Counters], found: Measured) -> None:
    """Runs the plan.

    Args:
        counters: lab.counters, or in a test what it would like them to be.
        found: gets everything as it is measured, so that it is there when what follows fails.

    Raises Unanswered where the link itself cannot be measured.
    """
    for each in plan.layouts:
        _Layout(lab, plan, each, counters, found).measure()


class _Layout:
    def __init__(self, lab: Lab, plan: Plan, each: int, counters: Callable[[], Counters], found: Measured) -> None:
        self._lab, self._plan, self._each, self._counters, self._found = lab, plan, each, counters, found
        self._running: dict[Job, Running] = {}
        self._failures: dict[Competitor, list[str]] = {competitor: [] for competitor in plan.competitors}

    def measure(self) -> None:
        try:
            for turn in range(self._plan.rounds):
                goodput = self._goodput()
                self._found.goodput.append(goodput)
                for nbytes in self._plan.sizes:
                    for offset in range(len(self._plan.competitors)):
                        competitor = self._plan.competitors[
                            (offset + turn) % len(self._plan.competitors)
                        ]  # nobody is always first
                        cell = self._cell(turn, nbytes, competitor, goodput)
                        self._found.cells.append(cell)
                        _tell(cell)
        finally:
            for running in self._running.values():
                running.end()

    def _job(self, job: Job) -> Running:
        if job not in self._running:
            self._running[job] = Running(self._lab, job, self._each, next(NUMBERS))
        return self._running[job]

    def _goodput(self) -> float:
        order = {"nbytes": STREAM_NBYTES, "to": address(0)}
        answers = [self._job(LINK).ask(order, self._plan.deadline_s)[1] for _ in range(STREAMS)]
        return float(max(one["nbytes"] / one["seconds"] for one in answers))

    def _cell(self, turn: int, nbytes: int, competitor: Competitor, goodput: float) -> Cell:
        train = self._plan.calls or calls(nbytes)
        what: dict[str, Any] = {
            "round": turn,
            "each": self._each,
            "nbytes": nbytes,
            "competitor": competitor,
            "goodput": goodput,
        }
        failures = self._failures[competitor]
        if len(failures) >= GIVEN_UP:
            return Cell(**what, status=failures[-1], text="not tried again")
        order = {"how": competitor.how, "nbytes": nbytes, "wire": competitor.wire, "hosts": len(self._lab.hosts)}
        order |= {"warmup": WARMUP, "trains": TRAINS, "calls": train}
        try:
            running = self._job(competitor.job)
            before = self._counters()
            answers = running.ask(order, self._plan.deadline_s)
        except Unanswered as failure:
            failures.append(failure.status)
            if competitor.job in self._running:
                self._running.pop(competitor.job).end()
            return Cell(**what, status=failure.status, text=str(failure))
        self._found.versions[competitor.name] = running.version
        return Cell(
            **what,
            status="ok",
            seconds=[answer["seconds"] for answer in answers],
            cpu_seconds=[answer["cpu_seconds"] for answer in answers],
            wrong=sum(answer["wrong"] for answer in answers),
            calls=(WARMUP + TRAINS) * train,
            crossed=self._counters() - before,
        )


def _tell(cell: Cell) -> None:
    """A line to stderr, so that whoever waits sees that it goes on."""
    what = f"# round {cell.round + 1}, {cell.each} a host, {cell.nbytes:>9} B, {cell.competitor.name:<24}"
    said = f"{cell.time_s * 1e3:9.3f} ms" if cell.status == "ok" else cell.text or cell.status
    print(f"{what} {said}", file=sys.stderr, flush=True)
