"""Parts of a check: commands that run one after the other, each with a deadline, whatever became of those before."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TAIL_LINES = 40
REAP_S = 10.0  # for a killed process to be gone: one in the GPU's driver may take seconds


@dataclass(frozen=True)
class Part:
    """One command.

    deadline_s: it is killed, with all it has started, after so many seconds.
    least_s: so many are kept for it, however long the parts before it take.
    rows: a file of JSON lines that it writes, figures of the record; "" for none.
    """

    name: str
    command: Sequence[str]
    deadline_s: float
    least_s: float = 5.0
    env: Mapping[str, str] = field(default_factory=dict)
    rows: str = ""


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

    @property
    def verdict(self) -> str:
        """ok, or what went wrong, in a word or two."""
        if self.late:
            return f"not done after {self.seconds:.0f} s"
        return "ok" if self.status == 0 else f"failed ({self.status})"


def run(part: Part, logs: Path, deadline_s: float) -> Outcome:
    """Runs one part; never raises. Its whole output is left in logs/NAME.log."""
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
            return Outcome(part.name, 127, 0.0, False, f"{part.command[0]}: {error.strerror}")
        try:
            status = process.wait(max(deadline_s, 0.0))
        except subprocess.TimeoutExpired:
            late = True
            status = -signal.SIGKILL
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what a part that has ended left behind
            with suppress(subprocess.TimeoutExpired):
                process.wait(REAP_S)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return Outcome(part.name, status, time.monotonic() - begun, late, "\n".join(lines[-TAIL_LINES:]))


def run_all(
    parts: Sequence[Part], logs: Path, total_s: float, report: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Runs the parts in order, within total_s seconds together.

    A part may take its deadline, and what the parts after it need at least is kept for them.

    Args:
        report: called with each outcome as soon as it is known.
    """
    end = time.monotonic() + total_s
    outcomes = []
    for index, part in enumerate(parts):
        kept = sum(later.least_s for later in parts[index + 1 :])
        left = end - time.monotonic() - kept
        outcomes.append(run(part, logs, min(part.deadline_s, max(left, part.least_s))))
        report(outcomes[-1])
    return outcomes
