"""ringreduce.run(): ringrun for a Python function, on this host or on several. call.py has what travels."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ringreduce import compat
from ringreduce.errors import InvalidArgumentError, TimeoutError, UnavailableError
from ringreduce.launch import worker
from ringreduce.launch.binding import cpu_shares
from ringreduce.launch.call import Result, append, memory_file, pickled
from ringreduce.launch.command_line import horovodrun
from ringreduce.launch.command_line.forwarded import without_places
from ringreduce.launch.command_line.hosts import THIS_HOST, Host, filled, merged, named_hosts, place_on_one_host
from ringreduce.launch.command_line.options import GRACE_S, MAX_RANKS
from ringreduce.launch.job import ASKED_GRACE_S
from ringreduce.launch.launch import STDERR, STDOUT, printable
from ringreduce.launch.output import Lines, Sink, output_pipe, rank_copies, rank_lines
from ringreduce.launch.remote.call import CallJob, call_orders
from ringreduce.launch.spawn import new_rendezvous, no_descriptor, rank_environment
from ringreduce.launch.supervise import Supervisor

SHOWN_LOSSES = 2
"""Of the output that could not be written: with output_filename each rank has two files."""


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    num_proc: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    ssh_args: str | None = None,
    start_timeout: float | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    executable: str | None = None,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    **horovods: Any,
) -> list[Any]:
    """Calls fn(*args, **kwargs) on np ranks, each a process of its own, on this host or on several.

    fn itself calls ringreduce.init(). Ranks are bound to cores as by ringrun; their output appears here, with each
    rank's number if this is a terminal.

    Args:
        np: how many ranks; default: the slots of hosts or hostfile, else 2.
        num_proc: the same, by Horovod's name.
        hosts, hostfile: "host:slots,..." or a file of lines "host slots=N"; other hosts than this one are reached by
            ssh, need the same Python and packages at the same paths, and are filled in their order
            (docs/user/hosts.md).
        ssh_args: more options for ssh. Of horovods, ssh_port, ssh_identity_file and network_interface are for ssh and
            for other hosts too, as of ringrun.
        start_timeout: seconds that init() waits for the other ranks (RINGREDUCE_INIT_TIMEOUT); on several hosts also
            those that a host may take to begin, without taking some of the call.
        output_filename: a folder, for each rank's output as well: rank.N/stdout and rank.N/stderr in it. A file that
            cannot be written to its end is named in a RuntimeWarning.
        verbose: whether each rank's end is told on stderr.
        executable: the Python of the ranks; default: this one.
        timeout_s: seconds until the ranks are killed; None = no limit.
        env: variables to add to this process's; of those, other hosts get the ones that ringrun takes there.
        horovods: other arguments of horovod.run(). Those that are None or False are not counted; of the rest, those
            without effect here are named in a RuntimeWarning.

    Returns:
        What each rank returned, by rank.

    Raises:
        Error: a rank failed; the text has its number and its traceback, __cause__ is its exception if it has one.
        TimeoutError: timeout_s ran out; the text names the ranks that were running.
        InvalidArgumentError: np, hosts or timeout_s make no sense, or fn or its arguments cannot be sent to another
            process; or this process ignores SIGCHLD, or was started without stdin, stdout or stderr.
        UnavailableError: horovods asks for what does not exist here, a host cannot be used, or this process may not
            open as many files as the ranks take: the text says which and why.
        TypeError: horovod.run() has no such argument either.
        KeyboardInterrupt, or what else the handler of a signal raises: the ranks have had SIGINT (else SIGTERM) and up
            to 30 s to end.

    >>> run(max, args=(3, 4), np=2)
    [4, 4]
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        raise InvalidArgumentError(
            "run(): this process ignores SIGCHLD, so that nobody can learn how a rank ends; before the call: "
            "signal.signal(signal.SIGCHLD, signal.SIG_DFL)"
        )
    if None in (sys.stdin, sys.stdout, sys.stderr):  # other files get their numbers, and the ranks these in their place
        raise InvalidArgumentError(
            "run(): stdin, stdout or stderr was closed when this process was started: give it /dev/null in its place"
        )
    if timeout_s is not None and math.isnan(timeout_s):  # no time ever comes after it
        raise InvalidArgumentError(f"timeout_s={timeout_s}: expected seconds, or None for no limit")
    if np is not None and num_proc is not None:
        raise InvalidArgumentError("np and num_proc are two names of one argument; give one of them")
    named = merged(named_hosts(hosts, hostfile))
    np = _number_of_ranks(num_proc if np is None else np, named)
    places = filled(named, np)
    spans_hosts = any(host.name != THIS_HOST for host in places)
    words = {**horovods, "ssh_args": ssh_args}
    if unused := horovodrun.unused_arguments(words, spans_hosts):
        warnings.warn(f"run(): without effect here: {', '.join(unused)}", RuntimeWarning, stacklevel=2)
    added = dict(env or {})
    if not all(isinstance(word, str) for item in added.items() for word in item):
        raise InvalidArgumentError(f"run(env={added!r}): names and values of variables are strings")
    has_name = compat.is_installed() and added.get(compat.VARIABLE) not in ("", "0")
    call = pickled(fn, tuple(args), dict(kwargs or {}), compat.search_path() if has_name else sys.path)
    if has_name:
        compat.switch_on(ChainMap(added, os.environ))
    if start_timeout is not None:
        added["RINGREDUCE_INIT_TIMEOUT"] = f"{start_timeout:g}"
    python = executable or sys.executable

    def report(line: str) -> None:
        if verbose:
            job.sinks[-1].put(f"ringreduce.run: {printable(line)}\n".encode())

    sys.stdout.flush()  # what was printed before appears before
    sys.stderr.flush()
    with ExitStack() as stack:
        stack.enter_context(_descriptors_for(np))
        results = [Result(rank, stack) for rank in range(np)]
        unwritten: list[str] = []
        copies = rank_copies(output_filename, np, unwritten.append, stack)
        job: CallJob | Supervisor
        if spans_hosts:
            job = CallJob(call_orders(places, python, call, added, words), report, bool(verbose))
        else:
            job = Supervisor(GRACE_S, report, bool(verbose))
        stack.enter_context(job)
        out = Sink(STDOUT, job.selector, lambda why: unwritten.append(f"stdout: {why}"))
        err = Sink(STDERR, job.selector, lambda why: unwritten.append(f"stderr: {why}"))
        job.sinks += [out, err]
        lines = [rank_lines(rank, out, err, out.terminal, copies[rank]) for rank in range(np)]
        if isinstance(job, CallJob):
            job.start(lines, results, kept=output_filename is not None)
        else:
            _start(job, python, call, results, without_places(os.environ) | added, lines, (out, err))
        in_time = _run(job, math.inf if timeout_s is None else time.monotonic() + timeout_s)
        if (failed := job.first_cause()) is not None:
            raise results[failed.number].failure(failed, np)
        if why := job.why_not_begun():
            raise UnavailableError(f"[run] {printable(why)}")
        if not in_time:
            raise TimeoutError(f"[run] {_late(job, np, timeout_s or 0)}")
        if job.why_lost or unwritten:
            lost = "; ".join([*job.why_lost.values(), *_shown(unwritten)])
            warnings.warn(f"run(): the end of the ranks' output may be missing: {lost}", RuntimeWarning, stacklevel=2)
        return [
            result.value(rank, job.why_lost.get(rank.host, "")) for rank, result in zip(job.ranks, results, strict=True)
        ]


