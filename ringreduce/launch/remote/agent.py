"""One host's part of a job that ringrun has started: `python -m ringreduce.launch.remote`, by ssh.

All orders come over standard input, all news go over standard output (messages.py), so that nothing secret is in any
argument or variable. The agent starts the ranks of its host and tells how they fare; what is to be done about it,
ringrun decides. Where ringrun is gone (the end of the input), or nobody takes the news, the agent kills its ranks and
ends. So it does at a signal that asks it to end, unless ringrun has started it without ssh and is still there. Where
the agent is killed, the kernel kills its ranks, and a guardian what they have started; it also removes the secret's
file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any

from ringreduce.errors import MismatchError
from ringreduce.job.rendezvous import host_identity
from ringreduce.job.tcp.interfaces import interfaces
from ringreduce.launch import worker
from ringreduce.launch.binding import cpu_shares
from ringreduce.launch.command_line.forwarded import without_places
from ringreduce.launch.command_line.hosts import Place
from ringreduce.launch.events import handle
from ringreduce.launch.job import Rank
from ringreduce.launch.output import Flow, LastWords, Sink, Source, output_pipe
from ringreduce.launch.processes import Processes
from ringreduce.launch.remote.addresses import Gate, reasons_against
from ringreduce.launch.remote.messages import GREETING, OUTPUT, OUTPUT_NBYTES, RESULT, Kind, Unpacker, packed
from ringreduce.launch.remote.news import TEXT_CHARS
from ringreduce.launch.remote.secret_file import SecretFile
from ringreduce.launch.reports import Causes, Reports
from ringreduce.launch.spawn import many_files, no_descriptor, rank_environment
from ringreduce.launch.terminal import signals_as_events

READ_NBYTES = 1 << 16
STDIN, STDOUT, STDERR = 0, 1, 2
LOCAL = "local"
"""The argument of an agent that ringrun has started without ssh."""


def main() -> int:
    """Serves one ringrun. Returns 0 if it has ended the job, 1 if it has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as in ringrun.main()
    orders, news = os.dup(STDIN), os.dup(STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN)
    os.dup2(STDERR, STDOUT)  # what a library prints is no message
    os.close(nothing)
    with many_files(), Agent(orders, news, is_local=sys.argv[1:] == [LOCAL]) as agent:
        return agent.run()


