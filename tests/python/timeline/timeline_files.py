"""Writes record files of ranks that never were, for tests of ringreduce.timeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ringreduce.timeline import blocks
from ringreduce.timeline.analysis.found import Analysis, analyse
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import CLOCK, FORMAT, LINK, MESSAGE, NO_ALGORITHM, OPERATION, RECORD, VERSION, WAIT

KINDS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "gather", "scatter"]
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8"]
OPS = ["sum", "average", "min", "max", "product"]
ALGORITHMS = ["direct", "two_shot", "ring"]
EPOCH_NS = 1_800_000_000_000_000_000
US = 1000  # ns


def block(kind: int, body: bytes, dropped: int = 0) -> bytes:
    """A block with the right length and sum."""
    total = int(np.frombuffer(body, "<u8").sum(dtype=np.uint64))
    return blocks.HEADER.pack(blocks.MAGIC, kind, len(body), total, dropped) + body


def json_block(kind: int, said: object) -> bytes:
    """A block of JSON, padded."""
    body = json.dumps(said).encode()
    return block(kind, body + b" " * (-len(body) % 8))


@dataclass
class RankFile:
    """One rank's record file in the making. Times are in ns of the job's true time; the file gets the host's clock.

    Attributes:
        clock_ns: what this host's CLOCK_MONOTONIC shows at true time 0.
        drift: by how much it goes faster, in seconds per second.
        wall_error_ns: by how much the host's wall clock is wrong.
    """

    rank: int
    size: int
    host: str = "node0"
    clock_ns: int = 1_000_000_000
    drift: float = 0.0
    wall_error_ns: int = 0
    dropped: int = 0
    has_ended: bool = True
    groups: list[tuple[int, str, tuple[int, ...]]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    records: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.groups:
            self.group(range(self.size))

    def group(self, ranks: Sequence[int], group_id: int = 0, context: str = "") -> int:
        """Adds a group; returns its index, which operations take. Index 0, of all ranks, is there."""
        self.groups.append((group_id, context, tuple(ranks)))
        return len(self.groups) - 1

    def clock(self, true_ns: int) -> int:
        """What this host's clock shows at a true time."""
        return self.clock_ns + true_ns + round(true_ns * self.drift)

    def operation(
        self,
        number: int,
        called_ns: int,
        started_ns: int | None,
        ended_ns: int,
        name: str = "",
        kind: str = "allreduce",
        nbytes: int = 4096,
        dtype: str = "float32",
        op: str = "sum",
        algorithm: str = "ring",
        flags: int = 0,
        thread: int = 0,
        group: int = 0,
    ) -> None:
        """started_ns None: it never began."""
        code = ALGORITHMS.index(algorithm) if algorithm else NO_ALGORITHM
        codes = (OPERATION, KINDS.index(kind), DTYPES.index(dtype), OPS.index(op), code, flags, thread)
        started = 0 if started_ns is None else self.clock(started_ns)
        times = (self.clock(called_ns), started, self.clock(ended_ns))
        self._add(times, nbytes, number, self._name(name), group, -1, codes)

    def wait(
        self,
        number: int,
        begin_ns: int,
        end_ns: int,
        name: str = "",
        kind: str = "allreduce",
        thread: int = 0,
        group: int = 0,
        main_cpu_ns: int | None = None,
    ) -> None:
        """main_cpu_ns: of a wait of another thread than the main one; None: the main thread computed all the time."""
        codes = (WAIT, KINDS.index(kind), 0, 0, NO_ALGORITHM, 0, thread)
        if main_cpu_ns is None:
            main_cpu_ns = end_ns - begin_ns if thread != 0 else 0
        times = (self.clock(begin_ns), 0, self.clock(end_ns))
        self._add(times, main_cpu_ns, number, self._name(name), group, -1, codes)

    def message(
        self, number: int, called_ns: int, ended_ns: int, name: str, peer: int, nbytes: int = 64, thread: int = 0
    ) -> None:
        codes = (MESSAGE, 0, 0, 0, NO_ALGORITHM, 0, thread)
        self._add((self.clock(called_ns), 0, self.clock(ended_ns)), nbytes, number, self._name(name), 0, peer, codes)

    def question(self, sent_ns: int, answered_ns: int, received_ns: int, peer: RankFile) -> None:
        """A clock question to another host's rank; all three are true times."""
        times = (self.clock(sent_ns), peer.clock(answered_ns), self.clock(received_ns))
        self._add(times, 0, 0, 0, 0, peer.rank, (CLOCK, 0, 0, 0, NO_ALGORITHM, 0, 0))

    def link(self, begin_ns: int, end_ns: int, peer: int, nbytes: int, busy_ns: int, group: int = 0) -> None:
        """What this host has sent to the host of another rank meanwhile."""
        codes = (LINK, 0, 0, 0, NO_ALGORITHM, 0, 0)
        self._add((self.clock(begin_ns), 0, self.clock(end_ns)), nbytes, busy_ns, 0, group, peer, codes)

    def process(self) -> dict[str, Any]:
        """The first block's JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "rank": self.rank,
            "size": self.size,
            "host": self.host,
            "pid": 1000 + self.rank,
            "boot": f"boot of {self.host}",
            "program": "train.py",
            "monotonic_ns": self.clock(0),
            "realtime_ns": EPOCH_NS + self.wall_error_ns,
            "kinds": KINDS,
            "dtypes": DTYPES,
            "ops": OPS,
            "algorithms": ALGORITHMS,
        }

    def array(self) -> np.ndarray:
        """The records so far."""
        return np.array(self.records, RECORD)

    def blocks(self, records: np.ndarray | None = None) -> list[bytes]:
        """The whole file, block by block. records: instead of those that were added one by one."""
        found = self.array() if records is None else records
        parts = [json_block(blocks.PROCESS, self.process())]
        for index, (group_id, context, ranks) in enumerate(self.groups):
            said = {"index": index, "id": group_id, "context": context, "ranks": list(ranks)}
            parts.append(json_block(blocks.GROUP, said))
        if self.names:
            parts.append(json_block(blocks.NAMES, {str(number): name for name, number in self.names.items()}))
        parts.append(block(blocks.RECORDS, found.tobytes(), self.dropped))
        return [*parts, json_block(blocks.END, {"reason": "stopped"})] if self.has_ended else parts

    def write(self, folder: Path, records: np.ndarray | None = None) -> Path:
        """Writes folder/rank-0003.rr, the folder too where it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank-{self.rank:04d}.rr"
        path.write_bytes(b"".join(self.blocks(records)))
        return path

    def _name(self, name: str) -> int:
        # Each rank numbers names in an order of its own.
        return self.names.setdefault(name, 1 + 7 * self.rank + len(self.names)) if name else 0

    def _add(
        self,
        times: tuple[int, int, int],
        nbytes: int,
        number: int,
        name: int,
        group: int,
        peer: int,
        codes: tuple[int, ...],
    ) -> None:
        self.records.append((*times, nbytes, number, name, group, peer, *codes, len(self.records)))


