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
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ringreduce.errors import Error, InvalidArgumentError, TimeoutError
from ringreduce.launch import horovodrun, worker
from ringreduce.launch.binding import cpu_shares
from ringreduce.launch.hosts import Host, local_slots, named_hosts, place_on_one_host
from ringreduce.launch.job import Rank
from ringreduce.launch.options import GRACE_S, MAX_RANKS
from ringreduce.launch.output import Copies, Sink, output_pipe, rank_copies, rank_lines
from ringreduce.launch.spawn import new_rendezvous, rank_environment
from ringreduce.launch.supervise import Supervisor

STDOUT, STDERR = 1, 2


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    num_proc: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    executable: str | None = None,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    **horovods: Any,
) -> list[Any]:
    """Calls fn(*args, **kwargs) on np ranks, each a process of its own on this host.

    fn itself calls ringreduce.init(). Ranks are bound to cores as by ringrun; their output appears here, with each
    rank's number if this is a terminal.

    Args:
        np: how many ranks; default: the slots of hosts or hostfile, else 2.
        num_proc: the same, by Horovod's name.
        hosts, hostfile: "host:slots,..." or a file of lines "host slots=N"; they may name this host only.
        start_timeout: seconds that init() waits for the other ranks (RINGREDUCE_INIT_TIMEOUT).
        output_filename: a folder, for each rank's output as well: rank.N/stdout and rank.N/stderr in it.
        verbose: whether each rank's end is told on stderr.
        executable: the Python of the ranks; default: this one.
        timeout_s: seconds until the ranks are killed; None = no limit.
        env: variables to add to this process's.
        horovods: other arguments of horovod.run(). Those that are None or False are not counted; of the rest, those
            without effect here are named in a RuntimeWarning.

    Returns:
        What each rank returned, by rank.

    Raises:
        Error: a rank failed; the text has its number and its traceback, __cause__ is its exception if it has one.
        TimeoutError: timeout_s ran out; the text names the ranks that were running.
        InvalidArgumentError: np or hosts make no sense, or fn or its arguments cannot be sent to another process.
        UnavailableError: hosts has others than this one, or horovods asks for what does not exist here.
        TypeError: horovod.run() has no such argument either.

    >>> run(max, args=(3, 4), np=2)
    [4, 4]
    """
    if unused := horovodrun.unused_arguments(horovods):
        warnings.warn(f"run(): without effect here: {', '.join(unused)}", RuntimeWarning, stacklevel=2)
    if np is not None and num_proc is not None:
        raise InvalidArgumentError("np and num_proc are two names of one argument; give one of them")
    np = _number_of_ranks(num_proc if np is None else np, named_hosts(hosts, hostfile))
    payload = _pickled(fn, tuple(args), dict(kwargs or {}))
    environ = os.environ | dict(env or {})
    if start_timeout is not None:
        environ["RINGREDUCE_INIT_TIMEOUT"] = f"{start_timeout:g}"

    def report(line: str) -> None:
        if verbose:
            job.sinks[-1].put(f"ringreduce.run: {line}\n".encode())

    with ExitStack() as stack:
        job_fd = _memory_file("ringreduce.run", stack)
        os.pwrite(job_fd, payload, 0)
        results = [_memory_file(f"ringreduce.result.{rank}", stack) for rank in range(np)]
        copies = rank_copies(output_filename, np, report, stack)
        job = stack.enter_context(Supervisor(GRACE_S, report, bool(verbose)))
        _start(job, [executable or sys.executable, worker.__file__, str(job_fd)], results, environ, copies)
        if not job.run(math.inf if timeout_s is None else time.monotonic() + timeout_s):
            late = [rank.number for rank in job.alive()]
            raise TimeoutError(f"[run] ranks {late} of {np} were still running after {timeout_s:g} s, and were killed")
        if job.first_failure is not None:
            raise _failure(job.first_failure, np, results[job.first_failure.number])
        return [_result(rank, fd) for rank, fd in enumerate(results)]


def _number_of_ranks(np: int | None, hosts: list[Host]) -> int:
    slots = local_slots(hosts) if hosts else None
    if np is None:
        np = 2 if slots is None else slots
    if not 1 <= np <= MAX_RANKS:
        raise InvalidArgumentError(f"np={np}: expected 1 to {MAX_RANKS}")
    if slots is not None and np > slots:
        raise InvalidArgumentError(f"np={np}: the hosts have {slots} slots")
    return np


def _start(
    job: Supervisor, command: Sequence[str], results: Sequence[int], base: Mapping[str, str], copies: Copies
) -> None:
    """Starts the ranks. The command ends in the descriptor of the call; a rank inherits it, and that of its result."""
    sys.stdout.flush()  # what was printed before appears before
    sys.stderr.flush()
    out, err = Sink(STDOUT, job.selector), Sink(STDERR, job.selector)
    job.sinks += [out, err]
    rendezvous = new_rendezvous()
    for rank, cpus in enumerate(cpu_shares(len(results))):
        environ = rank_environment(base, place_on_one_host(rank, len(results)), rendezvous, cpus)
        fds = (int(command[-1]), results[rank])
        with ExitStack() as theirs:
            out_lines, err_lines = rank_lines(rank, out, err, out.terminal, copies[rank])
            from_out, stdout = output_pipe(out, out_lines, theirs)
            from_err, stderr = output_pipe(err, err_lines, theirs)
            words = [*command, str(results[rank])]
            job.start(words, environ, cpus, subprocess.DEVNULL, stdout, stderr, fds, (from_out, from_err))


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
    text = f"[run] rank {failed.number} of {size} {failed.how_it_ended()}"
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
