"""Errors of the operating system while ranks meet, in words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ringreduce.errors import Error, HorovodInternalError, UnavailableError


@contextmanager
def errno_text(me: str, where: str) -> Iterator[None]:
    """Gives a bare OSError its rank and address, and says what to do where no file descriptor is left."""
    try:
        yield
    except Error:
        raise  # ringreduce.TimeoutError is an OSError too
    except OSError as error:
        text = f"{me} at {where}: {error}"
        if error.errno == errno.EMFILE:
            text += ": a rank needs a file descriptor for each other one: raise the limit (ulimit -n)"
        elif error.errno == errno.ENFILE:
            text += ": the host's programs have too many files open: raise the limit (sysctl fs.file-max)"
        lacks = error.errno in (errno.EMFILE, errno.ENFILE)
        raise (UnavailableError if lacks else HorovodInternalError)(text) from error
