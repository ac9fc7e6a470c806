"""What an exception that nobody catches does in one rank of a job.

ringrun and the other ranks are told what it was and where; the others' operations fail with PeerLostError. A job that
MPI has started ends: without this the rank would wait in MPI_Finalize until all others have come there too, for ever
where they wait for it. `python -m mpi4py` does likewise; here the other ranks have time to say why, before MPI_Abort.
Where no MPI runs in the process, the launcher sees its status and ends the others, but for MPICH's: Hydra waits for
all, unless one is killed by a signal, so this one is. Processes of no such job, or whose job has ended well, are left
alone. sys.exit() is no exception.

A child of multiprocessing ends without sys.excepthook and, if it was forked and Python is older than 3.13, without
atexit. _hook_child() stands in for both.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CodeType, TracebackType

from ringreduce.job.inheritance import CHILD_PRIORITY
from ringreduce.job.user_code import is_user_code

CAUSE_NBYTES = 500  # of its first line at most: with the place it fits where the core keeps it
REPORT_NBYTES = 8192  # of a report at most, its text in JSON
MONITORING_TOOLS = (4, 3)  # the numbers of sys.monitoring that are nobody's
GRACE_S = 1.0  # for the others to raise and print; their output is lost once MPI kills them

OF_ANOTHER_RANK = ("PeerLostError", "ShutdownError")
"""Classes of ringreduce.errors that say that another rank has gone: died, failed, or called shutdown()."""
_OF_ANOTHER_RANK = re.compile(rf"\b({'|'.join(OF_ANOTHER_RANK)}): .*")

_armed = 0  # the process that is a rank; a forked child is none
_tellers: dict[Callable[[str], None], tuple[int, Callable[[], None]]] = {}  # each with the process that it is for
_leave: Callable[[], None] | None = None
_by_hydra = False
_hooked: Callable[..., None] | None = None  # what sys.excepthook was made
_is_handling = False
_child = 0  # the child of multiprocessing that has its hooks


def tell_by(fail: Callable[[str], None], leave: Callable[[], None]) -> None:
    """From now on an uncaught exception calls fail(what), which tells the other ranks of its jobs. Idempotent.

    leave: what atexit would call; a child of multiprocessing calls it at its end.
    """
    _tellers[fail] = os.getpid(), leave
    _hook()


def arm(leave: Callable[[], None], launcher: str) -> None:
    """From now on an uncaught exception calls leave() where others would wait for this process, and ends the job.

    launcher: as Placement.source names it.
    """
    global _armed, _leave, _by_hydra
    _armed, _leave, _by_hydra = os.getpid(), leave, launcher == "mpich"
    _hook()


def _hook() -> None:
    global _hooked
    if sys.excepthook is not _hooked:  # init_process_group() of torch hooks too, and calls what was there
        sys.excepthook = _hooked = partial(_end_job, sys.excepthook)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        _hook_child(process.BaseProcess._bootstrap.__code__)


def _hook_child(bootstrap: CodeType) -> None:
    """Has a child of multiprocessing say what ended it, and leave its jobs.

    BaseProcess._bootstrap() handles the child's exception. Before Python 3.13 it runs the finalizers meanwhile. From
    3.13 on they run after it, so there the lines of that one function are watched for an exception. That needs a number
    of sys.monitoring: where other tools have them, the other ranks get a ShutdownError without the cause.
    """
    global _child
    if _child == os.getpid():
        return
    _child = os.getpid()
    told = False

    def tell(*_: object) -> None:
        nonlocal told
        error = sys.exc_info()[1]
        if told or error is None or error.__traceback__ is None:
            return
        if error.__traceback__.tb_frame.f_code is bootstrap:
            told = True
            tell_of(_of_torch(error))

    def leave() -> None:
        tell()
        for process, call in list(_tellers.values()):
            if process == os.getpid():
                call()

    sys.modules["multiprocessing.util"].Finalize(None, leave, exitpriority=CHILD_PRIORITY)
    if sys.version_info >= (3, 13):
        monitoring = sys.monitoring
        free = next((tool for tool in MONITORING_TOOLS if monitoring.get_tool(tool) is None), None)
        if free is not None:
            monitoring.use_tool_id(free, "ringreduce")
            monitoring.register_callback(free, monitoring.events.LINE, tell)
            monitoring.set_local_events(free, bootstrap, monitoring.events.LINE)


def _of_torch(error: BaseException) -> BaseException:
    """torch.multiprocessing.spawn() has its children write their exception to a file and call sys.exit()."""
    places = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    by_torch = isinstance(error, SystemExit) and places[-1].f_globals.get("__name__") == "torch.multiprocessing.spawn"
    return error.__context__ if by_torch and error.__context__ is not None else error


def disarm() -> None:
    """The rank leaves its job; does nothing where an exception makes it leave (`with`, `finally`), as it may go on."""
    global _armed
    if sys.exc_info()[0] is None:
        _armed = 0


def _end_job(
    previous: Callable[..., None], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """The hook. Where there are two of it, with another's between them, the outer one does the work."""
    global _is_handling
    is_inner, _is_handling = _is_handling, True
    try:
        previous(kind, error, trace)
    finally:
        _is_handling = is_inner
    if is_inner:
        return
    if sys.flags.interactive or hasattr(sys, "ps1"):
        return
    tell_of(error)
    if _armed != os.getpid() or _leave is None:
        return
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        end = _abort if mpi.COMM_WORLD.Get_size() > 1 else None
    else:
        end = _die if _by_hydra else None
    if end is not None:
        sys.stdout.flush()
        if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:
            sys.__stderr__.write(sys.stderr.getvalue())  # torch's hook would write it once this one has returned
            sys.__stderr__.flush()
        _leave()
        time.sleep(GRACE_S)
        end()


