"""The torch side of the one door for memory: a tensor becomes (address, shape, dtype code), or an error.

Nothing here is compiled against torch. The fourth item of an operand is the tensor itself, so that whoever holds the
operand keeps the memory alive. A CUDA tensor's has two more: the GPU, and the stream that the operation comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ringreduce._core import Work
from ringreduce.collectives import memory
from ringreduce.collectives.buffers import CODES, count_copy
from ringreduce.collectives.handles import Handle, Works
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.torch import cuda

T = TypeVar("T")
Operand: TypeAlias = tuple[int, Sequence[int], int, Any] | tuple[int, Sequence[int], int, Any, int, int]

DTYPES: dict[torch.dtype, int] = {getattr(torch, name): code for name, code in CODES.items() if hasattr(torch, name)}
"""The core's code of each torch dtype that it knows."""

FAR = 1 << 36
"""In bytes: no tensor begins so far behind the beginning of its storage."""

is_transformed: Callable[[torch.Tensor], bool] = getattr(
    torch._C._functorch, "is_functorch_wrapped_tensor", lambda tensor: False
)
"""Whether a tensor is one that torch.func hands to the functions that it transforms."""


def operand(tensor: torch.Tensor) -> Operand:
    """The tensor's memory in the form that the core takes. It must be contiguous, and the CPU's or a CUDA GPU's.

    Raises:
        InvalidArgumentError: not a tensor, not contiguous, lazily negated, without memory of its own, or of an
            unsupported dtype.
        UnavailableError: in other memory than the CPU's; a build with CUDA takes that of its GPUs as well.
    """
    try:
        if tensor.is_contiguous() and not tensor.is_neg():
            if tensor.is_cpu:
                address = tensor.data_ptr()
                if address >= FAR or is_memory(address, tensor) or tensor.numel() == 0:
                    return (address, tensor.shape, DTYPES[tensor.dtype], tensor)
            elif tensor.is_cuda and cuda.BUILT:
                memory = cuda.operand(tensor, tensor.shape, DTYPES[tensor.dtype])
                if is_memory(memory[0], tensor) or tensor.numel() == 0:
                    return memory
    except (AttributeError, KeyError, RuntimeError):
        pass  # the reason is looked for where it costs nothing
    if is_awaited(tensor):
        return operand(waited(tensor))
    raise refusal(tensor)


def is_memory(address: int, tensor: torch.Tensor) -> bool:
    """Whether the tensor's data_ptr() is one: that of a part of a freed storage is where in the storage it was."""
    return address >= FAR or address > tensor.storage_offset() * tensor.element_size()


def is_awaited(tensor: Any) -> bool:
    """Whether it is what a functional collective of torch has returned: the first use of its values waits for them."""
    return hasattr(type(tensor), "trigger_wait")


def waited(tensor: Any) -> torch.Tensor:
    """The plain tensor of one that is_awaited(), after waiting."""
    tensor.trigger_wait()
    plain: torch.Tensor = tensor.elem
    return plain


def with_memory(tensor: torch.Tensor, is_read: bool = False) -> torch.Tensor:
    """The tensor itself if it has memory of its own, or no elements; waited() of one that is_awaited().

    is_read: the tensor is not written, so that one of zeros without memory may be copied.

    Raises InvalidArgumentError for other tensors without memory.
    """
    try:
        if is_memory(tensor.data_ptr(), tensor):
            return tensor
    except RuntimeError:  # what some versions of torch say of tensors without memory
        if not is_awaited(tensor):
            raise no_memory(tensor) from None
    if is_awaited(tensor):
        return with_memory(waited(tensor), is_read)
    if tensor.numel() == 0:
        return tensor
    if is_read and tensor._is_zerotensor():
        return tensor.clone()
    raise no_memory(tensor)


