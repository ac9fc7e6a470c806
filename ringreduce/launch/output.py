"""Carries the ranks' output to this process's, whole line by whole line, and never blocks on a slow reader.

A Source is the reading end of one rank's stdout or stderr, a Sink is ours. While a sink has more than QUEUE_NBYTES
waiting, its sources are not read, so the ranks wait as they would for the reader itself. When the reader of a sink has
gone (`| head`), its sources are closed, and the ranks notice as they would without us; but for sources with a copy in a
file, which are read on. What a source has read goes to a Taker: Lines, which tags whole lines, or whatever carries
output to another host.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import select
import selectors
import struct
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeAlias

from ringreduce.launch.terminal import unblocked

_INT = struct.Struct("i")
QUEUE_NBYTES = 1 << 20
LINE_NBYTES = 1 << 20  # a line longer than this is passed on in parts
READ_NBYTES = 1 << 16
SILENCE_S, LAST_WORDS_S = 0.5, 2.0
"""How long ranks that have ended are listened to, since the latest word and in all."""
LAST_WORDS_NBYTES = 64 << 20
"""Within so much a reader that is slow takes none of this time. What says more than that may talk without end."""
READER_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT)  # the latter two of a socket
NO_HOROVOD = b"ModuleNotFoundError: No module named 'horovod'\n"
WRITE_NBYTES = 4096  # PIPE_BUF: what a pipe that poll() calls writable takes without blocking
_TTY_PIECE = re.compile(rb"[^\x00-\x1f\x7f]{1,256}|.", re.DOTALL)
"""What a terminal that poll() calls writable takes without blocking: it has room for 256 bytes, and only plain letters
are passed on together."""


class Feeder(Protocol):
    """What feeds a sink, as the sink sees it."""

    def pause(self) -> None:
        """Reads nothing until resume()."""

    def resume(self) -> None:
        """Reads again."""

    def drain(self) -> None:
        """Passes on what is there now, and closes: its rank has ended."""

    def lose_reader(self) -> None:
        """Nobody reads the sink any more."""


class Taker(Protocol):
    """What takes the output of one rank's stdout or stderr."""

    kept: bool
    """Whether it is of use although nobody reads the sink."""

    def feed(self, data: bytes) -> None:
        """Takes what the rank has written."""

    def end(self) -> None:
        """Nothing more will come."""


class Flow:
    """Where sources lead: it pauses them all, and lets them go on."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.selector = selector
        self._feeders: list[Feeder] = []
        self.is_paused = False
        """Whether it takes nothing for now."""
        self._has_reader = True

    def attach(self, feeder: Feeder) -> None:
        """Starts to be fed. Where the reader has gone, the feeder learns it at once."""
        self._feeders.append(feeder)
        if not self._has_reader:
            feeder.lose_reader()
        elif not self.is_paused:
            feeder.resume()

    def detach(self, feeder: Feeder) -> None:
        """Ends to be fed by what has ended, or may not be read on."""
        self._feeders.remove(feeder)
        feeder.pause()

    def drain(self) -> None:
        """Takes what its sources hold now, and closes them: their ranks have ended."""
        for feeder in list(self._feeders):
            feeder.drain()

    def pause(self) -> None:
        """Takes nothing until resume()."""
        self.is_paused = True
        for feeder in self._feeders:
            feeder.pause()

    def resume(self) -> None:
        """Takes more."""
        self.is_paused = False
        for feeder in self._feeders:
            feeder.resume()

    def lose_reader(self) -> None:
        """Nobody reads what goes there any more."""
        self._has_reader = False
        self.is_paused = False  # sources that are of use all the same are read on
        for feeder in list(self._feeders):
            feeder.lose_reader()


class Sink(Flow):
    """Where output goes: a descriptor of this process, which stays its owner's.

    Args:
        lost: takes the reason when nothing can be written any more although its reader has not gone: a full disk.
    """

    def __init__(self, fd: int, selector: selectors.BaseSelector, lost: Callable[[str], None] | None = None) -> None:
        super().__init__(selector)
        self.fd = fd
        self._lost = lost
        self.terminal = os.isatty(fd)
        self._own_fd = unblocked(fd, os.O_WRONLY) if self.terminal else -1
        self._pieces = self._lines if not self.terminal or self._own_fd >= 0 else _TTY_PIECE.findall
        self.broken = False
        """Whether nothing can be written there any more."""
        self.taken_at = -math.inf
        """When the reader last took something, by time.monotonic()."""
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._line_of: Lines | None = None  # what has put a line whose end is not there yet

    def put(self, text: bytes, by: Lines | None = None, is_unfinished: bool = False) -> None:
        """Queues whole lines, or, by whom it says, a part of one, which nobody else's text goes on with."""
        if self.broken or not text:
            return
        if self._line_of is not None and self._line_of is not by:
            text = b"\n" + text
        self._line_of = by if is_unfinished else None
        if not self._queue:
            self.selector.register(self.fd, selectors.EVENT_WRITE, self.flush)
        self._queue += self._pieces(text)
        before, self._queued = self._queued, self._queued + len(text)
        if before <= QUEUE_NBYTES < self._queued:
            self.pause()

    def has_part_of(self, lines: Lines) -> bool:
        """Whether the last line is a part of one of theirs."""
        return self._line_of is lines

    def end_line(self) -> None:
        """The last line has been ended by somebody else: by the user, who has typed on a terminal."""
        self._line_of = None

    def flush(self) -> None:
        """Writes a part, once poll() says that this does not block."""
        try:
            written = os.write(self.fd if self._own_fd < 0 else self._own_fd, self._queue[0])
        except BlockingIOError:
            return
        except OSError as error:
            self._break()
            has_reader_gone = error.errno in READER_GONE or self.terminal  # one that hangs up answers EIO
            if not has_reader_gone and self._lost is not None:
                self._lost(error.strerror or str(error))
            return
        self.taken_at = time.monotonic()
        rest = self._queue.popleft()[written:]
        if rest:
            self._queue.appendleft(rest)
        before, self._queued = self._queued, self._queued - written
        if self._queued <= QUEUE_NBYTES < before:
            self.resume()
        if not self._queue:
            self.selector.unregister(self.fd)

    def empty(self) -> bool:
        """True once everything is written, or cannot be."""
        return not self._queue

    def flush_ready(self) -> None:
        """Writes what can be written without blocking; the rest is given up."""
        ready = select.poll()
        ready.register(self.fd, select.POLLOUT)
        before = math.inf
        while self._queue and self._queued < before and ready.poll(0):  # one that takes nothing although poll() says so
            before = self._queued
            self.flush()

    def give_up(self) -> int:
        """Writes what can be written without blocking, and drops the rest; returns how many bytes that was."""
        self.flush_ready()
        dropped = self._queued
        if dropped:
            self._drop()
        return dropped

    def close(self) -> None:
        """Gives back what it has opened; nothing can be written any more. Idempotent."""
        self.broken = True
        if self._own_fd >= 0:
            os.close(self._own_fd)
            self._own_fd = -1

    @staticmethod
    def _lines(text: bytes) -> Iterator[bytes]:
        """Pieces that end with a line where they can: nothing of another program gets in between."""
        begin = 0
        while begin < len(text):
            end = text.rfind(b"\n", begin, begin + WRITE_NBYTES) + 1 or begin + WRITE_NBYTES
            yield text[begin:end]
            begin = end

    def _break(self) -> None:
        self.broken = True
        self._drop()
        self.lose_reader()

    def _drop(self) -> None:
        self._queue.clear()
        self._queued = 0
        self.selector.unregister(self.fd)


