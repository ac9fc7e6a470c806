"""A GPU for Python tests where there is none: arrays and streams of the driver in tests/fake_cuda/.

The library is built with the C++ tests into build/cmake. What loads it, ringreduce included (RINGREDUCE_CUDA_LIBRARY),
shares one fake GPU in a process; processes share memory by CUDA IPC. Environment: FAKE_CUDA_DEVICES, FAKE_CUDA_FAIL
(function:nth:code, also nth+ for all that follow, and "kernel" for one that fails while it runs), FAKE_CUDA_PEER=0,
FAKE_CUDA_MEMORY (bytes), FAKE_CUDA_SEED, FAKE_CUDA_JITTER_US.

Memory is given out again as torch and CuPy do it: that of a dropped array goes to the next one of its size and stream,
at once, whoever still works on it.
"""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "cmake" / "libfakecuda.so"

SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int],
    "cuCtxSetCurrent": [ctypes.c_void_p],
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuCtxPopCurrent_v2": [ctypes.POINTER(ctypes.c_void_p)],
    "cuCtxSynchronize": [],
    "cuMemAlloc_v2": [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t],
    "cuMemFree_v2": [ctypes.c_uint64],
    "cuMemHostAlloc": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_uint],
    "cuMemFreeHost": [ctypes.c_void_p],
    "cuMemcpyAsync": [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p],
    "cuStreamCreateWithPriority": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_int],
    "cuStreamDestroy_v2": [ctypes.c_void_p],
    "cuStreamSynchronize": [ctypes.c_void_p],
    "cuStreamQuery": [ctypes.c_void_p],
    "cuStreamWaitValue32_v2": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint],
    "cuStreamBeginCapture_v2": [ctypes.c_void_p, ctypes.c_int],
    "cuStreamEndCapture": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)],
    "cuGraphInstantiateWithFlags": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_uint64],
    "cuGraphLaunch": [ctypes.c_void_p, ctypes.c_void_p],
    "fake_cuda_delay": [ctypes.c_void_p, ctypes.c_uint],
}
NOT_READY = 600


class CudaError(RuntimeError):
    """A call of the driver that failed; `code` is its CUresult."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CUresult {code}")
        self.code = code


class Stream:
    """A stream that does not wait for the default one, as torch's and CuPy's are; for `with`, no context manager."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        handle = ctypes.c_void_p()
        gpu.call("cuStreamCreateWithPriority", ctypes.byref(handle), 1, 0)
        self.handle = int(handle.value or 0)
        weakref.finalize(self, gpu.call_freeing, "cuStreamDestroy_v2", self.handle)

    def synchronize(self) -> None:
        """Wait until all work is done; raise what went wrong in it."""
        self.gpu.synchronize_stream(self.handle)

    def is_done(self) -> bool:
        """Whether all work is done, without waiting."""
        return self.gpu.query("cuStreamQuery", self.handle)

    def delay(self, delay_us: int) -> None:
        """Have the stream do nothing for so long, so that what fails to wait for it is seen."""
        self.gpu.call("fake_cuda_delay", self.handle, delay_us)

    def gate(self) -> Gate:
        """Keep the stream where it is until the gate is opened."""
        return Gate(self)

    def capture(self) -> Capture:
        """Capture the stream's work in a graph, with `with`, in CUDA's strictest mode."""
        return Capture(self)


class Gate:
    """What a stream waits at until `open()` is called."""

    def __init__(self, stream: Stream) -> None:
        self._word = stream.gpu.pinned(1, np.uint32)
        self._word[0] = 0
        stream.gpu.call("cuStreamWaitValue32_v2", stream.handle, self._word.ctypes.data, 1, 0)

    def open(self) -> None:
        """Let the stream go on."""
        self._word[0] = 1


class Capture:
    """Work of a stream as a graph; after the `with`, `replay()` does it again."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._executable = ctypes.c_void_p()

    def __enter__(self) -> Capture:
        self._stream.gpu.call("cuStreamBeginCapture_v2", self._stream.handle, 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        graph = ctypes.c_void_p()
        gpu = self._stream.gpu
        gpu.call("cuStreamEndCapture", self._stream.handle, ctypes.byref(graph))
        gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), graph, 0)

    def replay(self) -> None:
        """Issue all of it to the stream."""
        self._stream.gpu.call("cuGraphLaunch", self._executable, self._stream.handle)


class Array:
    """A contiguous array in the memory of a fake GPU, with `__cuda_array_interface__`.

    `stream` is what its last work was issued to, and what a consumer has to wait for; None is the default stream.
    """

    def __init__(self, gpu: Gpu, shape: tuple[int, ...], dtype: npt.DTypeLike, stream: Stream | None = None) -> None:
        self.gpu = gpu
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.stream = stream
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self.address = gpu.take(max(self.nbytes, 1), self._handle)
        weakref.finalize(self, gpu.give, max(self.nbytes, 1), self._handle, self.address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.nbytes else 0, False),
            "strides": None,
            "stream": 1 if self.stream is None else self.stream.handle,
            "version": 3,
        }

    def set(self, values: npt.ArrayLike) -> None:
        """Issue a copy from the host to the array's stream; returns before it is done."""
        source = self.gpu.pinned(max(self.nbytes, 1), np.uint8)
        source[: self.nbytes] = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8)
        self.gpu.keep(source, self._handle)
        self._copy(self.address, source.ctypes.data)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host, after all work of the array's stream."""
        target = self.gpu.pinned(max(self.nbytes, 1), np.uint8)
        self._copy(target.ctypes.data, self.address)
        self.gpu.synchronize_stream(self._handle)
        return target[: self.nbytes].copy().view(self.dtype).reshape(self.shape)

    @property
    def _handle(self) -> int:
        return 1 if self.stream is None else self.stream.handle

    def _copy(self, to: int, source: int) -> None:
        if self.nbytes:
            self.gpu.call("cuMemcpyAsync", to, source, self.nbytes, self._handle)


