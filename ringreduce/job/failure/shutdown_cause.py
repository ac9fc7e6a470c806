"""Why a rank leaves a job: the exception that it handles when it calls shutdown(), in a `finally`, say.

An exception that it handles already when the job begins does not end the job: a forked child has its parent's, and a
program that begins anew in an `except` has the one of the job before. begin() marks it. The job keeps no reference to
it, which would keep its frames and their tensors, and no id, which another exception may get later.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from ringreduce.errors import HorovodInternalError
from ringreduce.job.failure import uncaught

NO_CAUSES = (HorovodInternalError, StopIteration, StopAsyncIteration)
"""The other ranks have the first, too; the others say that a rank has done all its steps."""
_MARK = "_ringreduce_is_older"


def begin() -> None:
    """A job begins. What this thread handles now is no cause of its end."""
    error = sys.exc_info()[1]
    while error is not None and _MARK not in vars(error):  # the handlers around it have theirs
        vars(error)[_MARK] = True
        error = error.__context__


def why(error: BaseException | None) -> str:
    """What the ranks that need this one are told where the exception makes it leave; "": nothing."""
    if not isinstance(error, Exception) or isinstance(error, NO_CAUSES) or _MARK in vars(error):
        return ""
    with suppress(Exception):  # an exception that cannot be formatted: the rank has to leave all the same
        return uncaught.cause(error)
    return type(error).__name__