class Copy:
    """A file that gets a rank's output as well, without tags. Raises OSError where it cannot be made.

    Args:
        path: in a folder that is made where it is missing; what the file had is lost.
        lost: takes the reason, with the path, when the file can be written no longer; the rank goes on.
    """

    def __init__(self, path: Path, lost: Callable[[str], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lost = lost
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
            self._lost(f"{self._path}: {error.strerror}")
            self._file.close()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()


Copies: TypeAlias = Sequence[tuple[Copy | None, Copy | None]]
"""For each rank's stdout and stderr."""


def rank_copies(folder: str | None, ranks: int, lost: Callable[[str], None], stack: ExitStack) -> Copies:
    """The files rank.N/stdout and rank.N/stderr in a folder, N padded with zeros. Without a folder there are none.

    lost: as of Copy. The stack closes the files. Raises OSError where one cannot be made.
    """
    if folder is None:
        return [(None, None)] * ranks
    digits = len(str(ranks - 1))
    copies = []
    for rank in range(ranks):
        out, err = (Copy(Path(folder, f"rank.{rank:0{digits}}", name), lost) for name in ("stdout", "stderr"))
        stack.callback(out.close)
        stack.callback(err.close)
        copies.append((out, err))
    return copies


class Lines:
    """Whole lines of one rank's output, tagged, for a sink.

    Args:
        prefix: put before each line; "" leaves lines as they are.
        copy: gets all that the rank has written.
    """

    def __init__(self, sink: Sink, prefix: str, copy: Copy | None = None) -> None:
        self.kept = copy is not None
        self._sink = sink
        self._copy = copy
        self._prefix = prefix.encode()
        returns = sink.terminal  # where a carriage return ends a line too (progress bars)
        self._ends = (b"\n", b"\r") if returns else (b"\n",)
        self._line = re.compile(rb"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+" if returns else rb"[^\n]*\n|[^\n]+")
        self._held = b""
        self._follows_return = False
        self.lacks_horovod = False
        """Whether the rank has said that there is no module horovod."""
        self.on_part: Callable[[], None] | None = None
        """Called when a line's beginning is held, which may be a question to the user. pass_part() passes it on."""

    def feed(self, data: bytes) -> None:
        """Passes on what has come, up to the last end of a line."""
        if self._copy is not None:
            self._copy.write(data)
        self._held += data
        end = max(self._held.rfind(mark) for mark in self._ends) + 1
        if end == 0 and len(self._held) > LINE_NBYTES:
            end = len(self._held)
        lines, self._held = self._held[:end], self._held[end:]
        self.lacks_horovod |= NO_HOROVOD in lines
        if lines:
            self._follows_return = lines.endswith(b"\r")
            self._sink.put(self._tagged(lines), self)
        if self._held and not self._follows_return and self.on_part is not None:  # a progress bar asks nothing
            self.on_part()

    def pass_part(self) -> None:
        """Passes on what is held of a line."""
        if self._held:
            self._sink.put(self._tagged(self._held), self, is_unfinished=True)
            self._held = b""

    def end(self) -> None:
        """Passes on an unfinished last line."""
        if self._held or self._sink.has_part_of(self):
            self._sink.put(self._tagged(self._held + b"\n"), self)
            self._held = b""

    def _tagged(self, lines: bytes) -> bytes:
        if not self._prefix:
            return lines
        tagged = b"".join(self._prefix + line for line in self._line.findall(lines))
        return tagged.removeprefix(self._prefix) if self._sink.has_part_of(self) else tagged


def rank_lines(
    rank: int, out: Sink, err: Sink, tagged: bool, copies: tuple[Copy | None, Copy | None]
) -> tuple[Lines, Lines]:
    """What takes one rank's stdout and stderr; tagged: each line begins with the rank and the stream's name."""
    named = ((out, "stdout", copies[0]), (err, "stderr", copies[1]))
    of_out, of_err = (Lines(sink, f"[{rank}]<{name}>: " if tagged else "", copy) for sink, name, copy in named)
    return of_out, of_err


def output_pipe(flow: Flow, taker: Taker, theirs: ExitStack) -> tuple[Source, int]:
    """A new source, and the writing end for a rank, which `theirs` closes here."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    theirs.callback(os.close, writer)
    return Source(reader, flow, taker), writer


class Source:
    """The reading end of one rank's stdout or stderr; owns the descriptor.

    Args:
        flow: for which it pauses.
        taker: gets what is read.
    """

    def __init__(self, fd: int, flow: Flow, taker: Taker) -> None:
        self.fd = fd
        self.nbytes = 0
        """How much has been read."""
        self._flow = flow
        self._taker = taker
        os.set_blocking(fd, False)
        flow.attach(self)

    @property
    def is_paused(self) -> bool:
        """Whether it is not read, because what it leads to takes nothing."""
        return self._flow.is_paused

    def pause(self) -> None:
        """Reads nothing until resume(). Idempotent."""
        if self.fd in self._flow.selector.get_map():
            self._flow.selector.unregister(self.fd)

    def resume(self) -> None:
        """Reads again. Idempotent."""
        if self.fd not in self._flow.selector.get_map():
            self._flow.selector.register(self.fd, selectors.EVENT_READ, self.read)

    def lose_reader(self) -> None:
        """Closes, unless a copy is kept."""
        if self._taker.kept:
            self.resume()
        else:
            self.close()

    def read(self) -> int:
        """Passes on what has come; returns how many bytes. 0: there is nothing to read (yet)."""
        if self.fd < 0:
            return 0
        try:
            more = os.read(self.fd, READ_NBYTES)
        except BlockingIOError:
            return 0
        if more:
            self.nbytes += len(more)
            self._taker.feed(more)
        else:
            self.close()
        return len(more)

    def drain(self) -> None:
        """Reads what is there now and closes. A child that still holds the pipe is waited for by LastWords alone."""
        if self.fd < 0:
            return
        (left,) = _INT.unpack(fcntl.ioctl(self.fd, termios.FIONREAD, _INT.pack(0)))
        while left > 0 and (nbytes := self.read()):
            left -= nbytes
        self.close()

    def close(self) -> None:
        """Closes. Idempotent."""
        if self.fd < 0:
            return
        self._flow.detach(self)
        os.close(self.fd)
        self.fd = -1
        self._taker.end()


class LastWords:
    """How long sources are read on when their ranks have ended.

    What a rank has started may have something left to say, such as the filter of `exec > >(...)`. A program that holds
    the pipe and says nothing, or talks without end, is not waited for. While a source is paused, because the reader of
    our own output is slow, nobody can say whether there is more, and no time passes.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._nbytes = -1
        self._most_nbytes = sum(source.nbytes for source in sources) + LAST_WORDS_NBYTES
        self._asked = 0.0  # when wait_s() was called
        self._is_held = False  # whether no time has passed since
        self._heard = 0.0  # when the latest word was seen, by time.monotonic()
        self._end = time.monotonic() + LAST_WORDS_S

    def wait_s(self) -> float:
        """How long to wait for a word at most, from now on; 0.0 for no longer: drain the sources.

        math.inf: until a source is read again. To be called after each event.
        """
        live = [source for source in self._sources if source.fd >= 0]
        if not live:
            return 0.0
        now = time.monotonic()
        nbytes = sum(source.nbytes for source in self._sources)
        if self._is_held:
            self._heard += now - self._asked
            self._end += now - self._asked
        if nbytes != self._nbytes:
            self._nbytes, self._heard = nbytes, now
        self._asked = now
        self._is_held = nbytes < self._most_nbytes and any(source.is_paused for source in live)
        return math.inf if self._is_held else max(0.0, min(self._heard + SILENCE_S, self._end) - now)
