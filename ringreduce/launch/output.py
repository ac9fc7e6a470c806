"""Carries the ranks' output to this process's, whole line by whole line, and never blocks on a slow reader.

A Source is the reading end of one rank's stdout or stderr, a Sink is ours. While a sink has more than QUEUE_NBYTES
waiting, its sources are not read, so the ranks wait as they would for the reader itself. When the reader of a sink has
gone (`| head`), its sources are closed, and the ranks notice as they would without us; but for sources with a copy in a
file, which are read on.
"""

from __future__ import annotations

import os
import re
import select
import selectors
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

QUEUE_NBYTES = 1 << 20
LINE_NBYTES = 1 << 20  # a line longer than this is passed on in parts
READ_NBYTES = 1 << 16
WRITE_NBYTES = 4096  # PIPE_BUF: what a pipe that poll() calls writable takes without blocking


class Sink:
    """Where output goes: a descriptor of this process, which stays its owner's."""

    def __init__(self, fd: int, selector: selectors.BaseSelector) -> None:
        self.fd = fd
        self.terminal = os.isatty(fd)
        self._selector = selector
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._broken = False
        self._sources: list[Source] = []

    def attach(self, source: Source) -> None:
        """Starts reading a source."""
        self._sources.append(source)
        self._selector.register(source.fd, selectors.EVENT_READ, source.read)

    def detach(self, source: Source) -> None:
        """Stops reading a source, which has ended or may not be read on."""
        self._sources.remove(source)
        if source.fd in self._selector.get_map():
            self._selector.unregister(source.fd)

    def put(self, text: bytes) -> None:
        """Queues whole lines."""
        if self._broken or not text:
            return
        if not self._queue:
            self._selector.register(self.fd, selectors.EVENT_WRITE, self.flush)
        begin = 0
        while begin < len(text):  # pieces end with a line where they can: nothing of another program gets in between
            end = text.rfind(b"\n", begin, begin + WRITE_NBYTES) + 1 or begin + WRITE_NBYTES
            self._queue.append(text[begin:end])
            begin = end
        before, self._queued = self._queued, self._queued + len(text)
        if before <= QUEUE_NBYTES < self._queued:
            for source in self._sources:
                self._selector.unregister(source.fd)

    def flush(self) -> None:
        """Writes a part, once poll() says that this does not block."""
        try:
            written = os.write(self.fd, self._queue[0])
        except BlockingIOError:
            return
        except OSError:
            self._break()
            return
        rest = self._queue.popleft()[written:]
        if rest:
            self._queue.appendleft(rest)
        before, self._queued = self._queued, self._queued - written
        if self._queued <= QUEUE_NBYTES < before:
            for source in self._sources:
                self._selector.register(source.fd, selectors.EVENT_READ, source.read)
        if not self._queue:
            self._selector.unregister(self.fd)

    def empty(self) -> bool:
        """True once everything is written, or cannot be."""
        return not self._queue

    def drain(self) -> None:
        """Queues what the sources hold now, and closes them: their ranks have ended."""
        for source in list(self._sources):
            source.drain()

    def flush_ready(self) -> None:
        """Writes what can be written without blocking; the rest is given up."""
        ready = select.poll()
        ready.register(self.fd, select.POLLOUT)
        while self._queue and ready.poll(0):
            self.flush()

    def _break(self) -> None:
        paused = self._queued > QUEUE_NBYTES
        self._broken = True
        self._queue.clear()
        self._queued = 0
        self._selector.unregister(self.fd)
        for source in list(self._sources):
            if source.copy is None:
                source.close()
            elif paused:
                self._selector.register(source.fd, selectors.EVENT_READ, source.read)


class Copy:
    """A file that gets a rank's output as well, without tags. Raises OSError where it cannot be made.

    Args:
        path: in a folder that is made where it is missing; what the file had is lost.
        report: takes one line when the file can be written no longer; the rank goes on.
    """

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._report = report
        self._file = path.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Appends what a rank has written."""
        if self._file.closed:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._report(f"{self._path}: {error.strerror}; the file ends here, the rank goes on")
            self._file.close()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()


Copies: TypeAlias = Sequence[tuple[Copy | None, Copy | None]]
"""For each rank's stdout and stderr."""


def rank_copies(folder: str | None, ranks: int, report: Callable[[str], None], stack: ExitStack) -> Copies:
    """The files rank.N/stdout and rank.N/stderr in a folder, N padded with zeros. Without a folder there are none.

    The stack closes them. Raises OSError where one cannot be made.
    """
    if folder is None:
        return [(None, None)] * ranks
    digits = len(str(ranks - 1))
    copies = []
    for rank in range(ranks):
        out, err = (Copy(Path(folder, f"rank.{rank:0{digits}}", name), report) for name in ("stdout", "stderr"))
        stack.callback(out.close)
        stack.callback(err.close)
        copies.append((out, err))
    return copies


def output_pipe(sink: Sink, prefix: str, theirs: ExitStack, copy: Copy | None = None) -> tuple[Source, int]:
    """A new source of a sink, and the writing end for a rank, which `theirs` closes here."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    theirs.callback(os.close, writer)
    return Source(reader, sink, prefix.encode(), sink.terminal, copy), writer


class Source:
    """The reading end of one rank's stdout or stderr; owns the descriptor.

    Args:
        prefix: put before each line; b"" leaves lines as they are.
        returns: whether a carriage return ends a line too (progress bars on a terminal).
        copy: gets all that is read.
    """

    def __init__(self, fd: int, sink: Sink, prefix: bytes, returns: bool, copy: Copy | None = None) -> None:
        self.fd = fd
        self._sink = sink
        self.copy = copy
        self._prefix = prefix
        self._ends = (b"\n", b"\r") if returns else (b"\n",)
        self._line = re.compile(rb"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+" if returns else rb"[^\n]*\n|[^\n]+")
        self._held = b""
        os.set_blocking(fd, False)
        sink.attach(self)

    def read(self) -> bool:
        """Passes on what has come, up to the last end of a line. False when there is nothing to read (yet)."""
        if self.fd < 0:
            return False
        try:
            more = os.read(self.fd, READ_NBYTES)
        except BlockingIOError:
            return False
        if not more:
            self.close()
            return False
        if self.copy is not None:
            self.copy.write(more)
        self._held += more
        end = max(self._held.rfind(mark) for mark in self._ends) + 1
        if end == 0 and len(self._held) > LINE_NBYTES:
            end = len(self._held)
        lines, self._held = self._held[:end], self._held[end:]
        self._sink.put(self._tagged(lines))
        return True

    def drain(self) -> None:
        """Reads to the end of what is there now and closes; a child that still holds the pipe is not waited for."""
        while self.read():
            pass
        self.close()

    def close(self) -> None:
        """Passes on an unfinished last line and closes. Idempotent."""
        if self.fd < 0:
            return
        self._sink.detach(self)
        os.close(self.fd)
        self.fd = -1
        if self._held:
            self._sink.put(self._tagged(self._held + b"\n"))
            self._held = b""

    def _tagged(self, lines: bytes) -> bytes:
        if not self._prefix:
            return lines
        return b"".join(self._prefix + line for line in self._line.findall(lines))
