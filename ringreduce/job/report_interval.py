"""Where a rank's time has gone since somebody last asked. Whoever asks has an interval of his own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ringreduce._core import Context


Link = tuple[int, int, int, float]
"""Of Context.links()."""


class Reported(NamedTuple):
    """Of whom somebody asks: a rank of the job, or of a group of torch.distributed."""

    context: Context
    rank: int
    """In the context."""
    counters: Callable[[], dict[str, int]]


class ReportInterval:
    """The time from one reading to the next. Another job, or group, begins a new interval: its counters begin anew."""

    __slots__ = ("_before", "_context", "_links_before")

    def __init__(self) -> None:
        self._context: weakref.ref[Context] | None = None  # weak: it keeps no job alive that has ended
        self._before: tuple[float, list[float], list[float]] = (0.0, [], [])
        self._links_before: list[Link] = []

    def begin(self, context: Context) -> None:
        """Leaves out what has been so far."""
        self._context = weakref.ref(context)
        self._before = context.times()
        self._links_before = context.links()

    def figures(self, of: Reported) -> dict[str, float]:
        """What report() returns: since the last call, or begin(); for a context that is new here, since it began."""
        sampled_s, waited_s, late_s = now = of.context.times()
        if self._context is None or self._context() is not of.context:
            self._context = weakref.ref(of.context)
            self._before = (0.0, [0.0] * len(waited_s), [0.0] * len(late_s))
            self._links_before = []
        before_s, waited_before_s, late_before_s = self._before
        elapsed_s = sampled_s - before_s
        links_before = self._links_before
        if elapsed_s > 0:
            self._before = now
            self._links_before = of.context.links()

        def share(seconds: float) -> float:
            return min(1.0, seconds / elapsed_s) if elapsed_s > 0 else 0.0

        late = [share(after - before) for after, before in zip(late_s, late_before_s, strict=True)]
        latest = max(range(len(late)), key=late.__getitem__)
        return {
            "sampled_s": elapsed_s,
            "waited_share": share(waited_s[of.rank] - waited_before_s[of.rank]),
            "late_share": late[of.rank],
            "latest_rank": latest if late[latest] > 0 else -1,
            "latest_share": late[latest],
            **_busiest_link(self._links_before, links_before, elapsed_s),
            **of.counters(),
        }


def _busiest_link(links: Sequence[Link], before: Sequence[Link], elapsed_s: float) -> dict[str, float]:
    """Of the links between hosts. before: their figures elapsed_s ago; none: there were none."""
    source, target, share, rate = -1, -1, 0.0, 0.0
    for index, (one_source, one_target, nbytes, busy_s) in enumerate(links if elapsed_s > 0 else ()):
        _, _, nbytes_before, busy_before_s = before[index] if before else (0, 0, 0, 0.0)
        one_share = min(1.0, (busy_s - busy_before_s) / elapsed_s)
        if one_share > share:
            rate = (nbytes - nbytes_before) / (busy_s - busy_before_s)
            source, target, share = one_source, one_target, one_share
    return {
        "busiest_link_from": source,
        "busiest_link_to": target,
        "busiest_link_share": share,
        "busiest_link_rate": rate,
    }
