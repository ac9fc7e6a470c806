"""Where a rank's time has gone since somebody last asked. Whoever asks has an interval of his own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ringreduce._core import Context


class Reported(NamedTuple):
    """Of whom somebody asks: a rank of the job, or of a group of torch.distributed."""

    context: Context
    rank: int
    """In the context."""
    counters: Callable[[], dict[str, int]]


class ReportInterval:
    """The time from one reading to the next. Another job, or group, begins a new interval: its counters begin anew."""

    __slots__ = ("_before", "_context")

    def __init__(self) -> None:
        self._context: weakref.ref[Context] | None = None  # weak: it keeps no job alive that has ended
        self._before: tuple[float, list[float], list[float]] = (0.0, [], [])

    def begin(self, context: Context) -> None:
        """Leaves out what has been so far."""
        self._context = weakref.ref(context)
        self._before = context.times()

    def figures(self, of: Reported) -> dict[str, float]:
        """What report() returns: since the last call, or begin(); for a context that is new here, since it began."""
        sampled_s, waited_s, late_s = now = of.context.times()
        if self._context is None or self._context() is not of.context:
            self._context = weakref.ref(of.context)
            self._before = (0.0, [0.0] * len(waited_s), [0.0] * len(late_s))
        before_s, waited_before_s, late_before_s = self._before
        elapsed_s = sampled_s - before_s
        if elapsed_s > 0:
            self._before = now

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
            **of.counters(),
        }
