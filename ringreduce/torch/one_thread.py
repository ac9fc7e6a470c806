"""Where all ranks compute the same from the same bits: torch's results depend on the number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_threads = threading.Lock()


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Within it torch computes with one thread on the CPU. It costs less than a microsecond.

    The number is the process's for threads that compute for the first time. One at a time: another one would take 1 for
    the number that was there before.
    """
    if device.type != "cpu":
        yield
        return
    with _threads:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
