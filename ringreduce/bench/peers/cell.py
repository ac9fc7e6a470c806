"""One cell of a comparison: what to measure, who measures it, and how a job that misbehaves is ended.

Every cell is a job of its own, so that a peer that crashes or hangs costs its cell and nothing else, and nobody's
idle processes poll while another is timed.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.launch.binding import cores_of, cpu_shares
from ringreduce.launch.spawn import die_with_parent

MARK = "_RINGREDUCE_BENCH_CELL"
"""In the environment of every process of a cell: what bears it after the deadline is killed, whoever its parent is."""
SHARED = Path("/dev/shm")
"""Where MPIs have files that only they themselves remove, and not where they are killed."""
BUDGET_S = 3.0
"""The timed calls of a peer end after about so long: MPICH takes 0.25 s a call of 8 B on 8 ranks of 2 cores."""
LEAST = 3  # calls that are timed, however long they take
RESULT = re.compile(r'\{".*')
"""A job's result in its line. The launcher may have put a tag before it: horovodrun's are [0]<stdout>: and the like."""
TAIL = 2000  # characters of a failed job's output that are kept


@dataclass(frozen=True)
class Cell:
    """What is measured: the same for everyone."""

    collective: str
    nbytes: int
    count: int
    dtype: str
    op: str
    in_place: bool
    ranks: int
    cores: tuple[int, ...]
    iters: int
    warmup: int
    check: bool
    bind: str = "core"
    hosts: tuple[tuple[str, int], ...] = ()
    """Names, each with its number of ranks; none: this host."""
    ringrun: tuple[str, ...] = ()
    """ringrun's options for them."""
    is_paced: bool = True
    """Whether iters may be less, where a call takes long. Not where the user says how often."""
    is_warmup_given: bool = False
    """Whether warmup is the user's. If not, it may be less where iters may."""

    @property
    def budget_s(self) -> float:
        """After about so long the timed calls of a peer end."""
        return BUDGET_S if self.is_paced else math.inf

    @property
    def warmup_budget_s(self) -> float:
        """After about so long the warm-up of a peer ends."""
        return math.inf if self.is_warmup_given else self.budget_s

    @property
    def oversubscribed(self) -> bool:
        """More ranks than cores. What cores other hosts have is not known: there, whether ranks are not to be bound."""
        return self.bind == "none" if self.hosts else self.ranks > len(self.cores)

    @property
    def is_bound(self) -> bool:
        """Whether each rank is bound to cores of its own."""
        return self.bind != "none" and not self.oversubscribed

    @property
    def shares(self) -> list[frozenset[int]]:
        """The CPUs that each rank binds itself to; empty where it does not, as on other hosts the launcher binds it."""
        return cpu_shares(self.ranks, self.cores) if self.is_bound and not self.hosts else []

    @property
    def on_hwthreads(self) -> bool:
        """More ranks than cores, and no more than their hardware threads. False for other hosts' unknown cores."""
        return not self.hosts and not self.oversubscribed and self.ranks > cores_of(self.cores)

    def affordable(self, pace_s: float) -> int:
        """Calls to time where one takes pace_s."""
        return int(min(self.iters, max(LEAST, self.budget_s / pace_s)))

    def warming(self, pace_s: float) -> int:
        """Calls to warm up where the first has taken pace_s."""
        return int(max(1, min(self.warmup - 1, self.warmup_budget_s / pace_s)))


@dataclass(frozen=True)
class Absent:
    """A library that is not here, and how to get it."""

    name: str
    advice: str


@dataclass(frozen=True)
class Job:
    """A command to run, with additions to the environment. The last RESULT, in JSON, that it prints counts."""

    command: list[str]
    environ: dict[str, str] = field(default_factory=dict)


class Peer(Protocol):
    """One competitor: a library, called at one level on one kind of memory."""

    @property
    def name(self) -> str:
        """The competitor's name in tables, such as "openmpi 5.0.11"."""

    @property
    def facts(self) -> dict[str, str]:
        """The fields library, version, level, buffers and algorithm of its rows."""

    def unsupported(self, cell: Cell) -> str | None:
        """Why it cannot do this cell; None when it can."""

    def job(self, cell: Cell) -> Job:
        """How one measurement is started."""


