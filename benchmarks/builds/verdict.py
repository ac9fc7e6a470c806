"""The arithmetic: what the rounds of one case say. Nothing here runs or reads anything.

In each round the old build runs twice and the new one once, in an order that changes with the round. Two quantities are
formed within a round, so that what the machine does from minute to minute cancels:

* the ratio: new / the geometric mean of the two old times;
* the noise: how far the two old times, which differ by chance alone, lie apart, as a factor of at least 1.

The spread is a factor too. The noise of three rounds in four is within it: the widest quarter is left out, because a
few seconds in which the machine does something else would otherwise hide every change of the whole run. A case is
slower (faster) when the median ratio is above (below) 1 by more than the spread and by more than 5 %. Which cases get
more rounds is decided with a narrower spread, so that fewer changes are missed. test_compare.py simulates both: how
often noise alone becomes a difference, and how often a difference is found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LIMIT = 1.05
"""The README's figures may not get worse by more than this factor in the same run."""
WITHIN = 0.75
"""The share of rounds whose noise is within the spread."""
SUSPECT_WITHIN = 0.6
"""The same where it is asked who gets more rounds."""

FEWEST = 3
"""Rounds, without which nothing is said."""

SAME, SLOWER, FASTER = "no difference", "slower", "faster"
NEW_FAILS, UNKNOWN = "new fails", "not judged"


@dataclass(frozen=True)
class Round:
    """One round's times of one case, in microseconds."""

    old: float
    new: float
    again: float
    """The old build's second run."""

    @property
    def ratio(self) -> float:
        """Above 1: the new build takes longer."""
        return self.new / math.sqrt(self.old * self.again)

    @property
    def noise(self) -> float:
        """At least 1."""
        return max(self.old / self.again, self.again / self.old)


@dataclass(frozen=True)
class Judgement:
    """What is said of one case. The figures are None where no round is complete, or the new build fails."""

    verdict: str
    rounds: int
    old_us: float | None = None
    new_us: float | None = None
    ratio: float | None = None
    spread: float | None = None


def judge(rounds: Sequence[Round], within: float = WITHIN) -> Judgement:
    """The verdict over complete rounds, of which there is at least one."""
    ratio = median(one.ratio for one in rounds)
    noise = spread([one.noise for one in rounds], within)
    verdict = _said(ratio, max(noise, LIMIT)) if len(rounds) >= FEWEST else UNKNOWN
    old = median(time for one in rounds for time in (one.old, one.again))
    return Judgement(verdict, len(rounds), old, median(one.new for one in rounds), ratio, noise)


def _said(ratio: float, beyond: float) -> str:
    if ratio > beyond:
        return SLOWER
    return FASTER if ratio < 1 / beyond else SAME


def spread(noise: Sequence[float], within: float = WITHIN) -> float:
    """The smallest of these factors that covers such a share of them: of six, the fifth."""
    return sorted(noise)[math.ceil(within * len(noise)) - 1]