def tell_of(error: BaseException) -> None:
    """Tells ringrun and the other ranks what ends this one. For who has caught it, too."""
    if not isinstance(error, Exception):  # KeyboardInterrupt: the user knows
        return
    what = cause(error)
    if _armed == os.getpid():
        _report(_repeated(error) or what)  # before the others fail, and report that
    for fail, (process, _) in list(_tellers.items()):
        if process == os.getpid():
            with suppress(Exception):  # the job has to end all the same
                fail(what)


def report_address(job: str) -> str:
    """The abstract Unix socket at which a job's ringrun takes its ranks' reports.

    A report is the job's secret, a newline, and [rank, cause] as JSON.
    """
    return f"\0{job}.exceptions"


def _report(what: str) -> None:
    """Tells ringrun. Without one, or with one that does not listen, nobody is told but by the traceback."""
    job, _, secret = os.environ.get("RINGREDUCE_RENDEZVOUS", "").rpartition(":")
    rank = os.environ.get("RINGREDUCE_RANK", "")
    if not job or not rank.isdecimal():
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.sendto(f"{secret}\n{json.dumps([int(rank), what])}".encode(), report_address(job))


def cause(error: BaseException) -> str:
    """Class, text and place in one line: "RuntimeError: out of memory (train.py:14)".

    The place is the innermost one in the user's own files: not in an installed package, this one or the standard
    library.
    """
    lines = "".join(traceback.format_exception_only(type(error), error)).splitlines()
    return _with_place(next((line for line in lines if not line.startswith(" ")), type(error).__name__), error)


def _repeated(error: BaseException) -> str | None:
    """The same of the end of another rank from which the error has come; None: from no such end.

    A framework has our error in its own (TensorFlow's graphs, JAX' programs), and a program may have raised another one
    from it.
    """
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        seen.append(one)
        found = _OF_ANOTHER_RANK.search("".join(traceback.format_exception_only(type(one), one)))
        if found is not None:
            return _with_place(f"ringreduce.errors.{found[0]}", error)
        one = one.__cause__ or one.__context__
    return None


def _with_place(text: str, error: BaseException) -> str:
    text = _printable(text)[:CAUSE_NBYTES].decode(errors="ignore")
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if is_user_code(place[0])] or places
    if not own:
        return text
    return f"{text} ({_printable(os.path.basename(own[-1][0])).decode()}:{own[-1][1]})"


def _printable(text: str) -> bytes:
    """UTF-8; of a file's name, say, that is none, with backslashes."""
    return text.encode(errors="backslashreplace")


def _abort() -> None:
    sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(1)


def _die() -> None:
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
