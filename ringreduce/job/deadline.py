"""A point in time that every wait of one task shares."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

CHECK_S = 0.1
LONGEST_S = 2e6
"""23 days: poll() counts milliseconds in an int, and Python raises OverflowError for what is longer."""


class Deadline:
    """Runs out timeout_s seconds after it is made; 0 means never, as for RINGREDUCE_TIMEOUT.

    check: raises when there is nothing to wait for any more, for instance after a rank's death; called every CHECK_S
        seconds.
    """

    __slots__ = ("_check", "_end_s", "timeout_s")

    def __init__(self, timeout_s: float, check: Callable[[], None] | None = None) -> None:
        self.timeout_s = timeout_s
        self._check = check
        self._end_s = time.monotonic() + timeout_s if timeout_s > 0 else math.inf

    @property
    def has_check(self) -> bool:
        """Whether check() may raise something."""
        return self._check is not None

    def remaining_s(self) -> float:
        """Seconds left, 0 or more; infinity without a limit."""
        return max(0.0, self._end_s - time.monotonic())

    def overrun_s(self) -> float:
        """Seconds since it ran out; 0 before, and without a limit."""
        return 0.0 if self._end_s == math.inf else max(0.0, time.monotonic() - self._end_s)

    def wait_s(self) -> float | None:
        """The same for calls that take None as no limit, and 0 as 'do not block': 1 ms to LONGEST_S."""
        left = self.remaining_s()
        return None if left == math.inf else min(max(left, 1e-3), LONGEST_S)

    def turn_s(self) -> float | None:
        """wait_s() for one turn of a loop that calls check() and expired() itself when the turn has brought nothing."""
        left = self.wait_s()
        if self._check is None:
            return left
        return CHECK_S if left is None else min(left, CHECK_S)

    def check(self) -> None:
        """Raises what the given `check` raises."""
        if self._check is not None:
            self._check()

    def check_for(self, seconds: float) -> None:
        """Calls check() until so much time has passed, or none is left; returns at once where there is no check."""
        until_s = time.monotonic() + min(seconds, self.remaining_s())
        while self._check is not None and time.monotonic() < until_s:
            self._check()
            time.sleep(CHECK_S)

    def expired(self) -> bool:
        """True once no time is left."""
        return self.remaining_s() == 0.0
