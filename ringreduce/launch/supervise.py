"""Watches the ranks of one job until the last has ended: output, signals, and what follows the first failure.

One thread, one poll(): pidfds for exits, pipes for output, a wake-up pipe for signals. Nothing is polled by time; the
only timer is the next step after a failure: --grace seconds for the other ranks to raise and report, then SIGTERM,
1.5 s later SIGKILL. Where a rank fails after a signal of the user's, the others have at least 30 s to save their work,
without a second signal, then SIGKILL. Ended ranks stay zombies until close(), so that their process group numbers stay
theirs.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from ringreduce.launch.exits import Exits
from ringreduce.launch.output import Sink, Source
from ringreduce.launch.reports import Reports
from ringreduce.launch.spawn import spawn

KILL_AFTER_S = 1.5  # between SIGTERM and SIGKILL
ASKED_GRACE_S = 30.0  # at least, for ranks that the user has asked to end
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""The signals that ask a job to end; others mean what the ranks make of them."""
ABANDON_AFTER_S = 10.0  # between SIGKILL and giving up on a rank that the kernel cannot end


@dataclass
class Rank:
    """One running or ended rank."""

    number: int
    process: subprocess.Popen[bytes]
    pidfd: int
    started: float
    sources: Sequence[Source]
    status: int | None = None
    """Exit status; -N if killed by signal N; None while it runs."""
    ended: float = math.inf

    def how_it_ended(self) -> str:
        """How it ended, in words."""
        assert self.status is not None
        after = f"after {self.ended - self.started:.1f} s"
        if self.status >= 0:
            return f"exited with status {self.status} {after}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "a real-time signal"
        hint = "; out of memory?" if -self.status == signal.SIGKILL else ""
        return f"was killed by signal {-self.status} ({name}{hint}) {after}"


