"""One rank of ringreduce.run(): `python worker.py CALL_FD RESULT_FD`.

Run as a file and importing the standard library only: sys.path is the caller's only once the job has been read.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import traceback
from typing import Any

LENGTH = struct.Struct("<Q")
"""Before a result."""


def main(call_fd: int, result_fd: int) -> int:
    """Calls the function; writes (returned, traceback, pickled value or exception) to the result file or pipe."""
    for fd in (call_fd, result_fd):
        os.set_inheritable(fd, False)
    me = os.getpid()
    try:
        path, call = pickle.loads(_read(call_fd))
        sys.path[:] = path
        fn, args, kwargs = pickle.loads(call)
        answer = (True, "", _dumps(fn(*args, **kwargs)))
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            raise
        if "ringreduce.job.failure.uncaught" in sys.modules:  # the function has used ringreduce
            sys.modules["ringreduce.job.failure.uncaught"].tell_of(error)
        answer = (False, traceback.format_exc(), _dumps_exception(error))
    if os.getpid() != me:  # a child that the function has forked, and that has returned too
        return 0
    result = pickle.dumps(answer)
    write(result_fd, LENGTH.pack(len(result)))
    write(result_fd, result)
    return 0 if answer[0] else 1


def _dumps(value: Any) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return pickle.dumps(value)
    pickled: bytes = cloudpickle.dumps(value)
    return pickled


def _dumps_exception(error: BaseException) -> bytes:
    """The exception, or nothing if it cannot travel; its traceback does in any case."""
    try:
        return _dumps(error)
    except Exception:  # pickling runs the exception's own code
        return pickle.dumps(None)


def _read(fd: int) -> bytes:
    """All of a file, which other ranks read too; then closes it. One call of the system reads 2 GiB at most."""
    content = b""
    size = os.fstat(fd).st_size
    while len(content) < size:
        content += os.pread(fd, size - len(content), len(content))
    os.close(fd)
    return content


def write(fd: int, content: bytes | memoryview) -> None:
    """All of it: one call of the system writes 2 GiB at most, and a pipe takes less."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
