"""How operations, groups and ranks are called in texts and exports."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ringreduce.timeline.job import Job
from ringreduce.timeline.ranges import ranks_text
from ringreduce.timeline.record_file import (
    ASYNCHRONOUS,
    FAILED,
    GPU_MEMORY,
    QUICK,
    SHARED_BUCKET,
    GroupInfo,
    RankRecords,
)

REDUCTIONS = ("allreduce", "reducescatter")
NO_TEXT = "-"  # of an argument that does not apply
NO_KIND = 255  # a message: its name says what it is
_FLAGS = {
    ASYNCHRONOUS: "asynchronous",
    FAILED: "failed",
    QUICK: "quick",
    GPU_MEMORY: "GPU memory",
    SHARED_BUCKET: "shared a bucket",
}


def labelled(job: Job, kinds: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """For each (kind, name) the index of its label, "allreduce loss" or "barrier", and the labels."""
    codes = kinds.astype(np.int64) * len(job.names) + names
    used, index = np.unique(codes, return_inverse=True)
    return index, [_label(job, *divmod(code, len(job.names))) for code in used.tolist()]


def _label(job: Job, kind: int, name: int) -> str:
    words = ("" if kind == NO_KIND else job.kinds[kind], job.names[name])
    return " ".join(word for word in words if word) or "?"


def process_label(file: RankRecords) -> str:
    """ "rank 3 (node2)" """
    return f"rank {file.rank} ({file.host})" if file.host else f"rank {file.rank}"


def group_label(group: GroupInfo, size: int) -> str:
    """ "all ranks" or "ranks 0, 2" """
    if len(group.ranks) == size:
        return "all ranks"
    return ranks_text(group.ranks)


def group_labels(job: Job) -> list[str]:
    """One for each of job.groups, no two equal: groups of the same ranks get their id and context as well."""
    plain = [group_label(group, job.files[0].size) for group in job.groups]
    several = {label for label in plain if plain.count(label) > 1}
    return [
        f"{label} (group {group.id}{' of ' + group.context if group.context else ''})" if label in several else label
        for label, group in zip(plain, job.groups, strict=True)
    ]


def flag_labels() -> list[str]:
    """For each value of a record's flags what it says."""
    return [", ".join(_set(flags)) or NO_TEXT for flags in range(256)]


def _set(flags: int) -> Iterable[str]:
    return (word for bit, word in _FLAGS.items() if flags & bit)
