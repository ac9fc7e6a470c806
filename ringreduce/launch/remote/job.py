"""A job whose ranks run on several hosts, each with an agent: how it begins, what is done with news, how it ends."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringreduce.launch.hosts import Host, Place, places_on_hosts
from ringreduce.launch.job import Job, Rank
from ringreduce.launch.output import Lines, Sink
from ringreduce.launch.remote import ssh
from ringreduce.launch.remote.link import AgentLink
from ringreduce.launch.remote.messages import OUTPUT, Kind
from ringreduce.launch.spawn import new_rendezvous

CANNOT_START = 255
"""The exit status where a host cannot be used; ssh's own."""
CANNOT_RUN = 126
NOT_FOUND = 127
END_S = 10.0
"""How long the agents may take to end when all ranks have."""


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
    """Until when all agents have to be there; 0 = no limit."""
    interfaces: Sequence[str] = ()
    """Of rank 0's host: the only ones that others may reach it by; none: any."""
    address: tuple[str, int] = ("", 0)
    """Where rank 0 listens, if the user has said it."""


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

    link: AgentLink
    places: list[Place]
    ranks: list[RemoteRank] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why it does not reach rank 0's host, by address."""


class _Stream:
    """One agent's share in a sink: while the sink is full, the agent's news are not read."""

    def __init__(self, link: AgentLink, number: int, kept: bool) -> None:
        self._link = link
        self._number = number
        self._kept = kept

    def pause(self) -> None:
        self._link.pause(self)

    def resume(self) -> None:
        self._link.resume(self)

    def drain(self) -> None:
        """Nothing is held here."""

    def lose_reader(self) -> None:
        self.resume()
        if not self._kept:
            self._link.tell(Kind.CLOSE, {"stream": self._number})


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
        super().__init__(grace_s, report, verbose)
        self._orders = orders
        self._wants_input = wants_input
        self._hosts: list[_Host] = []
        self._lines: dict[tuple[int, int], Lines] = {}  # by rank and stream
        self._key = secrets.token_bytes(32)
        self._addresses: list[tuple[str, int]] = []  # at which rank 0's host can perhaps be reached
        self._failure: tuple[int, str] | None = None  # exit status, text: the job has not begun
        self._is_finishing = False

    def __enter__(self) -> RemoteJob:
        return self

    def begin(self, lines: Mapping[tuple[int, int], Lines], sinks: Sequence[Sink], kept: bool) -> None:
        """Starts an agent on each host; the ranks follow when all are there.

        Args:
            lines: take the output, by rank and stream (1 or 2).
            sinks: of the two streams.
            kept: whether output is of use although nobody reads the sinks.

        Raises OSError when ssh cannot be run.
        """
        self._lines = dict(lines)
        for host, places in zip(
            self._orders.hosts, places_on_hosts([h.slots for h in self._orders.hosts]), strict=True
        ):
            command = ssh.local_command() if host.name == "localhost" else self._orders.ssh.command(host.name)
            link = AgentLink(host.name, command, self.selector, self._on_news, self._on_gone)
            self._hosts.append(_Host(link, places))
            for number, sink in enumerate(sinks, start=1):
                sink.attach(_Stream(link, number, kept))
        if self._orders.start_s > 0:
            self.timers["start"] = (time.monotonic() + self._orders.start_s, self._on_late)

    def send(self, signum: int) -> None:
        """Sends a signal to every living rank and its children."""
        for host in self._hosts:
            host.link.tell(Kind.SIGNAL, {"signal": int(signum)})
        if not self.ranks:  # there are none yet
            self._fail(128 + signum, "ended before the ranks were started")

    def put_input(self, data: bytes) -> None:
        """Gives rank 0 its input; none is its end."""
        self._hosts[0].link.tell(Kind.INPUT, data)

    def is_over(self) -> bool:
        """Whether all ranks and agents have ended, or the job could not begin."""
        if self._failure is not None:
            return True
        has_begun = len(self.ranks) == sum(len(host.places) for host in self._hosts)
        if has_begun and not self.alive():
            self._finish()
            return not any(host.link.is_open for host in self._hosts)
        return False

    def exit_status(self) -> int:
        """As Job's; where the job could not begin: 126 or 127 for its program, 255 for a host."""
        return super().exit_status() if self._failure is None else self._failure[0]

    def close(self) -> None:
        """Kills what still runs: an agent whose ringrun has gone kills its ranks. Idempotent."""
        for sink in self.sinks:
            sink.flush_ready()
        for host in self._hosts:
            host.link.close()
        self.selector.close()

    # How it begins: READY of all, LISTEN and TRY to find rank 0's address, START.

    def _on_ready(self, host: _Host, facts: dict[str, Any]) -> None:
        from ringreduce import _core

        if host.link.facts:
            raise ValueError("READY for the second time")
        host.link.facts = facts
        if facts["version"] != _core.__version__:
            has = f"it has ringreduce {facts['version']}, and this host {_core.__version__}"
            self._refuse(host, f"{has}: install one version on all hosts")
            return
        for other in self._hosts:
            if other is not host and other.link.facts.get("identity") == facts["identity"]:
                self._refuse(host, f"it is the same host as {other.link.host}: name it once, with all its slots")
                return
        if not all(each.link.facts for each in self._hosts):
            return
        if len(self._hosts) == 1:
            self._start(None)
            return
        hosts = self._candidates()
        if hosts:
            order = {"key": self._key.hex(), "hosts": hosts, "port": self._orders.address[1]}
            self._hosts[0].link.tell(Kind.LISTEN, order)

    def _candidates(self) -> list[str]:
        """At which addresses rank 0's host may be found: where ssh has seen it, then those of its interfaces."""
        first, others = self._hosts[0].link.facts, [host.link.facts for host in self._hosts[1:]]
        if self._orders.address[0]:
            return [self._orders.address[0]]
        own = [(str(name), str(ip)) for name, ip in first["addresses"]]
        if wanted := self._orders.interfaces:
            own = [(name, ip) for name, ip in own if name in wanted]
            if not own:
                has = ", ".join(sorted({str(name) for name, _ in first["addresses"]})) or "none"
                self._refuse(
                    self._hosts[0], f"no address of {', '.join(wanted)} there (--network-interface); it has {has}"
                )
                return []
        ips = [ip for _, ip in own]
        seen = (
            [first["ssh"].split()[2]] if first["ssh"] else [facts["ssh"].split()[0] for facts in others if facts["ssh"]]
        )
        if not ips:
            self._refuse(self._hosts[0], "it has no address that other hosts could reach")
        return list(dict.fromkeys([ip for ip in seen if ip in ips] + ips))

    def _on_listening(self, host: _Host, news: dict[str, Any]) -> None:
        self._addresses = [(str(ip), int(port)) for ip, port in news["addresses"]]
        if not self._addresses:
            refused = "; ".join(f"{ip}: {why}" for ip, why in news["refused"].items())
            self._refuse(host, f"rank 0 cannot listen there: {refused}")
        for other in self._hosts[1:]:
            other.link.tell(Kind.TRY, {"key": self._key.hex(), "addresses": self._addresses})

    def _on_tried(self, host: _Host, reasons: list[str]) -> None:
        host.reasons = [str(reason) for reason in reasons]
        others = self._hosts[1:]
        if not all(other.reasons for other in others):
            return
        for number, (ip, port) in enumerate(self._addresses):
            if not any(other.reasons[number] for other in others):
                self._start((ip, port))
                return
        first = self._hosts[0].link.host
        worst = max(others, key=lambda other: sum(map(bool, other.reasons)))
        tried = "; ".join(
            f"{ip} port {port}: {why}" for (ip, port), why in zip(self._addresses, worst.reasons, strict=True) if why
        )
        self._fail(
            CANNOT_START,
            f"no address of {first}, where rank 0 runs, is reached from all hosts. From {worst.link.host}: {tried}. "
            "Open the way in the packet filter (RINGREDUCE_ADDRESS=:PORT says at which port), or name an interface "
            "(--network-interface)",
        )

    def _start(self, address: tuple[str, int] | None) -> None:
        del self.timers["start"]
        secret = secrets.token_hex(32)
        text = (
            None
            if address is None
            else f"[{address[0]}]:{address[1]}"
            if ":" in address[0]
            else f"{address[0]}:{address[1]}"
        )
        for host in self._hosts:
            order = {
                "command": list(self._orders.command),
                "folder": self._orders.folder,
                "variables": dict(self._orders.variables),
                "places": host.places,
                "bind": self._orders.bind,
                "rendezvous": new_rendezvous(),
                "address": text,
                "secret": secret,
            }
            host.link.tell(Kind.START, order)
        if self._verbose and text is not None:
            self._report(f"rank 0 listens at {text}, on host {self._hosts[0].link.facts['name']}")

    def _on_late(self) -> None:
        late = [host for host in self._hosts if not host.link.facts]
        if not late:
            self._fail(CANNOT_START, f"the hosts did not agree on an address within {self._orders.start_s:g} s")
            return
        names = ", ".join(host.link.host for host in late)
        said = next((host.link.said() for host in late if host.link.said()), "")
        self._fail(CANNOT_START, f"no agent has answered from {names} within {self._orders.start_s:g} s{_quoted(said)}")

    # News.

    def _on_news(self, link: AgentLink, kind: Kind, body: bytes) -> None:
        host = next(each for each in self._hosts if each.link is link)
        if kind == Kind.OUTPUT:
            self._lines_of(host, body).feed(body[OUTPUT.size :])
            return
        if kind == Kind.OUTPUT_END:
            self._lines_of(host, body).end()
            return
        news = json.loads(body)
        if kind == Kind.READY:
            self._on_ready(host, news)
        elif kind == Kind.LISTENING:
            self._on_listening(host, news)
        elif kind == Kind.TRIED:
            self._on_tried(host, news["reasons"])
        elif kind == Kind.STARTED:
            self._on_started(host, news)
        elif kind == Kind.CANNOT_RUN:
            self._fail(NOT_FOUND if news["missing"] else CANNOT_RUN, f"host {link.host}: {news['text']}")
        elif kind == Kind.CAUSE:
            self.causes.texts.setdefault(self._rank(host, news).number, str(news["text"]))
        elif kind == Kind.EXIT:
            rank = self._rank(host, news)
            rank.status, rank.ended = int(news["status"]), rank.started + float(news["seconds"])
            self.judge(rank)
        elif kind in (Kind.INPUT_TAKEN, Kind.INPUT_CLOSED):
            self._wants_input(kind == Kind.INPUT_TAKEN)

    def _lines_of(self, host: _Host, body: bytes) -> Lines:
        rank, stream = OUTPUT.unpack_from(body)
        if not any(place.rank == rank for place in host.places):
            raise ValueError(f"output of rank {rank}, which runs elsewhere")
        return self._lines[rank, stream]

    def _rank(self, host: _Host, news: Mapping[str, Any]) -> RemoteRank:
        for rank in host.ranks:
            if rank.number == news["rank"] and rank.status is None:
                return rank
        raise ValueError(f"rank {news['rank']} does not run there")

    def _on_started(self, host: _Host, news: dict[str, Any]) -> None:
        running = {rank.number for rank in host.ranks}
        if news["rank"] not in {place.rank for place in host.places} - running:
            raise ValueError(f"rank {news['rank']} is not to be started there")
        rank = RemoteRank(int(news["rank"]), str(host.link.facts["name"]), int(news["pid"]), time.monotonic())
        host.ranks.append(rank)
        self.ranks.append(rank)
        self.ranks.sort(key=lambda each: each.number)
        if self.first_failure is not None:
            self.hurry()
        if rank.number == 0:
            self._wants_input(True)
        if self._verbose:
            cores = "not bound" if news["cpus"] is None else f"on CPU {', '.join(map(str, news['cpus']))}"
            threads = f"OMP_NUM_THREADS {news['threads']}"
            self._report(f"rank {rank.number}: host {rank.host}, pid {rank.pid}, {cores}, {threads}")

    def _on_gone(self, link: AgentLink, why: str) -> None:
        """An agent has ended, or the way to it has."""
        host = next(each for each in self._hosts if each.link is link)
        if self._is_finishing or self._failure is not None:
            return
        said = link.said()
        for place in host.places:
            for stream in (1, 2):
                self._lines[place.rank, stream].end()
        if len(host.ranks) < len(host.places):
            self._refuse(host, why or ssh.cure(link.host, said) or "its agent has ended", said)
            return
        for rank in host.ranks:
            if rank.status is None:
                rank.status, rank.ended = CANNOT_START, time.monotonic()
                rank.lost = why or f"the connection to {link.host} has ended{_quoted(said)}"
                self.judge(rank)

    def _refuse(self, host: _Host, why: str, said: str = "") -> None:
        self._fail(CANNOT_START, f"host {host.link.host}: {why}{_quoted(said)}")

    def _fail(self, status: int, text: str) -> None:
        """The job cannot begin."""
        if self._failure is None:
            self._failure = (status, text)
            self._report(text)

    def _finish(self) -> None:
        if self._is_finishing:
            return
        self._is_finishing = True
        for host in self._hosts:
            host.link.tell(Kind.FINISH, {"kill": self.first_failure is not None})
        self.timers["end"] = (time.monotonic() + END_S, self._close_links)

    def _close_links(self) -> None:
        for host in self._hosts:
            host.link.close()


def _quoted(said: str) -> str:
    return f". ssh said: {said.splitlines()[-1]}" if said else ""
