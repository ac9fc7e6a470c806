"""What the links between hosts carried, and which of them held up the others, as engine/late/slow_links.cc judges."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import LINK

SLOW_SHARE = 0.1
"""Of the time, in which a slow link is busy at least."""
OTHERS_TIMES = 2
"""So many times slower than each of the others."""
IDLE_PART = 100
"""A link that carries less than this part of what the busiest one does carries no data: leaders of hosts talk to each
other by all links."""
THIRDS = 3
"""In each of these parts of the time a link has to be slow: a single outage makes no slow link."""
LEAST_S = 3.0
"""Of which something is said."""


@dataclass(frozen=True)
class LinkUse:
    """The link from a host to another one.

    Attributes:
        from_rank, to_rank: the lowest rank of each host that has recorded, or was sent to.
        from_host, to_host: their names, with the rank where hosts have one name.
        nbytes: of all contexts of the job.
        busy_share: of the recorded time, in which it had bytes that the network did not take yet.
        busy_s: so many seconds; of the context whose connections were busy longest.
        is_slow: it held up the others.
    """

    from_rank: int
    to_rank: int
    from_host: str
    to_host: str
    nbytes: int
    busy_share: float
    busy_s: float
    is_slow: bool

    @property
    def busy_rate(self) -> float:
        """Bytes a second, while it was busy; infinite where it never was."""
        return self.nbytes / self.busy_s if self.busy_s > 0 else math.inf


class _Use(NamedTuple):
    """Of a link in some time: bytes, and ns in which it was busy and in which it was looked at."""

    nbytes: int
    busy_ns: int
    looked_ns: int


def links_of(job: Job) -> list[LinkUse]:
    """Every link that carried something, the slow ones first, then the busiest."""
    hosts = _Hosts(job)
    parts = _uses(job, hosts)  # by thirds of what each rank has recorded
    whole = {
        key: _Use(*(sum(values) for values in zip(*(part[key] for part in parts if key in part), strict=True)))
        for key in {key for part in parts for key in part}
    }
    slow = _slow(whole)
    for part in parts:
        slow &= _slow(part)
    longest_s = max((use.looked_ns for use in whole.values()), default=0) * 1e-9
    found = [
        LinkUse(
            from_rank=begin,
            to_rank=end,
            from_host=hosts.name(begin),
            to_host=hosts.name(end),
            nbytes=use.nbytes,
            busy_share=min(1.0, use.busy_ns / max(use.looked_ns, 1)),
            busy_s=use.busy_ns * 1e-9,
            is_slow=(begin, end) in slow and longest_s >= LEAST_S,
        )
        for (begin, end), use in whole.items()
        if use.nbytes
    ]
    return sorted(found, key=lambda link: (not link.is_slow, -link.busy_share, link.from_rank, link.to_rank))


def slowest_other_rate(links: list[LinkUse]) -> float:
    """Of the links that carry data and are not slow: the least rate, while it was busy; infinite where none was."""
    most = max((link.nbytes for link in links), default=0)
    others = [link.busy_rate for link in links if not link.is_slow and link.nbytes * IDLE_PART >= most]
    return min(others, default=math.inf)


class _Hosts:
    """Which ranks are on one host: it has one clock and one name."""

    def __init__(self, job: Job) -> None:
        first: dict[tuple[str, str], int] = {}
        self._first_of = {file.rank: first.setdefault((file.boot, file.host), file.rank) for file in job.files}
        self._names = {file.rank: file.host for file in job.files}
        self._counts = Counter(name for _, name in first)

    def first(self, rank: int) -> int:
        """The lowest rank on the rank's host, which stands for the host."""
        return self._first_of.get(rank, rank)

    def name(self, first: int) -> str:
        name = self._names.get(first)
        if name is None:
            return f"the host of rank {first}"
        return name if self._counts[name] == 1 else f"{name} (rank {first})"


def _uses(job: Job, hosts: _Hosts) -> list[dict[tuple[int, int], _Use]]:
    """In each third of what a rank has recorded of links, by hosts. Contexts share the network: their bytes add up."""
    thirds: list[dict[tuple[int, int], dict[tuple[int, int], _Use]]] = [{} for _ in range(THIRDS)]
    for file in job.files:
        records = file.records[file.records["type"] == LINK]
        if not len(records):
            continue
        begin, end = int(records["called_ns"].min()), int(records["ended_ns"].max())
        third = np.minimum((records["ended_ns"] - begin - 1) * THIRDS // max(end - begin, 1), THIRDS - 1)
        keys = np.stack([third, records["peer"].astype(np.int64), records["group"].astype(np.int64)])
        distinct, index = np.unique(keys, axis=1, return_inverse=True)
        sums = [np.zeros(distinct.shape[1], np.int64) for _ in range(2)]
        for total, name in zip(sums, ("nbytes", "number"), strict=True):
            np.add.at(total, index.reshape(-1), records[name].astype(np.int64))
        for (part, peer, group), nbytes, busy_ns in zip(
            distinct.T.tolist(), *(total.tolist() for total in sums), strict=True
        ):
            of_link = thirds[part].setdefault((hosts.first(file.rank), hosts.first(peer)), {})
            of_link[file.rank, group] = _Use(nbytes, busy_ns, (end - begin) // THIRDS)
    return [
        {
            key: _Use(
                sum(use.nbytes for use in uses.values()),
                max(use.busy_ns for use in uses.values()),
                max(use.looked_ns for use in uses.values()),
            )
            for key, uses in part.items()
        }
        for part in thirds
    ]


def _slow(uses: dict[tuple[int, int], _Use]) -> set[tuple[int, int]]:
    most = max((use.nbytes for use in uses.values()), default=0)
    rates = {
        key: use.nbytes / use.busy_ns if use.busy_ns else math.inf
        for key, use in uses.items()
        if use.nbytes and use.nbytes * IDLE_PART >= most
    }
    least = min(rates.values(), default=math.inf)
    slow = {
        key
        for key, rate in rates.items()
        if uses[key].busy_ns >= SLOW_SHARE * uses[key].looked_ns and rate < OTHERS_TIMES * least
    }
    others = min((rate for key, rate in rates.items() if key not in slow), default=math.inf)
    if len(slow) > len(rates) / 2 or (slow and max(rates[key] for key in slow) * OTHERS_TIMES > others):
        return set()
    return slow
