"""Forks ranks off a process that has imported what they import: a rank is ready in milliseconds, not in seconds.

    python rank_server.py SOCKET MODULE...

The socket is a SOCK_SEQPACKET, inherited as descriptor SOCKET. rank_pool.py is the other end. The server first sends
the number of its threads, since a process with several cannot be forked safely. Then it answers each message with one:

    start        with a rank's descriptors (job, result, output, events, orders): forks a rank, answers its pid
    status PID   answers how the rank ended (its wait status), or "running"
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
ORDER_NBYTES = 64
FRAMEWORKS = {"torch", "tensorflow", "jax"}


def main(fd: int, modules: Sequence[str]) -> int:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the test run is pytest's to handle
    for module in modules:
        with contextlib.suppress(ImportError):  # the test says what it misses
            importlib.import_module(module)
    keep_operators_of_torch()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=fd) as orders:
        orders.send(str(len(os.listdir("/proc/self/task"))).encode())
        job = serve(orders)
    if job is None:
        return 0
    status = run(*job)
    if FRAMEWORKS & sys.modules.keys():
        end_at_once(status)
    return status


def keep_operators_of_torch() -> None:
    """At its end torch takes the operators apart that its Python part has defined: 0.1 s of CPU time a rank."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if (alive := finalizer.peek()) and alive[1].__module__ == "torch.library":
            finalizer.atexit = False


def serve(orders: socket.socket) -> list[int] | None:
    """In the server: None, once the test run has closed its end. In each rank: its descriptors."""
    while True:
        order, fds, _, _ = socket.recv_fds(orders, ORDER_NBYTES, 5)
        if not order:
            return None
        what, *arguments = order.decode().split()
        if what == "start":
            pid = fork()
            if pid == 0:
                return fds
            for fd in fds:
                os.close(fd)
            orders.send(str(pid).encode())
        else:
            pid, status = os.waitpid(int(arguments[0]), os.WNOHANG)
            orders.send(str(status).encode() if pid else b"running")


def end_at_once(status: int) -> None:
    """Ends like the interpreter, but leaves the modules as they are.

    Taking torch apart in a fork copies most of its pages: 0.2 s of CPU time a rank. The interpreter's whole end is
    tested by ranks without a framework, and by all scripts that tests start.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def fork() -> int:
    """os.fork() without JAX's warning about threads, of which there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives an interrupted test run


def run(job: int, result: int, output: int, events: int, orders: int) -> int:
    """One rank: calls the test's function and leaves its result, or its exception, in a memory file."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for fd in (result, events, orders):
        os.set_inheritable(fd, False)
    given = pickle.loads(os.pread(job, os.fstat(job).st_size, 0))
    os.close(job)
    os.environ.clear()
    os.environ.update(given["environ"], RR_TEST_FDS=f"{events},{orders}")
    os.chdir(given["folder"])
    os.sched_setaffinity(0, given["cores"])
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # else all ranks would draw the same numbers
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answer: tuple[Any, str | None, str | None]
    try:
        path, module, work, args = given["work"]
        answer = (call(path, module, work, pickle.loads(args)), None, None)
    except BaseException as error:
        traceback.print_exc()
        answer = (None, repr(error), type(error).__name__)
    write(result, pickle.dumps(answer))
    os.close(result)
    return 0 if answer[1] is None else 1


def call(path: str, module_name: str, work: str, args: tuple[Any, ...]) -> Any:
    """The test's function, of a module that is loaded once, or its code."""
    if not path:
        names = {
            "args": args,
            "rank": int(os.environ.get("RINGREDUCE_RANK", "0")),
            "size": int(os.environ.get("RINGREDUCE_SIZE", "1")),
        }
        exec(compile(work, "<test>", "exec"), names)
        return names.get("result")
    if (loaded := sys.modules.get(module_name)) is not None and loaded.__file__ == path:
        return getattr(loaded, work)(*args)
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return getattr(module, work)(*args)


def write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
