"""What lasts: jobs that begin and end again and again, long runs, doing nothing. Nothing may grow, nothing may spin."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

import numpy as np
import pytest
from deadlines import HANG_S
from ranks import run_ranks

SCALE = float(os.environ.get("RINGREDUCE_TEST_SCALE", "1"))  # 10 makes the full lengths: 1000 rounds and so on
ROUNDS = int(100 * SCALE)
SOAK = int(10_000 * SCALE**2)
NAMES = 20_000
IDLE_S = min(10.0, 3 * SCALE)
INIT_AND_SHUTDOWN_S = 0.020  # median on an idle machine; reported, and checked with room for a busy one
ROOM = 10


def used() -> dict[str, int]:
    """What this process holds."""
    with open("/proc/self/maps") as maps:
        mappings = [line.split(None, 5) for line in maps]
    named = [fields[5].strip() for fields in mappings if len(fields) == 6]
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "segments": sum("memfd:" in name for name in named),
        "mappings": len(mappings),
        "kib": resident_kib(),
    }


def resident_kib() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() // 1024


def grown(before: dict[str, int]) -> dict[str, int]:
    after = used()
    return {what: after[what] - before[what] for what in before}


def rounds(count: int) -> tuple[dict[str, int], float]:
    import ringreduce as rr

    times = []
    before: dict[str, int] = {}
    for index in range(count):
        if index == count // 4:
            before = used()
        begin = time.perf_counter()
        rr.init()
        middle = time.perf_counter()
        total = rr.allreduce(np.full(3, float(rr.rank() + index)), op=rr.Sum)
        assert total[0] == sum(rank + index for rank in range(rr.size()))
        leaving = time.perf_counter()
        rr.shutdown()
        times.append(middle - begin + time.perf_counter() - leaving)
    return grown(before), float(np.median(times))


@pytest.mark.timeout(600 + int(ROUNDS * 0.5))
@pytest.mark.parametrize("size", [2, 3])
def test_rounds_leave_nothing(size: int) -> None:
    medians = []
    for growth, median in run_ranks(rounds, size, args=(ROUNDS,), timeout_s=HANG_S + ROUNDS * 0.5):
        assert growth["fds"] == growth["threads"] == growth["segments"] == 0, growth
        assert growth["mappings"] <= 8, growth  # malloc's, for new threads
        assert growth["kib"] < 4096, growth
        medians.append(median)
    print(f"init + shutdown, {size} ranks: {max(medians) * 1e3:.1f} ms")
    assert max(medians) < ROOM * INIT_AND_SHUTDOWN_S


def soak(count: int) -> dict[str, int]:
    import ringreduce as rr

    with rr.init() as world:
        x = np.ones(1)
        for _ in range(2000):
            rr.allreduce_(x, op=rr.Max)
        before = used()
        total = 0.0
        for index in range(count):
            x[0] = world.rank + index
            total += float(rr.allreduce_(x, op=rr.Sum)[0])
        assert total == sum(2 * index + 1 for index in range(count))
        return grown(before)


@pytest.mark.timeout(600 + int(SOAK * 1e-3))
def test_a_long_run_is_flat() -> None:
    for growth in run_ranks(soak, 2, args=(SOAK,), timeout_s=HANG_S + SOAK * 1e-3):
        assert growth["fds"] == growth["threads"] == growth["segments"] == 0, growth
        assert growth["kib"] < 2048, growth


def many_names(count: int) -> dict[str, int]:
    import ringreduce as rr

    with rr.init() as world:
        before: dict[str, int] = {}
        for index in range(count):
            if index == 5000:  # more than the names that a group remembers
                before = used()
            handle = rr.allreduce_async(np.full(2, float(world.rank)), name=f"tensor {index}", op=rr.Sum)
            assert handle.wait()[1] == 1.0
        return grown(before)


def test_many_names_are_flat() -> None:
    for growth in run_ranks(many_names, 2, args=(NAMES,)):
        assert growth["fds"] == growth["threads"] == growth["segments"] == 0, growth
        assert growth["kib"] < 2048, growth


def idle(seconds: float) -> float:
    """How often a second threads of this process wake up while nobody calls anything, in the quietest of three spells.

    What wakes up again and again does so in each. Processor time is no measure: some virtual machines charge a
    millisecond for each wake-up.
    """
    import ringreduce as rr

    def wake_ups() -> int:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_nvcsw + usage.ru_nivcsw

    with rr.init():
        rr.add_process_set([0])
        rr.symmetric_empty(1000)
        rr.allreduce_async(np.ones(1 << 16), name="done").wait()
        rr.barrier()
        rates = []
        for _ in range(3):
            wall, before = time.monotonic(), wake_ups()
            time.sleep(seconds / 3)  # being idle is the point
            rates.append((wake_ups() - before) / (time.monotonic() - wall))
        return min(rates)


def test_an_idle_rank_sleeps() -> None:
    rates = run_ranks(idle, 2, args=(IDLE_S,))
    # An engine wakes up 4 times a second, and on the leader the watch over waits as often.
    assert max(rates) < 25, rates


def keeps_its_arrays() -> list[Any]:
    import ringreduce as rr

    rr.init()
    x = rr.symmetric_empty(1 << 18)
    seen = []
    for index in range(3):
        x[:] = rr.rank() + index
        before = rr.stats()["direct"]
        rr.allreduce_(x, op=rr.Sum)
        seen += [float(x[0]), float(x[-1]), rr.stats()["direct"] - before]
        rr.shutdown()
        x += 1  # plain memory
        y = x.copy()
        assert (y == x).all()
        rr.init()
    rr.shutdown()
    return seen


def test_registered_arrays_outlive_the_job_and_serve_the_next() -> None:
    assert run_ranks(keeps_its_arrays, 2) == [[1.0, 1.0, 1, 3.0, 3.0, 1, 5.0, 5.0, 1]] * 2
