"""Every error that ringreduce raises, one class per thing a caller may want to catch.

The native core raises these same classes. HorovodInternalError keeps Horovod's name, so that scripts which catch it
(elastic training does) go on working.
"""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """Base of all errors that ringreduce raises."""


class HorovodInternalError(Error):
    """An operation or its group failed while running; not the caller's argument."""


class PeerLostError(HorovodInternalError):
    """Another rank died or left because of an exception. Final: the group stays failed until shutdown() and init()."""


class TimeoutError(HorovodInternalError, builtins.TimeoutError):
    """A deadline ran out; the text names what was waited for, where and by whom. Also the builtin TimeoutError."""


class MismatchError(HorovodInternalError):
    """Ranks called with different shapes, dtypes, operations, orders or sizes; every rank raises it.

    Of a message the receiver alone: send() has succeeded when the bytes are on their way.
    """


class ShutdownError(HorovodInternalError):
    """The operation needs a rank that has shut down, or this process shut down while it was pending."""


class NotInitializedError(HorovodInternalError, ValueError):
    """A call that needs a job was made before init(), after shutdown(), or in a forked child."""


class InvalidArgumentError(Error, ValueError):
    """An argument or an environment variable has a value that means nothing here; the text names it."""


class UnavailableError(Error):
    """Something that this build, this machine or this version does not have; the text says what exists instead."""
