"""Work in several threads: results in order, errors where they belong, and no thread that outlives who asked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from processes import completed

from ringreduce.timeline.threads import MOST_WORKERS, in_order


def test_results_have_the_order_of_the_calls() -> None:
    others = threading.Event()

    def slow() -> int:
        others.wait(0.2)  # where there is one core, nobody else runs meanwhile
        return 0

    def quick(number: int) -> int:
        others.set()
        return number

    assert list(in_order([slow, *(partial(quick, number) for number in range(1, 100))])) == list(range(100))


def test_an_error_comes_in_its_place_and_ends_the_rest() -> None:
    def fails() -> int:
        raise ValueError("the third")

    results = in_order([partial(int, 1), partial(int, 2), fails, *[partial(int, 4)] * 100])
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="the third"):
        next(results)
    assert list(results) == []


def test_few_calls_run_ahead_of_who_takes_the_results() -> None:
    asked = 0

    def calls() -> Iterator[Callable[[], int]]:
        nonlocal asked
        while True:  # without an end
            asked += 1
            yield partial(int, asked)

    results = in_order(calls())
    assert [next(results) for _ in range(10)] == list(range(1, 11))
    assert asked <= 10 + 2 * MOST_WORKERS + 1
    before = threading.active_count()
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() < before


@pytest.mark.parametrize("before", ["", "import concurrent.futures.thread", "list(in_order([int]))"])
def test_at_the_end_of_a_process_there_are_no_threads_any_more(before: str) -> None:
    code = f"""
import atexit
from functools import partial
from ringreduce.timeline.threads import in_order
{before}
atexit.register(lambda: print(list(in_order(partial(int, n) for n in range(30)))))
"""
    done = completed([sys.executable, "-c", code])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{list(range(30))}\n", "")
