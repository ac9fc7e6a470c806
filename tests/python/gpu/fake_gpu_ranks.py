"""What ranks on the fake GPU have in common: arrays that come late, and a look at them from a stream."""

from __future__ import annotations

import ctypes
from typing import Any

import cuda_devices
import numpy as np
from fake_cuda import Array, Stream

LATE_US = 10_000


def environment(**more: str) -> dict[str, str | None]:
    """For ranks on the fake driver. Skips by name where there is none, or no kernels to launch."""
    return {**cuda_devices.fake_environment(), "RINGREDUCE_TIMEOUT": "60", **more}


def coming(content: Any, stream: Stream) -> Array:
    """An array whose content comes late, by work on the stream."""
    stream.delay(LATE_US)
    return stream.gpu.array(content, stream)


def on(stream: Stream, value: Any) -> Any:
    """What work on a stream finds in anybody's array."""
    offered = value.__cuda_array_interface__
    found = stream.gpu.empty(offered["shape"], value.dtype, stream)
    if found.nbytes:
        stream.gpu.call("cuMemcpyAsync", found.address, offered["data"][0], found.nbytes, stream.handle)
    return found.numpy()


def memory(array: Array) -> Any:
    """What is there now, whatever streams are doing."""
    raw = (ctypes.c_char * array.nbytes).from_address(array.address)
    return np.frombuffer(raw, array.dtype).reshape(array.shape)


def whole(rank: int, seed: int, shape: Any, dtype: Any = np.float32) -> Any:
    """Small whole numbers that depend on rank and position, so that sums are exact in any order."""
    count = int(np.prod(shape))
    return ((np.arange(count) * (seed % 5 + 1) + 7 * rank + seed) % 11).astype(dtype).reshape(shape)


def total(size: int, seed: int, shape: Any, dtype: Any = np.float32) -> Any:
    return sum(whole(rank, seed, shape, np.int64) for rank in range(size)).astype(dtype)
