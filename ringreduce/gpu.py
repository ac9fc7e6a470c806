"""Arrays in the memory of a GPU: how they come in, and how results go out.

Understood: __cuda_array_interface__ (version 3, with its stream), and DLPack on CUDA devices. No library is imported
here: an array is asked for what it offers, and its library, which the program has imported, for new arrays and for its
current stream. Where there is no such library (CuPy, torch), results are DeviceArrays.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringreduce import _core, nccl, state
from ringreduce.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_STREAM = 1
"""The default stream, as __cuda_array_interface__ and DLPack call it."""

_latest = 0
"""The GPU of the last array that the driver was asked about: an empty one is taken to be there too."""

_DLPACK_CUDA = 2
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


class DeviceArray:
    """A C-contiguous array in GPU memory of ringreduce's own, for every library that reads __cuda_array_interface__.

    Its content is ready for work on `stream`. The memory is given back with the last reference.
    """

    __slots__ = ("__weakref__", "_memory", "dtype", "shape", "stream")

    def __init__(self, memory: _core.DeviceMemory, shape: Sequence[int], dtype: np.dtype[Any], stream: int) -> None:
        self._memory = memory
        self.shape = tuple(shape)
        self.dtype = dtype
        self.stream = stream

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def ordinal(self) -> int:
        """The GPU, as CUDA counts them in this process."""
        return self._memory.ordinal

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._memory.address, False),
            "strides": None,
            "version": 3,
            "stream": self.stream,
        }

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, gpu={self.ordinal})"


class Operand(NamedTuple):
    """Somebody's array on a GPU, as the collectives use it."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ordinal: int
    stream: int
    """Whose work the content comes from."""
    array: Any
    """The array itself, in its own library; what callers get back."""
    keep: Any
    """What holds the memory."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def native(self, code: int) -> tuple[int, tuple[int, ...], int, Any, int, int]:
        """The form that the core takes."""
        return (self.address, self.shape, code, self.keep, self.ordinal, self.stream)

    def empty(self, shape: Sequence[int]) -> Operand:
        """A new array of the same library, dtype and GPU."""
        library = _library(self.array)
        name = "" if library is None else library.__name__
        if name == "cupy":
            with library.cuda.Device(self.ordinal):
                array = library.empty(tuple(shape), self.dtype)
        elif name == "torch":
            array = library.empty(tuple(shape), dtype=self.array.dtype, device=self.array.device)
        else:
            nbytes = math.prod(shape) * self.dtype.itemsize
            memory = state.require().context.device_memory(self.ordinal, nbytes)
            array = DeviceArray(memory, shape, self.dtype, self.current_stream())
        made = of(array)
        assert made is not None
        return made._replace(dtype=self.dtype)

    def copy(self, code: int) -> Operand:
        """A new array with the same content, as work on the current stream sees it."""
        library = _library(self.array)
        if library is not None:
            copied = of(self.array.copy() if library.__name__ == "cupy" else self.array.clone())
            assert copied is not None
            return copied
        made = self.empty(self.shape)
        work = state.require().context.copy_on_gpu(self.native(code), made.native(code))
        work.hold(self.current_stream())
        return made

    def received(self, memory: _core.DeviceMemory, shape: Sequence[int]) -> Any:
        """What an operation has allocated for its result, as an array of the same library."""
        library = _library(self.array)
        name = "" if library is None else library.__name__
        array = DeviceArray(memory, shape, self.dtype, self.current_stream())
        if name == "cupy":
            return library.asarray(array)
        if name == "torch":
            return library.as_tensor(memory, device=self.array.device).view(self.array.dtype).view(tuple(shape))
        return array

    def current_stream(self) -> int:
        """The stream on which the array's library would put work now."""
        library = _library(self.array)
        name = "" if library is None else library.__name__
        if name == "cupy":
            return int(library.cuda.get_current_stream().ptr) or DEFAULT_STREAM
        if name == "torch":
            return int(library.cuda.current_stream(self.ordinal).cuda_stream) or DEFAULT_STREAM
        offered = getattr(self.array, "__cuda_array_interface__", None)
        return DEFAULT_STREAM if offered is None else offered.get("stream") or DEFAULT_STREAM


