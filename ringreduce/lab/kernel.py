"""The system calls on namespaces and mounts that Python 3.10 does not have. Each raises OSError with what was asked."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
HOST = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET

MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """New namespaces for this process; a PID namespace for its children."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def enter(pid: int, flags: int) -> None:
    """Joins the namespaces of another process; its PID namespace counts for children only. Linux >= 5.8."""
    fd = os.pidfd_open(pid)
    try:
        _check(_libc.setns(fd, flags), f"setns to process {pid}")
    finally:
        os.close(fd)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    arguments = (word.encode() or None for word in (source, target, kind))
    done = _libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None)
    _check(done, f"mount {source} at {target} {kind} {options}")


def bind(source: str, target: str) -> None:
    """Shows a file or a folder in a second place."""
    mount(source, target, flags=MS_BIND)


def die_with_parent(signum: int) -> None:
    """This process gets the signal when the one that started it ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def _check(status: int, what: str) -> None:
    if status != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
