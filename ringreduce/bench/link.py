"""The least time that the links between hosts need for a collective, measured in the same run.

The first rank of each host streams to that of the next one, all at the same time, as in a ring; the slowest stream is
what a link carries. Up to 4 KiB it is the time of a small packet to the next host, half of a round trip of TCP. Of h
hosts each has to send, of S bytes that a row counts: 2(h-1)/h S for an all-reduce, (h-1)/h S for a reduce-scatter, an
all-gather and, of each of its ranks, an all-to-all; and the receivers of a broadcast get S.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import ringreduce
from ringreduce import state
from ringreduce.bench.collectives import SMALL_NBYTES
from ringreduce.bench.pair import Answerer, measured
from ringreduce.job.collective_json import allgather_json
from ringreduce.job.listening_ports import listening
from ringreduce.job.own_address import is_own, reachable_ip
from ringreduce.job.tcp_rendezvous import own_ports

if TYPE_CHECKING:
    from ringreduce.bench.options import Options


BACKLOG = 8


@dataclass(frozen=True)
class Link:
    """The slowest way from a host to the next one."""

    nbytes_per_s: float
    one_way_s: float


def limit_s(options: Options, nbytes: int) -> float | None:
    """Seconds. Collective; None where the job's ranks did not meet over TCP."""
    hosts = state.require().hosts
    link = _slowest()
    if link is None:
        return None
    if nbytes <= SMALL_NBYTES:
        return link.one_way_s
    count = len(set(hosts))
    most = max(hosts.count(host) for host in hosts)
    part = (count - 1) / count
    share = {"allreduce": 2 * part, "broadcast": 1.0, "alltoall": most * part}.get(options.collective, part)
    return share * nbytes / link.nbytes_per_s


@lru_cache(maxsize=1)
def _slowest() -> Link | None:
    """Collective; measured once. None also where a host does not reach the next one."""
    job = state.require()
    if job.reached is None:
        return None
    group = ringreduce.global_process_set.group
    leaders = sorted(set(job.hosts))
    found = None
    with ExitStack() as stack:
        mine = None
        if group.rank in leaders:
            ip = job.reached.ip if is_own(job.reached.ip) else reachable_ip([job.reached.ip], "ringreduce bench")
            listener = stack.enter_context(listening(ip, own_ports(), BACKLOG))
            stack.callback(Answerer(listener, job.reached.secret).close)
            mine = listener.getsockname()[:2]
        addresses = allgather_json(group, "bench.link.addresses", mine)
        if group.rank in leaders:
            after = leaders[(leaders.index(group.rank) + 1) % len(leaders)]
            found = measured((addresses[after][0], addresses[after][1]), job.reached.secret)
        every = [one for one in allgather_json(group, "bench.link.measured", found) if one is not None]
    if any(one["problem"] for one in every):
        return None
    return Link(min(one["there"] for one in every), max(one["round_trip_s"] for one in every) / 2)
