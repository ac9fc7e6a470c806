"""Runs a function of a test module on several ranks, one process each (rank_pool.py), without ringrun.

    def double(x):                                   # at module level: each rank imports the module and calls it
        import ringreduce
        with ringreduce.init() as world:
            return world.rank, 2 * x

    def test_double():
        assert run_ranks(double, 3, args=(7,)) == [(0, 14), (1, 14), (2, 14)]

run_ranks() wants every rank to succeed. For deaths and errors, start_ranks() gives the processes and each one's
outcome; a rank says where it is with send_to_test("ready") and waits for orders with receive_from_test(): no sleeps.
Instead of a function, a string of code will do: it sees `rank`, `size` and `args`, and sets `result`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pickle
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import rank_pool
from deadlines import HANG_S

from ringreduce.lab.host_environment import without_launchers

SUPPORT = Path(__file__).resolve().parent
SIZES = (1, 2, 3, 4, 5, 8)
Job = tuple[str, str, str, bytes]
"""Module file or "", module name, function name or code, pickled args."""
TRACEBACK_S = 1.0  # what a hung rank gets to print where it hangs, before it is killed


@dataclass(frozen=True)
class Outcome:
    """How one rank ended."""

    rank: int
    value: Any
    """What the function returned; None if it did not."""
    error: str | None
    """repr() of the exception that it raised."""
    kind: str | None
    """That exception's class name, such as "PeerLostError"."""
    status: int | None
    """Exit status; -N if killed by signal N; None if it still runs."""
    seconds: float
    """From the start of the job to this rank's exit."""
    ended: float
    """time.monotonic() at the exit."""
    output: str

    def __str__(self) -> str:
        fate = "still running" if self.status is None else f"status {self.status}"
        head = f"--- rank {self.rank}: {fate} after {self.seconds:.1f} s"
        return head + (f", {self.error}" if self.error else "") + "\n" + self.output


