"""Finds the rows of all ranks that are one operation: equal group, name and number. Arrays only, no loop per record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.record_file import MESSAGE, OPERATION, OTHER_NAME, WAIT, RankRecords
from ringreduce.timeline.tables import Tables

ROW = np.dtype(
    [
        ("operation", "i8"),
        ("rank", "i4"),
        ("called_ns", "i8"),
        ("started_ns", "i8"),
        ("ended_ns", "i8"),
        ("nbytes", "u8"),
        ("flags", "u1"),
        ("algorithm", "u1"),
        ("thread", "u2"),
    ]
)
"""One rank's part in an operation. started_ns 0: it never began here."""
OPERATIONS = np.dtype(
    [
        ("first_row", "i8"),
        ("rows", "i4"),
        ("expected", "i4"),
        ("kind", "u1"),
        ("dtype", "u1"),
        ("op", "u1"),
        ("group", "i4"),
        ("name", "i4"),
        ("number", "u8"),
        ("nbytes", "u8"),
        ("first_called_ns", "i8"),
        ("complete_ns", "i8"),
        ("last_rank", "i4"),
        ("ended_ns", "i8"),
    ]
)
"""One operation: `rows` rows from first_row on, of `expected` member ranks. complete_ns: the last rank called."""
WAITS = np.dtype(
    [
        ("rank", "i4"),
        ("thread", "u2"),
        ("begin_ns", "i8"),
        ("end_ns", "i8"),
        ("operation", "i8"),
        ("kind", "u1"),
        ("name", "i4"),
        ("main_cpu_ns", "i8"),
    ]
)
"""A thread that stood still; operation -1: for a message, or for an operation that has no record. main_cpu_ns: of a
thread that is not the program's main one, how much CPU time the main thread used meanwhile."""
MESSAGES = np.dtype(
    [
        ("rank", "i4"),
        ("thread", "u2"),
        ("called_ns", "i8"),
        ("ended_ns", "i8"),
        ("nbytes", "u8"),
        ("name", "i4"),
        ("peer", "i2"),
        ("flags", "u1"),
    ]
)


@dataclass(frozen=True)
class Matched:
    """The job's records by what they say.

    Attributes:
        repeated: rows left out because a rank cannot be twice in an operation.
        uncounted: those left out of OTHER_NAME, whose calls have no number of their own.
    """

    rows: np.ndarray
    operations: np.ndarray
    waits: np.ndarray
    messages: np.ndarray
    repeated: int
    uncounted: int


def match(files: Sequence[RankRecords], tables: Tables) -> Matched:
    """Matches the records of all ranks; their times are on one clock already."""
    calls, waits = _Records.of(files, tables, OPERATION), _Records.of(files, tables, WAIT)
    keys, wait_keys = _keys(calls, waits, len(tables.names))
    order = np.argsort(keys, kind="stable")  # the files are in the order of ranks, and so are the rows of a key
    keys, ranks = keys[order], calls.rank[order]
    again = np.zeros(len(keys), bool)
    again[1:] = (keys[1:] == keys[:-1]) & (ranks[1:] == ranks[:-1])
    uncounted = 0
    if again.any():
        uncounted = int((calls.column("name")[order[again]] == OTHER_NAME).sum())
        order, keys = order[~again], keys[~again]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(first, append=len(keys))
    complete = np.maximum.reduceat(calls.column("called_ns")[order], first) if len(first) else np.zeros(0, np.int64)
    sequence = np.argsort(complete, kind="stable")
    order = order[_spread(first[sequence], counts[sequence])]
    rows = _rows(calls, order, counts[sequence])
    operations = _operations(calls, order, rows, counts[sequence], tables)
    place = np.empty_like(sequence)
    place[sequence] = np.arange(len(sequence))
    found = _waits(waits, wait_keys, keys[first], place, operations)
    messages = _messages(_Records.of(files, tables, MESSAGE))
    return Matched(rows, operations, found, messages, int(again.sum()) - uncounted, uncounted)


