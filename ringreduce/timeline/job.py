"""A job's timeline: the records of all ranks on one clock, and the operations matched over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ringreduce.errors import InvalidArgumentError
from ringreduce.timeline import job_warnings
from ringreduce.timeline.clocks import UNKNOWN_NS, Clock, clocks_of, have_met
from ringreduce.timeline.matching import match
from ringreduce.timeline.record_file import CLOCK, FILES, LINK, GroupInfo, RankRecords, read
from ringreduce.timeline.tables import Tables
from ringreduce.timeline.threads import in_order

MISMATCHED_SHARE = 0.05
"""Of the operations, from which on their rows are taken not to belong together."""
HOSTS_APART_NS = 1_000_000_000
"""By so much may the wall clocks of hosts differ. Files of one run overlap, but for it, or have asked each other."""


@dataclass(frozen=True)
class Job:
    """All that the ranks recorded. Times are in ns since the first record, on the clock of the lowest rank.

    Attributes:
        files: by rank, ascending. A clock question's started_ns is on the job's clock, too.
        base_realtime_ns: the wall clock of time 0, by the lowest rank's host.
        warnings: what makes the figures less certain, one sentence each.
        rows, operations, waits, messages: dtypes ROW, OPERATIONS, WAITS, MESSAGES of matching.py.
        names, groups: what operations["name"] and ["group"] index; names[0] is "".
        kinds, dtypes, ops, algorithms: the name of each code, 256 of each; "?" where there is none.
        are_mismatched: so many operations contradict themselves that nothing follows from who was last.
    """

    files: list[RankRecords]
    clocks: dict[int, Clock]
    base_realtime_ns: int
    span_ns: int
    warnings: list[str]
    rows: np.ndarray
    operations: np.ndarray
    names: list[str]
    groups: list[GroupInfo]
    waits: np.ndarray
    messages: np.ndarray
    kinds: list[str]
    dtypes: list[str]
    ops: list[str]
    algorithms: list[str]
    are_mismatched: bool

    @property
    def host_count(self) -> int:
        """How many clocks there are."""
        return len({file.boot for file in self.files})

    @property
    def clock_error_ns(self) -> int:
        """How wrong a time can be; 0: there is one clock; UNKNOWN_NS: two clocks were never compared."""
        widths = [clock.half_width_ns for clock in self.clocks.values()]
        return UNKNOWN_NS if UNKNOWN_NS in widths else max(widths)

    @classmethod
    def load(cls, folder: Path) -> Job:
        """Reads all record files of a folder.

        Raises InvalidArgumentError where no file can be read.
        """
        files, refused, left_out = _read_all(folder)
        clocks = clocks_of(files)
        files, start_ns, span_ns = _on_one_clock(files, clocks)
        tables = Tables.of(files)
        found = match(files, tables)
        contradicting = job_warnings.contradictions(clocks, found)
        reference = files[0]
        return cls(
            files=files,
            clocks=clocks,
            base_realtime_ns=reference.realtime_ns - reference.monotonic_ns + start_ns,
            span_ns=span_ns,
            warnings=refused + job_warnings.collect(files, clocks, tables, found, contradicting, left_out),
            are_mismatched=contradicting > MISMATCHED_SHARE * len(found.operations),
            rows=found.rows,
            operations=found.operations,
            names=tables.names,
            groups=tables.groups,
            waits=found.waits,
            messages=found.messages,
            kinds=tables.kinds,
            dtypes=tables.dtypes,
            ops=tables.ops,
            algorithms=tables.algorithms,
        )


def _read_all(folder: Path) -> tuple[list[RankRecords], list[str], set[int]]:
    """The files of one job by rank, why others are not among them, and of which ranks those are."""
    by_rank: dict[int, RankRecords] = {}
    refused, left_out = [], set()
    paths = sorted(folder.glob(FILES))
    for path, file in zip(paths, in_order(partial(_read, path) for path in paths), strict=True):
        if isinstance(file, str):
            refused.append(f"{file}; it is left out.")
            number = path.stem.removeprefix("rank-")
            left_out |= {int(number)} if number.isdecimal() else set()
            continue
        first = next(iter(by_rank.values()), file)
        if file.rank in by_rank:
            refused.append(f"{path} is of rank {file.rank}, as {by_rank[file.rank].path.name} is; it is left out.")
        elif file.size != first.size:
            refused.append(f"{path} is of a job of {file.size} ranks, not {first.size}; it is left out.")
            left_out.add(file.rank)
        else:
            by_rank[file.rank] = file
    for rank in _earlier(list(by_rank.values())):
        file = by_rank.pop(rank)
        refused.append(f"{file.path} ended before another rank's file began, as of an earlier run; it is left out.")
        left_out.add(rank)
    if not by_rank:
        what = "; ".join(refused) or f"{folder}: it has no {FILES}; give the folder that the ranks wrote to"
        raise InvalidArgumentError(f"no timeline: {what}")
    return [by_rank[rank] for rank in sorted(by_rank)], refused, left_out


def _earlier(files: Sequence[RankRecords]) -> list[int]:
    """Ranks whose files ended before the newest one began.

    Hosts' wall clocks may differ: a host is of this run, too, if it and another such one asked each other for the time.
    """
    newest = max((file.realtime_ns for file in files), default=0)
    late_enough = {file.rank for file in files if _end_realtime_ns(file) + HOSTS_APART_NS >= newest}
    hosts = _last_of_each_boot(files)
    current = {file.boot for file in files if file.rank in late_enough}
    waiting = set(current)
    while waiting:
        host = waiting.pop()
        met = {boot for boot in hosts.keys() - current if have_met(hosts[boot], hosts[host])}
        late_enough |= {file.rank for boot in met for file in hosts[boot]}
        current |= met
        waiting |= met
    return [file.rank for file in files if file.rank not in late_enough]


def _last_of_each_boot(files: Sequence[RankRecords]) -> dict[str, list[RankRecords]]:
    """Of each boot the files of its last run: by its own clock they overlap."""
    begin: dict[str, int] = {}
    for file in files:
        begin[file.boot] = max(begin.get(file.boot, 0), file.monotonic_ns)
    found: dict[str, list[RankRecords]] = {boot: [] for boot in begin}
    for file in files:
        if int(file.records["ended_ns"].max(initial=file.monotonic_ns)) + HOSTS_APART_NS >= begin[file.boot]:
            found[file.boot].append(file)
    return found


def _read(path: Path) -> RankRecords | str:
    """The file, or why it cannot be read."""
    try:
        return read(path)
    except InvalidArgumentError as error:
        return str(error)


def _end_realtime_ns(file: RankRecords) -> int:
    """When the rank recorded last, by its host's wall clock."""
    last = int(file.records["ended_ns"].max(initial=file.monotonic_ns))
    return file.realtime_ns + last - file.monotonic_ns


