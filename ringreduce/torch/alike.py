"""Where all ranks compute the same from the same bits: torch's results depend on threads and on their modes."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_threads = threading.RLock()
# A child that is forked while another thread is within would wait for the lock for ever.
os.register_at_fork(before=_threads.acquire, after_in_parent=_threads.release, after_in_child=_threads.release)

# Variables, and made of bits: of constants Python computes the product once, in the mode that there is then.
(_least,) = struct.unpack("=d", struct.pack("=q", 1))
_one = 1.0


@contextmanager
def computed_alike(device: torch.device) -> Iterator[None]:
    """Within it torch and NumPy compute on the CPU with one thread, which keeps denormal numbers. It costs 2 us.

    One thread also where results do not depend on the number: torch.set_flush_denormal() sets the mode of its caller
    alone, and torch's other threads may have one or the other. That costs little where memory is the limit: the sum of
    4 ranks' int8 codes (1 Mi elements) takes 9 ms, with 2 threads 8 ms.

    The number is the process's for threads that compute for the first time: one that does so meanwhile keeps 1 as its
    own. One at a time: another one would take 1 for the number that was there before.
    """
    if device.type != "cpu":
        yield
        return
    with _threads:
        before, is_flushing = torch.get_num_threads(), flushes_denormals()
        try:
            torch.set_num_threads(1)
            if is_flushing:
                torch.set_flush_denormal(False)
            yield
        finally:
            torch.set_num_threads(before)
            if is_flushing:
                torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Whether this thread makes zeros of denormal numbers, whoever has set that: torch has no function that says so."""
    return bool(_least * _one == 0.0)