class _Records:
    """All ranks' records of one type, one rank after the other. A column is made when it is asked for."""

    def __init__(self, parts: list[np.ndarray], rank: np.ndarray, name: np.ndarray, group: np.ndarray) -> None:
        self._parts = parts
        self.rank, self.name, self.group = rank, name, group

    @classmethod
    def of(cls, files: Sequence[RankRecords], tables: Tables, kind: int) -> _Records:
        chosen = [np.flatnonzero(file.records["type"] == kind) for file in files]
        pairs = list(zip(files, chosen, strict=True))
        return cls(
            [file.records[where] for file, where in pairs],
            np.repeat(np.array([file.rank for file in files], np.int32), [len(where) for where in chosen]),
            np.concatenate([tables.name_of[file.rank][where] for file, where in pairs]),
            np.concatenate([tables.group_of[file.rank][where] for file, where in pairs]),
        )

    def column(self, name: str) -> np.ndarray:
        return np.concatenate([part[name] for part in self._parts])

    def into(self, found: np.ndarray, columns: dict[str, str]) -> None:
        """Copies columns, by their name here; rank by rank, while a rank's records are in the cache."""
        begin = 0
        for part in self._parts:
            here = found[begin : begin + len(part)]
            for column, target in columns.items():
                here[target] = part[column]
            begin += len(part)


def _keys(calls: _Records, waits: _Records, names: int) -> tuple[np.ndarray, np.ndarray]:
    """One int64, not negative, for each (group, name, number)."""
    pairs = np.concatenate([part.group.astype(np.int64) * names + part.name for part in (calls, waits)])
    numbers = np.concatenate([calls.column("number"), waits.column("number")])
    highest = int(numbers.max(initial=0))
    if (int(pairs.max(initial=0)) + 1) * (highest + 1) >= 2**63:
        used, numbers = np.unique(numbers, return_inverse=True)
        highest = len(used) - 1
    keys = pairs * (highest + 1) + numbers.astype(np.int64)
    return keys[: len(calls.rank)], keys[len(calls.rank) :]


def _spread(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ... (counts[0] of them), first[1], ..."""
    return np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def _rows(calls: _Records, order: np.ndarray, counts: np.ndarray) -> np.ndarray:
    rows = np.empty(len(calls.rank), ROW)
    rows["rank"] = calls.rank
    calls.into(rows, {name: name for name in (ROW.names or ()) if name not in ("operation", "rank")})
    ordered: np.ndarray = rows[order]
    ordered["operation"] = np.repeat(np.arange(len(counts)), counts)
    return ordered


def _operations(calls: _Records, order: np.ndarray, rows: np.ndarray, counts: np.ndarray, tables: Tables) -> np.ndarray:
    """order: the record of each row."""
    operations = np.empty(len(counts), OPERATIONS)
    first = np.cumsum(counts) - counts
    operations["first_row"], operations["rows"] = first, counts
    lowest = order[first]  # the lowest rank's record says what all should
    members = np.array([len(group.ranks) for group in tables.groups], np.int32)
    operations["group"], operations["name"] = calls.group[lowest], calls.name[lowest]
    operations["expected"] = members[operations["group"]]
    for column in ("kind", "dtype", "op", "number"):
        operations[column] = calls.column(column)[lowest]
    if len(first):
        operations["nbytes"] = np.maximum.reduceat(rows["nbytes"], first)
        operations["first_called_ns"] = np.minimum.reduceat(rows["called_ns"], first)
        operations["complete_ns"] = np.maximum.reduceat(rows["called_ns"], first)
        operations["ended_ns"] = np.maximum.reduceat(rows["ended_ns"], first)
    last = np.flatnonzero(rows["called_ns"] == np.repeat(operations["complete_ns"], counts))[::-1]
    operations["last_rank"][rows["operation"][last]] = rows["rank"][last]  # of several at one time, the lowest
    return operations


def _waits(
    waits: _Records, keys: np.ndarray, known: np.ndarray, place: np.ndarray, operations: np.ndarray
) -> np.ndarray:
    """known: the operations' keys, ascending; place: the index that each has now."""
    found = np.empty(len(keys), WAITS)
    found["rank"], found["name"] = waits.rank, waits.name
    columns = {"thread": "thread", "kind": "kind", "called_ns": "begin_ns", "ended_ns": "end_ns"}
    waits.into(found, {**columns, "nbytes": "main_cpu_ns"})
    found["main_cpu_ns"] = np.clip(found["main_cpu_ns"], 0, found["end_ns"] - found["begin_ns"])
    found["operation"] = -1
    if len(known):
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        index = place[at]
        same = (known[at] == keys) & (operations["kind"][index] == found["kind"])
        found["operation"][same] = index[same]
    return found


def _messages(records: _Records) -> np.ndarray:
    messages = np.empty(len(records.rank), MESSAGES)
    messages["rank"], messages["name"] = records.rank, records.name
    records.into(messages, {name: name for name in ("thread", "called_ns", "ended_ns", "nbytes", "peer", "flags")})
    return messages