def lacks_memory(tensor: torch.Tensor) -> bool:
    """Whether a dense tensor of the CPU or of a GPU has elements, and neither has memory for them nor is_awaited()."""
    if tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda) or is_awaited(tensor):
        return False
    try:
        return not is_memory(tensor.data_ptr(), tensor) and tensor.numel() > 0
    except RuntimeError:
        return True


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether several elements are one in memory, as after expand(): torch refuses to write such a tensor."""
    is_repeated = any(stride == 0 and count > 1 for stride, count in zip(tensor.stride(), tensor.shape, strict=True))
    return is_repeated and tensor.numel() > 0


def no_memory(tensor: torch.Tensor) -> InvalidArgumentError:
    """What a tensor is that has elements and no memory, and what to use in its place."""
    if is_transformed(tensor):
        return InvalidArgumentError(
            "this tensor stands for another inside torch.func.vmap or torch.func.jvp: it has no memory of its own that "
            "could be communicated. Call the collective outside of the transformed function, on the whole batch"
        )
    if hasattr(tensor, "to_local"):
        return InvalidArgumentError(
            f"a {type(tensor).__name__} has no memory of its own that could be communicated: use tensor.to_local() for "
            "this rank's part, or tensor.full_tensor() for the whole"
        )
    if tensor._is_zerotensor():
        return InvalidArgumentError(
            "this tensor of zeros has no memory that could be communicated (torch._efficientzerotensor): use "
            "tensor.clone()"
        )
    if tensor.untyped_storage().nbytes() == 0:
        return InvalidArgumentError(
            "this tensor's memory was freed (its storage has 0 bytes), as FSDP frees that of parameters between uses: "
            "communicate it while it has memory (FSDP: within summon_full_params(), or after unshard())"
        )
    return InvalidArgumentError(
        f"this tensor (a {type(tensor).__name__}) has no memory of its own that could be communicated: it wraps other "
        "tensors, or stands for one while a graph is traced. Pass the plain tensors that it is made of, or call the "
        "collective outside of what traces"
    )


def is_tracked(tensor: torch.Tensor) -> bool:
    """Whether autograd follows the tensor, backward or forward. Raises InvalidArgumentError where it is none."""
    try:
        if forward_ad._current_level >= 0 and has_tangent(tensor):
            return True
        return tensor.requires_grad and torch.is_grad_enabled()
    except AttributeError:
        raise refusal(tensor) from None


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether it is a dual tensor of torch.autograd.forward_ad; of use while there is a level. Takes 3 us."""
    unpacked = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    return unpacked.tangent is not None and torch._C._is_fwd_grad_enabled()


def no_tangent(what: str) -> UnavailableError:
    """What has no way to give the result of a dual tensor a tangent."""
    return UnavailableError(
        f"{what} would lose the tangent of a dual tensor (torch.autograd.forward_ad). These have tangents: allreduce, "
        "grouped_allreduce, reducescatter and reduce with op Average and Sum, allgather, broadcast, alltoall, gather, "
        "scatter, send and recv. To do without the tangent: torch.autograd.forward_ad.unpack_dual(tensor).primal"
    )


