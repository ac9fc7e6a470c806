"""pidfds, by which the end of another process is noticed, or what to do where there are none."""

from __future__ import annotations

import errno
import os

from ringreduce.errors import UnavailableError

NEEDED = "Linux 5.4 or newer"  # pidfd_open() is of 5.3, waitid() for a pidfd of 5.4


def pidfd_of(pid: int) -> int:
    """A new descriptor of that process. Raises ProcessLookupError, and UnavailableError where no process has one."""
    try:
        return os.pidfd_open(pid)
    except AttributeError:
        why = "this Python has no os.pidfd_open (it was built for an older Linux): take another Python"
    except OSError as error:
        if error.errno == errno.ENOSYS:
            why = f"this kernel has no pidfd_open: it takes {NEEDED}"
        elif error.errno == errno.EPERM:
            why = "a seccomp filter forbids pidfd_open: allow it, by a newer container runtime or a profile of your own"
        else:
            raise
    raise UnavailableError(f"the end of a rank could not be noticed, as {why}") from None


def check_pidfds() -> None:
    """Raises UnavailableError where there are no pidfds."""
    os.close(pidfd_of(os.getpid()))
