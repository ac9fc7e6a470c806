"""What ties ringrun to its terminal: signals to pass on, and the keyboard, which rank 0 may read.

Ranks are in process groups of their own, without a terminal: it signals ringrun alone, and ranks can ask nobody there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
from collections.abc import Callable, Iterator

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
TAKEN = (*FORWARDED, signal.SIGQUIT, signal.SIGCONT)
"""Signals that become events: those to pass on, the one by which the user insists, and the one that says "go on"."""
READ_NBYTES = 4096  # what a terminal hands out at most
_MASTERS = os.makedev(5, 2)  # /dev/ptmx


@contextlib.contextmanager
def signals_as_events(selector: selectors.BaseSelector, handle: Callable[[int], None]) -> Iterator[None]:
    """While in the block, those of TAKEN call handle(signum) from the selector's loop, in the main thread.

    A signal that was ignored at the start (nohup, a shell's background job) stays ignored.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            for signum in os.read(reader, READ_NBYTES):
                if signum in taken:
                    handle(signum)

    taken = {s: signal.getsignal(s) for s in TAKEN if signal.getsignal(s) != signal.SIG_IGN}
    selector.register(reader, selectors.EVENT_READ, read)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for signum in taken:
        signal.signal(signum, lambda *_: None)  # what counts is the byte in the pipe
    try:
        yield
    finally:
        for signum, before in taken.items():
            signal.signal(signum, before)
        signal.set_wakeup_fd(wakeup_before)
        with contextlib.suppress(KeyError):  # the selector may be closed
            selector.unregister(reader)
        os.close(reader)
        os.close(writer)


def end_by(signum: int) -> None:
    """Ends this process by a signal, so that who has started it sees that; without a core, which would show nothing."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def unblocked(terminal: int, access: int, *other_names: str) -> int:
    """A descriptor of the same terminal that never blocks; -1 where it cannot be opened (another user's).

    It has a description of its own: O_NONBLOCK on the user's would be seen by all programs on that terminal.

    Args:
        access: os.O_RDONLY or os.O_WRONLY.
        other_names: of the terminal, tried where it cannot be opened as what the descriptor has open.
    """
    if os.fstat(terminal).st_rdev == _MASTERS:  # opening it would make another terminal
        return -1
    for name in (f"/proc/self/fd/{terminal}", *other_names):
        with contextlib.suppress(OSError):
            return os.open(name, access | os.O_NONBLOCK | os.O_NOCTTY)
    return -1


class Keyboard:
    """Passes a terminal on to a pipe, while this process is in the foreground.

    It never waits for a key, although poll() has said that there is one: another program of the foreground, such as
    less in `ringrun ... | less`, may read the key first.

    Args:
        terminal: descriptor to read, which stays its owner's.
        pipe: writing end, owned and closed at the end of input or when nobody reads it.
        entered: called when the user has typed the end of a line, which the terminal shows.
        in_background: called when nothing is read as this process is in the background. It calls resume() later: a
            shell that brings a running job to the foreground (`ringrun ... &`, `fg`) sends no SIGCONT.
    """

    def __init__(
        self,
        terminal: int,
        pipe: int,
        selector: selectors.BaseSelector,
        entered: Callable[[], None],
        in_background: Callable[[], None],
    ) -> None:
        self._entered = entered
        self._in_background = in_background
        self._terminal = terminal
        self._pipe = pipe
        self._selector = selector
        self._held = b""
        # Another user's terminal (after su) may be opened as /dev/tty alone. That is the same terminal: _foreground()
        # fails for one that is not this process's.
        self._own_fd = unblocked(terminal, os.O_RDONLY, "/dev/tty")
        self.is_deaf = self._own_fd < 0
        """Whether rank 0 gets no input, as the terminal cannot be opened: its owner's descriptor may block."""
        if self.is_deaf:
            self.close()
            return
        os.set_blocking(pipe, False)
        self.resume()

    def is_open(self) -> bool:
        """Whether rank 0 can still be given input."""
        return self._pipe >= 0

    def resume(self) -> None:
        """Listens again if the job has come to the foreground."""
        if self._pipe < 0 or self._held:
            return
        if self._foreground():
            self._listen(self._terminal, selectors.EVENT_READ, self._read)
        elif self._pipe >= 0:
            self._in_background()

    def close(self) -> None:
        """Ends rank 0's input. Idempotent."""
        if self._pipe < 0:
            return
        for fd in (self._terminal, self._pipe):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        os.close(self._pipe)
        self._pipe = -1
        if self._own_fd >= 0:
            os.close(self._own_fd)

    def _foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:  # hung up: the window is closed, the connection lost
            self.close()
            return False

    def _listen(self, fd: int, events: int, then: Callable[[], None]) -> None:
        if fd not in self._selector.get_map():
            self._selector.register(fd, events, then)

    def _read(self) -> None:
        if not self._foreground():  # reading would stop us, and the keys are the shell's
            if self._pipe >= 0:
                self._selector.unregister(self._terminal)
                self._in_background()
            return
        try:
            self._held = os.read(self._own_fd, READ_NBYTES)
        except BlockingIOError:  # another program has read it
            return
        except OSError:  # hung up since
            self._held = b""
        if not self._held:
            self.close()
            return
        if self._held.endswith(b"\n"):
            self._entered()
        self._selector.unregister(self._terminal)
        self._listen(self._pipe, selectors.EVENT_WRITE, self._write)

    def _write(self) -> None:
        try:
            self._held = self._held[os.write(self._pipe, self._held) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close()
            return
        if not self._held:
            self._selector.unregister(self._pipe)
            self.resume()
