"""Arrays on the GPU of the fake CUDA driver (tests/fake_cuda), with __cuda_array_interface__ and nothing else.

A rank's process gets the driver by RINGREDUCE_CUDA_LIBRARY. Streams really run beside the program: what is put on one
behind late() is done some 10 ms after that.
"""

from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LIBRARY = Path(__file__).resolve().parents[1] / "build" / "cmake" / "libfakecuda.so"
LATE_US = 10_000


def environment(**more: str) -> dict[str, str | None]:
    """For ranks. Skips where the driver has not been built, or the package without CUDA."""
    if not LIBRARY.exists():
        pytest.skip(f"no fake CUDA driver: {LIBRARY.name} is built with RR_TESTS=ON")
    return {"RINGREDUCE_CUDA_LIBRARY": str(LIBRARY), "RINGREDUCE_TIMEOUT": "60", **more}


class Gpu:
    """The fake driver, as a program uses CUDA: one context, streams, memory."""

    def __init__(self, ordinal: int = 0) -> None:
        self._driver = ctypes.CDLL(os.environ["RINGREDUCE_CUDA_LIBRARY"])
        self.ordinal = ordinal
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *args: Any) -> None:
        """A function of the driver, checked. Python ints are 64 bits."""
        wide = [ctypes.c_ulonglong(arg) if isinstance(arg, int) else arg for arg in args]
        result = getattr(self._driver, name)(*wide)
        assert result == 0, f"{name}: CUresult {result}"

    def stream(self) -> int:
        """A new stream that waits for no other."""
        made = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(made), 1, 0)
        assert made.value is not None
        return made.value

    def synchronize(self, stream: int) -> None:
        """Waits for all work on a stream."""
        self.call("cuStreamSynchronize", stream)

    def late(self, stream: int, delay_us: int = LATE_US) -> None:
        """What follows on the stream is done later."""
        self.call("fake_cuda_delay", stream, delay_us)

    def empty(self, shape: Any, dtype: Any, stream: int = 1) -> Array:
        """Memory full of ones' complements, which no test expects."""
        return Array(self, shape, np.dtype(dtype), stream)

    def array(self, content: Any, stream: int = 1) -> Array:
        """Content that is there at once."""
        content = np.asarray(content)
        made = Array(self, content.shape, content.dtype, stream)
        made.peek()[...] = content
        return made

    def coming(self, content: Any, stream: int) -> Array:
        """Content that comes late, by work on the stream."""
        made = self.empty(np.shape(content), np.asarray(content).dtype, stream)
        self.late(stream)
        made.assign(content, stream)
        return made

    def capture(self, stream: int) -> None:
        """What is put on the stream from here on becomes a graph."""
        self.call("cuStreamBeginCapture_v2", stream, 2)

    def captured(self, stream: int) -> ctypes.c_void_p:
        """The end of a capture: the graph, ready to be launched."""
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, 0)
        return made

    def replay(self, graph: ctypes.c_void_p, stream: int) -> None:
        """Launches a captured graph."""
        self.call("cuGraphLaunch", graph, stream)


class Array:
    """A C-contiguous array in the fake GPU's memory."""

    def __init__(self, gpu: Gpu, shape: Any, dtype: np.dtype[Any], stream: int) -> None:
        self.gpu = gpu
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = dtype
        self.stream = stream
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        address = ctypes.c_ulonglong()
        gpu.call("cuMemAlloc_v2", ctypes.byref(address), max(1, self.nbytes))
        self.address = address.value
        ctypes.memset(self.address, 0xEE, self.nbytes)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.gpu.call("cuMemFree_v2", self.address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
            "stream": self.stream,
        }

    def peek(self) -> np.ndarray[Any, Any]:
        """The memory as it is now, whatever streams are doing."""
        return view(self.address, self.shape, self.dtype)

    def assign(self, content: Any, stream: int) -> None:
        """New content, by work on a stream."""
        source = self.gpu.array(np.asarray(content, self.dtype))
        self.gpu.call("cuMemcpyAsync", self.address, source.address, self.nbytes, stream)
        self.source = source  # until the next one, for the copy's sake


def on(stream: int, value: Any, gpu: Gpu) -> np.ndarray[Any, Any]:
    """What work on a stream finds in an array: copied there, by the GPU, and brought back."""
    offered = value.__cuda_array_interface__
    dtype = np.dtype(offered["typestr"])
    found = gpu.empty(offered["shape"], dtype, stream)
    if found.nbytes:
        gpu.call("cuMemcpyAsync", found.address, offered["data"][0], found.nbytes, stream)
    gpu.synchronize(stream)
    return found.peek().copy()


def view(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Memory at an address as an ndarray."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(raw, dtype).reshape(shape)