class Supervisor:
    """The ranks of one job. Leaving the `with` block kills what still runs.

    Args:
        grace_s: how long the others may go on after the first failure.
        report: takes one line about what happens to a rank.
        verbose: whether each rank's end is reported, and not only the first failure.
    """

    def __init__(self, grace_s: float, report: Callable[[str], None], verbose: bool = False) -> None:
        self.selector = selectors.PollSelector()  # takes regular files too, as stdout may be one
        self._exits = Exits()  # in their order: who ended first
        self.selector.register(self._exits, selectors.EVENT_READ, self._on_exits)
        self.ranks: list[Rank] = []
        self.sinks: list[Sink] = []
        self.reports: Reports | None = None
        self.first_failure: Rank | None = None
        self._grace_s = grace_s
        self._report = report
        self._verbose = verbose
        self._next_step: tuple[float, int] | None = None  # when (monotonic), and the signal to send then; 0 = give up
        self._abandoned = False
        self._insisted = False
        self._concluded = False
        self._asked: set[int] = set()  # the user's signals

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        cpus: Collection[int] | None,
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
        sources: Sequence[Source] = (),
    ) -> Rank:
        """Starts the next rank, and takes charge of it and of its output.

        Args:
            sources: where its output is read; the others are those of spawn().

        Raises OSError when the command cannot be run.
        """
        with self._exits.expect() as expected:
            process = spawn(command, environ, cpus, stdin, stdout, stderr, pass_fds, expected.add_myself)
            pidfd = expected.taken(process.pid)
        rank = Rank(len(self.ranks), process, pidfd, time.monotonic(), sources)
        self.ranks.append(rank)
        return rank

    def alive(self) -> list[Rank]:
        """The ranks that have not ended."""
        return [rank for rank in self.ranks if rank.status is None]

    def run(self, until: float = math.inf) -> bool:
        """Returns True when all ranks have ended and their output is written, False at time.monotonic() == until."""
        while not self._abandoned and self.alive():
            if time.monotonic() >= until:
                return False
            self._step(until)
        for sink in self.sinks:
            sink.drain()
        self._conclude()
        while not self._insisted and not all(sink.empty() for sink in self.sinks):
            if time.monotonic() >= until:
                return False
            self._step(until)
        return True

    def exit_status(self) -> int:
        """As a shell counts: the first failure's status, 128 + N if it was killed by signal N, else 0.

        Where a rank has reported the exception that ends it, this rank failed first, though others that have heard of
        the exception may have ended before.
        """
        if self.first_failure is None or self.first_failure.status is None:
            return 0
        causes = self.reports.causes if self.reports is not None else {}
        reported = next((rank.status for rank in self.ranks if rank.number == next(iter(causes), None)), None)
        status = reported if reported is not None and reported > 0 else self.first_failure.status
        return status if status >= 0 else 128 - status

    def send(self, signum: int) -> None:
        """Sends a signal to every living rank and its children."""
        for rank in self.alive():
            _send_to_group(rank.process.pid, signum)

    def pass_on(self, signum: int) -> None:
        """Sends a signal of the user's, after which ranks that end are no reason to hurry the others."""
        self._asked.add(signum)
        self.send(signum)

    def stop_now(self) -> None:
        """The user insists: SIGKILL, and output that nobody reads is given up."""
        self.send(signal.SIGKILL)
        self._insisted = True
        self._next_step = (time.monotonic() + ABANDON_AFTER_S, 0)

    def close(self) -> None:
        """Kills what still runs, and after a failure also what the ranks left running; frees everything. Idempotent."""
        untidy = self.first_failure is not None or bool(self.alive())
        for rank in self.ranks:
            if untidy and rank.process.returncode is None:
                _send_to_group(rank.process.pid, signal.SIGKILL)
        for sink in self.sinks:
            sink.drain()
            sink.flush_ready()
        for rank in self.ranks:
            if rank.pidfd >= 0:
                if not self._abandoned:
                    rank.process.wait()
                os.close(rank.pidfd)
                rank.pidfd = -1
        if self.reports is not None:
            self.reports.close()
        self._exits.close()
        self.selector.close()

    def _step(self, until: float) -> None:
        """Waits for the next event or the next timer, and handles it."""
        deadline = min(until, self._next_step[0] if self._next_step else math.inf)
        timeout_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        for key, _ in self.selector.select(timeout_s):
            if key.fileobj in self.selector.get_map():  # an earlier event of this round may have closed it
                key.data()
        if self._next_step is not None and time.monotonic() >= self._next_step[0]:
            self._escalate(self._next_step[1])

    def _on_exits(self) -> None:
        by_pidfd = {rank.pidfd: rank for rank in self.alive()}
        for pidfd in self._exits.ended():
            self._end(by_pidfd[pidfd])
            self._judge(by_pidfd[pidfd])

    def _end(self, rank: Rank) -> None:
        info = os.waitid(os.P_PIDFD, rank.pidfd, os.WEXITED | os.WNOWAIT)
        assert info is not None
        rank.status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        rank.ended = time.monotonic()
        for source in rank.sources:  # its last words come before our word about it
            source.read()

    def _judge(self, rank: Rank) -> None:
        assert rank.status is not None
        if self.reports is not None:
            self.reports.read()
        line = f"rank {rank.number} on host {os.uname().nodename} (pid {rank.process.pid}) {rank.how_it_ended()}"
        if rank.status == 0 or self.first_failure is not None:
            if self._verbose:
                self._report(line)
            return
        self.first_failure = rank
        if self.reports is not None and rank.number in self.reports.causes:
            line += f": {self.reports.causes[rank.number]}"
        if self.alive():
            asked = not self._asked.isdisjoint({*ENDING, -rank.status})
            grace_s, then = self._grace_s, signal.SIGTERM
            if asked:
                grace_s, then = max(grace_s, ASKED_GRACE_S), signal.SIGKILL
            line += f"; the others have {grace_s:g} s to end"
            self._next_step = self._next_step or (rank.ended + grace_s, then)
        self._report(line)

    def _conclude(self) -> None:
        """Where the ranks' tracebacks follow one another, the cause of all is named after the last."""
        failed = [rank.number for rank in self.ranks if rank.status]
        if self.reports is not None and self.reports.causes and len(failed) > 1 and not self._concluded:
            self._concluded = True
            number, cause = self.reports.first()
            self._report(f"the first uncaught exception was that of rank {number}: {cause}")

    def _escalate(self, signum: int) -> None:
        alive = self.alive()
        self._next_step = None
        if not alive:
            return
        who = f"rank{'s' if len(alive) > 1 else ''} {', '.join(str(rank.number) for rank in alive)}"
        now = time.monotonic()
        if signum == 0:
            self._report(f"{who} cannot be killed (waiting within the kernel); left behind")
            self._abandoned = self._insisted = True
            return
        self._report(f"{who} still running: sending {signal.Signals(signum).name}")
        self.send(signum)
        if signum == signal.SIGTERM:
            self._next_step = (now + KILL_AFTER_S, signal.SIGKILL)
        else:
            self._next_step = (now + ABANDON_AFTER_S, 0)


def _send_to_group(pgid: int, signum: int) -> None:
    try:
        os.killpg(pgid, signum)
    except ProcessLookupError:  # nobody is left in it
        return
