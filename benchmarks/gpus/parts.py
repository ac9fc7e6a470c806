"""Parts of a check: commands that run one after the other, each with a deadline, whatever became of those before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TAIL_LINES = 40
GRACE_S = 6.0  # for an interrupted pytest to say what has failed so far
TELLING = re.compile(
    r"\b[Ee]rror\b|[a-z]Error\b|ERROR|[Ff]ail|FAIL|\b[Aa]ssert|[Ff]atal|[Ee]xception|\bwrong\b|[Uu]ndefined|No such|"
    r"did not|exited|signal|STOP|STUCK"
)
REAP_S = 5.0  # for a killed process to be gone: one in the GPU's driver may take seconds


@dataclass(frozen=True)
class Part:
    """One command.

    deadline_s: it is killed, with all it has started, after so many seconds.
    least_s: so many are kept for it, however long the parts before it take.
    rows: a file of JSON lines that it writes, figures of the record; "" for none.
    needs: a file without which it is not run, and counts as missing; "" for none.
    skip: why it is not to be run here; that is no failure. "" otherwise.
    interrupt: when its time is up it is interrupted first, so that it says how far it has come.
    word: which of gpu.py's --only it belongs to.
    """

    name: str
    command: Sequence[str]
    deadline_s: float
    least_s: float = 5.0
    env: Mapping[str, str] = field(default_factory=dict)
    rows: str = ""
    needs: str = ""
    skip: str = ""
    interrupt: bool = False
    word: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a part ended."""

    name: str
    status: int
    """The exit status; -N when signal N ended it, -9 also when its time was up."""
    seconds: float
    late: bool
    """Its time was up."""
    output: str
    """The last lines of what it said."""
    note: str = ""
    """Why it was not run, if it was not."""
    word: str = ""
    """The part's."""

    @property
    def verdict(self) -> str:
        """ok, or what went wrong, in a word or two."""
        if self.note:
            return self.note
        if self.late:
            return f"not done after {self.seconds:.0f} s"
        return "ok" if self.status == 0 else f"failed ({self.status})"

    def digest(self, lines: int = 6, width: int = 160) -> list[str]:
        """The few lines of the output that say most of what went wrong."""
        told = [line.strip() for line in self.output.splitlines() if line.strip()]
        chosen = list(dict.fromkeys(line for line in told if TELLING.search(line))) or told
        return [line[:width] for line in chosen[-lines:]]


def run(part: Part, logs: Path, deadline_s: float) -> Outcome:
    """Runs one part; never raises. Its whole output is left in logs/NAME.log."""
    if part.skip:
        return Outcome(part.name, 0, 0.0, False, "", f"skipped: {part.skip}", part.word)
    if part.needs and not Path(part.needs).exists():
        return Outcome(part.name, 1, 0.0, False, "", f"not run: no {Path(part.needs).name}", part.word)
    log = logs / f"{part.name.replace(' ', '-')}.log"
    begun = time.monotonic()
    late = False
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                part.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **part.env},
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(part.name, 127, 0.0, False, f"{part.command[0]}: {error.strerror}", "", part.word)
        try:
            status = process.wait(max(deadline_s, 0.0))
        except subprocess.TimeoutExpired:
            late = True
            status = -signal.SIGKILL
            if part.interrupt:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what a part that has ended left behind
            with suppress(subprocess.TimeoutExpired):
                process.wait(REAP_S)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # A compiler's error may be far from the end, where others were still at work.
    early = [line for line in lines[:-TAIL_LINES] if TELLING.search(line)][:TAIL_LINES]
    text = "\n".join([*early, *lines[-TAIL_LINES:]])
    return Outcome(part.name, status, time.monotonic() - begun, late, text, "", part.word)


def run_all(
    parts: Sequence[Part], logs: Path, total_s: float, report: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Runs the parts in order, within total_s seconds together.

    A part may take its deadline, and what the parts after it need at least is kept for them. When there is no time left
    at all, the rest is not run, and says so.

    Args:
        report: called with each outcome as soon as it is known.
    """
    end = time.monotonic() + total_s
    outcomes = []
    for index, part in enumerate(parts):
        kept = sum(later.least_s for later in parts[index + 1 :])
        whole = end - time.monotonic()
        if whole <= 0 and not part.skip:
            outcomes.append(Outcome(part.name, 1, 0.0, False, "", "not run: no time left", part.word))
        else:
            deadline_s = min(part.deadline_s, whole, max(whole - kept, part.least_s))
            outcomes.append(run(part, logs, deadline_s))
        report(outcomes[-1])
    return outcomes
