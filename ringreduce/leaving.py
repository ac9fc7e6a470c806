"""Why a rank leaves a job: the exception that it handles when it calls shutdown(), in a `finally`, say."""

from __future__ import annotations

import sys
from contextlib import suppress

from ringreduce import uncaught
from ringreduce.errors import HorovodInternalError


def handled() -> int:
    """Which exception this thread handles. Its id: a reference would keep its frames, and with them their tensors."""
    return id(sys.exc_info()[1])


def why(error: BaseException | None, at_begin: int) -> str:
    """What the ranks that need this one are told where an exception makes it leave; "": nothing.

    Args:
        error: the exception.
        at_begin: handled() when the job began. That one does not end the job: a forked child has its parent's, a
            program that begins anew in an `except` has the one of the job before.
    """
    if not isinstance(error, Exception) or isinstance(error, HorovodInternalError) or id(error) == at_begin:
        return ""
    with suppress(Exception):  # an exception that cannot be formatted: the rank has to leave all the same
        return uncaught.cause(type(error), error, error.__traceback__)
    return type(error).__name__
