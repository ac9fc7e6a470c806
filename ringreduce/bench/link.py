"""The least time that the links between hosts need for a collective, measured in the same run.

The first rank of each host streams to that of the next one, all at the same time, as in a ring; the slowest stream is
what a link carries. Up to 4 KiB the least time is that of a small packet to the next host, half of the shortest round
trip. Of S bytes that a row counts, a host with c of n ranks on one of h hosts has to send: 2(h-1)/h S for an
all-reduce, as all hosts can share the work; (n-c)/n S for a reduce-scatter, and as much receive for an all-gather;
c(n-c)/n S for an all-to-all. Whoever is not the root's host receives S of a broadcast. The host that has most to do
says how long it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import ringreduce
from ringreduce import state
from ringreduce.bench.collectives import SMALL_NBYTES
from ringreduce.bench.pair import PAIR_S, Answerer, Channel, Measured, called, ping, stream_there
from ringreduce.errors import Error
from ringreduce.job.collective_json import allgather_json
from ringreduce.job.deadline import Deadline
from ringreduce.job.tcp.listening_ports import listening
from ringreduce.job.tcp.own_address import is_own, reachable_ip
from ringreduce.job.tcp.rendezvous import own_ports

if TYPE_CHECKING:
    from ringreduce.bench.options import Options


BACKLOG = 8


@dataclass(frozen=True)
class Link:
    """The slowest way from a host to the next one."""

    nbytes_per_s: float
    one_way_s: float


def limit_s(options: Options, nbytes: int) -> float | None:
    """Seconds. Collective; None where the job's ranks did not meet over TCP, or a host has no port for it."""
    hosts = state.require().hosts
    link = slowest()
    if link is None:
        return None
    if nbytes <= SMALL_NBYTES:
        return link.one_way_s
    return share(options.collective, hosts) * nbytes / link.nbytes_per_s


def share(collective: str, hosts: Sequence[int]) -> float:
    """What the host that has most to do sends or receives, of the bytes that a row counts.

    hosts: by rank, any number that is the same on the same host.

    >>> share("allreduce", [0, 0, 2, 2]), share("alltoall", [0, 0, 0, 3])
    (1.0, 0.75)
    """
    ranks = len(hosts)
    counts = Counter(hosts).values()
    if collective == "allreduce":
        return 2 * (len(counts) - 1) / len(counts)
    if collective == "broadcast":
        return 1.0
    if collective == "alltoall":
        return max(count * (ranks - count) / ranks for count in counts)
    return max((ranks - count) / ranks for count in counts)


@lru_cache(maxsize=1)
def slowest() -> Link | None:
    """Collective; measured once. None also where a host does not reach the next one."""
    job = state.require()
    if job.reached is None:
        return None
    group = ringreduce.global_process_set.group
    leaders = sorted(set(job.hosts))
    secret = job.reached.secret
    found = Measured()
    with ExitStack() as stack:
        address = None
        if group.rank in leaders:
            with suppress(Error):
                ip = job.reached.ip if is_own(job.reached.ip) else reachable_ip([job.reached.ip], "ringreduce bench")
                listener = stack.enter_context(listening(ip, own_ports(), BACKLOG))
                stack.callback(Answerer(listener, secret).close)
                address = listener.getsockname()[:2]
        addresses = allgather_json(group, "bench.link.addresses", address)
        if any(addresses[leader] is None for leader in leaders):
            return None
        channel = None
        if group.rank in leaders:
            ip, port = addresses[leaders[(leaders.index(group.rank) + 1) % len(leaders)]]
            with suppress(OSError, EOFError):
                channel = Channel(stack.enter_context(called((ip, port), secret)), Deadline(PAIR_S))
                ping(channel, found)
        allgather_json(group, "bench.link.ready", None)  # so that all stream at the same time
        if channel is not None:
            with suppress(OSError, EOFError):
                stream_there(channel, found)
        every = allgather_json(group, "bench.link.measured", [found.there, found.least_s])
    rates, times = zip(*(every[leader] for leader in leaders), strict=True)
    return None if None in rates else Link(min(rates), max(times) / 2)
