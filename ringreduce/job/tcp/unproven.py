"""Room for connections whose other side has proven nothing, at a socket that strangers reach too.

Who merely reaches a port shall not keep out who belongs there: there is room for all of those and for some more, and
where it is full, the one that has been silent longest goes, and not the one that comes.
"""

from __future__ import annotations

import errno
import os
import resource

UNPROVEN_MOST = 64
"""Beside one for each that is expected."""
UNPROVEN_LEAST = 16
"""Also where the limit of descriptors is low."""
SPARE_DESCRIPTORS = 16
"""What strangers leave to the other threads of this process, beside those that it is known to need."""
NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""What accept() and socket() report where there is no descriptor, or no memory, for one more."""
BROKEN = frozenset(
    (
        *(errno.EAGAIN, errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EPERM, errno.ETIMEDOUT),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENONET),
        *(errno.ENOPROTOOPT, errno.EOPNOTSUPP),
    )
)
"""What accept() reports of a connection that is gone already: accept(2), "Error handling"."""


def places_of_unproven(expected: int, needed: int = 0) -> int:
    """For how many connections that have proven nothing there is room.

    Args:
        expected: how many come of those that belong there.
        needed: descriptors that are left free for them once they have proven it.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return UNPROVEN_MOST + expected
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # no /proc
        return UNPROVEN_LEAST
    left = limit - used - needed - SPARE_DESCRIPTORS
    return min(UNPROVEN_MOST + expected, max(UNPROVEN_LEAST, left))
