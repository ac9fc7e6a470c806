"""Printing: the tables in colour on a terminal, as plain text elsewhere.

Colour needs the package rich (in the extra `bench`), a terminal (or FORCE_COLOR, which the launcher's ranks get for
theirs), and no NO_COLOR (no-color.org); the words and the columns are the same without it.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TextIO

STYLES = {
    r"^#.*$": "dim",
    r"ringreduce (registered|private)?": "bold",
    r"\b[1-9]\d*\.\d+x": "green",
    r"\b0\.\d+x": "yellow",
    r"\bOK\b": "green",
    r"\b(FAILED|WRONG|failed|timeout)\b": "bold red",
    r"\babsent\b": "yellow",
}
"""Pattern: how what it matches looks; later ones are laid over earlier ones."""


def show(text: str, file: TextIO | None = None) -> None:
    """Prints the text and a line end to the file (default: stdout), at once."""
    file = sys.stdout if file is None else file
    if not coloured(file):
        print(text, file=file, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in STYLES.items():
        styled.highlight_regex(f"(?m){pattern}", style)
    console = Console(file=file, force_terminal=True, soft_wrap=True)
    with console.capture() as capture:  # rich would end the process where the file is a pipe that nobody reads
        console.print(styled)
    print(capture.get(), end="", file=file, flush=True)


def shown(text: str) -> bool:
    """show() on stdout; False where the reader has just gone, as `| head` does: later texts go nowhere."""
    try:
        show(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it at its end
        return False
    return True


def coloured(file: TextIO) -> bool:
    """Whether what is printed there is styled."""
    wanted = file.isatty() or bool(os.environ.get("FORCE_COLOR"))
    return wanted and not os.environ.get("NO_COLOR") and find_spec("rich") is not None