def of(value: Any) -> Operand | None:
    """The value's memory, if it is a GPU's. It is contiguous, or a copy made by the array's own library.

    Raises:
        InvalidArgumentError: a mask, a stream of 0, or an array that is not contiguous and cannot be copied.
        UnavailableError: this build or this machine has no CUDA.
    """
    if isinstance(value, (np.ndarray, np.generic, list, int, float, str)):
        return None
    offered = getattr(value, "__cuda_array_interface__", None)
    if offered is not None:
        found = _by_interface(value, offered)
    elif hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) == _DLPACK_CUDA:
        found = _by_dlpack(value)
    else:
        return None
    nccl.look()
    operand, strides = found
    if is_contiguous(operand.shape, strides):
        return operand
    library = _library(value)
    name = "" if library is None else library.__name__
    if name == "cupy":
        return of(library.ascontiguousarray(value))
    if name == "torch":
        return of(value.contiguous())
    raise InvalidArgumentError(
        f"Tensor is required to be contiguous. This {type(value).__name__} of shape {operand.shape} on GPU "
        f"{operand.ordinal} has strides of {strides} elements; make a C-contiguous copy of it first"
    )


def writable(value: Any) -> Operand | None:
    """As of(), but over the value's own memory, which may be written. Raises InvalidArgumentError otherwise."""
    operand = of(value)
    if operand is None:
        return None
    advice = "or use the form without the trailing underscore"
    if operand.array is not value:
        raise InvalidArgumentError(
            f"Tensor is required to be contiguous. A {type(value).__name__} of shape {operand.shape} that is not "
            f"cannot be written in place; pass a C-contiguous array, {advice}"
        )
    offered = getattr(value, "__cuda_array_interface__", None)
    if offered is not None and offered["data"][1]:
        raise InvalidArgumentError(
            f"the {type(value).__name__} of shape {operand.shape} is read-only and cannot be written in place; "
            f"pass a writable array, {advice}"
        )
    return operand


def is_contiguous(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Whether elements lie one after the other in C order; strides in elements."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if dim != 1 and stride != expected:
            return False
        expected *= dim
    return True


def _by_interface(value: Any, offered: dict[str, Any]) -> tuple[Operand, Sequence[int] | None]:
    kind = type(value).__name__
    if offered.get("mask") is not None:
        raise InvalidArgumentError(f"this {kind} has a mask; ringreduce communicates arrays without")
    stream = offered.get("stream")
    if stream == 0:
        raise InvalidArgumentError(f"this {kind} says stream 0, which __cuda_array_interface__ does not allow: 1 or 2")
    dtype = np.dtype(offered["typestr"])
    if dtype.kind == "V":  # bfloat16 has no typestr of its own
        named = getattr(value, "dtype", dtype)
        dtype = named if isinstance(named, np.dtype) else dtype
    shape = tuple(int(dim) for dim in offered["shape"])
    address, _ = offered["data"]
    strides = offered.get("strides")
    if strides is not None:
        strides = tuple(stride // dtype.itemsize if stride % dtype.itemsize == 0 else -1 for stride in strides)
    operand = Operand(int(address or 0), shape, dtype, _ordinal(value, int(address or 0)), 0, value, value)
    return operand._replace(stream=stream or operand.current_stream()), strides


def _by_dlpack(value: Any) -> tuple[Operand, Sequence[int] | None]:
    kind = type(value).__name__
    try:
        view = _core.DLPack(value.__dlpack__(stream=DEFAULT_STREAM))
    except (BufferError, RuntimeError, TypeError) as error:
        raise InvalidArgumentError(f"this {kind} cannot be read through DLPack: {error}") from error
    code, bits, lanes = view.type
    name = _DLPACK_KINDS.get(code, "") + ("" if code == 6 else str(bits))
    try:
        dtype = np.dtype(name if lanes == 1 else "")
    except TypeError as error:
        raise InvalidArgumentError(
            f"this {kind} has DLPack type {view.type} (code, bits, lanes), which is not supported"
        ) from error
    return (
        Operand(view.address, tuple(view.shape), dtype, view.device[1], DEFAULT_STREAM, value, (value, view)),
        view.strides,
    )


def _library(value: Any) -> Any:
    """The module that makes arrays like this one, where we know how to ask it."""
    top = type(value).__module__.partition(".")[0]
    return sys.modules.get(top) if top in ("cupy", "torch") else None


def _ordinal(value: Any, address: int) -> int:
    """The GPU that an array is on; the interface does not say."""
    if isinstance(value, DeviceArray):
        return value.ordinal
    device = getattr(value, "device", None)
    for name in ("id", "index"):  # CuPy's and torch's
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    global _latest
    if address == 0:  # without elements there is no memory to ask about
        return _latest
    try:
        _latest = _core.gpu_of(address)
        return _latest
    except UnavailableError as error:
        raise UnavailableError(f"this {type(value).__name__} is in CUDA memory, but {error}") from error