class Gpu:
    """A fake GPU, whose context becomes the calling thread's, as torch.cuda.set_device does it."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._library = ctypes.CDLL(str(LIBRARY))
        for name, arguments in SIGNATURES.items():
            getattr(self._library, name).argtypes = arguments
        self._library.fake_cuda_calls.restype = ctypes.c_uint64
        self._kept: dict[int, list[npt.NDArray[Any]]] = {}
        self._spare: dict[tuple[int, int], list[int]] = {}
        self._spare_pinned: dict[int, list[int]] = {}
        self.call("cuInit", 0)
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)
        self.make_current()

    def make_current(self) -> None:
        """Make the context that of the calling thread."""
        self.call("cuCtxSetCurrent", self._context)

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver; CudaError unless it says CUDA_SUCCESS."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise CudaError(name, code)

    def query(self, name: str, *arguments: object) -> bool:
        """As `call`, for a function that may say CUDA_ERROR_NOT_READY, which is False."""
        code = getattr(self._library, name)(*arguments)
        if code not in (0, NOT_READY):
            raise CudaError(name, code)
        return bool(code == 0)

    def call_freeing(self, name: str, *arguments: object) -> None:
        """As `call`, from whichever thread drops an object, and whatever it says."""
        self._library.cuCtxPushCurrent_v2(self._context)
        getattr(self._library, name)(*arguments)
        self._library.cuCtxPopCurrent_v2(None)

    def take(self, nbytes: int, stream: int) -> int:
        """Device memory: what an array of this size and stream has given back, else new."""
        spare = self._spare.get((nbytes, stream))
        if spare:
            return spare.pop()
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), nbytes)
        return at.value

    def give(self, nbytes: int, stream: int, address: int) -> None:
        """Give device memory back, to be taken again."""
        self._spare.setdefault((nbytes, stream), []).append(address)

    def empty_cache(self) -> None:
        """Free the memory of dropped arrays, as torch.cuda.empty_cache() does."""
        for addresses in self._spare.values():
            for address in addresses:
                self.call("cuMemFree_v2", address)
        self._spare.clear()

    def calls(self, name: str) -> int:
        """How often this process has called a function of the driver, by its name without a version."""
        return int(self._library.fake_cuda_calls(name.encode()))

    def fail(self, text: str) -> None:
        """As FAKE_CUDA_FAIL, from now on; counts begin anew."""
        self._library.fake_cuda_fail(text.encode())

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self)

    def empty(self, shape: tuple[int, ...] | int, dtype: npt.DTypeLike, stream: Stream | None = None) -> Array:
        """A new array; its memory holds rubbish."""
        return Array(self, (shape,) if isinstance(shape, int) else shape, dtype, stream)

    def array(self, values: npt.ArrayLike, stream: Stream | None = None) -> Array:
        """A new array with these values, which a copy brings there on the stream, some time later."""
        source = np.asarray(values)
        made = Array(self, source.shape, source.dtype, stream)
        made.set(source)
        return made

    def pinned(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array in pinned host memory."""
        nbytes = count * np.dtype(dtype).itemsize
        spare = self._spare_pinned.setdefault(nbytes, [])
        if spare:
            address = spare.pop()
        else:
            at = ctypes.c_void_p()
            self.call("cuMemHostAlloc", ctypes.byref(at), nbytes, 0)
            address = int(at.value or 0)
        memory = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(memory, spare.append, address)
        return np.frombuffer(memory, dtype=dtype)

    def keep(self, array: npt.NDArray[Any], stream: int) -> None:
        """Keep an array until somebody has waited for the stream."""
        self._kept.setdefault(stream, []).append(array)

    def synchronize_stream(self, stream: int) -> None:
        """Wait for a stream, by its handle."""
        self.call("cuStreamSynchronize", stream)
        self._kept.pop(stream, None)

    def synchronize(self) -> None:
        """Wait for all streams of this GPU in this process."""
        self.call("cuCtxSynchronize")
        self._kept.clear()