def steady_job(
    size: int, steps: int, names: Sequence[str] = ("loss", ""), late_rank: int = 0, late_ns: int = 0
) -> list[RankFile]:
    """All ranks on one host call one allreduce of each name in each step of 1 ms per name; "" is an unnamed one.

    A call comes at 100 us, `late_rank`'s late_ns later; execution starts 10 us after the last call and takes 200 us.
    Each call is synchronous: a wait of thread 0 from the call to the end.
    """
    files = [RankFile(rank, size) for rank in range(size)]
    for step in range(steps):
        for index, name in enumerate(names):
            at = (step * len(names) + index) * 1_000_000 + 100_000
            for file in files:
                called = at + (late_ns if file.rank == late_rank else 0)
                started = at + late_ns + 10_000
                number = step if name else step * names.count("") + names[:index].count("")
                file.operation(number, called, started, started + 200_000, name)
                file.wait(number, called, started + 200_000, name)
    return files


def write_all(files: Sequence[RankFile], folder: Path) -> Path:
    """Writes all files; returns the folder."""
    for file in files:
        file.write(folder)
    return folder


def found_in(files: Sequence[RankFile], folder: Path) -> Analysis:
    """What the report finds in these files."""
    return analyse(Job.load(write_all(files, folder)))


def pair() -> tuple[RankFile, RankFile]:
    """Two ranks."""
    return RankFile(0, 2), RankFile(1, 2)


def call(file: RankFile, number: int, called: int, started: int, ended: int, **more: Any) -> None:
    """A synchronous call: the thread stands still from its call to the end. Times in us."""
    file.operation(number, called * US, started * US, ended * US, **more)
    known = {key: more[key] for key in ("name", "kind", "thread", "group") if key in more}
    file.wait(number, called * US, ended * US, **known)


def stepping(lengths_us: Sequence[int], late: int = 1, more: Sequence[str] = ()) -> list[RankFile]:
    """Steps of these lengths, each of gradients b and c; rank `late` is late in those that are not of 1000 us."""
    files = [RankFile(rank, 3) for rank in range(3)]
    at = 0
    for step, length in enumerate(lengths_us):
        for file in files:
            slow = length - 1000 if file.rank == late else 0
            for index, name in enumerate(("b", "c", *more)):
                called = at + 500 + 100 * index
                call(
                    file,
                    step,
                    called + slow,
                    at + length - 400 + 100 * index,
                    at + length - 350 + 100 * index,
                    name=name,
                )
        at += length
    return files