class Agent:
    """The ranks of this host, and the two ends of the pipes to ringrun."""

    def __init__(self, orders: int, news: int, is_local: bool) -> None:
        self._selector = selectors.PollSelector()
        self._orders = orders
        self._news = Sink(news, self._selector)
        self._output = {stream: _Outflow(self._news, stream) for stream in (STDOUT, STDERR, RESULT)}
        self._is_local = is_local
        self._ringrun = os.getppid() if is_local else -1  # 0 is a parent in another pid namespace
        self._unpacker = Unpacker()
        self._processes = Processes(self._selector, self._on_end, _say, guarded=True)
        self._causes = Causes()
        self._ranks: set[int] = set()
        self._told: set[int] = set()  # ranks whose cause ringrun knows
        self._reports: Reports | None = None
        self._gate: Gate | None = None
        self._input: _Input | None = None
        self._secret: SecretFile | None = None
        self._call = os.memfd_create(
            "ringreduce.run", os.MFD_CLOEXEC
        )  # what the ranks are to do; the agent's end closes it
        self._last_words: LastWords | None = None  # heard once ringrun has said that all ranks have ended
        self._is_finished = False
        self._is_alone = False  # ringrun has gone, or the agent was asked to end
        for fd in (orders, news):
            os.set_blocking(fd, False)
        self._selector.register(orders, selectors.EVENT_READ, self._on_orders)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_finished:
            self._processes.kill_groups()
        if self._secret is not None:
            self._secret.remove()  # before the guardian ends, which would do so
        self._processes.close()
        for part in (self._gate, self._reports):
            if part is not None:
                part.close()
        self._selector.close()

    def run(self) -> int:
        """Serves until ringrun says that the job is over, and its last words are written."""
        from ringreduce import _core

        self._news.put(GREETING)
        way = [] if self._is_local else os.environ.get("SSH_CONNECTION", "").split()
        seen_from, _, seen_at, _ = way if len(way) == 4 else [""] * 4
        facts = {"version": _core.__version__, "name": os.uname().nodename, "identity": host_identity().decode()}
        facts |= {"seen_from": seen_from, "seen_at": seen_at}
        self._tell(Kind.READY, facts | {"addresses": interfaces()})
        with signals_as_events(self._selector, self._on_signal):
            while not (self._is_finished and self._news.empty()):
                if self._is_alone or self._news.broken:
                    return 1
                seconds = math.inf if self._last_words is None else self._last_words.wait_s()
                handle(self._selector, None if seconds == math.inf else seconds)
                self._tell_causes()
                self._finish_if_all_is_said()
        return 0

    def _on_signal(self, signum: int) -> None:
        """Sent to the agent itself: ringrun's for the ranks come as orders.

        While a local ringrun is there, it has got the same signal (systemctl stop, scancel), and gives the ranks time.
        Its end is told by a signal.
        """
        self._is_alone |= signum != signal.SIGCONT and os.getppid() != self._ringrun

    def _tell(self, kind: Kind, content: Any = None) -> None:
        self._news.put(packed(kind, content))

    def _on_orders(self) -> None:
        try:
            data = os.read(self._orders, READ_NBYTES)
        except BlockingIOError:
            return
        except OSError:  # reset
            data = b""
        if not data:
            self._selector.unregister(self._orders)
            self._is_alone = not self._is_finished
            return
        for kind, body in self._unpacker.feed(data):
            self._obey(kind, body)

    def _obey(self, kind: Kind, body: bytes) -> None:
        if kind == Kind.INPUT:
            if self._input is not None:
                self._input.put(body)
            return
        if kind == Kind.CALL:
            worker.write(self._call, body)
            return
        order = json.loads(body)
        if kind == Kind.LISTEN:
            key, ports = bytes.fromhex(order["key"]), range(*order["ports"])
            self._gate = Gate(key, order["hosts"], ports, self._selector, order["others"])
            self._tell(Kind.LISTENING, {"addresses": self._gate.addresses, "refused": list(self._gate.refused.items())})
        elif kind == Kind.TRY:
            addresses = [(str(ip), int(port)) for ip, port in order["addresses"]]
            self._tell(Kind.TRIED, {"reasons": reasons_against(bytes.fromhex(order["key"]), addresses)})
        elif kind == Kind.START:
            self._start(order)
        elif kind == Kind.SIGNAL:
            self._processes.send(int(order["signal"]))
        elif kind == Kind.TAKEN:
            self._output[order["stream"]].take(order["nbytes"])
        elif kind == Kind.CLOSE:
            self._output[order["stream"]].lose_reader()
        elif kind == Kind.FINISH:
            self._finish(bool(order["kill"]), bool(order["wait"]))
        else:
            raise MismatchError(f"{kind.name} is no order")

    def _start(self, order: Mapping[str, Any]) -> None:
        """Starts the ranks of this host.

        Args:
            order: command; is_call: whether it is a Python that is to make the call of CALL; folder: in which it runs;
                variables: beside this host's own; places: of the ranks; bind: whether each runs on cores of its own;
                rendezvous: of the ranks of this host; address: where rank 0 listens, or None where all ranks are on
                this host; secret: of the job, for connections, or None.
        """
        if self._gate is not None:
            self._gate.close_to_callers()
        folder = order["folder"]
        try:
            os.chdir(folder)
        except OSError as error:
            self._cannot_run(f"cannot enter the folder {folder}: {error.strerror}; start ringrun in one that all have")
            return
        places = [Place(*place) for place in order["places"]]
        base = without_places(os.environ) | order["variables"] | {"PWD": folder}
        base.pop("OLDPWD", None)
        if order["address"] is not None:
            try:
                self._secret = SecretFile(order["secret"], self._processes.guard_file)
            except OSError as error:
                self._cannot_run(f"cannot write the job's secret: {error}; make room there, or set TMPDIR")
                return
            base |= {"RINGREDUCE_ADDRESS": order["address"], "RINGREDUCE_SECRET_FILE": self._secret.path}
        self._reports = Reports(order["rendezvous"], self._causes, self._selector)
        shares = cpu_shares(len(places)) if order["bind"] else [None] * len(places)
        for place, cpus in zip(places, shares, strict=True):
            environ = rank_environment(base, place, order["rendezvous"], cpus)
            try:
                rank = self._start_rank(order["command"], order["is_call"], place, environ, cpus)
            except OSError as error:
                cannot = f"cannot run {order['command'][0]!r}: {error.strerror}"
                self._cannot_run(
                    no_descriptor(error, f"rank {place.rank}") or cannot, isinstance(error, FileNotFoundError)
                )
                return
            self._ranks.add(rank.number)
            started = {"rank": rank.number, "pid": rank.pid, "cpus": None if cpus is None else sorted(cpus)}
            self._tell(Kind.STARTED, started | {"threads": environ.get("OMP_NUM_THREADS", "unset")})

    def _start_rank(
        self, command: list[str], is_call: bool, place: Place, environ: Mapping[str, str], cpus: Collection[int] | None
    ) -> Rank:
        with ExitStack() as theirs:  # the ends that only the rank keeps
            out, stdout = self._carried(place.rank, STDOUT, theirs)
            err, stderr = self._carried(place.rank, STDERR, theirs)
            sources, fds = [out, err], []
            if is_call:
                answer, result = self._carried(place.rank, RESULT, theirs)
                sources.append(answer)
                fds = [self._call, result]
                command = [*command, worker.__file__, *map(str, fds)]
            stdin = subprocess.DEVNULL
            if place.rank == 0:
                stdin, writer = os.pipe2(os.O_CLOEXEC)
                theirs.callback(os.close, stdin)
                self._input = _Input(writer, self._news, self._selector)
            return self._processes.start(place.rank, command, environ, cpus, stdin, stdout, stderr, fds, sources)

    def _carried(self, rank: int, stream: int, theirs: ExitStack) -> tuple[Source, int]:
        flow = self._output[stream]
        return output_pipe(flow, _Carrier(flow, rank), theirs)

    def _cannot_run(self, text: str, missing: bool = False) -> None:
        self._tell(Kind.CANNOT_RUN, {"text": text[:TEXT_CHARS], "is_missing": missing})

    def _on_end(self, rank: Rank) -> None:
        if self._reports is not None:
            self._reports.read()
        self._tell_causes()
        milliseconds = round(1e3 * (rank.ended - rank.started))
        self._tell(Kind.EXIT, {"rank": rank.number, "status": rank.status, "milliseconds": milliseconds})

    def _tell_causes(self) -> None:
        for rank, text in self._causes.texts.items():
            if rank in self._ranks - self._told:  # another number is that of a rank's child, which has set it
                self._told.add(rank)
                self._tell(Kind.CAUSE, {"rank": rank, "text": text})

    def _finish(self, kill: bool, wait: bool) -> None:
        if self._is_finished:  # ringrun has asked for the second time, while the answer was on its way
            return
        if kill:
            self._processes.kill_groups()
        if wait:
            self._last_words = self._processes.last_words()
        else:
            self._last_words = None
            self._end_output()

    def _finish_if_all_is_said(self) -> None:
        if self._last_words is not None and self._last_words.wait_s() <= 0:
            self._last_words = None
            self._end_output()

    def _end_output(self) -> None:
        for flow in self._output.values():
            flow.drain()
        self._tell(Kind.DONE)
        self._is_finished = True


