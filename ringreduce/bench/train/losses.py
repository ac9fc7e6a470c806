"""Whether all modes train alike: same weights, same batches, so the same losses but for rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringreduce.bench.train.figures import Cell
from ringreduce.bench.train.modes import MODES

JUDGES = ("single", "single-all", "horovod", "ddp-gloo", "mwms", "mwms-ring", "ringreduce")
"""Whose loss is taken for right: the first of these that has one. ringreduce judges itself last."""


@dataclass(frozen=True)
class Verdict:
    """One mode's losses beside the judge's."""

    loss: float
    """After the checked steps; of a mode that does not reduce, before the first."""
    difference: float
    """The largest relative one of all compared steps and rounds; infinite where a loss is not a number."""
    same: bool
    """Of ringreduce as its own judge this says only that its rounds agree."""


def judge(cells: Mapping[str, Sequence[Cell]], tolerance: float) -> tuple[str | None, dict[str, Verdict]]:
    """Who was the judge (None: nobody got that far), and a verdict on every mode that has losses.

    Args:
        tolerance: relative; fp32 sums in another order differ, and steps amplify that.
    """
    losses = {mode: [each.losses for each in mine if each.losses] for mode, mine in cells.items()}
    name = next((mode for mode in JUDGES if losses.get(mode)), None)
    if name is None:
        return None, {}
    right = losses[name][0]
    verdicts = {}
    for mode, mine in losses.items():
        compared = len(right) if MODES[mode].is_reduced else 1
        if mine:
            difference = max(_difference(each[:compared], right[:compared]) for each in mine)
            verdicts[mode] = Verdict(mine[0][:compared][-1], difference, difference <= tolerance)
    return name, verdicts


def _difference(ours: Sequence[float], right: Sequence[float]) -> float:
    if len(ours) != len(right) or not all(map(math.isfinite, [*ours, *right])):
        return math.inf
    return max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(ours, right, strict=True))
