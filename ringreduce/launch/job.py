"""What a launcher does about the ranks of one job, wherever they run, until the last has ended.

One thread, one poll(): nothing is polled by time but the foreground of a terminal (terminal.py). After the first
failure the other ranks have --grace seconds to raise and report, then get SIGTERM, 1.5 s later SIGKILL. Where a rank
fails after a signal of the user's, the others have at least 30 s to save their work, without a second signal, then
SIGKILL.
"""

from __future__ import annotations

import abc
import math
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from ringreduce.launch.events import handle
from ringreduce.launch.output import LastWords, Sink
from ringreduce.launch.reports import Causes

KILL_AFTER_S = 1.5  # between SIGTERM and SIGKILL
ASKED_GRACE_S = 30.0  # at least, for ranks that the user has asked to end
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""The signals that ask a job to end; others mean what the ranks make of them."""
UNREAD_S = 0.5
"""How long readers of output may take nothing when all ranks have ended and the user has asked for the end."""
OVERDUE_S = 1.0  # a timer that is due waits so long at most for what there is to read
ABANDON_AFTER_S = 10.0  # between SIGKILL and giving up on a rank that the kernel cannot end


@dataclass
class Rank:
    """One running or ended rank."""

    number: int
    host: str
    pid: int
    """On that host."""
    started: float
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


AnyRank = TypeVar("AnyRank", bound=Rank)


class Job(abc.ABC, Generic[AnyRank]):
    """The ranks of one job. Leaving the `with` block kills what still runs.

    Args:
        grace_s: how long the others may go on after the first failure.
        report: takes one line about what happens to a rank.
        verbose: whether each rank's end is reported, and not only the first failure.
    """

    def __init__(self, grace_s: float, report: Callable[[str], None], verbose: bool = False) -> None:
        self.selector = selectors.PollSelector()  # takes regular files too, as stdout may be one
        self.ranks: list[AnyRank] = []
        self.sinks: list[Sink] = []
        self.causes = Causes()
        self.timers: dict[str, tuple[float, Callable[[], None]]] = {}
        """By name: when (monotonic) to call what, once."""
        self.advice: Callable[[], str] = str
        """Asked after a failure, when all ranks have ended: one line for the user, or ""."""
        self._grace_s = grace_s
        self._report = report
        self._verbose = verbose
        self._due: dict[str, float] = {}  # timers: since when each is known to be due
        self._abandoned = False
        self._insisted = False
        self._concluded = False
        self.why_lost: dict[str, str] = {}
        """By host, where the end of its ranks' output is missing."""
        self._failed: list[AnyRank] = []  # in the order in which their ends were seen
        self._sent: set[int] = set()  # signals that hurry ranks
        self._ended_by_us: set[int] = set()  # ranks that these have ended
        self._asked: set[int] = set()  # the user's signals

    def __enter__(self) -> Job[AnyRank]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abc.abstractmethod
    def send(self, signum: int) -> None:
        """Sends a signal to every living rank and its children."""

    @abc.abstractmethod
    def close(self) -> None:
        """Kills what still runs, and after a failure also what the ranks left running; frees everything. Once."""

    def is_over(self) -> bool:
        """Whether there is nothing left to wait for but readers of output."""
        return not self.alive()

    def have_ended(self) -> bool:
        """Whether all ranks have ended, so that nobody is left to be signalled. Agents may still have output."""
        return self.is_over()

    def last_words(self) -> LastWords | None:
        """The output of ranks that have ended well, to be read on; None where there is none here."""
        return None

    def why_not_begun(self) -> str:
        """What has kept the ranks from being started; "" where nothing has."""
        return ""

    @property
    def first_failure(self) -> AnyRank | None:
        """The rank whose failure was seen first."""
        return self._failed[0] if self._failed else None

    def alive(self) -> list[AnyRank]:
        """The ranks that have not ended."""
        return [rank for rank in self.ranks if rank.status is None]

    def run(self, until: float = math.inf) -> bool:
        """Returns True when all ranks have ended and their output is written, False at time.monotonic() == until."""
        while not self._abandoned and not self.is_over():
            if time.monotonic() >= until:
                return False
            self._step(until)
        if self.first_failure is None:
            self._hear_last_words(until)
        for sink in self.sinks:
            sink.drain()
        self._conclude()
        while not self._insisted and not all(sink.empty() for sink in self.sinks):
            if time.monotonic() >= until:
                return False
            self._step(until)
        return True

    def exit_status(self) -> int:
        """As a shell counts: the status of the rank that failed first, 128 + N if it was killed by signal N, else 0."""
        cause = self.first_cause()
        if cause is None or not cause.status:
            return 128 + signal.SIGKILL if self._abandoned or self.alive() else 0
        return cause.status if cause.status >= 0 else 128 - cause.status

    def first_cause(self) -> AnyRank | None:
        """The rank because of which the job has failed.

        Ranks that have lost another one may end before, or be seen to end before, that one. So a rank that says another
        exception comes first, then one that says nothing (it was killed, or has called sys.exit()).
        """
        named = self.causes.first()
        if named is not None:
            found = next((rank for rank in self.ranks if rank.number == named[0] and (rank.status or 0) > 0), None)
            if found is not None:
                return found
        silent = (rank for rank in self._failed if rank.number not in self._ended_by_us.union(self.causes.texts))
        return next(silent, self.first_failure)

    def pass_on(self, signum: int) -> None:
        """Sends a signal of the user's, after which ranks that end are no reason to hurry the others."""
        self._asked.add(signum)
        self.send(signum)

    def stop_now(self) -> None:
        """The user insists: SIGKILL, and output that nobody reads is given up."""
        self._sent.add(signal.SIGKILL)
        self.send(signal.SIGKILL)
        self.give_up_output()
        self._after(ABANDON_AFTER_S, self.abandon)

    def end_unless_read(self) -> None:
        """The user asks for the end when all ranks have ended: gives up output once nobody reads any for UNREAD_S."""
        self.timers.setdefault("output", (time.monotonic() + UNREAD_S, self._give_up_unread))

    def give_up_output(self) -> None:
        """What is not written when all ranks have ended is not waited for."""
        self._insisted = True

    def judge(self, rank: AnyRank) -> None:
        """A rank has ended: reports what is to be reported, and hurries the others if it has failed."""
        assert rank.status is not None
        line = f"rank {rank.number} on host {rank.host} (pid {rank.pid}) {rank.how_it_ended()}"
        if rank.status != 0:
            self._failed.append(rank)
        if -rank.status in self._sent:
            self._ended_by_us.add(rank.number)
        if rank.status == 0 or self.first_failure is not rank:
            if self._verbose:
                self._report(line)
            return
        if rank.number in self.causes.texts:
            line += f": {self.causes.texts[rank.number]}"
        if self.alive():
            line += f"; the others have {self.hurry():g} s to end"
        self._report(line)

    def hurry(self) -> float:
        """After the first failure: gives the others the seconds that are returned, from the first time on."""
        assert self.first_failure is not None
        assert self.first_failure.status is not None
        grace_s, then = self._grace_s, self._terminate
        if not self._asked.isdisjoint({*ENDING, -self.first_failure.status}):
            grace_s, then = max(grace_s, ASKED_GRACE_S), self._kill
        if "end" not in self.timers:
            self._after(grace_s, then)
        return grace_s

    def _give_up_unread(self) -> None:
        due = max(sink.taken_at for sink in self.sinks) + UNREAD_S
        if time.monotonic() < due:
            self.timers["output"] = (due, self._give_up_unread)
        else:
            self.give_up_output()

    def _hear_last_words(self, until: float) -> None:
        """Reads on what ranks that have ended have started, until the user insists."""
        last_words = self.last_words()
        while last_words is not None and not self._insisted and (seconds := last_words.wait_s()) > 0:
            now = time.monotonic()
            if now >= until:
                return
            self._step(min(until, now + seconds))

    def _step(self, until: float) -> None:
        """Waits for the next event or the next timer, and handles it."""
        deadline = min(until, *(when for when, _ in self.timers.values()), math.inf)
        timeout_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        self._call_timers(is_busy=handle(self.selector, timeout_s))

    def _call_timers(self, is_busy: bool) -> None:
        """Calls those that are due, later while there is something to read: this process may have been stopped.

        is_busy: there was something. It counts for OVERDUE_S.
        """
        now = time.monotonic()
        due = [name for name, (when, _) in self.timers.items() if when <= now]
        self._due = {name: self._due.get(name, now) for name in due}
        for name in due:
            if not is_busy or now - self._due[name] > OVERDUE_S:
                del self._due[name]
                self.timers.pop(name)[1]()

    def _conclude(self) -> None:
        """Where several ranks have failed, whose tracebacks follow one another, the cause is named after the last."""
        if not self._failed or self._concluded:
            return
        self._concluded = True
        if advice := self.advice():
            self._report(advice)
        if len(self._failed) < 2 or not self.causes.texts:
            return
        first = self.first_cause()
        assert first is not None
        if first.number in self.causes.texts:
            where = f" on host {first.host}" if len({rank.host for rank in self.ranks}) > 1 else ""
            text = self.causes.texts[first.number]
            self._report(f"the first uncaught exception was that of rank {first.number}{where}: {text}")
        else:
            self._report(f"the first to fail was rank {first.number} on host {first.host}: it {first.how_it_ended()}")

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        """The next step towards the end of all ranks."""
        self.timers["end"] = (time.monotonic() + seconds, then)

    def _terminate(self) -> None:
        if not self.is_over():
            self._say_and_send(signal.SIGTERM)
            self._after(KILL_AFTER_S, self._kill)

    def _kill(self) -> None:
        if not self.is_over():
            self._say_and_send(signal.SIGKILL)
            self._after(ABANDON_AFTER_S, self.abandon)

    def abandon(self) -> None:
        """Gives up what does not end."""
        if not self.is_over():
            self._report(f"{self.late()}; left behind")
            self._abandoned = self._insisted = True

    def late(self) -> str:
        """What does not end although it should, and why that may be."""
        return f"{self.who()} cannot be killed (waiting within the kernel)"

    def _say_and_send(self, signum: signal.Signals) -> None:
        self._report(f"{self.who()} still running: sending {signum.name}")
        self._sent.add(signum)
        self.send(signum)

    def who(self) -> str:
        """What has not ended, in words."""
        alive = self.alive()
        return f"rank{'s' if len(alive) > 1 else ''} {', '.join(str(rank.number) for rank in alive)}"
