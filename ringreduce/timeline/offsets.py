"""From bounds of the difference of two clocks to a piecewise linear offset, and how wrong it can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WINDOW_NS = 5_000_000_000
NARROWEST_NS = 500_000_000
WINDOWS_AT_LEAST = 4  # a job of some seconds, too, shows how its clocks drift
LOOSEST = 2.0
"""Times the median window's width: a window that is wider is left out."""
FASTEST_DRIFT = 200e-6  # seconds by which two clocks go apart in a second, at most


@dataclass(frozen=True)
class Bounds:
    """At the instant at_ns of a clock, the other one minus this one lay from lower_ns to upper_ns. All int64."""

    at_ns: np.ndarray
    lower_ns: np.ndarray
    upper_ns: np.ndarray


@dataclass(frozen=True)
class Offset:
    """The other clock minus this one: straight lines between the nodes (at_ns, offset_ns), `slope` outside of them."""

    at_ns: np.ndarray
    offset_ns: np.ndarray
    slope: float = 0.0

    @classmethod
    def constant(cls, offset_ns: int) -> Offset:
        return cls(np.zeros(1, np.int64), np.array([offset_ns], np.int64))

    def apply(self, ns: np.ndarray) -> np.ndarray:
        """Times of this clock as times of the other, int64. It keeps their order."""
        shifted: np.ndarray = ns + self.offset_ns[0]
        if len(self.at_ns) == 1 and self.slope == 0:
            return shifted
        since = (ns - self.at_ns[0]).astype(np.float64)  # relative: a float64 holds whole ns for 100 days
        nodes = (self.at_ns - self.at_ns[0]).astype(np.float64)
        change = np.interp(since, nodes, (self.offset_ns - self.offset_ns[0]).astype(np.float64))
        change += self.slope * (np.minimum(since, 0) + np.maximum(since - nodes[-1], 0))
        shifted += np.rint(change).astype(np.int64)
        return shifted


def fit(bounds: Bounds, begin_ns: int, end_ns: int) -> tuple[Offset, int]:
    """The offset, and the largest error in ns that it can have from begin_ns to end_ns of this clock.

    In each window the bounds are tightened after the common drift is taken out of them, else a window of 5 s with a
    drift of 50 ppm would be 250 us wide. What the drift still differs from the common one widens the result.
    """
    origin, middle = int(bounds.at_ns[0]), int(bounds.lower_ns[0])
    at = (bounds.at_ns - origin).astype(np.float64)
    lower, upper = (bounds.lower_ns - middle).astype(np.float64), (bounds.upper_ns - middle).astype(np.float64)
    window = min(max((at.max() - at.min()) / WINDOWS_AT_LEAST, NARROWEST_NS), WINDOW_NS)
    begin = at.min()
    index = ((at - begin) // window).astype(np.int64)
    order = np.lexsort((upper - lower, index))  # the tightest of a window comes first
    at, lower, upper, index = at[order], lower[order], upper[order], index[order]
    first = np.flatnonzero(np.diff(index, prepend=-1))
    tightest = (upper - lower)[first]
    # A window in which no answer came quickly says less than its neighbours and the drift between them.
    telling = tightest <= LOOSEST * np.median(tightest)
    chosen = np.repeat(telling, np.diff(first, append=len(at)))
    at, lower, upper, index = at[chosen], lower[chosen], upper[chosen], index[chosen]
    first, tightest = np.flatnonzero(np.diff(index, prepend=-1)), tightest[telling]
    slope, uncertain = _slope(at[first], (lower + upper)[first] / 2, tightest / 2 + 1)
    # The node stands in the middle of its window: two nodes are a window apart, and noise makes no steep line.
    nodes = begin + (index[first] + 0.5) * window
    drift = slope * (at - nodes[np.repeat(np.arange(len(first)), np.diff(first, append=len(at)))])
    low, high = np.maximum.reduceat(lower - drift, first), np.minimum.reduceat(upper - drift, first)
    half = np.where(low <= high, (high - low) / 2, tightest / 2 + low - high)  # low > high: the drift was not steady
    offsets, moved = _steady((low + high) / 2, nodes, slope)
    uncertain = max(uncertain, float(np.abs(np.diff(offsets) / np.diff(nodes) - slope).max(initial=0.0)))
    outside = max(nodes[0] - (begin_ns - origin), (end_ns - origin) - nodes[-1], 0.0)
    reach = max(window, float(np.diff(nodes).max(initial=0.0))) / 2 + outside
    error = float(half.max()) + moved + uncertain * reach
    at_ns = origin + np.rint(nodes).astype(np.int64)
    return Offset(at_ns, middle + np.rint(offsets).astype(np.int64), slope), int(np.ceil(error))


def _slope(at: np.ndarray, offset: np.ndarray, half: np.ndarray) -> tuple[float, float]:
    """The drift that all windows have in common (least squares, the tight ones count most), and its largest error.

    Where that error is larger than any drift can be, the answer is that there is none.
    """
    weight = 1 / half**2
    at = at - np.average(at, weights=weight)
    spread = float((weight * at * at).sum())
    if len(at) > 1 and spread > 0:
        error = float((weight * np.abs(at) * half).sum()) / spread
        if error < FASTEST_DRIFT:
            slope = float((weight * at * offset).sum()) / spread
            return min(max(slope, -FASTEST_DRIFT), FASTEST_DRIFT), error
    return 0.0, FASTEST_DRIFT


def _steady(offsets: np.ndarray, nodes: np.ndarray, slope: float) -> tuple[np.ndarray, float]:
    """The offsets without steps that no clock makes, and the largest change: a wrong bound must not turn time back."""
    steady = offsets.copy()
    for index in range(1, len(steady)):
        wide = nodes[index] - nodes[index - 1]
        expected = steady[index - 1] + slope * wide
        steady[index] = np.clip(steady[index], expected - FASTEST_DRIFT * wide, expected + FASTEST_DRIFT * wide)
    return steady, float(np.abs(steady - offsets).max())