def _on_one_clock(files: Sequence[RankRecords], clocks: dict[int, Clock]) -> tuple[list[RankRecords], int, int]:
    """The files with translated times, the job's clock at their time 0, and the time of the last end."""
    translated = list(in_order(partial(_translated, file, clocks) for file in files))
    extents = [extent for records in translated if (extent := _extent(records))]
    # 1 ns before the first call: a started_ns of 0 says that an operation never began.
    start_ns = min(begin for begin, _ in extents) - 1 if extents else files[0].monotonic_ns
    for records in translated:
        records["called_ns"] -= start_ns
        records["ended_ns"] -= start_ns
        started = records["started_ns"]
        np.subtract(started, start_ns, out=started, where=(started != 0) | (records["type"] == CLOCK))
    span_ns = max((end for _, end in extents), default=start_ns) - start_ns
    return [replace(file, records=records) for file, records in zip(files, translated, strict=True)], start_ns, span_ns


def _extent(records: np.ndarray) -> tuple[int, int] | None:
    """The first call and the last end; clock questions and links do not count."""
    shown = (records["type"] != CLOCK) & (records["type"] != LINK)
    if not shown.any():
        return None
    begin = records["called_ns"].min(where=shown, initial=np.iinfo(np.int64).max)
    return int(begin), int(records["ended_ns"].max(where=shown, initial=np.iinfo(np.int64).min))


def _translated(file: RankRecords, clocks: dict[int, Clock]) -> np.ndarray:
    """A copy of the records on the clock of the lowest rank."""
    records: np.ndarray = file.records.copy()
    clock = clocks[file.rank]
    if clock.source not in ("reference", "same host"):
        ran = (records["started_ns"] != 0) & (records["type"] != CLOCK)
        records["called_ns"] = clock.to_job(records["called_ns"])
        records["ended_ns"] = clock.to_job(records["ended_ns"])
        records["started_ns"][ran] = clock.to_job(records["started_ns"][ran])
    asked = np.flatnonzero(records["type"] == CLOCK)
    for peer in np.unique(records["peer"][asked]).tolist():
        if peer in clocks:  # else the rank left no file, and nobody looks at its answers
            answers = asked[records["peer"][asked] == peer]
            records["started_ns"][answers] = clocks[peer].to_job(records["started_ns"][answers])
    return records
