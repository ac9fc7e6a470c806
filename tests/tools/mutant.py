"""What mutants of both languages have in common: the broken text, and running a test with a limit of time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mutations import Mutation

ROOT = Path(__file__).resolve().parents[2]


class Unfit(Exception):
    """A row, or the build, does not fit: not a verdict on the tests."""


class Verdict(NamedTuple):
    """How tests ended; noticed: not as they do when all is well."""

    noticed: bool
    text: str


class Ended(NamedTuple):
    """How a command ended; status None: it ran out of time."""

    status: int | None
    output: str

    def failure(self, limit_s: float) -> str:
        """Why it was no success, in a few words; "" where the exit status says more."""
        if self.status is None:
            return f"did not end within {limit_s:g} s"
        return f"signal {signal.Signals(-self.status).name}" if self.status < 0 else ""


def broken(row: Mutation) -> str:
    """The content of the row's file with the mutation."""
    content = (ROOT / row.file).read_text()
    if (count := content.count(row.text)) != 1:
        raise Unfit(f"{row.name}: {row.file} holds the text {count} times; adapt the row in mutations")
    return content.replace(row.text, row.replacement)


def ended(
    command: Sequence[str | Path], limit_s: float, *, cwd: Path, env: Mapping[str, str] | None = None, gib: int = 0
) -> Ended:
    """Runs a command in a process group of its own, of which nothing is left afterwards.

    gib: what it may allocate, as a mutant may be without measure; 0: no limit.
    """
    # timeout: for the case that somebody kills this process.
    memory = [f"--data={gib << 30}"] if gib else []
    bounded = ["prlimit", "--core=0", *memory, "timeout", "-s", "KILL", f"{limit_s + 5:g}", *command]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            bounded,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Ended(status, output.read().decode(errors="replace"))