def are_tracked(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autograd follows one of several tensors. Raises InvalidArgumentError where they are something else."""
    return are_any(tensors) and any(is_tracked(tensor) for tensor in tensors)


def are_any(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a list of tensors has any. Raises InvalidArgumentError where it is no list or the like."""
    if isinstance(tensors, torch.Tensor) or not hasattr(tensors, "__iter__"):
        raise InvalidArgumentError(f"tensors: a list of torch.Tensors is expected, not {type(tensors).__name__}")
    return len(tensors) > 0


def in_place(tensor: torch.Tensor) -> Operand:
    """overwritten() for an operation that goes on after the call: `tensor.data = other` meanwhile frees no memory.

    The operand holds the storage besides, which takes 0.5 us.
    """
    memory: Any = overwritten(tensor)
    owner = memory[3]
    kept: Operand = (*memory[:3], (owner, owner.untyped_storage()), *memory[4:])
    return kept


def overwritten(tensor: torch.Tensor) -> Operand:
    """operand() of a tensor that the operation overwrites.

    Autograd is told, as by torch's own operations in place: backward() through what has saved the tensor is an error.
    """
    memory = operand(tensor)
    if forward_ad._current_level >= 0 and has_tangent(tensor):
        raise no_tangent("an operation in place")
    increment_version(tensor)
    return memory


def memory_of(tensor: torch.Tensor, shape: Sequence[int], code: int) -> Operand:
    """The memory of a contiguous tensor as an operand of another shape and dtype; nothing is checked."""
    if tensor.is_cuda:
        return cuda.operand(tensor, shape, code)
    return (tensor.data_ptr(), shape, code, tensor)


def on_stream(work: Work, *outputs: torch.Tensor, room: torch.Tensor | None = None) -> Work:
    """An operation just submitted, where the outputs are a GPU's with what torch's allocator has to know of them.

    Args:
        outputs: tensors that the operation writes or, where it allocates, reads; those of a GPU are kept.
        room: see cuda.DeviceWork.
    """
    if not outputs or not outputs[0].is_cuda:
        return work
    on_device: Any = cuda.DeviceWork(work, outputs, room)
    return on_device  # type: ignore[no-any-return]


def handle(work: Work | Works, finish: Callable[[Any], T], keep: Any = None) -> Handle[T]:
    """A handle of operations that went through on_stream()."""
    return Handle(work, finish, keep)


def source(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor to read from: itself, detached, or a copy where it is not contiguous, or lazily negated or zero.

    Copies are counted in stats()["bytes_copied"].

    Raises InvalidArgumentError for another one without memory of its own.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise refusal(tensor)
    if forward_ad._current_level >= 0 and has_tangent(tensor):
        raise no_tangent("this operation")
    plain = tensor.detach()
    read = plain.contiguous().resolve_neg()
    if read is not plain and not (plain.is_contiguous() and not plain.is_neg()):  # else what a wrapper stands for
        count_copy(read.nbytes)
    return with_memory(read, is_read=True)


def refusal(tensor: Any) -> Exception:
    """Why operand() does not take the tensor."""
    if not isinstance(tensor, torch.Tensor):
        return InvalidArgumentError(
            f"tensor: a torch.Tensor is expected, not {type(tensor).__name__}. Use torch.as_tensor(), or the functions "
            "of ringreduce itself for NumPy arrays and numbers"
        )
    if tensor.layout is not torch.strided:
        sparse = ", or hvd.sparse_allreduce_async() to all-reduce it as it is" if tensor.is_sparse else ""
        return InvalidArgumentError(f"Tensor layout {tensor.layout} is not supported; use tensor.to_dense(){sparse}")
    if not tensor.is_cpu and not (tensor.is_cuda and cuda.BUILT):
        what = "CPU and CUDA memory" if cuda.BUILT else "CPU memory"
        return UnavailableError(
            f"this tensor is in {tensor.device.type} memory, and ringreduce communicates {what} here; use tensor.cpu()"
        )
    if tensor.dtype not in DTYPES:
        supported = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return InvalidArgumentError(f"Tensor type {tensor.type()} is not supported; supported: {supported}")
    if lacks_memory(tensor):
        return no_memory(tensor)
    if tensor.is_neg():
        return InvalidArgumentError(
            "this tensor is negated lazily, as the imaginary part of a conjugate is: its memory holds the values with "
            "the other sign. Use tensor.resolve_neg()"
        )
    return InvalidArgumentError(
        f"Tensor is required to be contiguous. A tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} "
        "cannot be used in place; use the form without the trailing underscore, or tensor.contiguous()"
    )


def apart(source: torch.Tensor, output: torch.Tensor, ahead: int | None = None) -> torch.Tensor:
    """The source; a copy where it shares memory with the output, which would be written before it was sent.

    Not where it begins `ahead` elements behind the output's beginning (None: there too): then this rank's own values
    are where they go. Both are contiguous.
    """
    start, begin = source.data_ptr(), output.data_ptr()
    is_shared = start < begin + output.nbytes and begin < start + source.nbytes
    return source.clone() if is_shared and (ahead is None or start != begin + ahead * output.itemsize) else source


def symmetric_empty(
    *shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """An uninitialised tensor in registered memory, which all-reduces in one pass with no copy.

    Collective over the set: the same calls in the same order, with the same number of bytes. The memory lives as long
    as a tensor over it; contiguous slices and views of it are registered too.

    Args:
        shape: as for torch.empty.
        dtype: any supported dtype; None is torch.get_default_dtype().

    Raises:
        MismatchError: another rank asked for another number of bytes.

    >>> x = hvd.symmetric_empty(1024, 1024)
    """
    sizes = torch.Size(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)  # type: ignore[arg-type]
    dtype = dtype or torch.get_default_dtype()
    if dtype not in DTYPES:
        raise refusal(torch.empty(0, dtype=dtype, device="cpu"))
    raw = memory.symmetric_empty(sizes.numel() * dtype.itemsize, np.uint8, process_set=process_set)
    return from_bytes(raw, dtype).view(sizes)


def from_bytes(raw: Any, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor over an ndarray of bytes, which it keeps alive."""
    if raw.size == 0:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer(raw, dtype=dtype)
