"""Groups of cases whose ranks are processes of this machine, each by a command that is over in seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .trees import Tree
from .turns import Times, TurnError

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
DEADLINE_S = 120.0
TAIL = 1500  # characters of a failed job's output that are kept
RINGRUN = ("-m", "ringreduce.launch.ringrun", "--no-tag-output", "-np")


@dataclass(frozen=True)
class Bench:
    """`ringreduce bench allreduce` of the build itself; an order is a size. Rewritten, slowest rank, median."""

    ranks: int
    level: str
    buffers: str = "private"

    @property
    def name(self) -> str:
        """See Group."""
        return f"{self.ranks} ranks c {self.buffers}" if self.level == "c" else f"{self.ranks} ranks {self.level}"

    def run(self, tree: Tree, orders: Sequence[str]) -> Times:
        """See Group."""
        what = ["--level", self.level, "--buffers", self.buffers, "--no-limit", "--no-check"]
        command = ["-m", "ringreduce.bench", "allreduce", "-np", str(self.ranks), "--sizes", ",".join(orders), *what]
        rows = run(command, tree, "--json")["results"]
        return {order: {"call": row["time_us"]["p50"]} for order, row in zip(orders, rows, strict=True)}


@dataclass(frozen=True)
class Calls:
    """calls.py under the build's own ringrun; an order is NAME SIZE HOW."""

    ranks: int

    @property
    def name(self) -> str:
        """See Group."""
        return f"{self.ranks} ranks"

    def run(self, tree: Tree, orders: Sequence[str]) -> Times:
        """See Group."""
        program = [sys.executable, str(HERE / "calls.py"), *orders]
        return measured(run([*RINGRUN, str(self.ranks), *program], tree, "--file"))


@dataclass(frozen=True)
class Steps:
    """steps.py under the build's own ringrun; an order is MODEL MODE."""

    ranks: int = 2

    @property
    def name(self) -> str:
        """See Group."""
        return "training"

    def run(self, tree: Tree, orders: Sequence[str]) -> Times:
        """See Group."""
        program = [sys.executable, str(HERE / "steps.py"), *orders]
        return measured(run([*RINGRUN, str(self.ranks), *program], tree, "--file", EXAMPLES))


def measured(found: Mapping[str, Any]) -> Times:
    """What the ranks' programs wrote: times, and the failures, which are told and left out."""
    for order, failure in found["failures"].items():
        print(f"# {order}: {failure}", file=sys.stderr, flush=True)
    times: Times = found["times"]
    return times


def run(command: Sequence[str], tree: Tree, option: str, *path: Path) -> Any:
    """Runs python with these arguments and the tree's ringreduce. Returns the JSON that it wrote.

    Args:
        option: what names the file to write.
        path: further folders for Python's path.

    Raises:
        TurnError: it failed, or ran past the deadline; it and its ranks are gone then.
    """
    with tempfile.TemporaryDirectory(prefix="ringreduce-compare-") as folder:
        file = Path(folder, "figures.json")
        with Path(folder, "output").open("w+b") as output:
            process = subprocess.Popen(
                [sys.executable, *command, option, str(file)],
                cwd=tree.path,  # `python -m` looks there first
                env=tree.environ(*path),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if process.poll() is None:  # ringrun's ranks end with it
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            said = output.read().decode(errors="replace")[-TAIL:].strip()
        if status != 0:
            fate = f"not within {DEADLINE_S:g} s" if status is None else f"exit status {status}"
            raise TurnError(f"{fate}\n{said}")
        try:
            return json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise TurnError(f"exit status 0, but {error}\n{said}") from None
