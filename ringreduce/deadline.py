"""A point in time that every wait of one task shares."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

LOOK_S = 0.1


class Deadline:
    """Runs out timeout_s seconds after it is made; 0 means never, as for RINGREDUCE_TIMEOUT.

    look: raises when there is nothing to wait for any more, such as a rank that has died; asked every LOOK_S seconds.
    """

    __slots__ = ("_end_s", "_look", "timeout_s")

    def __init__(self, timeout_s: float, look: Callable[[], None] | None = None) -> None:
        self.timeout_s = timeout_s
        self._look = look
        self._end_s = time.monotonic() + timeout_s if timeout_s > 0 else math.inf

    def remaining_s(self) -> float:
        """Seconds left, 0 or more; infinity without a limit."""
        return max(0.0, self._end_s - time.monotonic())

    def wait_s(self) -> float | None:
        """The same for calls that take None as no limit, and 0 as 'do not block': at least 1 ms."""
        left = self.remaining_s()
        return None if left == math.inf else max(left, 1e-3)

    def turn_s(self) -> float | None:
        """wait_s() for one turn of a loop that calls look() and expired() itself when the turn has brought nothing."""
        left = self.wait_s()
        if self._look is None:
            return left
        return LOOK_S if left is None else min(left, LOOK_S)

    def look(self) -> None:
        """Raises what the `look` that was given raises."""
        if self._look is not None:
            self._look()

    def expired(self) -> bool:
        """True once no time is left."""
        return self.remaining_s() == 0.0