class Ranks:
    """The processes of one job. Leaving the `with` block kills what still runs."""

    def __init__(
        self, work: Callable[..., Any] | str, size: int, args: Sequence[Any], env: Mapping[str, str | None] | None
    ) -> None:
        self.size = size
        self.procs: list[rank_pool.Process] = []
        self.started = time.monotonic()
        self._ends: dict[int, float] = {}
        self._results: list[int] = []
        self._outputs: list[int] = []
        self._events: list[int] = []
        self._orders: list[int] = []
        self._received: list[bytes] = [b""] * size
        with ExitStack() as undo:
            undo.callback(self.close)
            rendezvous = f"test-{os.getpid()}-{secrets.token_hex(8)}:{secrets.token_hex(32)}"
            job = _job(work, args)
            source = _source(job, args)
            for rank in range(size):
                self._start(rank, job, source, _environment(rank, size, rendezvous, env))
            undo.pop_all()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, rank: int, text: str = "go") -> None:
        """Sends one line to a rank's receive_from_test()."""
        os.write(self._orders[rank], text.encode() + b"\n")

    def receive(self, rank: int, timeout_s: float = HANG_S) -> str:
        """The next line that a rank says with send_to_test(). Fails if it exits or the time is up first."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received[rank]:
            ready = _poll([self._events[rank]], deadline)
            more = os.read(self._events[rank], 4096) if ready else b""
            if not more:
                why = "exited" if ready else f"said nothing for {timeout_s:g} s"
                raise AssertionError(f"rank {rank} {why}\n{self.report()}")
            self._received[rank] += more
        line, _, self._received[rank] = self._received[rank].partition(b"\n")
        return line.decode()

    def kill(self, rank: int, signum: int = signal.SIGKILL) -> float:
        """Signals a rank; returns time.monotonic() of that moment."""
        moment = time.monotonic()
        self.procs[rank].send_signal(signum)
        return moment

    def wait(self, timeout_s: float = HANG_S) -> list[Outcome]:
        """Waits for all ranks. Fails, with every rank's output and where it hangs, after timeout_s seconds."""
        deadline = time.monotonic() + timeout_s
        while running := self._running():
            if not _poll([self.procs[rank].pidfd for rank in running], deadline):
                self._dump(running)
                raise AssertionError(f"ranks {running} did not finish within {timeout_s:g} s\n{self.report()}")
        return self.outcomes()

    def wait_output(self, rank: int, part: str, times: int = 1, timeout_s: float = HANG_S) -> None:
        """Waits until the rank has written the text, so many times."""
        deadline = time.monotonic() + timeout_s
        while self._outcome(rank).output.count(part) < times:
            assert time.monotonic() < deadline, f"rank {rank} has not written {part!r}\n{self.report()}"
            time.sleep(0.02)

    def wait_first(self, timeout_s: float = HANG_S) -> int:
        """The rank that ends first."""
        deadline = time.monotonic() + timeout_s
        while len(running := self._running()) == self.size:
            if not _poll([proc.pidfd for proc in self.procs], deadline):
                self._dump(running)
                raise AssertionError(f"no rank finished within {timeout_s:g} s\n{self.report()}")
        return min(self._ends, key=self._ends.__getitem__)

    def outcomes(self) -> list[Outcome]:
        """How each rank ended; for one that still runs, status is None and `ended` is now."""
        return [self._outcome(rank) for rank in range(self.size)]

    def report(self) -> str:
        """Every rank's fate and output."""
        return "\n".join(map(str, self.outcomes()))

    def close(self) -> None:
        """Kills what still runs and closes everything. Idempotent."""
        for proc in self.procs:
            proc.kill()
        for proc in self.procs:
            proc.wait()
            proc.close()
        for fds in (self._results, self._outputs, self._events, self._orders):
            while fds:
                os.close(fds.pop())

    def _start(self, rank: int, job: Job, source: str, environ: dict[str, str]) -> None:
        event_read, event_write = os.pipe()
        order_read, order_write = os.pipe()
        self._events.append(event_read)
        self._orders.append(order_write)
        self._results.append(os.memfd_create("test result"))
        self._outputs.append(os.memfd_create("test output"))
        fds = (self._results[rank], self._outputs[rank], event_write, order_read)
        try:
            self.procs.append(rank_pool.start(rank, {"work": job, "environ": environ}, fds, source))
        finally:
            os.close(event_write)
            os.close(order_read)

    def _running(self) -> list[int]:
        for rank, proc in enumerate(self.procs):
            if rank not in self._ends and proc.poll() is not None:
                self._ends[rank] = time.monotonic()
        return [rank for rank in range(self.size) if rank not in self._ends]

    def _dump(self, running: list[int]) -> None:
        for rank in running:
            self.procs[rank].send_signal(signal.SIGUSR1)  # faulthandler, set up in rank_server.py
        _poll([], time.monotonic() + TRACEBACK_S)

    def _outcome(self, rank: int) -> Outcome:
        raw = _content(self._results[rank])
        value, error, kind = pickle.loads(raw) if raw else (None, None, None)
        status = self.procs[rank].poll()
        ended = self._ends.get(rank, time.monotonic())
        output = _content(self._outputs[rank]).decode(errors="replace")
        return Outcome(rank, value, error, kind, status, ended - self.started, ended, output)


class Launcher(Protocol):
    """What may start the ranks of run_ranks() instead: mpirun_pool.py, by an mpirun."""

    def run(
        self, size: int, job: tuple[str, str, str, bytes], env: Mapping[str, str | None], timeout_s: float
    ) -> list[Outcome]:
        """Each rank's end; job as in _job()."""


launcher: Launcher | None = None


