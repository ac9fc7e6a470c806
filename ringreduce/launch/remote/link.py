"""ringrun's end of one agent: its process (ssh, or the agent itself on this host), messages, and what ssh says."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ringreduce.errors import MismatchError
from ringreduce.launch.output import Feeder, Sink
from ringreduce.launch.remote.messages import ANY_GREETING, GREETING, PROTOCOL, Kind, Unpacker, packed
from ringreduce.launch.remote.news import News, parsed
from ringreduce.launch.spawn import die_with_parent, files_as_before, signals_held

READ_NBYTES = 1 << 16
SAID_LINES = 20
SAID_NBYTES = 4096
"""Of a line that ssh, or the shell there, writes."""
SAID_READS = 64
"""When the process has ended."""
NOISE_NBYTES = 1 << 20
"""What a login shell may print before the agent's greeting."""
LAST_WORDS_S = 0.25
"""How long a process may take to end after its output has."""

SAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What may tell all processes of a job to save their work. Not SIGHUP, by which ssh ends its ProxyCommand."""


class AgentLink:
    """One agent. Starts its process.

    Args:
        command: starts the agent.
        is_agent: whether it is the agent itself, on this host, and not ssh: it kills its ranks before it ends.
        handle: takes each message. Raises MismatchError for one that the agent should not have sent.
        ended: called when the agent has gone, with the reason if it is this end that does not want it any more.

    Raises OSError when the command cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        is_agent: bool,
        selector: selectors.BaseSelector,
        handle: Callable[[News], None],
        ended: Callable[[str], None],
    ) -> None:
        self.is_open = True
        self.is_greeted = False
        """Whether the agent has spoken: what is written before is ssh's, or the shell's."""
        self._selector = selector
        self._handle = handle
        self._ended = ended
        self._unpacker = Unpacker()
        self._noise = b""  # until the greeting
        self._said: deque[str] = deque(maxlen=SAID_LINES)
        self._said_rest = b""
        # A session of its own: the terminal's signals are for ringrun alone, and nobody could answer a question. It
        # ends with its parent: a child that run()'s process has forked in another thread may hold these pipes. A signal
        # to all processes of this host's part of the job (systemctl stop, scancel) may not end ssh, because its agent
        # would kill its ranks, which have time to save their work. OpenSSH goes on to ignore what it finds ignored, but
        # where it shares the connection of another ssh (ControlPath).
        die = die_with_parent(signal.SIGTERM if is_agent else signal.SIGKILL)

        def prepare() -> None:
            die()
            if not is_agent:  # before signals are released
                for signum in SAVING:
                    signal.signal(signum, signal.SIG_IGN)
            release()
            files_as_before()

        with signals_held() as release:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=prepare,
            )
        orders, news, said = self._process.stdin, self._process.stdout, self._process.stderr
        assert orders is not None
        assert news is not None
        assert said is not None
        self._pipes = (orders, news, said)
        self._news_fd, self._said_fd = news.fileno(), said.fileno()
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        self._orders = Sink(orders.fileno(), selector)
        selector.register(self._news_fd, selectors.EVENT_READ, self._on_news)
        selector.register(self._said_fd, selectors.EVENT_READ, self._on_said)

    def tell(self, kind: Kind, content: Any = None) -> None:
        """Sends a message; one for an agent that has gone is dropped."""
        if self.is_open:
            self._orders.put(packed(kind, content))

    def feed_by(self, feeder: Feeder) -> None:
        """Has it send messages, while not too many wait already."""
        if self.is_open:
            self._orders.attach(feeder)

    def said(self) -> str:
        """The last lines that ssh, or the shell there, has written."""
        rest = _text(self._said_rest)  # a question has no line's end
        return "\n".join([*self._said, *([rest] if rest else [])][-SAID_LINES:])

    def printed(self) -> str:
        """The last line that a login shell has written to stdout, where the agent has not spoken yet."""
        return next(reversed(self._noise_lines()), "")

    def shut(self) -> None:
        """Closes the pipes, which the agent takes for ringrun's end: it kills its ranks and ends. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        for pipe in self._pipes:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe.fileno())
            pipe.close()

    def kill(self, after_s: float) -> None:
        """Kills the process if it does not end within so many seconds. Idempotent."""
        try:
            self._process.wait(after_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _on_news(self) -> None:
        try:
            data = os.read(self._news_fd, READ_NBYTES)
        except BlockingIOError:
            return
        if not data:
            self._end("")
            return
        if not self.is_greeted:
            self._noise += data
            _, greeting, data = self._noise.partition(GREETING)
            if not greeting:
                if (other := ANY_GREETING.search(self._noise)) is not None:
                    self._greet()
                    speaks = f"its ringreduce speaks agent protocol {int(other[1])}, this one {PROTOCOL}"
                    self._end(f"{speaks}: install one version on all hosts")
                elif len(self._noise) > NOISE_NBYTES:
                    self._end("what is started there prints without end, and is no agent")
                return
            self._greet()
        try:
            for kind, body in self._unpacker.feed(data):
                if self.is_open:
                    self._handle(parsed(kind, body))
        except MismatchError as error:
            self._end(f"its agent says what this version does not understand ({error}): install one version everywhere")

    def _greet(self) -> None:
        """What is written from now on is the agent's."""
        self.is_greeted = True
        self._noise = b""

    def _noise_lines(self) -> list[str]:
        return [text for line in self._noise.splitlines()[-SAID_LINES:] if (text := _text(line))]

    def _on_said(self) -> bool:
        """Keeps the last lines. False when there is nothing to read."""
        try:
            data = os.read(self._said_fd, READ_NBYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(self._said_fd)
            return False
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = self._said_rest + lines[0]
            self._said_rest = b""
        self._said_rest = (self._said_rest + rest)[:SAID_NBYTES]
        self._said += [text for line in lines if (text := _text(line))]
        return True

    def _end(self, why: str) -> None:
        """The agent has gone."""
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LAST_WORDS_S)
        for _ in range(SAID_READS):
            if self._said_fd not in self._selector.get_map() or not self._on_said():
                break
        self._said = deque([*self._noise_lines(), *self._said], maxlen=SAID_LINES)  # ssh's own words count more
        self.shut()
        self._ended(why)


def _text(line: bytes) -> str:
    return line[:SAID_NBYTES].decode(errors="replace").strip()
