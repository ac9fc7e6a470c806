"""Which sizes are best here: each is tried in turn with the others, several times, on the job's own ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from ringreduce.tuning.sizes import Sizes
from ringreduce.tuning.timing import WARMUP, Timer

CHUNKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20)
CHUNK_AT_NBYTES = 2 << 20
"""Chunks are compared by an all-reduce of so many bytes: some chunks for each rank."""
EAGER_SIZES = (2 << 10, 4 << 10, 8 << 10, 16 << 10)
LEAST_EAGER = 1 << 10
ROUNDS = 5
CHUNK_CALLS = 5
EAGER_CALLS = 60
"""The first 16 calls of a size touch memory for the first time."""
WORTH = 0.97
"""What is not at least 3 % faster than the default is within what the same thing differs from itself."""


@dataclass(frozen=True)
class Choice:
    """One size that was chosen.

    Attributes:
        name: of the size, for people.
        default, chosen: in bytes.
        gain: the default's time over the chosen one's, where they were compared.
        at_nbytes: of the all-reduce that compared them.
    """

    name: str
    default: int
    chosen: int
    gain: float
    at_nbytes: int


def choose(timer: Timer, ranks: Sequence[int], seconds: float) -> tuple[Sizes, list[Choice]]:
    """The best sizes, which are in force afterwards, and how they were chosen. Collective; takes about so many seconds.

    A chunk is for several ranks of a host, and stays as it is where links are so slow that comparing takes longer. On
    several hosts the eager limit stays as it is.

    ranks: of each host.
    """
    sizes = Sizes()
    choices = []
    sizes.set()
    turns = ROUNDS * len(CHUNKS)
    calls = int(seconds / turns / timer.seconds(CHUNK_AT_NBYTES, CHUNK_CALLS)) - WARMUP
    if max(ranks) > 1 and calls > 0:
        sizes, choice = _chunk(timer, sizes, min(CHUNK_CALLS, calls))
        choices.append(choice)
    if len(ranks) == 1 and ranks[0] > 1:
        sizes, choice = _eager(timer, sizes)
        choices.append(choice)
    sizes.set()
    return sizes, choices


def _chunk(timer: Timer, sizes: Sizes, calls: int) -> tuple[Sizes, Choice]:
    candidates = [replace(sizes, chunk_nbytes=chunk) for chunk in CHUNKS]
    times = _in_turns(candidates, partial(timer.seconds, CHUNK_AT_NBYTES, calls))
    usual = times[candidates.index(sizes)]
    least = min(times)
    best = candidates[times.index(least)] if least < WORTH * usual else sizes
    gain = usual / times[candidates.index(best)]
    return best, Choice("chunk", sizes.chunk_nbytes, best.chunk_nbytes, gain, CHUNK_AT_NBYTES)


def _eager(timer: Timer, sizes: Sizes) -> tuple[Sizes, Choice]:
    """The largest size up to which a message is faster from the request slots than from the log."""
    limit, gain, at_nbytes = LEAST_EAGER, 1.0, sizes.eager_nbytes
    for nbytes in EAGER_SIZES:
        candidates = [replace(sizes, eager_nbytes=nbytes), replace(sizes, eager_nbytes=nbytes - 1)]
        eager, logged = _in_turns(candidates, partial(timer.seconds, nbytes, EAGER_CALLS))
        # Where the two are alike the default decides.
        slower = eager > logged / WORTH if nbytes <= sizes.eager_nbytes else eager > logged * WORTH
        if slower:
            if nbytes <= sizes.eager_nbytes:
                gain, at_nbytes = eager / logged, nbytes
            break
        limit = nbytes
        if nbytes > sizes.eager_nbytes:
            gain, at_nbytes = logged / eager, nbytes
    return replace(sizes, eager_nbytes=limit), Choice("eager limit", sizes.eager_nbytes, limit, gain, at_nbytes)


def _in_turns(candidates: Sequence[Sizes], measure: Callable[[], float]) -> list[float]:
    """By candidate: the median of ROUNDS, in each of which every one has its turn."""
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(ROUNDS):
        for sizes, seconds in zip(candidates, times, strict=True):
            sizes.set()
            seconds.append(measure())
    return [median(seconds) for seconds in times]
