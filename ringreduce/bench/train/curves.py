"""Loss against time: what each process of a job records, and the sum of all processes.

The clock begins with the first step and runs through the checked and the untimed steps: they train, too. Between two
averagings the ranks' models differ, and the loss is that of each rank's own model on its own share of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from ringreduce.bench.train.modes.independent import Independent, Lockstep

if TYPE_CHECKING:
    from ringreduce.bench.train.figures import Row

MOST_POINTS = 400
MANY_MODELS = (Independent.name, Lockstep.name)
"""Modes whose ranks train a model each: their losses are no training's."""


class Curve:
    """The loss of each step of one process, before its update, by the time at which the step ended."""

    def __init__(self) -> None:
        self._begin = perf_counter()
        self._losses: list[float] = []
        self._seconds: list[float] = []

    @property
    def steps(self) -> int:
        """Taken so far."""
        return len(self._losses)

    def add(self, loss: float) -> None:
        """A step has ended."""
        self._losses.append(loss)
        self._seconds.append(perf_counter() - self._begin)

    def points(self) -> list[tuple[float, float]]:
        """(seconds, mean loss of the steps since the last point), at most MOST_POINTS of them, of equally many steps.

        The last one may be of fewer steps. Processes that took equally many steps have equally many points.
        """
        each = max(1, -(-len(self._losses) // MOST_POINTS))
        slices = [slice(start, start + each) for start in range(0, len(self._losses), each)]
        return [(self._seconds[rows][-1], sum(self._losses[rows]) / len(self._losses[rows])) for rows in slices]


def together(curves: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float]]:
    """The loss of global batches, of which each process has a part, by the time of the slowest process."""
    return [
        (max(seconds for seconds, _ in points), sum(loss for _, loss in points)) for points in zip(*curves, strict=True)
    ]


def compared(rows: Sequence[Row]) -> list[tuple[Row, list[tuple[float, float]]]]:
    """The modes that train one model, with the curve of their first round that went well."""
    found = []
    for row in rows:
        good = next((cell for cell in row.rounds if cell.curve), None)
        if good is not None and row.mode not in MANY_MODELS:
            found.append((row, good.curve))
    return found


def smoothed(curve: Sequence[Sequence[float]], width: int = 9) -> list[tuple[float, float]]:
    """Each point's seconds, and the mean loss of the last `width` points."""
    return [
        (curve[at][0], sum(loss for _, loss in curve[max(0, at + 1 - width) : at + 1]) / min(width, at + 1))
        for at in range(len(curve))
    ]


def loss_at(curve: Sequence[Sequence[float]], seconds: float) -> float | None:
    """The smoothed loss of the last point until then; None before the first."""
    return next((loss for end, loss in reversed(smoothed(curve)) if end <= seconds), None)
