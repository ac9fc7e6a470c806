"""The one door for memory: every operand becomes a C-contiguous ndarray over its own bytes, or an error.

Understood: NumPy arrays (bfloat16 of ml_dtypes included), the buffer protocol, __array_interface__, DLPack on the CPU,
and as inputs also lists and scalars. An input that is not contiguous is copied, once, and counted in
stats()["bytes_copied"]; an operand to be written is never copied: it is contiguous, or it is refused. Arrays in GPU
memory become a gpu.Operand in place of an ndarray, and have the same functions here.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringreduce import _core, gpu
from ringreduce.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
    Memory: TypeAlias = Array | gpu.Operand

CODES: dict[str, int] = {name: code for code, (name, _) in enumerate(_core.dtypes())}
"""The dtype code of each dtype name; what the third item of an (address, shape, dtype_code) tuple is."""

PLAIN = frozenset(np.dtype(name) for name in CODES if name != "bfloat16")
"""The NumPy dtypes whose arrays go to the core as they are, through the buffer protocol."""

_met: dict[np.dtype[Any], int] = {}
"""The codes of the dtypes that code() was asked for: NumPy takes 3 us for a dtype's name."""

SCALARS = (int, float, bool, np.generic)
_DLPACK_CPU = 1

_copied = 0
_copied_lock = threading.Lock()


def copied() -> int:
    """Bytes of inputs that were copied by this process because they were not contiguous."""
    return _copied


def readable(value: Any) -> Memory:
    """A C-contiguous array with the value's content: over its memory where that is possible, else a counted copy.

    Raises:
        InvalidArgumentError: the dtype is not supported, or the value is a tensor without memory.
        UnavailableError: the memory is neither the CPU's nor a GPU's that this build communicates.
    """
    if not isinstance(value, np.ndarray):
        value = _told_by_memory(value, is_written=False)
    operand = gpu.of(value)
    if operand is not None:
        code(operand.dtype)
        return operand
    array = _view(value)
    if array is None:
        array = np.asarray(value)
    code(array.dtype)
    if array.flags.c_contiguous:
        return array
    count_copy(array.nbytes)
    return np.array(array, order="C", subok=False)


def writable(value: Any) -> Memory:
    """A C-contiguous array over the value's own memory, to be written.

    Raises:
        InvalidArgumentError: the dtype is not supported, or the memory is read-only or not contiguous, or there is no
            memory to write to (a list, a scalar, a freed tensor), or has the values with the other sign.
        UnavailableError: the memory is neither the CPU's nor a GPU's that this build communicates.
    """
    if not isinstance(value, np.ndarray):
        _told_by_memory(value, is_written=True)
    operand = gpu.writable(value)
    if operand is not None:
        code(operand.dtype)
        return operand
    array = _view(value)
    if array is None or isinstance(value, np.generic):
        raise InvalidArgumentError(
            f"a {type(value).__name__} cannot be written in place; pass a NumPy array or another object with writable "
            "memory, or use the form without the trailing underscore"
        )
    code(array.dtype)
    if not array.flags.writeable:
        raise InvalidArgumentError(
            f"the {type(value).__name__} of shape {array.shape} is read-only and cannot be written in place; "
            "pass a writable array, or use the form without the trailing underscore"
        )
    if not array.flags.c_contiguous:
        raise InvalidArgumentError(
            f"Tensor is required to be contiguous. An array of shape {array.shape} with strides {array.strides} cannot "
            "be written in place; pass np.ascontiguousarray(array), or use the form without the trailing underscore"
        )
    return array


def native(array: Memory) -> _core.Buffer:
    """A C-contiguous array in the form that the core takes: itself, or a tuple that holds it.

    A tuple for GPU memory, for bfloat16, which the buffer protocol has no format for, and for misaligned arrays, whose
    format differs.
    """
    if isinstance(array, gpu.Operand):
        return array.native(code(array.dtype))
    if array.dtype in PLAIN and array.flags.aligned:
        return array
    return (array.__array_interface__["data"][0], array.shape, code(array.dtype), array)


def empty(shape: Sequence[int], like: Memory) -> Memory:
    """A new array where another one is, of its dtype."""
    return like.empty(shape) if isinstance(like, gpu.Operand) else np.empty(tuple(shape), like.dtype)


def empty_like(array: Memory) -> Memory:
    """A new array where another one is, of its shape and dtype."""
    return array.empty(array.shape) if isinstance(array, gpu.Operand) else np.empty_like(array)


def copy(array: Memory) -> Memory:
    """A new array where another one is, with its content."""
    return array.copy(code(array.dtype)) if isinstance(array, gpu.Operand) else array.copy()


def result(tensor: Any, output: Memory) -> Any:
    """The output as the caller expects it: a NumPy scalar for a scalar, an array of its own library for a GPU array."""
    if isinstance(output, gpu.Operand):
        return output.array
    return output[()] if isinstance(tensor, SCALARS) else output


