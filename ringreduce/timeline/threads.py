"""Several threads for work on arrays: NumPy lets other threads compute."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")
MOST_WORKERS = 4  # threads; more wait for each other at the parts that Python runs


def in_order(calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """What the functions return, in their order. Some run at the same time, and a few results wait to be taken."""
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    pool = _pool_of(workers)
    if pool is None:
        yield from (call() for call in calls)
        return
    ahead: deque[Future[T]] = deque()
    with pool:
        try:
            for call in calls:
                ahead.append(pool.submit(call))
                if len(ahead) > 2 * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:  # after an error, or where nobody wants the rest
            pool.shutdown(wait=False, cancel_futures=True)


def _pool_of(workers: int) -> ThreadPoolExecutor | None:
    """None at the end of a process, such as in an atexit function: Python starts no thread any more."""
    try:
        from concurrent.futures import ThreadPoolExecutor  # this, too, is refused then

        pool = ThreadPoolExecutor(workers)
        pool.submit(int)
    except RuntimeError:
        return None
    return pool