def _say(line: str) -> None:
    """To ringrun's user, who sees the last lines where the agent ends without having done its work."""
    print(line, file=sys.stderr, flush=True)


class _Outflow(Flow):
    """One stream of all ranks here: they are not read while ringrun has not taken OUTPUT_NBYTES of it."""

    def __init__(self, news: Sink, stream: int) -> None:
        super().__init__(news.selector)
        self.stream = stream
        self._news = news
        self._untaken_nbytes = 0

    def put(self, kind: Kind, rank: int, data: bytes = b"") -> None:
        """Sends what a rank has written."""
        self._news.put(packed(kind, OUTPUT.pack(rank, self.stream) + data))
        self._untaken_nbytes += len(data)
        if self._untaken_nbytes >= OUTPUT_NBYTES:
            self.pause()

    def take(self, nbytes: int) -> None:
        """ringrun has taken so much."""
        self._untaken_nbytes -= nbytes
        if self._untaken_nbytes < OUTPUT_NBYTES:
            self.resume()


class _Carrier:
    """Takes one stream of a rank's output to ringrun."""

    def __init__(self, flow: _Outflow, rank: int) -> None:
        self.kept = False
        self._flow = flow
        self._rank = rank

    def feed(self, data: bytes) -> None:
        self._flow.put(Kind.OUTPUT, self._rank, data)

    def end(self) -> None:
        self._flow.put(Kind.OUTPUT_END, self._rank)


class _Input:
    """Rank 0's standard input. One piece is under way at a time: ringrun sends the next when this one is taken."""

    def __init__(self, pipe: int, news: Sink, selector: selectors.BaseSelector) -> None:
        self._pipe = pipe
        self._news = news
        self._selector = selector
        self._held = b""
        os.set_blocking(pipe, False)

    def put(self, data: bytes) -> None:
        if self._pipe < 0:
            return
        if not data:
            self._close()
            return
        self._held += data
        if self._pipe not in self._selector.get_map():
            self._selector.register(self._pipe, selectors.EVENT_WRITE, self._write)

    def _write(self) -> None:
        try:
            self._held = self._held[os.write(self._pipe, self._held) :]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            self._close()
            self._news.put(packed(Kind.INPUT_CLOSED))
            return
        if not self._held:
            self._selector.unregister(self._pipe)
            self._news.put(packed(Kind.INPUT_TAKEN))

    def _close(self) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
