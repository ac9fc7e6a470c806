"""A rank that makes the others wait again and again: one warning says which, how much, and what it does meanwhile."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from ranks import Ranks, receive_from_test, run_ranks, start_ranks


def steps(how: str, core: int | None) -> list[dict[str, float]]:
    """Steps of an all-reduce until the test says that it is enough. What report() told twice."""
    import os
    import threading
    import time

    import ringreduce as rr

    if core is not None:
        os.sched_setaffinity(0, {core})

    def work(seconds: float) -> None:
        begin = time.thread_time()
        while time.thread_time() - begin < seconds:
            pass

    with rr.init() as world:
        orders: list[str] = []
        if world.rank == 0:
            threading.Thread(target=lambda: orders.append(receive_from_test())).start()
        x = np.ones(100_000, np.float32)
        is_over = np.zeros(1)
        while not is_over[0]:
            is_late = world.rank == 1
            if how == "hogged":
                work(0.06)
            elif is_late and how == "computes":
                work(0.15)
            elif is_late and how == "sleeps":
                time.sleep(0.15)
            rr.allreduce_(x, name="gradients")
            is_over = rr.allreduce(np.full(1, len(orders)), name="over", op=rr.Sum)
        return [rr.report(), rr.report()]


WARNING = (
    r"ringreduce warning \[rank 0\] \[ringreduce rank 0/{size} on \S+, shm\] rank 1 is late: in the last \d+(\.\d)? s "
    r"the others waited for it \d+ % of the time, in \d+ operations; "
)


@contextmanager
def job(size: int, how: str, core: int | None = None, **env: str) -> Iterator[Ranks]:
    with start_ranks(steps, size, args=(how, core), env=env) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("how", "meanwhile"),
    [
        # On a machine that is full a rank that computes waits for a core, too.
        ("computes", r"(it was on CPU meanwhile \(\d+ % of a core\)|its cores are taken: meanwhile )"),
        ("sleeps", r"meanwhile it waited itself, for input, a disk, a lock or a device \(\d+ % of a core\)"),
    ],
)
def test_one_warning_names_the_late_rank(how: str, meanwhile: str) -> None:
    with job(3, how) as ranks:
        ranks.wait_output(0, "is late")
        ranks.send(0, "enough")
        outcomes = ranks.wait()
    assert re.search(WARNING.format(size=3) + meanwhile, outcomes[0].output), outcomes[0]
    assert sum(outcome.output.count("is late") for outcome in outcomes) == 1, ranks.report()
    for rank, outcome in enumerate(outcomes):
        first, second = outcome.value
        assert first["sampled_s"] >= 0.5
        assert first["latest_rank"] == 1
        assert first["latest_share"] > 0.1
        assert (first["late_share"] > first["waited_share"]) == (rank == 1), outcomes
        assert second["sampled_s"] < first["sampled_s"]
        assert second["operations"] == first["operations"] >= 8  # two in each of four steps at least


def test_a_rank_whose_core_is_taken() -> None:
    """Two ranks with the same work, each bound to a core, and three processes on that of rank 1."""
    import os

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    hog = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cores[1]}}})\nwhile True: pass"]
    hogs = [subprocess.Popen(hog) for _ in range(3)]
    try:
        with start_ranks(hogged, 2, args=(cores[:2],)) as ranks:
            ranks.wait_output(0, "rank 1 is late")  # others may use rank 0's core as well, for a while
            ranks.send(0, "enough")
            outcomes = ranks.wait()
    finally:
        for process in hogs:
            process.kill()
            process.wait()
    taken = r"its cores are taken: meanwhile it used \d+ % of a core, and waited for one \d+ % of the time"
    assert re.search(WARNING.format(size=2) + taken, outcomes[0].output), outcomes[0]


def hogged(cores: list[int]) -> None:
    import os

    steps("hogged", cores[int(os.environ["RINGREDUCE_RANK"])])


def test_it_can_be_switched_off() -> None:
    with job(2, "sleeps", RINGREDUCE_LATE_WARNING="0") as ranks:
        import time

        time.sleep(3)  # time for a warning, which must not come
        ranks.send(0, "enough")
        outcomes = ranks.wait()
    assert not any("is late" in outcome.output for outcome in outcomes), ranks.report()
    assert outcomes[0].value[0]["latest_rank"] == 1  # it is counted all the same


def alone() -> dict[str, float]:
    import ringreduce as rr

    with rr.init():
        rr.allreduce(np.ones(2))
        return rr.report()


def test_a_rank_alone_waits_for_nobody() -> None:
    (report,) = run_ranks(alone, 1)
    assert report["waited_share"] == report["late_share"] == report["sampled_s"] == 0
    assert report["latest_rank"] == -1
    assert report["operations"] == 1


def waits_aside() -> list[dict[str, float]]:
    """A thread of rank 0 waits for rank 1, while its main thread waits for the test, or computes."""
    import threading
    import time

    import ringreduce as rr

    with rr.init() as world:
        reports = []
        for computes in (False, True):
            if world.rank == 1:
                time.sleep(1)
            thread = threading.Thread(target=rr.barrier)
            thread.start()
            while computes and thread.is_alive():
                pass
            thread.join()
            reports.append(rr.report())
        return reports


def test_a_thread_that_waits_while_the_program_computes_loses_no_time() -> None:
    first, second = run_ranks(waits_aside, 2)[0]
    assert first["waited_share"] > 0.5
    assert second["waited_share"] < 0.3
