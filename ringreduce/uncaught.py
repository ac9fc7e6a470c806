"""An exception that nobody catches, in one rank of a job that MPI has started, ends the whole job.

Without this the rank would wait in MPI_Finalize until all others have come there too: for ever, where they wait for it.
`python -m mpi4py` does likewise; here the other ranks learn of it from ringreduce first, and say so, before MPI_Abort.
Where no MPI runs in the process, the launcher sees its status and ends the others, but for MPICH's: Hydra waits for
all, unless one is killed by a signal, so this one is. Processes of no such job, or whose job has ended well, are left
alone. sys.exit() is no exception.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType

GRACE_S = 1.0  # for the others to raise and print; their output is lost once MPI kills them

_armed = 0  # the process that is a rank; a forked child is none
_leave: Callable[[], None] | None = None
_by_hydra = False
_previous = sys.excepthook


def arm(leave: Callable[[], None], launcher: str) -> None:
    """From now on an uncaught exception calls leave(), by which the other ranks learn of it, and ends the job.

    launcher: as Placement.source names it.
    """
    global _armed, _leave, _by_hydra, _previous
    _armed, _leave, _by_hydra = os.getpid(), leave, launcher == "mpich"
    if sys.excepthook is not _end_job:
        _previous = sys.excepthook
        sys.excepthook = _end_job


def disarm() -> None:
    """The rank leaves its job; does nothing where an exception makes it leave (`with`, `finally`), as it may go on."""
    global _armed
    if sys.exc_info()[0] is None:
        _armed = 0


def _end_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _previous(kind, error, trace)
    if _armed != os.getpid() or _leave is None or sys.flags.interactive or hasattr(sys, "ps1"):
        return
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        end = _abort if mpi.COMM_WORLD.Get_size() > 1 else None
    else:
        end = _die if _by_hydra else None
    if end is not None:
        sys.stdout.flush()
        _leave()
        time.sleep(GRACE_S)
        end()


def _abort() -> None:
    sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(1)


def _die() -> None:
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
