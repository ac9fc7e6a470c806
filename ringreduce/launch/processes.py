"""The ranks that run on this host: their start, their ends in order, signals to them.

Ended ranks stay zombies until close(), so that their process group numbers stay theirs.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ringreduce.errors import UnavailableError
from ringreduce.job.pidfd import check_pidfds
from ringreduce.launch.exits import Exits
from ringreduce.launch.job import Rank
from ringreduce.launch.output import LastWords, Source
from ringreduce.launch.spawn import Guardian, signals_held, spawn


@dataclass
class _Process:
    popen: subprocess.Popen[bytes]
    rank: Rank
    sources: Sequence[Source]


class Processes:
    """Ranks of this host.

    Args:
        selector: calls what handles an end.
        ended: takes each rank that has ended, in the order of their ends, when its output up to then has been read.
        report: takes one line for the user.
        guarded: whether a Guardian kills the ranks' process groups, and removes files, where this process is killed:
            not where other threads of it may fork.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        ended: Callable[[Rank], None],
        report: Callable[[str], None],
        guarded: bool = False,
    ) -> None:
        self._selector = selector
        self._ended = ended
        self._report = report
        self._foreign: set[int] = set()  # process groups that this user may not signal
        self._exits = Exits()  # in their order: who ended first
        self._processes: dict[int, _Process] = {}  # by pidfd
        self._guarded = guarded
        self._guardian: Guardian | None = None
        selector.register(self._exits, selectors.EVENT_READ, self._on_exits)

    def start(
        self,
        number: int,
        command: Sequence[str],
        environ: Mapping[str, str],
        cpus: Collection[int] | None,
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
        sources: Sequence[Source] = (),
    ) -> Rank:
        """Starts a rank, and takes charge of it and of its output.

        Args:
            number: the rank.
            sources: where its output is read; the others are those of spawn().

        Raises OSError when the command cannot be run.
        """
        self._check()
        # Until the rank is known here, so that a KeyboardInterrupt leaves nothing behind that close() does not kill.
        with signals_held() as release, self._exits.expect() as expected:
            self._begin_to_guard()

            def first() -> None:
                expected.add_myself()
                release()

            popen = spawn(command, environ, cpus, stdin, stdout, stderr, pass_fds, first)
            if self._guardian is not None:
                self._guardian.add(popen.pid)
            pidfd = expected.taken(popen.pid)
            rank = Rank(number, os.uname().nodename, popen.pid, time.monotonic())
            self._processes[pidfd] = _Process(popen, rank, sources)
        return rank

    def _check(self) -> None:
        """Before the first fork: a new process that finds no pidfd can say neither which call failed nor why."""
        if self._processes:
            return
        try:
            check_pidfds()
        except UnavailableError as error:
            raise OSError(errno.ENOSYS, str(error)) from None

    def guard_file(self, path: str) -> None:
        """Has the Guardian remove a file where this process is killed: the path is told before there is a file."""
        with signals_held():
            self._begin_to_guard()
        if self._guardian is not None:
            self._guardian.add_file(path)

    def _begin_to_guard(self) -> None:
        """To be called within signals_held()."""
        if self._guarded and self._guardian is None:
            self._guardian = Guardian()

    def alive(self) -> list[Rank]:
        """The ranks that have not ended."""
        return [process.rank for process in self._processes.values() if process.rank.status is None]

    def last_words(self) -> LastWords:
        """For the output of all ranks, once they have ended."""
        return LastWords([source for process in self._processes.values() for source in process.sources])

    def send(self, signum: int) -> None:
        """Sends a signal to every living rank and its children."""
        for rank in self.alive():
            self._send_to_group(rank, signum)

    def alive_of_others(self) -> bool:
        """Whether a rank that has not ended cannot be signalled, as it has become another user's (sudo)."""
        return any(rank.pid in self._foreign for rank in self.alive())

    def kill_groups(self) -> None:
        """Kills what still runs, and what ended ranks have left running."""
        for process in self._processes.values():
            self._send_to_group(process.rank, signal.SIGKILL)

    def close(self, abandoned: bool = False) -> None:
        """Waits for the ranks, which have ended or been killed, but for those that could not be. Idempotent.

        abandoned: do not wait for those that the kernel cannot end.
        """
        if self._guardian is not None:  # first: a rank that has been waited for gives its number away
            self._guardian.close()
        for pidfd, process in self._processes.items():
            if not abandoned and (process.rank.status is not None or process.rank.pid not in self._foreign):
                process.popen.wait()
            os.close(pidfd)
        self._processes.clear()
        self._exits.close()

    def _on_exits(self) -> None:
        for pidfd in self._exits.ended():
            process = self._processes[pidfd]
            rank = process.rank
            info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
            assert info is not None
            rank.status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            rank.ended = time.monotonic()
            for source in process.sources:  # its last words come before our word about it
                source.read()
            self._ended(rank)

    def _send_to_group(self, rank: Rank, signum: int) -> None:
        try:
            os.killpg(rank.pid, signum)
        except ProcessLookupError:  # nobody is left in it
            return
        except PermissionError:
            if rank.status is None and rank.pid not in self._foreign:
                self._foreign.add(rank.pid)
                self._report(
                    f"rank {rank.number} (process group {rank.pid}) belongs to another user (sudo?) and cannot be "
                    "signalled"
                )
