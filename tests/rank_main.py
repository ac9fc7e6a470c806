"""One rank of ranks.py: calls the test's function and leaves its result, or its exception, in a memory file."""

import ctypes
import faulthandler
import importlib.util
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives an interrupted test run
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    fds = [int(fd) for fd in os.environ["RR_TEST_FDS"].split(",")]
    for fd in fds:
        os.set_inheritable(fd, False)
    job, result = fds[:2]
    path, module, work, args = pickle.loads(os.pread(job, os.fstat(job).st_size, 0))
    status = 0
    answer: tuple[Any, str | None, str | None]
    try:
        answer = (call(path, module, work, pickle.loads(args)), None, None)
    except BaseException as error:
        traceback.print_exc()
        answer = (None, repr(error), type(error).__name__)
        status = 1
    _write(result, pickle.dumps(answer))
    return status


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


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    sys.exit(main())
