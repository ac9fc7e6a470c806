"""Commands that have something to put back end by a signal as by an exception."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise SystemExit(128 + signal), as of a program that they kill in a shell.

    One that is ignored, as SIGHUP is under nohup, stays ignored. Only in the main thread.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, _exit)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
