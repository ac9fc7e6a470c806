"""Who runs when: rounds in which the old build, the new one and the old one again have turns at each group of cases."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import permutations
from typing import Protocol

from .trees import Tree
from .verdict import NEW_FAILS, SAME, SUSPECT_WITHIN, UNKNOWN, WITHIN, Judgement, Round, judge

OLD, NEW, AGAIN = "old", "new", "old again"
ORDERS = tuple(permutations((OLD, NEW, AGAIN)))
"""Six: with as many rounds, everyone is as often first, and as often behind each of the others."""
GIVEN_UP = 2
"""A side whose turn at a group failed so often gets no more turns there; nor do the others."""

Times = dict[str, dict[str, float]]
"""Order: measure: microseconds."""


class TurnError(Exception):
    """A turn that gave no figures: it failed, or its deadline passed. The text is the end of its output."""


class Group(Protocol):
    """Cases that one job measures, one after the other."""

    @property
    def name(self) -> str:
        """What its cases have in common, such as "2 ranks c registered"."""

    def run(self, tree: Tree, orders: Sequence[str]) -> Times:
        """Starts the job with this tree's build and lets it measure. Orders that failed are left out.

        Raises TurnError.
        """


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    group: Group
    order: str
    """What the group's job is told to measure."""
    measure: str = "call"
    """Which of the figures it gives back for that."""

    @property
    def name(self) -> str:
        """Unlike any other case's."""
        return f"{self.group.name} {self.order}" + (f" {self.measure}" if self.measure != "call" else "")


@dataclass(frozen=True)
class Run:
    """One turn, whatever became of it."""

    group: str
    side: str
    round: int
    place: int
    """Of the round's three turns."""
    began: str
    """UTC."""
    seconds: float
    times: Times = field(default_factory=dict)
    failure: str = ""


class Turns:
    """Runs turns and keeps all of them.

    Args:
        trees: by side; OLD and AGAIN are the same tree.
        keep: called after each round, so that an interrupted comparison leaves what it has.
    """

    def __init__(self, trees: Mapping[str, Tree], keep: Callable[[], None] = lambda: None) -> None:
        self.runs: list[Run] = []
        self._trees, self._keep = trees, keep
        self._rounds: dict[str, int] = {}

    def measure(self, cases: Sequence[Case], rounds: int, more: int) -> dict[str, Judgement]:
        """Judges every case by so many rounds, and those that seem to differ by `more` rounds on top of these."""
        if not cases:
            return {}
        self._run(cases, rounds)
        found = self.judge(cases)
        doubts = self.judge(cases, SUSPECT_WITHIN)
        suspects = [case for case in cases if doubts[case.name].verdict not in (SAME, UNKNOWN, NEW_FAILS)]
        if suspects and more:
            names = "; ".join(case.name for case in suspects)
            print(f"# {more} more rounds of what seems to differ: {names}", file=sys.stderr, flush=True)
            self._run(suspects, more)
            found |= self.judge(suspects)
        return found

    def judge(self, cases: Sequence[Case], within: float = WITHIN) -> dict[str, Judgement]:
        """What the rounds so far say, by the case's name."""
        return {case.name: self._judge(case, within) for case in cases}

    def _judge(self, case: Case, within: float) -> Judgement:
        seen: dict[tuple[str, int], dict[str, float]] = {}
        for run in self.runs:
            time_us = run.times.get(case.order, {}).get(case.measure)
            if run.group == case.group.name and time_us:
                seen.setdefault((run.group, run.round), {})[run.side] = time_us
        complete = [Round(of[OLD], of[NEW], of[AGAIN]) for of in seen.values() if of.keys() == {OLD, NEW, AGAIN}]
        lost = sum(of.keys() == {OLD, AGAIN} for of in seen.values())
        if lost >= GIVEN_UP:
            return Judgement(NEW_FAILS, len(complete))
        return judge(complete, within) if complete else Judgement(UNKNOWN, 0)

    def _run(self, cases: Sequence[Case], rounds: int) -> None:
        groups: dict[str, list[Case]] = {}
        for case in cases:
            groups.setdefault(case.group.name, []).append(case)
        for turn in range(rounds):
            print(f"# round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
            for name, members in groups.items():
                if not self._is_given_up(name):
                    self._round(members[0].group, list(dict.fromkeys(case.order for case in members)))
            self._keep()

    def _round(self, group: Group, orders: Sequence[str]) -> None:
        number = self._rounds.get(group.name, 0)
        self._rounds[group.name] = number + 1
        for place, side in enumerate(ORDERS[number % len(ORDERS)]):
            began, start = datetime.now(timezone.utc), time.monotonic()
            times: Times = {}
            failure = ""
            try:
                times = group.run(self._trees[side], orders)
            except TurnError as error:
                failure = str(error)
                print(f"# {group.name}, {side}: {failure}", file=sys.stderr, flush=True)
            stamp, seconds = began.isoformat(timespec="milliseconds"), round(time.monotonic() - start, 3)
            self.runs.append(Run(group.name, side, number, place, stamp, seconds, times, failure))

    def _is_given_up(self, group: str) -> bool:
        failed = [run.side for run in self.runs if run.group == group and run.failure]
        return any(failed.count(side) >= GIVEN_UP for side in set(failed))
