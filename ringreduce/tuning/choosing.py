"""Which sizes are best here: each is tried in turn with the others, several times, on the job's own ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Protocol

from ringreduce.tuning.sizes import Sizes

CHUNKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20)
CHUNK_AT_NBYTES = 2 << 20
"""Chunks are compared by an all-reduce of so many bytes: some chunks for each rank."""
EAGER_SIZES = (2 << 10, 4 << 10, 8 << 10, 16 << 10)
LEAST_EAGER = 1 << 10
ROUNDS, FEW_ROUNDS = 5, 3
CHUNK_CALLS = 5
EAGER_CALLS = 60
"""The first 16 calls of a size touch memory for the first time."""
WORTH = 0.97
"""What is not at least 3 % faster than the default is within what the same thing differs from itself."""


class Measured(Protocol):
    """All-reduces of some ranks, by the sizes that were set last."""

    def set(self, sizes: Sizes) -> None:
        """Collective."""

    def seconds(self, nbytes: int, calls: int) -> float:
        """The median of so many calls, and one before them; of the slowest rank, so the same on all. Collective."""


@dataclass(frozen=True)
class Choice:
    """One size that was chosen.

    Attributes:
        name: of the size, for people.
        default, chosen: in bytes.
        gain: the default's time over the chosen one's at at_nbytes; None where they are the same.
    """

    name: str
    default: int
    chosen: int
    gain: float | None
    at_nbytes: int


def choose_chunk(measured: Measured, sizes: Sizes, seconds: float) -> tuple[Sizes, Choice]:
    """The best chunk for ranks of a host, which exchange private memory. Collective; takes about so many seconds, or
    what three turns of one call each take.
    """
    candidates = [replace(sizes, chunk_nbytes=chunk) for chunk in CHUNKS]
    measured.set(sizes)
    affordable = seconds / len(candidates) / measured.seconds(CHUNK_AT_NBYTES, CHUNK_CALLS)
    rounds = ROUNDS if affordable > 2 * ROUNDS else FEW_ROUNDS
    calls = max(1, min(CHUNK_CALLS, int(affordable / rounds) - 1))
    times = _in_turns(measured, candidates, rounds, partial(measured.seconds, CHUNK_AT_NBYTES, calls))
    usual = times[candidates.index(sizes)]
    least = min(times)
    best = candidates[times.index(least)] if least < WORTH * usual else sizes
    gain = usual / times[candidates.index(best)] if best != sizes else None
    return best, Choice("chunk", sizes.chunk_nbytes, best.chunk_nbytes, gain, CHUNK_AT_NBYTES)


def choose_eager(measured: Measured, sizes: Sizes) -> tuple[Sizes, Choice]:
    """The largest size up to which a message is faster from the request slots than from the log. Collective.

    From the default the limit goes down past sizes that are slower from the slots, or up past those that are faster.
    """
    faster: dict[int, float] = {}  # by size: the log's time over the slots'
    for nbytes in EAGER_SIZES:
        candidates = [replace(sizes, eager_nbytes=nbytes), replace(sizes, eager_nbytes=nbytes - 1)]
        slots, log = _in_turns(measured, candidates, ROUNDS, partial(measured.seconds, nbytes, EAGER_CALLS))
        faster[nbytes] = log / slots
    limit, gain, at_nbytes = sizes.eager_nbytes, None, sizes.eager_nbytes
    for nbytes in sorted((size for size in EAGER_SIZES if size <= sizes.eager_nbytes), reverse=True):
        if faster[nbytes] > WORTH:
            break
        limit = max(size for size in (LEAST_EAGER, *EAGER_SIZES) if size < nbytes)
        gain, at_nbytes = 1 / faster[nbytes], nbytes
    for nbytes in (size for size in EAGER_SIZES if size > limit and limit >= sizes.eager_nbytes):
        if faster[nbytes] * WORTH <= 1:
            break
        limit, gain, at_nbytes = nbytes, faster[nbytes], nbytes
    return replace(sizes, eager_nbytes=limit), Choice("eager limit", sizes.eager_nbytes, limit, gain, at_nbytes)


def _in_turns(
    measured: Measured, candidates: Sequence[Sizes], rounds: int, measure: Callable[[], float]
) -> list[float]:
    """By candidate: the median of some rounds, in each of which every one has its turn."""
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(rounds):
        for sizes, seconds in zip(candidates, times, strict=True):
            measured.set(sizes)
            seconds.append(measure())
    return [median(seconds) for seconds in times]
