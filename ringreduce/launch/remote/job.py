"""A job whose ranks run on several hosts, each with an agent: how it begins, what is done with news, how it ends."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ringreduce.errors import MismatchError, UnavailableError
from ringreduce.job.tcp.interfaces import Interfaces
from ringreduce.job.tcp.listening_ports import ANY
from ringreduce.job.tcp.rendezvous import address_text
from ringreduce.launch.binding import in_words
from ringreduce.launch.command_line.hosts import THIS_HOST, Host, Place, places_on_hosts
from ringreduce.launch.job import ENDING, Job, Rank
from ringreduce.launch.launch import CANNOT_RUN_STATUS, NOT_FOUND_STATUS
from ringreduce.launch.output import Flow, Sink, Taker
from ringreduce.launch.remote import ssh
from ringreduce.launch.remote.link import AgentLink
from ringreduce.launch.remote.meeting import Meeting
from ringreduce.launch.remote.messages import OUTPUT_NBYTES, RESULT, Kind
from ringreduce.launch.remote.news import (
    CannotRun,
    Cause,
    Done,
    Exit,
    InputTaken,
    Listening,
    News,
    Output,
    Ready,
    Started,
    Tried,
)
from ringreduce.launch.spawn import new_rendezvous

CANNOT_START = 255
"""The exit status where a host cannot be used, or is lost; ssh's own."""
FINISH_S = 10.0
"""How long the agents may say nothing, and not end, when all ranks have, and since a reader has taken something."""
CLOSE_S = 1.0
"""How long they may take when ringrun gives up."""
STREAMS = (1, 2, RESULT)
CALL_NBYTES = 1 << 20
"""Of a call, in one message."""
UNASKED_NBYTES = 512 << 20
"""Output beyond what an agent may have under way: of its ranks' pipes, 1 MiB each at most, when they have ended."""


@dataclass(frozen=True)
class Orders:
    """What is started, and how."""

    command: Sequence[str]
    folder: str
    variables: Mapping[str, str]
    """Beside those that each host gives its processes."""
    hosts: Sequence[Host]
    """As many ranks on each as it has slots; "localhost" is this host."""
    bind: bool
    ssh: ssh.Ssh
    start_s: float
    """Until when all ranks have to be there."""
    interfaces: Interfaces = field(default_factory=Interfaces)
    address: tuple[str, int] = ("", 0)
    """Where rank 0 listens, if the user has said it."""
    ports: range = ANY
    """At which it may listen where the user has said no port."""
    call: bytes | None = None
    """What the ranks are to do where the command is a Python: ringreduce.run()'s, see call.py."""


@dataclass
class RemoteRank(Rank):
    """One rank, which an agent looks after."""

    lost: str = ""
    """Why nothing more is known of it."""

    def how_it_ended(self) -> str:
        """How it ended, in words."""
        return f"was lost with its host: {self.lost}" if self.lost else super().how_it_ended()


@dataclass
class _Host:
    """One host's part."""

    number: int
    name: str
    link: AgentLink
    places: list[Place]
    streams: list[_Stream] = field(default_factory=list)
    ranks: dict[int, RemoteRank] = field(default_factory=dict)
    is_starting: bool = False
    is_done: bool = False

    def has_begun(self) -> bool:
        return len(self.ranks) == len(self.places)


class _Stream:
    """One agent's share in a sink: while the sink is full, the agent is not told that its output is taken."""

    def __init__(self, link: AgentLink, number: int, kept: bool) -> None:
        self._link = link
        self._number = number
        self._kept = kept
        self._untold_nbytes = 0
        self._is_paused = False

    def count(self, nbytes: int) -> None:
        """So much has come. Raises MismatchError for more than an agent may send."""
        self._untold_nbytes += nbytes
        if self._untold_nbytes > OUTPUT_NBYTES + UNASKED_NBYTES:
            raise MismatchError("more OUTPUT than ringrun has taken")
        self._tell()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._tell()

    def drain(self) -> None:
        """Nothing is held here."""

    def lose_reader(self) -> None:
        self.resume()
        if not self._kept:
            self._link.tell(Kind.CLOSE, {"stream": self._number})

    def _tell(self) -> None:
        if self._untold_nbytes and not self._is_paused:
            self._link.tell(Kind.TAKEN, {"stream": self._number, "nbytes": self._untold_nbytes})
            self._untold_nbytes = 0