def start_ranks(
    work: Callable[..., Any] | str,
    size: int,
    *,
    args: Sequence[Any] = (),
    env: Mapping[str, str | None] | None = None,
) -> Ranks:
    """Starts work(*args) on each of `size` ranks. env is added to the environment; a value of None removes."""
    assert launcher is None, "only run_ranks() runs in ranks that somebody else has started"
    # A test file that starts ranks when it is imported would do so in each of them, and so on.
    assert "RR_TEST_FDS" not in os.environ, "a rank starts no ranks"
    return Ranks(work, size, args, env)


def run_ranks(
    work: Callable[..., Any] | str,
    size: int,
    *,
    timeout_s: float = HANG_S,
    args: Sequence[Any] = (),
    env: Mapping[str, str | None] | None = None,
) -> list[Any]:
    """What work(*args) returned on each rank. Fails, showing every rank's output, if one raises, dies or is late."""
    if launcher is not None:
        outcomes = launcher.run(size, _job(work, args), env or {}, timeout_s)
    else:
        with start_ranks(work, size, args=args, env=env) as job:
            outcomes = job.wait(timeout_s)
    failed = [o.rank for o in outcomes if o.status != 0 or o.error is not None]
    assert not failed, f"ranks {failed} failed\n" + "\n".join(map(str, outcomes))
    return [o.value for o in outcomes]


def send_to_test(text: str) -> None:
    """Within a rank: sends the test one line, which its receive() returns."""
    os.write(int(os.environ["RR_TEST_FDS"].split(",")[0]), text.encode() + b"\n")


def receive_from_test() -> str:
    """Within a rank: waits for a line that the test sends. The test's own deadline bounds this."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(int(os.environ["RR_TEST_FDS"].split(",")[1]), 1)
        if not byte:
            raise EOFError("the test has gone")
        line += byte
    return line[:-1].decode()


def clean_environment() -> dict[str, str]:
    """This process's environment without what launchers and users set for jobs, and with the package under test."""
    environ = {
        name: value
        for name, value in without_launchers(os.environ).items()
        if not name.startswith(("HOROVOD_", "OMPI_", "PMIX_", "SLURM_"))
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each rank would compile every module again
    path = [package_folder(), str(SUPPORT), *filter(None, [environ.get("PYTHONPATH")])]
    environ["PYTHONPATH"] = os.pathsep.join(path)
    return environ


def _environment(rank: int, size: int, rendezvous: str, extra: Mapping[str, str | None] | None) -> dict[str, str]:
    environ = clean_environment() | {"RINGREDUCE_RENDEZVOUS": rendezvous, "PYTHONUNBUFFERED": "1"}
    environ.setdefault("OMP_NUM_THREADS", "1")  # eight ranks share few cores
    for prefix in ("RINGREDUCE_", "HOROVOD_"):
        places = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "CROSS_RANK": 0, "CROSS_SIZE": 1}
        environ |= {prefix + word: str(number) for word, number in places.items()}
    for name, value in (extra or {}).items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ


@functools.cache
def package_folder() -> str:
    spec = importlib.util.find_spec("ringreduce")
    assert spec is not None, "ringreduce is not importable"
    assert spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0]).parent)


def _job(work: Callable[..., Any] | str, args: Sequence[Any]) -> Job:
    if isinstance(work, str):
        return "", "", work, pickle.dumps(tuple(args))
    assert work.__qualname__.isidentifier(), f"{work.__qualname__} must be at module level: each rank imports it"
    module = sys.modules[work.__module__]
    assert module.__file__ is not None
    return module.__file__, work.__module__, work.__qualname__, pickle.dumps(tuple(args))


def _source(job: Job, args: Sequence[Any]) -> str:
    """What tells the pool what the ranks import: the text of the job, and that of an example among its arguments."""
    path, _, work, _ = job
    scripts = [arg for arg in args if isinstance(arg, str) and arg.endswith(".py")]
    return rank_pool.source_of(path, *scripts) if path else work


def _poll(fds: Sequence[int], deadline: float) -> bool:
    """Waits until one of fds is readable or has ended; False once time.monotonic() reaches the deadline."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0, (deadline - time.monotonic()) * 1000)))


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
