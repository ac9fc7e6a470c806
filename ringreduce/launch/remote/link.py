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
from ringreduce.launch.output import Sink
from ringreduce.launch.remote.messages import GREETING, Kind, Unpacker, packed

READ_NBYTES = 1 << 16
SAID_LINES = 20
NOISE_NBYTES = 1 << 20
"""What a login shell may print before the agent's greeting."""
LAST_WORDS_S = 1.0
"""How long a process may take to end after its output has."""


class AgentLink:
    """One agent. Starts its process; close() kills it.

    Args:
        host: its name, as the user has given it.
        command: starts the agent.
        handle: takes each message: the link, kind, content.
        ended: takes the link when the agent has gone, and what is known of the reason.

    Raises OSError when the command cannot be run.
    """

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        selector: selectors.BaseSelector,
        handle: Callable[[AgentLink, Kind, bytes], None],
        ended: Callable[[AgentLink, str], None],
    ) -> None:
        self.host = host
        self.facts: dict[str, Any] = {}
        """What the agent says of its host, once it is ready."""
        self.is_open = True
        self._selector = selector
        self._handle = handle
        self._ended = ended
        self._unpacker = Unpacker()
        self._noise = b""  # until the greeting
        self._is_greeted = False
        self._paused_by: set[object] = set()
        self._said: deque[str] = deque(maxlen=SAID_LINES)
        self._said_rest = b""
        # A session of its own: the terminal's signals are for ringrun alone, and nobody could answer a question.
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
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

    def pause(self, who: object) -> None:
        """Reads nothing until each that has paused has said resume()."""
        self._paused_by.add(who)
        if self.is_open:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._news_fd)

    def resume(self, who: object) -> None:
        """Ends a pause."""
        self._paused_by.discard(who)
        if self.is_open and not self._paused_by and self._news_fd not in self._selector.get_map():
            self._selector.register(self._news_fd, selectors.EVENT_READ, self._on_news)

    def said(self) -> str:
        """The last lines that ssh, or the shell there, has written."""
        return "\n".join(self._said)

    def close(self) -> None:
        """Kills the process, whose end the agent takes for ringrun's. Idempotent."""
        self._shut()
        if self._process.returncode is None:
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
        if not self._is_greeted:
            self._noise += data
            _, greeting, data = self._noise.partition(GREETING)
            if not greeting:
                if len(self._noise) > NOISE_NBYTES:
                    self._end(f"it prints without end, and no agent answers: {self._noise[-200:]!r}")
                return
            self._is_greeted = True
            self._noise = b""
        try:
            for kind, body in self._unpacker.feed(data):
                if self.is_open:
                    self._handle(self, kind, body)
        except (MismatchError, ValueError, KeyError, TypeError) as error:
            self._end(f"its agent says what this version does not understand ({error}): install one version everywhere")

    def _on_said(self) -> None:
        try:
            data = os.read(self._said_fd, READ_NBYTES)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(self._said_fd)
        lines = (self._said_rest + data).split(b"\n")
        self._said_rest = lines.pop() if data else b""
        self._said += [text for line in lines if (text := line.decode(errors="replace").strip())]

    def _end(self, why: str) -> None:
        """The agent has gone."""
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LAST_WORDS_S)
        if self._said_fd in self._selector.get_map():
            self._on_said()
        if not self._is_greeted and not why and self._noise:
            self._said += self._noise.decode(errors="replace").splitlines()
        self._shut()
        self._ended(self, why)

    def _shut(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for pipe in self._pipes:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe.fileno())
            pipe.close()
