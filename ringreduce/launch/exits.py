"""Tells which processes have ended, in the order in which they ended, however late it is asked.

epoll lists descriptors in the order in which they became ready, but those that are ready when they are added come after
those that are listed by then. So a process must be listed before it runs its program: it adds itself, between fork and
exec, to its parent's epoll, and sends its parent the pidfd that it has added.

The kernel knows an entry of an epoll by the open file and the descriptor's number. Both are the same in parent and
child: the parent takes a number before the fork, and each of the two puts the pidfd there.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from types import TracebackType

_INT = struct.Struct("i")  # a descriptor, in a message


class Exits:
    """Processes that are watched, each by its pidfd. To be polled for being readable."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """For a selector: readable when a process has ended."""
        return self._epoll.fileno()

    def expect(self) -> Expected:
        """The next process to watch, before it is forked."""
        return Expected(self._epoll)

    def ended(self) -> list[int]:
        """The pidfds of those that have ended, in this order, forgotten here."""
        pidfds = [pidfd for pidfd, _ in self._epoll.poll(0)]
        for pidfd in pidfds:
            self._epoll.unregister(pidfd)
        return pidfds

    def close(self) -> None:
        """Ends the watch. Idempotent."""
        self._epoll.close()


class Expected:
    """A process that is about to be forked. Leaving the `with` block without taken() forgets it."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # until the pidfd is there

    def __enter__(self) -> Expected:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ours.close()
        self._theirs.close()
        if self._number >= 0:
            os.close(self._number)

    def add_myself(self) -> None:
        """To be called by the child, before it runs its program."""
        self._add(os.getpid())
        socket.send_fds(self._theirs, [b"!"], [self._number])

    def taken(self, pid: int) -> int:
        """To be called by the parent, once the child runs its program: its pidfd, which is the caller's to close."""
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            _, ((_, _, descriptor),), _, _ = self._ours.recvmsg(1, socket.CMSG_SPACE(_INT.size), flags)
        except BlockingIOError:  # killed before it could
            self._add(pid)
        else:
            self._put(*_INT.unpack(descriptor))
        number, self._number = self._number, -1
        return number

    def _add(self, pid: int) -> None:
        self._put(os.pidfd_open(pid))
        self._epoll.register(self._number, select.EPOLLIN)

    def _put(self, pidfd: int) -> None:
        os.dup2(pidfd, self._number, inheritable=False)
        os.close(pidfd)
