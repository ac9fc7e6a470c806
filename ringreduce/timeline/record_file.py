"""The record file of one rank, read as far as it is whole.

Nothing in a file is believed before it is checked: a rank may have been killed within a write, and a disk may lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ringreduce.errors import InvalidArgumentError
from ringreduce.timeline.blocks import (
    END,
    GROUP,
    NAMES,
    PROCESS,
    RECORDS,
    BadBlockError,
    Block,
    array,
    blocks,
    integer,
    text,
)

FORMAT = "ringreduce timeline"
FILES = "rank-*.rr"
"""In a timeline's folder, one of each rank."""
RANKS_SUFFIX = ".ranks"
"""A trace in Horovod's form, job.json, is written from the records in the folder job.json.ranks."""
VERSION = 1
OPERATION, WAIT, CLOCK, MESSAGE, LINK = 0, 1, 2, 3, 4
ASYNCHRONOUS, FAILED, QUICK, GPU_MEMORY, SHARED_BUCKET = 1, 2, 4, 8, 16
NO_ALGORITHM = 255
OTHER_NAME = 2**32 - 1
"""The number of all names beyond those that a rank counts the calls of (Recorder::call())."""
RECORD = np.dtype(
    [
        ("called_ns", "<i8"),
        ("started_ns", "<i8"),
        ("ended_ns", "<i8"),
        ("nbytes", "<u8"),
        ("number", "<u8"),
        ("name", "<u4"),
        ("group", "<u2"),
        ("peer", "<i2"),
        ("type", "u1"),
        ("kind", "u1"),
        ("dtype", "u1"),
        ("op", "u1"),
        ("algorithm", "u1"),
        ("flags", "u1"),
        ("thread", "<u2"),
        ("sequence", "<u8"),
    ]
)
"""One operation, wait, clock question or message of one rank, or what one of its host's links has carried: number says
how long that was busy, in ns, and peer is a rank of the other host. Times are CLOCK_MONOTONIC of its host, in ns."""
LATEST_NS = 2**60  # 36 years of uptime; sums and differences of such times fit into 64 bits
MOST_RANKS = 2**15  # peer has 16 bits
LINK_NBYTES = 2**48  # between two records, and sums of 32,000 such fit into 64 bits


def file_of(folder: Path, rank: int) -> Path:
    """Where a rank writes its records."""
    return folder / f"rank-{rank:04}.rr"


@dataclass(frozen=True)
class GroupInfo:
    """A group: ranks of the job, in its order. (context, id, ranks) is the same on all members; index is not."""

    index: int
    id: int
    context: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RankRecords:
    """What one rank recorded.

    Attributes:
        boot: equal where two ranks share one CLOCK_MONOTONIC.
        monotonic_ns, realtime_ns: both clocks, read at one moment.
        records: of dtype RECORD, all types, in the order of the file.
        dropped: records that were lost because the ring was full.
        has_ended: whether the rank stopped its timeline; else it was killed, or still writes.
        damage: what is wrong with the file; "" if nothing is.
        unreadable: records that make no sense (an unknown type, group or peer, times that run backwards): left out.
        foreign: records of groups of another job, which the process was in later, say: left out.
    """

    path: Path
    rank: int
    size: int
    host: str
    pid: int
    boot: str
    program: str
    monotonic_ns: int
    realtime_ns: int
    records: np.ndarray
    names: dict[int, str]
    groups: dict[int, GroupInfo]
    kinds: list[str]
    dtypes: list[str]
    ops: list[str]
    algorithms: list[str]
    dropped: int
    has_ended: bool
    damage: str
    unreadable: int = 0
    foreign: int = 0


