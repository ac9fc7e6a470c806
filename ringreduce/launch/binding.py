"""Which CPUs each rank may use, an equal share of those that this process may use; and how many threads fit on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from ringreduce.launch.quota import cpu_quota

CoreId = tuple[int, int]
"""(package, core) as the kernel numbers them; hardware threads of one core share it."""


def core_of(cpu: int) -> CoreId:
    """Where a logical CPU sits; a core of its own where the kernel does not say."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        package = int((topology / "physical_package_id").read_text())
        return package, int((topology / "core_id").read_text())
    except (OSError, ValueError):
        return 0, cpu


def cores_of(cpus: Collection[int], core: Callable[[int], CoreId] = core_of) -> int:
    """How many cores logical CPUs make; hardware threads of one core count once."""
    return len({core(cpu) for cpu in cpus})


def thread_share(cores: int, ranks: int, quota: float | None = None) -> int:
    """How many threads each rank computes with: one a core, and all ranks together no more than the quota has CPUs.

    Args:
        cores: those of one rank.
        ranks: on this host.
        quota: CPUs' worth of time for all ranks; default: that of this process's control groups.
    """
    quota = cpu_quota() if quota is None else quota
    return max(1, int(min(cores, quota / ranks)))


def cpu_shares(
    ranks: int, allowed: Collection[int] | None = None, core: Callable[[int], CoreId] = core_of
) -> list[frozenset[int]]:
    """The CPUs of each rank.

    While there are cores for all, a rank gets whole cores, equally many, neighbours in one package (5 cores for
    2 ranks: 2 each, and one is left to the system). With more ranks than cores, hardware threads are dealt out in the
    same way, and with more ranks than those, rank i shares CPU i modulo their number.

    A quota of CPU time makes no share smaller: it names no CPUs, and other jobs under quotas would take the same ones.

    Args:
        ranks: how many.
        allowed: logical CPUs; default: those of this process.
        core: where a CPU sits.
    """
    cpus = sorted(os.sched_getaffinity(0) if allowed is None else allowed, key=lambda cpu: (core(cpu), cpu))
    cores: dict[CoreId, list[int]] = {}
    for cpu in cpus:
        cores.setdefault(core(cpu), []).append(cpu)
    units = list(cores.values()) if ranks <= len(cores) else [[cpu] for cpu in cpus]
    share = len(units) // ranks
    if share == 0:
        return [frozenset(units[rank % len(units)]) for rank in range(ranks)]
    return [frozenset().union(*units[rank * share : (rank + 1) * share]) for rank in range(ranks)]


def in_words(cpus: Collection[int] | None, threads: str) -> str:
    """What a rank is bound to, for --verbose; threads: its OMP_NUM_THREADS."""
    bound = "not bound" if cpus is None else f"on CPU {', '.join(map(str, sorted(cpus)))}"
    return f"{bound}, OMP_NUM_THREADS {threads}"
