"""What an all-reduce should take, from the costs of the parts: docs/reference/algorithms.md has the terms.

n ranks on h hosts, S bytes of each rank. Parts of a pipeline are added where one rank does both, and the longer one
counts where a link does one of them.
"""

from __future__ import annotations

from ringreduce import _core
from ringreduce.tuning.costs import Costs


def predicted_s(costs: Costs, algorithm: str, nbytes: int) -> float | None:
    """Seconds of one all-reduce; None where there is no prediction.

    algorithm: "one_shot", "two_shot", "direct", "hierarchical", "ring", "recursive_doubling".
    """
    if len(costs.ranks) > 1:
        return _between_hosts(costs, algorithm, nbytes)
    return _on_a_host(costs, algorithm, nbytes)


def _on_a_host(costs: Costs, algorithm: str, nbytes: int) -> float | None:
    host, ranks = costs.host, costs.ranks[0]
    if host is None:
        return None
    others = (ranks - 1) / ranks
    if algorithm == "one_shot":
        return host.barrier_s + host.stage(nbytes) + (ranks - 1) * host.gather(nbytes)
    if algorithm == "direct":
        return host.logged_s + host.fold(nbytes)
    if algorithm == "two_shot":
        return host.logged_s + host.stage(others * nbytes) + host.scatter(nbytes) + host.gather(others * nbytes)
    moved = host.stage(nbytes) + host.gather(nbytes)  # S bytes from one rank to another
    if algorithm == "ring":
        return host.logged_s + 2 * (ranks - 1) * host.news_s + 2 * others * moved
    if algorithm == "recursive_doubling":
        return host.logged_s + (ranks - 1).bit_length() * (host.news_s + moved)
    return None


def _between_hosts(costs: Costs, algorithm: str, nbytes: int) -> float | None:
    if costs.link is None:
        return None
    hosts, ranks = len(costs.ranks), sum(costs.ranks)
    rate = costs.link.nbytes_per_s
    agreed = costs.barrier_s  # the first host hears of all requests and answers
    one_way = max(costs.link.one_way_s, agreed / 2)  # with the threads that wake on both sides
    within = costs.within(nbytes) if costs.within is not None else 0.0
    if algorithm == "one_shot":
        return agreed + (hosts - 1) * ranks * nbytes / rate  # all payloads leave the first host for each other one
    if algorithm == "hierarchical":
        crossing = 2 * (hosts - 1) / hosts * nbytes / rate
        if nbytes < _core.RING_NBYTES:
            return agreed + 2 * one_way + crossing + within
        return agreed + 2 * (hosts - 1) * one_way + max(crossing, within)
    if algorithm == "ring":
        return agreed + 2 * (ranks - 1) * one_way + 2 * (ranks - 1) / ranks * nbytes / rate
    if algorithm == "recursive_doubling":
        crossings = (hosts - 1).bit_length()
        return agreed + crossings * (one_way + max(costs.ranks) * nbytes / rate)
    return None