def _run(job: CallJob | Supervisor, until: float) -> bool:
    """job.run(); where a signal's handler raises, as Ctrl-C's does, the ranks get such a signal and time to end.

    They end by themselves, and save what they have. Another Ctrl-C ends the wait, and leaving the job kills them.
    """
    try:
        return job.run(until)
    except BaseException as error:
        job.pass_on(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        job.run(time.monotonic() + ASKED_GRACE_S)
        raise


@contextmanager
def _descriptors_for(np: int) -> Iterator[None]:
    """Says what to do where there are not enough of them. Raises UnavailableError."""
    try:
        yield
    except OSError as error:
        if text := no_descriptor(error, f"one of {np} ranks"):
            raise UnavailableError(f"[run] {text}") from error
        raise


def _late(job: CallJob | Supervisor, np: int, timeout_s: float) -> str:
    """What was not done in time, in words."""
    late = job.alive()
    if late:
        where = ", ".join(dict.fromkeys(rank.host for rank in late))
        numbers = [rank.number for rank in late]
        return f"ranks {numbers} of {np} were still running after {timeout_s:g} s, and were killed, on {where}"
    if not job.is_over():
        return f"after {timeout_s:g} s {job.late()}"
    return (
        f"after {timeout_s:g} s all ranks had ended, but nobody had read all of their output, which goes to this "
        "process's stdout and stderr"
    )


def _shown(losses: Sequence[str]) -> list[str]:
    more = len(losses) - SHOWN_LOSSES
    return [*losses[:SHOWN_LOSSES], f"and {more} more"] if more > 0 else list(losses)


def _number_of_ranks(np: int | None, hosts: list[Host]) -> int:
    slots = sum(host.slots for host in hosts) if hosts else None
    if np is None:
        np = 2 if slots is None else slots
    if not 1 <= np <= MAX_RANKS:
        raise InvalidArgumentError(f"np={np}: expected 1 to {MAX_RANKS}")
    if slots is not None and np > slots:
        raise InvalidArgumentError(f"np={np}: the hosts have {slots} slots")
    return np


def _start(
    job: Supervisor,
    python: str,
    call: bytes,
    results: Sequence[Result],
    base: Mapping[str, str],
    lines: Sequence[tuple[Lines, Lines]],
    sinks: tuple[Sink, Sink],
) -> None:
    """Starts the ranks on this host: each inherits the call, and the file for its result."""
    rendezvous = new_rendezvous()
    job.hear(rendezvous)
    with ExitStack() as call_file:
        call_fd = memory_file("ringreduce.run", call_file)
        append(call_fd, call)
        for rank, cpus in enumerate(cpu_shares(len(results))):
            environ = rank_environment(base, place_on_one_host(rank, len(results)), rendezvous, cpus)
            fds = (call_fd, results[rank].fd)
            with ExitStack() as theirs:
                (from_out, stdout), (from_err, stderr) = (
                    output_pipe(sink, taker, theirs) for sink, taker in zip(sinks, lines[rank], strict=True)
                )
                command = [python, worker.__file__, *map(str, fds)]
                job.start(command, environ, cpus, subprocess.DEVNULL, stdout, stderr, fds, (from_out, from_err))
