"""What the links between hosts carried, and which of them held up the others: the rule of csrc/engine/slow_links.cc."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import LINK, RankRecords

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
        from_rank, to_rank: the lowest rank of each host, of the first context of the job that used the link.
        from_host, to_host: their names.
        busy_share: of the recorded time, in which it had bytes that the network did not take yet.
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


def links_of(job: Job) -> list[LinkUse]:
    """Every link that carried something, by ranks. Times are the job's."""
    parts = [(file, file.records[file.records["type"] == LINK]) for file in job.files]
    recorded = [(file, records) for file, records in parts if len(records)]
    if not recorded:
        return []
    begin = min(int(records["called_ns"].min()) for _, records in recorded)
    end = max(int(records["ended_ns"].max()) for _, records in recorded)
    if end <= begin:
        return []
    uses = _uses(recorded, begin, end)
    slow = _slow(uses, end - begin)
    for part in range(THIRDS):
        edges = [begin + (end - begin) * (part + more) // THIRDS for more in (0, 1)]
        slow &= _slow(_uses(recorded, *edges), edges[1] - edges[0])
    if (end - begin) * 1e-9 < LEAST_S:
        slow = set()
    names = {file.rank: file.host for file in job.files}
    return [
        LinkUse(
            from_rank=rank,
            to_rank=peer,
            from_host=names[rank],
            to_host=names.get(peer, f"the host of rank {peer}"),
            nbytes=nbytes,
            busy_share=min(1.0, busy_ns / (end - begin)),
            busy_s=busy_ns * 1e-9,
            is_slow=(rank, peer) in slow,
        )
        for (rank, peer), (nbytes, busy_ns) in sorted(uses.items())
        if nbytes
    ]


def slowest_other_rate(links: list[LinkUse]) -> float:
    """Of the links that carry data and are not slow: the least rate, while it was busy; infinite where none was."""
    most = max((link.nbytes for link in links), default=0)
    others = [link.busy_rate for link in links if not link.is_slow and link.nbytes * IDLE_PART >= most]
    return min(others, default=math.inf)


def _uses(
    recorded: list[tuple[RankRecords, np.ndarray]], begin: int, end: int
) -> dict[tuple[int, int], tuple[int, int]]:
    """By ranks: bytes, and ns in which the link was busy, of the records that end in this time."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for file, records in recorded:
        within = records[(records["ended_ns"] > begin) & (records["ended_ns"] <= end)]
        for peer in np.unique(within["peer"]).tolist():
            mine = within[within["peer"] == peer]
            # Contexts share the network: their bytes add up, and the one whose connections were busy longest counts.
            busy = [int(mine["number"][mine["group"] == group].sum()) for group in np.unique(mine["group"]).tolist()]
            found[file.rank, peer] = int(mine["nbytes"].sum()), max(busy)
    return found


def _slow(uses: dict[tuple[int, int], tuple[int, int]], span_ns: int) -> set[tuple[int, int]]:
    most = max((nbytes for nbytes, _ in uses.values()), default=0)
    rates = {
        key: nbytes / busy_ns if busy_ns else math.inf
        for key, (nbytes, busy_ns) in uses.items()
        if nbytes and nbytes * IDLE_PART >= most
    }
    least = min(rates.values(), default=math.inf)
    slow = {key for key, rate in rates.items() if uses[key][1] >= SLOW_SHARE * span_ns and rate < OTHERS_TIMES * least}
    others = min((rate for key, rate in rates.items() if key not in slow), default=math.inf)
    if len(slow) > len(rates) / 2 or (slow and max(rates[key] for key in slow) * OTHERS_TIMES > others):
        return set()
    return slow