def code(dtype: np.dtype[Any]) -> int:
    """The core's code of a NumPy dtype. Raises InvalidArgumentError, with the dtypes there are."""
    if dtype in _met:
        return _met[dtype]
    if dtype.isnative and dtype.name in CODES:
        _met[dtype] = CODES[dtype.name]
        return _met[dtype]
    supported = f"supported: {', '.join(CODES)}"
    if not dtype.isnative:
        advice = "convert it with .astype(dtype.newbyteorder('='))"
        raise InvalidArgumentError(f"Tensor type {dtype.str} (byte-swapped) is not supported; {advice}; {supported}")
    raise InvalidArgumentError(f"Tensor type {dtype.name} is not supported; {supported}")


def _told_by_memory(value: Any, is_written: bool) -> Any:
    """The value, or a copy to read from. Of torch's tensors one whose memory has what the tensor says.

    Neither DLPack nor __cuda_array_interface__ tells of lazy negation, or of memory that is not there: NumPy takes an
    address of 0 for an order to allocate, and leaves anything in it. ringreduce.torch.tensors refuses the same tensors.

    Raises:
        InvalidArgumentError: without memory, or negated and to be written.
    """
    tensors = getattr(sys.modules.get("torch"), "Tensor", ())
    if not isinstance(value, tensors) or value.layout is not sys.modules["torch"].strided:
        return value
    if not value.is_cpu and not value.is_cuda and not value.is_meta:
        return value
    if value._is_zerotensor() and not is_written:
        return value.clone()
    try:
        has_memory = not value.is_meta and value.untyped_storage().data_ptr() != 0
    except RuntimeError:  # what torch says of tensors that stand for others
        has_memory = False
    if not has_memory and (value.numel() > 0 or value.is_meta):
        raise InvalidArgumentError(
            f"this {type(value).__name__} has no memory that could be communicated: it was freed, as FSDP frees that "
            "of parameters between uses, or the tensor stands for others, or for zeros. Pass a plain tensor with memory"
        )
    if not value.is_neg():
        return value
    if is_written:
        raise InvalidArgumentError(
            "this tensor is negated lazily, as the imaginary part of a conjugate is: its memory holds the values with "
            "the other sign. Use tensor.resolve_neg()"
        )
    count_copy(value.numel() * value.element_size())
    return value.resolve_neg()


def count_copy(nbytes: int) -> None:
    """Counts a copy of an input that was made because it was not contiguous, for stats()["bytes_copied"]."""
    global _copied
    with _copied_lock:
        _copied += nbytes


def _renew_lock_in_child() -> None:
    global _copied_lock
    _copied_lock = threading.Lock()  # a thread that the child does not have may have had the other one


os.register_at_fork(after_in_child=_renew_lock_in_child)


def _view(value: Any) -> Array | None:
    """An array over the value's own memory; None when it has none of its own (a list, a scalar)."""
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
            raise InvalidArgumentError(
                "a masked array would lose its mask: pass value.filled(x), and np.ma.getmaskarray(value) besides where "
                "the mask is needed"
            )
        return np.asarray(value)
    kind = type(value).__name__
    if isinstance(value, (list, int, float, str)):
        return None
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    is_opaque = False
    try:
        memory = memoryview(value)
    except TypeError:
        pass  # no buffer protocol
    except (BufferError, ValueError):  # JAX and TensorFlow: it has no format for bfloat16, nor has NumPy's DLPack
        is_opaque = True
    else:
        return np.frombuffer(memory, np.uint8) if isinstance(value, (bytes, bytearray)) else np.asarray(memory)
    if hasattr(value, "__dlpack__"):
        device, _ = value.__dlpack_device__()
        if device != _DLPACK_CPU:
            raise _elsewhere(kind, f"DLPack device type {int(device)}")
        if is_opaque:
            return None
        try:
            return _from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise InvalidArgumentError(f"this {kind} cannot be read through DLPack: {error}") from error
    return None


def _from_dlpack(value: Any) -> Array:
    """np.from_dlpack(), which knows no bfloat16: of torch's tensors it reads integers of the same bits."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.dtype != torch.bfloat16:
        return np.from_dlpack(value)
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise InvalidArgumentError(
            "a Tensor of bfloat16 needs the package ml_dtypes here (pip install ml_dtypes); ringreduce.torch "
            "takes it as it is"
        ) from None
    return np.from_dlpack(value.view(torch.int16)).view(bfloat16)


def _elsewhere(kind: str, where: str) -> UnavailableError:
    return UnavailableError(
        f"this {kind} is in {where} memory, and ringreduce communicates memory of the CPU and of CUDA GPUs; copy it to "
        "the host first"
    )
