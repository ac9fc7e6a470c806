"""Tensors of a process group as the core takes them: flat, contiguous, of a dtype it knows, the CPU's or a GPU's.

What moves without arithmetic moves as bytes where the core has no such dtype, so every dtype can be moved. What is
not contiguous goes through a contiguous copy, and back. Shapes are flattened: as in Gloo, what must agree between ranks
is the number of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.collectives.buffers import count_copy
from ringreduce.collectives.ops import ReduceOp
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.torch import cuda
from ringreduce.torch.tensors import DTYPES, Operand, memory_of, refusal, with_memory

BYTE = DTYPES[torch.uint8]
OPS: dict[str, int] = {
    "SUM": ReduceOp.Sum,
    "AVG": ReduceOp.Average,
    "PRODUCT": ReduceOp.Product,
    "MIN": ReduceOp.Min,
    "MAX": ReduceOp.Max,
    "BAND": ReduceOp.BitwiseAnd,
    "BOR": ReduceOp.BitwiseOr,
    "PREMUL_SUM": ReduceOp.Sum,
}
"""torch's reduce operations that the core has. BXOR it has not; reductions.py folds it."""
LINEAR = ("SUM", "AVG", "PREMUL_SUM")


class Reduction:
    """torch's ReduceOp, taken apart.

    Attributes:
        name: "SUM", ...
        op: the core's code; None for BXOR.
        factor: of PREMUL_SUM; else 1.
    """

    __slots__ = ("factor", "name", "op")

    def __init__(self, op: Any) -> None:
        kind, factor = op.__getstate__() if hasattr(op, "__getstate__") and hasattr(op, "op") else (op, None)
        self.name: str = kind.name
        self.op = OPS.get(self.name)
        self.factor = 1.0 if factor is None else float(factor)

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it can be reduced: complex numbers as pairs, where the operation is linear."""
        if not tensor.is_complex():
            return tensor
        if self.name not in LINEAR:
            raise InvalidArgumentError(f"complex tensors can be reduced with {', '.join(LINEAR)}, not {self.name}")
        return torch.view_as_real(tensor)


def checked(tensor: Any) -> torch.Tensor:
    """The tensor without autograd, and of a functional collective's result, for which it waits, the plain one.

    Raises InvalidArgumentError or UnavailableError for what cannot be communicated.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise refusal(tensor)
    if not tensor.is_cpu and not (tensor.is_cuda and cuda.BUILT):
        what = "CPU and CUDA memory" if cuda.BUILT else "CPU memory"
        raise UnavailableError(
            f"the backend ringreduce communicates {what}, and this tensor is in {tensor.device.type} memory: use "
            "tensor.cpu(), or a process group of its own with a backend for that device (dist.new_group(backend=...))"
        )
    return with_memory(tensor).detach()


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its bytes are its values in order, else a copy, which stats() counts."""
    made = tensor
    if tensor.is_conj() or tensor.is_neg():
        made = made.resolve_conj().resolve_neg()
    made = made.contiguous()
    if made is not tensor:
        count_copy(made.nbytes)
    return made


def movable(tensor: torch.Tensor) -> Operand:
    """A contiguous tensor of any dtype that was checked(), for operations that move it unchanged."""
    code = DTYPES.get(tensor.dtype)
    if code is None:
        return memory_of(tensor, (tensor.numel() * tensor.element_size(),), BYTE)
    return memory_of(tensor, (tensor.numel(),), code)


def units(tensor: torch.Tensor) -> int:
    """How many of the core's elements movable() makes of one element of the tensor."""
    return 1 if tensor.dtype in DTYPES else tensor.element_size()


def reducible(tensor: torch.Tensor) -> Operand:
    """The same for operations that compute. Raises InvalidArgumentError for a dtype the core has not."""
    code = DTYPES.get(tensor.dtype)
    if code is None:
        raise refusal(tensor)
    return memory_of(tensor, (tensor.numel(),), code)


def gathered(native: Any, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """What an operation allocated for its result, flat; empty where it brought nothing."""
    found = native.output
    if found is None or (like.is_cpu and not found):
        return like.new_empty(0, dtype=dtype)
    return cuda.flat(found, dtype, like.device) if like.is_cuda else torch.frombuffer(found, dtype=dtype)


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors' elements in one flat tensor: over their own memory where they lie one behind the other.

    Raises InvalidArgumentError where their dtypes differ.
    """
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) != 1:
        raise InvalidArgumentError(f"the tensors of a list have one dtype, not {sorted(map(str, kinds))}")
    stretch = one_stretch(tensors)
    return torch.cat([contiguous(tensor).reshape(-1) for tensor in tensors]) if stretch is None else stretch


def one_stretch(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A flat tensor over the memory of tensors that lie one behind the other (the chunks of one tensor), else None."""
    first = tensors[0]
    storage, at = first.untyped_storage().data_ptr(), first.storage_offset()
    for tensor in tensors:
        if tensor.untyped_storage().data_ptr() != storage or tensor.storage_offset() != at:
            return None
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or tensor.dtype is not first.dtype:
            return None
        at += tensor.numel()
    return first.as_strided((at - first.storage_offset(),), (1,), first.storage_offset())


def deal(flat: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    """Copies consecutive elements of a flat tensor into the targets, in order."""
    start = 0
    for target in targets:
        count = target.numel()
        target.copy_(flat[start : start + count].view(target.shape))
        start += count
