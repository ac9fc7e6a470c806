"""`ringreduce top` on a terminal: the tables, drawn anew a few times a second until q is pressed."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ringreduce.watch import table
from ringreduce.watch.board import Board

# ECMA-48 and xterm's control sequences.
_OTHER_SCREEN, _FIRST_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_LINES, _COLUMNS = 24, 80
"""Of a terminal that does not say."""

_QUIT = frozenset("qQ\x1b\x03\x04\x1c")
"""q, escape, and what ^C, ^D and ^\\ send."""
_OTHER_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
"""An arrow or F2, say, which begins with escape."""
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def show(board: Board, interval_s: float) -> int:
    """Draws until q, escape or ^C is pressed. Returns the exit status."""
    with _keys() as pressed:
        while True:
            _draw(board)
            if _QUIT.intersection(_OTHER_KEY.sub("", pressed(interval_s))):  # several keys, if they come fast
                return 0


def _draw(board: Board) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())  # not by COLUMNS and LINES: the window may have another size now
    text = [f"ringreduce top   {time.strftime('%H:%M:%S')}   q: quit", ""]
    for job in board.look():
        text += [*table.lines(job), ""]
    if not board.jobs:
        text.append("no job of yours runs on this host")
    text += board.unreadable
    lines, columns = size.lines or _LINES, size.columns or _COLUMNS
    if len(text) > lines:
        text[lines - 1 :] = [f"... {len(text) - lines + 1} more lines: give the PID of one job"]
    drawn = [line[:columns] for line in text]
    drawn[0] = _BOLD + drawn[0] + _PLAIN
    sys.stdout.write(_HOME + "\n".join(line + _END_OF_LINE for line in drawn) + _END_OF_SCREEN)
    sys.stdout.flush()


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """The other screen, and keys as they are pressed; the terminal is as it was afterwards."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(timeout_s: float) -> str:
        """What is pressed within the time; "" if nothing is. The end of the input is ^D."""
        if not select.select([terminal], [], [], timeout_s)[0]:
            return ""
        return os.read(terminal, 64).decode(errors="replace") or "\x04"

    tty.setcbreak(terminal)
    keys = termios.tcgetattr(terminal)
    keys[3] &= ~termios.ISIG  # ^Z would leave the shell with this screen
    termios.tcsetattr(terminal, termios.TCSAFLUSH, keys)
    sys.stdout.write(_OTHER_SCREEN)
    try:
        yield pressed
    finally:
        sys.stdout.write(_FIRST_SCREEN)
        sys.stdout.flush()
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
