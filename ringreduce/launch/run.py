"""ringreduce.run(): ringrun for a Python function.

The function travels to the ranks in a memory file (by cloudpickle where it is installed, else by pickle) and each
rank's result or exception comes back in another, so that no limit of a pipe applies.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ringreduce.errors import Error, InvalidArgumentError, TimeoutError
from ringreduce.launch import worker
from ringreduce.launch.binding import cpu_shares
from ringreduce.launch.options import GRACE_S, MAX_RANKS
from ringreduce.launch.output import Sink, output_pipe
from ringreduce.launch.spawn import new_rendezvous, rank_environment, spawn
from ringreduce.launch.supervise import Rank, Supervisor

STDOUT, STDERR = 1, 2


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 2,
    *,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Calls fn(*args, **kwargs) on np ranks, each a process of its own on this host.

    fn itself calls ringreduce.init(). Ranks are bound to cores as by ringrun; their output appears here, with each
    rank's number if this is a terminal.

    Args:
        timeout_s: seconds until the ranks are killed; None = no limit.
        env: variables to add to this process's.

    Returns:
        What each rank returned, by rank.

    Raises:
        Error: a rank failed; the text has its number and its traceback, __cause__ is its exception if it has one.
        TimeoutError: timeout_s ran out; the text names the ranks that were running.
        InvalidArgumentError: np makes no sense, or fn or its arguments cannot be sent to another process.

    >>> run(max, args=(3, 4), np=2)
    [4, 4]
    """
    if not 1 <= np <= MAX_RANKS:
        raise InvalidArgumentError(f"np={np}: expected 1 to {MAX_RANKS}")
    payload = _pickled(fn, tuple(args), dict(kwargs or {}))
    with ExitStack() as stack:
        job_fd = _memory_file("ringreduce.run", stack)
        os.pwrite(job_fd, payload, 0)
        results = [_memory_file(f"ringreduce.result.{rank}", stack) for rank in range(np)]
        reports: list[str] = []
        job = stack.enter_context(Supervisor(GRACE_S, reports.append))
        _start(job, job_fd, results, dict(os.environ) | dict(env or {}))
        if not job.run(math.inf if timeout_s is None else time.monotonic() + timeout_s):
            late = [rank.number for rank in job.alive()]
            raise TimeoutError(f"[run] ranks {late} of {np} were still running after {timeout_s:g} s, and were killed")
        if job.first_failure is not None:
            raise _failure(job.first_failure, np, results[job.first_failure.number])
        return [_result(rank, fd) for rank, fd in enumerate(results)]


def _start(job: Supervisor, job_fd: int, results: Sequence[int], base: Mapping[str, str]) -> None:
    sys.stdout.flush()  # what was printed before appears before
    sys.stderr.flush()
    out, err = Sink(STDOUT, job.selector), Sink(STDERR, job.selector)
    job.sinks += [out, err]
    rendezvous = new_rendezvous()
    for rank, cpus in enumerate(cpu_shares(len(results))):
        environ = rank_environment(base, rank, len(results), rendezvous, cpus)
        command = [sys.executable, worker.__file__, str(job_fd), str(results[rank])]
        with ExitStack() as theirs:
            from_out, stdout = output_pipe(out, f"[{rank}]<stdout>: " if out.terminal else "", theirs)
            from_err, stderr = output_pipe(err, f"[{rank}]<stderr>: " if out.terminal else "", theirs)
            process = spawn(command, environ, cpus, subprocess.DEVNULL, stdout, stderr, (job_fd, results[rank]))
        job.add(process, (from_out, from_err))


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """sys.path, then the call; the path comes first, for the worker needs it to unpickle the rest."""
    try:
        import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]

        dumps: Callable[[Any], bytes] = cloudpickle.dumps
    except ImportError:
        dumps = pickle.dumps
        if getattr(fn, "__module__", None) == "__main__":
            raise InvalidArgumentError(
                f"{fn!r} is defined in __main__, which other processes cannot import: "
                "pip install cloudpickle, or move the function into a module"
            ) from None
    try:
        call = dumps((fn, args, kwargs))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{fn!r} or its arguments cannot be sent to another process: {error}. Functions at module level can; "
            "so can most others once cloudpickle is installed"
        ) from error
    return pickle.dumps((sys.path, call))


def _memory_file(name: str, stack: ExitStack) -> int:
    fd = os.memfd_create(name)
    stack.callback(os.close, fd)
    return fd


def _failure(failed: Rank, size: int, result_fd: int) -> Error:
    text = f"[run] rank {failed.number} of {size} {failed.fate()}"
    raw = os.pread(result_fd, os.fstat(result_fd).st_size, 0)
    if not raw:
        return Error(text)
    _, trace, pickled = pickle.loads(raw)
    error = Error(f"{text}\n\n{trace}")
    try:
        error.__cause__ = pickle.loads(pickled)
    except Exception:  # any class may refuse to be rebuilt; its traceback is in the text
        error.__cause__ = None
    return error


def _result(rank: int, fd: int) -> Any:
    raw = os.pread(fd, os.fstat(fd).st_size, 0)
    if not raw:
        raise Error(f"[run] rank {rank} exited before the function returned (os._exit?)")
    _, _, value = pickle.loads(raw)
    return pickle.loads(value)