@dataclass(frozen=True)
class Outcome:
    """A row as in the JSON of `ringreduce bench`, or why there is none: status is ok, timeout, failed, unsupported."""

    competitor: str
    cell: Cell
    status: str
    row: dict[str, Any] | None = None
    text: str = ""


def run(peer: Peer, cell: Cell, deadline_s: float) -> Outcome:
    """Measures one cell. Never raises for what the peer does; never takes longer than deadline_s and a moment."""
    if reason := peer.unsupported(cell):
        return Outcome(peer.name, cell, "unsupported", text=reason)
    job = peer.job(cell)
    mark = uuid.uuid4().hex
    others = set(SHARED.glob("*"))
    environ = {**os.environ, **job.environ, MARK: mark}
    try:
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environ,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # where this process is killed, nobody calls _end()
        )
        with process:
            try:
                output, errors = process.communicate(timeout=deadline_s)
            except subprocess.TimeoutExpired:
                _end(mark, others)
                output, errors = process.communicate()
                return Outcome(peer.name, cell, "timeout", text=f"no result within {deadline_s:g} s\n{errors[-TAIL:]}")
            except BaseException:
                _end(mark, others)  # before `with` waits for it
                raise
    except OSError as error:
        return Outcome(peer.name, cell, "failed", text=str(error))
    finally:  # a launcher that has ended may have left ranks behind, and a signal may come while Popen() starts one
        _end(mark, others)
    try:
        said = json.loads(RESULT.findall(output)[-1])
        row = _row(peer, cell, said)
    except (OSError, ValueError, LookupError, TypeError):
        text = f"exit status {process.returncode}\n{(output + errors)[-TAIL:]}"
        return Outcome(peer.name, cell, "failed", text=text)
    return Outcome(peer.name, cell, "ok", row)


def _row(peer: Peer, cell: Cell, said: dict[str, Any]) -> dict[str, Any]:
    """A peer says {"min", "p50", "p99" in us, "wrong"}; our own command writes the whole row."""
    if "results" in said:
        row: dict[str, Any] = said["results"][0]
        return row
    collective = COLLECTIVES[cell.collective]
    algbw = cell.nbytes / said["p50"] * 1e-3
    return {
        **peer.facts,
        "collective": cell.collective,
        "ranks": cell.ranks,
        "nbytes": cell.nbytes,
        "count": cell.count,
        "dtype": cell.dtype,
        "op": cell.op if collective.reduces else None,
        "in_place": cell.in_place,
        "time_us": {key: float(said[key]) for key in ("min", "p50", "p99")},
        "algbw_GBps": algbw,
        "busbw_GBps": algbw * collective.bus(cell.ranks),
        "wrong": said["wrong"] if cell.check else None,
        "fraction_of_limit": None,
    }


def _end(mark: str, others: set[Path]) -> None:
    """Kills what bears the mark, and removes its shared memory. others: files that were there before."""
    for file in kill_marked(mark) - others:
        with suppress(OSError):  # another one's
            file.unlink()


def kill_marked(mark: str) -> set[Path]:
    """Kills every process that bears the mark, until none is left (a fork may be under way).

    Returns the files of SHARED that they had mapped.
    """
    wanted = f"{MARK}={mark}".encode()
    mapped: set[Path] = set()
    for _ in range(100):
        found = False
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal() or int(folder.name) == os.getpid():
                continue
            try:
                if wanted not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                paths = {
                    Path(line.split(maxsplit=5)[-1])
                    for line in (folder / "maps").read_text(errors="replace").splitlines()
                }
                mapped |= {path for path in paths if path.parent == SHARED}
                os.kill(int(folder.name), signal.SIGKILL)
                found = True
            except OSError:  # gone, or another user's
                continue
        if not found:
            break
    return mapped
