"""Other people's arrays on a GPU, as the collectives use them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringreduce import _core, state
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.gpu import nccl
from ringreduce.gpu.arrays import DEFAULT_STREAM, DeviceArray
from ringreduce.gpu.libraries import library_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_DLPACK_CUDA = 2
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


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

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    def native(self, code: int) -> tuple[int, tuple[int, ...], int, Any, int, int]:
        """The form that the core takes."""
        return (self.address, self.shape, code, self.keep, self.ordinal, self.stream)

    def empty(self, shape: Sequence[int]) -> Operand:
        """A new array of the same library, dtype and GPU."""
        made = of(library_of(self.array).empty(self.array, shape, self.dtype, self.ordinal))
        assert made is not None
        return made._replace(dtype=self.dtype)

    def copy(self, code: int) -> Operand:
        """A new array with the same content, as work on the current stream sees it."""
        array = library_of(self.array).copy(self.array)
        if array is not None:
            copied = of(array)
            assert copied is not None
            return copied
        made = self.empty(self.shape)
        work = state.require().context.copy_on_gpu(self.native(code), made.native(code))
        work.wait()
        return made

    def received(self, memory: _core.DeviceMemory, shape: Sequence[int]) -> Any:
        """What an operation has allocated for its result, as an array of the same library."""
        return library_of(self.array).received(memory, self.array, shape, self.dtype, self.ordinal)

    def current_stream(self) -> int:
        """The stream on which the array's library would put work now."""
        return library_of(self.array).current_stream(self.array, self.ordinal)


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
    contiguous = library_of(value).contiguous(value)
    if contiguous is not None:
        return of(contiguous)
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


def _ordinal(value: Any, address: int) -> int:
    """The GPU that an array is on; the interface does not say."""
    if isinstance(value, DeviceArray):
        return value.ordinal
    device = getattr(value, "device", None)
    for name in ("id", "index"):  # CuPy's and torch's
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    if address == 0:  # without elements there is no memory to ask about; it will be where the rest is
        gpu = state.require().context.gpu
        return 0 if gpu is None else gpu
    try:
        return _core.gpu_of(address)
    except UnavailableError as error:
        raise UnavailableError(f"this {type(value).__name__} is in CUDA memory, but {error}") from error