class _CallFeed:
    """Sends one host the call, as fast as its agent takes it, and then START."""

    def __init__(self, call: bytes, host: _Host, order: Mapping[str, object], goes_on: Callable[[], None]) -> None:
        self._left = memoryview(call)
        self._host = host
        self._order = order
        self._goes_on = goes_on
        self._is_paused = False

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        while not self._is_paused and not self._host.is_starting:
            self._goes_on()
            if self._left:
                self._host.link.tell(Kind.CALL, self._left[:CALL_NBYTES])
                self._left = self._left[CALL_NBYTES:]
            else:
                self._host.is_starting = True
                self._host.link.tell(Kind.START, self._order)

    def drain(self) -> None:
        """Nothing is held here."""

    def lose_reader(self) -> None:
        """The end of the link is told elsewhere."""
        self.pause()


class RemoteJob(Job[RemoteRank]):
    """The ranks of one job on several hosts. Leaving the `with` block kills what still runs.

    Args:
        orders: what is started.
        report: takes one line for the user.
        wants_input: called when rank 0 can take more of its input, with False when it takes no more.
    """

    def __init__(
        self,
        orders: Orders,
        grace_s: float,
        report: Callable[[str], None],
        verbose: bool,
        wants_input: Callable[[bool], None],
    ) -> None:
        from ringreduce import _core

        super().__init__(grace_s, report, verbose)
        self._orders = orders
        self._wants_input = wants_input
        self._hosts: list[_Host] = []
        self._lines: dict[tuple[int, int], Taker] = {}  # by rank and stream
        names = [host.name for host in orders.hosts]
        self._meeting = Meeting(names, self._tell, _core.__version__, orders.interfaces, orders.address, orders.ports)
        self._failure: int | None = None  # exit status: the job has not begun
        self._failure_text = ""
        self._has_input_under_way = False
        self._is_finishing = False

    def __enter__(self) -> RemoteJob:
        return self

    def begin(self, lines: Mapping[tuple[int, int], Taker], sinks: Sequence[Sink], kept: bool) -> None:
        """Starts an agent on each host; the ranks follow when all are there.

        Args:
            lines: take the output, by rank and stream (1 or 2), and of a call the results, as stream RESULT.
            sinks: of streams 1 and 2.
            kept: whether output is of use although nobody reads the sinks.

        Raises OSError when ssh cannot be run.
        """
        self._lines = dict(lines)
        everywhere = places_on_hosts([host.slots for host in self._orders.hosts])
        for number, (host, places) in enumerate(zip(self._orders.hosts, everywhere, strict=True)):
            is_here = host.name == THIS_HOST
            command = ssh.local_command() if is_here else self._orders.ssh.command(host.name)
            on_news, on_gone = partial(self._on_news, number), partial(self._on_gone, number)
            link = AgentLink(command, is_here, self.selector, on_news, on_gone)
            self._hosts.append(_Host(number, host.name, link, places))
            self._hosts[-1].streams = [_Stream(link, stream, kept) for stream in STREAMS]
            for stream, flow in zip(self._hosts[-1].streams, (*sinks, Flow(self.selector)), strict=True):
                flow.attach(stream)
        self.timers["start"] = (time.monotonic() + self._orders.start_s, self._on_late)

    def send(self, signum: int) -> None:
        """Sends a signal to every living rank and its children. Before all have been started, it may end the job."""
        for host in self._hosts:
            host.link.tell(Kind.SIGNAL, {"signal": int(signum)})
        if not self._has_begun() and signum in {*ENDING, signal.SIGKILL}:
            self._fail(128 + signum, "the job ends before all of its ranks were started")

    def stop_now(self) -> None:
        """The user insists."""
        super().stop_now()
        if self._is_finishing:
            self._give_up_agents()

    def give_up_output(self) -> None:
        """Agents do not wait for last words any more either."""
        super().give_up_output()
        if self._is_finishing:
            self._tell_to_finish(wait=False)

    def put_input(self, data: bytes) -> None:
        """Gives rank 0 its input; none is its end."""
        self._has_input_under_way = bool(data)
        self._tell(0, Kind.INPUT, data)

    def is_over(self) -> bool:
        """Whether all ranks and agents have ended, or the job could not begin."""
        if self._failure is not None:
            return True
        return self._has_begun() and not self.alive() and not any(host.link.is_open for host in self._hosts)

    def have_ended(self) -> bool:
        """As Job's."""
        return self._is_finishing or self.is_over()

    def exit_status(self) -> int:
        """As Job's; where the job could not begin: 126 or 127 for its program, 255 for a host."""
        if self._failure is not None and self.first_failure is None:
            return self._failure
        return super().exit_status() or (CANNOT_START if self.why_lost else 0)

    def why_not_begun(self) -> str:
        """As Job's."""
        return self._failure_text

    def late(self) -> str:
        """What does not end, or has not begun, although it should, and why that may be."""
        if unstarted := self._unstarted():
            return f"the agents of {', '.join(unstarted)} had not started their ranks"
        return f"the agents of {', '.join(self._open())} do not answer, or cannot kill their ranks"

    def who(self) -> str:
        """What has not ended, or not begun, in words."""
        return super().who() if self.alive() else f"the agents of {', '.join(self._unstarted() or self._open())}"

    def close(self) -> None:
        """Kills what still runs: an agent whose ringrun has gone kills its ranks. Once."""
        for host in self._hosts:
            host.link.shut()
        until = time.monotonic() + CLOSE_S
        for host in self._hosts:
            host.link.kill(max(0.0, until - time.monotonic()))
        for host in self._hosts:
            self._end_lines(host)
        for sink in self.sinks:
            sink.flush_ready()
            sink.close()
        self.selector.close()

    def _tell(self, host: int, kind: Kind, content: object = None) -> None:
        self._hosts[host].link.tell(kind, content)

    def _unstarted(self) -> list[str]:
        return [host.name for host in self._hosts if not host.has_begun()]

    def _open(self) -> list[str]:
        """Hosts whose agents have not said that they are done."""
        return [host.name for host in self._hosts if host.link.is_open and not host.is_done]

    def _has_begun(self) -> bool:
        return all(host.has_begun() for host in self._hosts)

    # News. The checks are those of the order in which an agent may speak, and of whom it may speak for.

    def _on_news(self, number: int, news: News) -> None:
        host = self._hosts[number]
        if self._is_finishing and "finish" in self.timers:
            self._expect_the_end()  # something still comes
        if isinstance(news, Output):
            self._on_output(host, news)
        elif isinstance(news, Exit):
            self._on_exit(host, news)
        elif isinstance(news, Cause):
            self.causes.texts.setdefault(self._rank(host, news.rank).number, news.text)
        elif isinstance(news, InputTaken):
            self._on_input_taken(host, news)
        elif isinstance(news, Started):
            self._on_started(host, news)
        elif isinstance(news, CannotRun):
            if not host.is_starting or host.has_begun():
                raise MismatchError("CANNOT_RUN where nothing was to be started")
            self._fail(NOT_FOUND_STATUS if news.is_missing else CANNOT_RUN_STATUS, f"host {host.name}: {news.text}")
        elif isinstance(news, Done):
            if not self._is_finishing:
                raise MismatchError("DONE before FINISH")
            host.is_done = True
            host.link.shut()
            self._end_lines(host)
        else:
            self._on_meeting(host, news)

    def _on_meeting(self, host: _Host, news: Ready | Listening | Tried) -> None:
        try:
            if isinstance(news, Ready):
                if self._meeting.on_ready(host.number, news):
                    self._start(None)
            elif isinstance(news, Listening):
                self._meeting.on_listening(host.number, news)
            elif address := self._meeting.on_tried(host.number, news):
                self._start(address)
        except UnavailableError as error:
            self._fail(CANNOT_START, str(error))

    def _start(self, address: tuple[str, int] | None) -> None:
        secret = secrets.token_hex(32)
        text = None if address is None else address_text(*address)
        for host in self._hosts:
            order = {
                "command": list(self._orders.command),
                "is_call": self._orders.call is not None,
                "folder": self._orders.folder,
                "variables": dict(self._orders.variables),
                "places": host.places,
                "bind": self._orders.bind,
                "rendezvous": new_rendezvous(),
                "address": text,
                "secret": None if text is None else secret,
            }
            host.link.feed_by(_CallFeed(self._orders.call or b"", host, order, self._on_call_goes_on))
        if self._verbose and text is not None:
            self._report(f"rank 0 listens at {text}, on host {self._meeting.name_of(0)}")

    def _on_call_goes_on(self) -> None:
        """Some of a call, or START, is on its way."""
        if "start" in self.timers:
            self.timers["start"] = (time.monotonic() + self._orders.start_s, self._on_late)

    def _on_started(self, host: _Host, news: Started) -> None:
        if not host.is_starting or news.rank in host.ranks or news.rank not in {place.rank for place in host.places}:
            raise MismatchError(f"STARTED of rank {news.rank}, which is not to be started there")
        rank = RemoteRank(news.rank, self._meeting.name_of(host.number), news.pid, time.monotonic())
        host.ranks[rank.number] = rank
        self.ranks.append(rank)
        self.ranks.sort(key=lambda each: each.number)
        if self._has_begun():
            self.timers.pop("start", None)
        if self.first_failure is not None:
            self.hurry()
        if rank.number == 0:
            self._wants_input(True)
        if self._verbose:
            self._report(f"rank {rank.number}: host {rank.host}, pid {rank.pid}, {in_words(news.cpus, news.threads)}")

    def _on_output(self, host: _Host, news: Output) -> None:
        if not host.is_starting or not any(place.rank == news.rank for place in host.places):
            raise MismatchError(f"OUTPUT of rank {news.rank}, which does not run there")
        if (news.rank, news.stream) not in self._lines:
            raise MismatchError(f"OUTPUT of stream {news.stream}, where no call was to be made")
        lines = self._lines[news.rank, news.stream]
        if news.data is None:
            lines.end()
            return
        lines.feed(news.data)
        host.streams[news.stream - 1].count(len(news.data))

    def _on_exit(self, host: _Host, news: Exit) -> None:
        rank = self._rank(host, news.rank)
        if rank.status is not None:
            raise MismatchError(f"EXIT of rank {news.rank} for the second time")
        rank.status, rank.ended = news.status, rank.started + news.seconds
        self.judge(rank)
        if self.first_failure is not None and not self._has_begun():
            self.hurry()
        self._finish_if_all_have_ended()

    def _on_input_taken(self, host: _Host, news: InputTaken) -> None:
        if host.number != 0 or not self._has_input_under_way:
            raise MismatchError("INPUT_TAKEN without INPUT")
        self._has_input_under_way = False
        self._wants_input(not news.is_last)

    @staticmethod
    def _rank(host: _Host, number: int) -> RemoteRank:
        if number not in host.ranks:
            raise MismatchError(f"rank {number} does not run there")
        return host.ranks[number]

    # How it ends.

    def _on_gone(self, number: int, why: str) -> None:
        """An agent has ended, or the way to it has."""
        host = self._hosts[number]
        self._end_lines(host)
        said = host.link.said()
        if self._failure is not None or host.is_done:
            return
        if not host.has_begun():
            cure = "" if host.link.is_greeted else ssh.cure(host.name, said)
            self._fail(CANNOT_START, f"host {host.name}: {why or cure or 'its agent has ended'}{_quoted(said)}")
            return
        lost = why or f"the connection to {host.name} has ended{_quoted(said)}"
        alive = [rank for rank in host.ranks.values() if rank.status is None]
        for rank in alive:
            rank.status, rank.ended, rank.lost = CANNOT_START, time.monotonic(), lost
            self.judge(rank)
        if not alive:
            self._lose_words(host, lost)
            self._report(f"host {host.name}: the end of its output may be missing: {lost}")
        elif not self._has_begun():
            self.hurry()
        self._finish_if_all_have_ended()

    def _lose_words(self, host: _Host, why: str) -> None:
        self.why_lost[self._meeting.name_of(host.number)] = why

    def _end_lines(self, host: _Host) -> None:
        for place in host.places:
            for stream in STREAMS:
                if (taker := self._lines.get((place.rank, stream))) is not None:
                    taker.end()

    def _on_late(self) -> None:
        """Not all ranks have been started in time."""
        within = f"within {self._orders.start_s:g} s (--start-timeout or RINGREDUCE_INIT_TIMEOUT allows more)"
        silent = [host for host in self._hosts if host.number not in self._meeting.hosts]
        late = silent or [host for host in self._hosts if not host.has_begun()]
        names = ", ".join(host.name for host in late)
        said = next((host.link.said() for host in late if host.link.said()), "")
        if silent:
            self._fail(CANNOT_START, f"no agent has answered from {names} {within}{_quoted(said)}{_printed(silent)}")
        elif not all(host.is_starting for host in late):
            self._fail(CANNOT_START, f"the hosts have not agreed on an address {within}{_quoted(said)}")
        else:
            self._fail(CANNOT_START, f"the agents of {names} have not started their ranks {within}{_quoted(said)}")

    def _fail(self, status: int, text: str) -> None:
        """The job cannot begin."""
        if self._failure is not None:
            return
        self._failure, self._failure_text = status, text
        self._report(text)
        for host in self._hosts:
            host.link.shut()
            self._end_lines(host)

    def _finish_if_all_have_ended(self) -> None:
        if self._is_finishing or not self._has_begun() or self.alive():
            return
        self._is_finishing = True
        if not self._insisted:
            self.timers.pop("end", None)
        self._tell_to_finish(wait=self.first_failure is None and not self._insisted)

    def _tell_to_finish(self, wait: bool) -> None:
        for host in self._hosts:
            host.link.tell(Kind.FINISH, {"kill": self.first_failure is not None, "wait": wait})
        self._expect_the_end()

    def _expect_the_end(self) -> None:
        self.timers["finish"] = (time.monotonic() + FINISH_S, self._on_silence)

    def _on_silence(self) -> None:
        """Agents say nothing. They cannot while their output is not taken, as nobody has read what came before."""
        now = time.monotonic()
        is_held = not self._insisted and any(sink.is_paused for sink in self.sinks)
        due = FINISH_S + (now if is_held else max(sink.taken_at for sink in self.sinks))
        if is_held or now < due:
            self.timers["finish"] = (due, self._on_silence)
        else:
            self._give_up_agents()

    def _give_up_agents(self) -> None:
        """All ranks have ended, and some agents do not."""
        late = [host for host in self._hosts if host.link.is_open]
        if late:
            for host in late:
                self._lose_words(host, "its agent does not end")
            names = ", ".join(host.name for host in late)
            self._report(f"the agents of {names} do not end; the end of their ranks' output may be missing")
        for host in late:
            host.link.shut()


def _printed(silent: Sequence[_Host]) -> str:
    """What keeps an agent from being started, it may be: a login shell that waits for an answer."""
    host = next((host for host in silent if host.link.printed()), None)
    if host is None:
        return ""
    asks = "where it asks a question, let it ask none without a terminal"
    return f". The login shell of {host.name} has printed: {host.link.printed()} ({asks})"


def _quoted(said: str) -> str:
    return f". ssh said: {said.splitlines()[-1]}" if said else ""
