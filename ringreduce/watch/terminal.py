"""`ringreduce top` on a terminal: the tables, drawn anew a few times a second until q is pressed."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import textwrap
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ringreduce.watch import table
from ringreduce.watch.board import Board
from ringreduce.watch.figures import JobFigures, title

# ECMA-48 and xterm's control sequences.
_OTHER_SCREEN, _FIRST_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_LINES, _COLUMNS = 24, 80
"""Of a terminal that does not say."""
_NARROWEST = 40
"""Of a terminal with fewer columns the lines are cut off."""

_QUIT = frozenset("qQ\x1b\x03\x04\x1c")
"""q, escape, and what ^C, ^D and ^\\ send."""
_OTHER_KEY = re.compile(r"\x1b(\[\[[A-Z]|[\[O][0-9;<?]*[A-Za-z~]|[^\x00-\x1f])")
"""An arrow, F2 (also of Linux' console) or a key with Alt, say, which begins with escape."""
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
    jobs, why = board.look(), board.unreadable
    lines, columns = size.lines or _LINES, size.columns or _COLUMNS
    drawn = [line[:columns] for line in screen(jobs, why, lines, columns)]
    drawn[0] = _BOLD + drawn[0] + _PLAIN
    sys.stdout.write(_HOME + "\n".join(line + _END_OF_LINE for line in drawn) + _END_OF_SCREEN)
    sys.stdout.flush()


def screen(jobs: Sequence[JobFigures], unreadable: Sequence[str], lines: int, columns: int) -> list[str]:
    """What is drawn, `lines` at most. Where not all fits, titles and rows are cut off at the edge and ranks left out:
    what is said of them is not."""

    def wrapped(text: str) -> list[str]:
        width = max(columns, _NARROWEST)
        return [text] if len(text) <= width else textwrap.wrap(text, width, subsequent_indent="    ")

    def each_wrapped(texts: Iterable[str]) -> list[str]:
        return [line for text in texts for line in wrapped(text)]

    head = f"ringreduce top   {time.strftime('%H:%M:%S')}   q: quit"
    tail = each_wrapped(unreadable if unreadable or jobs else ["no job of yours runs on this host"])
    tail = ["", *tail] if tail else []
    text = [head, *(line for job in jobs for line in ["", *each_wrapped(table.lines(job))]), *tail]
    if len(text) <= lines:
        return text
    said = [each_wrapped(table.said(job)) for job in jobs]
    ranks = sum(len(job.ranks) for job in jobs)
    room = lines - 1 - len(tail) - sum(3 + len(sentences) for sentences in said)  # an empty line, title, headings
    text = [head]
    for job, sentences in zip(jobs, said, strict=True):
        most = len(job.ranks) if ranks <= room else max(room * len(job.ranks) // ranks - 1, 0)
        text += ["", title(job), *table.rows(job, most), *sentences]
    text += tail
    if len(text) > lines:
        advice = ": give the PID of one job" if len(jobs) > 1 else ""
        text[lines - 1 :] = [f"... {len(text) - lines + 1} more lines{advice}"]
    return text


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
