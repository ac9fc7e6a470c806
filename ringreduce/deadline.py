"""A point in time that every wait of one task shares."""

from __future__ import annotations

import math
import time


class Deadline:
    """Runs out timeout_s seconds after it is made; 0 means never, as for RINGREDUCE_TIMEOUT."""

    __slots__ = ("_end_s", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s if timeout_s > 0 else math.inf

    def remaining_s(self) -> float:
        """Seconds left, 0 or more; infinity without a limit."""
        return max(0.0, self._end_s - time.monotonic())

    def wait_s(self) -> float | None:
        """The same for calls that take None as no limit, and 0 as 'do not block': at least 1 ms."""
        left = self.remaining_s()
        return None if left == math.inf else max(left, 1e-3)

    def expired(self) -> bool:
        """True once no time is left."""
        return self.remaining_s() == 0.0