def read(path: Path) -> RankRecords:
    """Reads all whole blocks before the first bad one; `damage` says what was wrong with that.

    Raises InvalidArgumentError where no whole first block names the rank.
    """
    if path.exists() and not path.is_file():
        raise InvalidArgumentError(f"{path}: cannot be read: it is no regular file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise InvalidArgumentError(f"{path}: cannot be read: it is larger than this machine's memory") from error
    content = _Content()
    try:
        for block in blocks(data):
            content.take(block)
    except BadBlockError as error:
        content.damage = str(error)
    if not content.process:
        reason = content.damage or "it is empty"
        raise InvalidArgumentError(f"{path}: not a timeline's record file: {reason}; give the folder of --timeline")
    return content.as_records(path)


@dataclass
class _Content:
    """What the blocks so far have said."""

    process: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    groups: dict[int, GroupInfo] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    """Groups of another job, by index."""
    records: list[np.ndarray] = field(default_factory=list)
    dropped: int = 0
    has_ended: bool = False
    damage: str = ""

    def take(self, block: Block) -> None:
        try:
            self._take(block)
        except BadBlockError as error:
            raise BadBlockError(f"{block.where}: {error}") from error

    def _take(self, block: Block) -> None:
        if (block.kind == PROCESS) == bool(self.process):
            raise BadBlockError("a second process" if self.process else "the first block is not the process")
        if block.kind == PROCESS:
            self.process = _process(block.json())
        elif block.kind == GROUP:
            group = _group(block.json())
            if self.process["rank"] in group.ranks and max(group.ranks) < self.process["size"]:
                self.groups[group.index] = group
            else:
                self.foreign.add(group.index)
        elif block.kind == NAMES:
            self.names |= _names(block.json())
        elif block.kind == RECORDS:
            if len(block.body) % RECORD.itemsize:
                raise BadBlockError(f"records of {len(block.body)} bytes, no multiple of {RECORD.itemsize}")
            self.records.append(np.frombuffer(block.body, RECORD))
            self.dropped = max(self.dropped, block.dropped)
        elif block.kind == END:
            self.has_ended = True
            self.dropped = max(self.dropped, block.dropped)
        else:
            raise BadBlockError(f"unknown kind {block.kind}")

    def as_records(self, path: Path) -> RankRecords:
        every = np.concatenate(self.records) if self.records else np.empty(0, RECORD)
        if self.foreign:
            every = every[~np.isin(every["group"], list(self.foreign)) | (every["type"] == CLOCK)]
        good = _sensible(every, self.process["size"], self.groups)
        records = every if good.all() else every[good]
        return RankRecords(
            path=path,
            records=records,
            names=self.names,
            groups=self.groups,
            dropped=self.dropped,
            has_ended=self.has_ended,
            damage=self.damage,
            unreadable=len(every) - len(records),
            foreign=sum(map(len, self.records)) - len(every),
            **self.process,
        )


def _process(said: dict[str, Any]) -> dict[str, Any]:
    if said.get("format") != FORMAT or said.get("version") != VERSION:
        found = f"{said.get('format')!r:.40} version {said.get('version')!r:.40}"
        raise BadBlockError(f"{found}, where this ringreduce reads {FORMAT!r} version {VERSION}")
    checked: dict[str, Any] = {key: integer(said, key, 0, LATEST_NS) for key in ("pid", "monotonic_ns")}
    checked["realtime_ns"] = integer(said, "realtime_ns", 0, 2 * LATEST_NS)  # to the year 2043
    checked["size"] = integer(said, "size", 1, MOST_RANKS + 1)
    checked["rank"] = integer(said, "rank", 0, checked["size"])
    checked |= {key: text(said.get(key), key) for key in ("host", "boot", "program")}
    checked |= {key: [text(name, key) for name in array(said, key)] for key in ("kinds", "dtypes", "ops", "algorithms")}
    return checked


def _group(said: dict[str, Any]) -> GroupInfo:
    ranks = tuple(array(said, "ranks"))
    if not all(type(other) is int and 0 <= other < MOST_RANKS for other in ranks) or len(set(ranks)) != len(ranks):
        raise BadBlockError("a group of ranks that no job has")
    index, group_id = integer(said, "index", 0, 2**16), integer(said, "id", -(2**63), 2**63)
    return GroupInfo(index, group_id, text(said.get("context"), "context"), ranks)


def _names(said: dict[str, Any]) -> dict[int, str]:
    numbers = [int(key) for key in said if key.isascii() and key.isdigit() and len(key) <= 10]
    if len(numbers) < len(said):
        raise BadBlockError("a name whose number is none")
    return {number: text(name, "a name") for number, name in zip(numbers, said.values(), strict=True)}


def _sensible(records: np.ndarray, size: int, groups: dict[int, GroupInfo]) -> np.ndarray:
    """Which records can be used. A name that the file does not define is no reason to leave one out."""
    called, started, ended = records["called_ns"], records["started_ns"], records["ended_ns"]
    known = np.zeros(2**16, bool)
    known[list(groups)] = True
    is_clock = records["type"] == CLOCK
    good: np.ndarray = (called >= 0) & (called <= ended) & (ended < LATEST_NS) & (records["type"] <= LINK)
    # A clock question's started_ns is on another host's clock.
    good &= np.where(is_clock, (started >= 0) & (started < LATEST_NS), (started == 0) | (called <= started))
    good &= is_clock | ((started <= ended) & known[records["group"]])
    peer = records["peer"]
    is_link = records["type"] == LINK
    # A link is busy no longer than it was looked at, but for a sample's time.
    busy_most = np.where(is_link & good, ended - called + 1_000_000_000, 0).astype(np.uint64)
    good &= ~is_link | ((records["number"] <= busy_most) & (records["nbytes"] < LINK_NBYTES))
    is_between_hosts = is_clock | is_link
    return good & np.where(is_between_hosts, (peer >= 0) & (peer < size), (peer < size) | (records["type"] != MESSAGE))
