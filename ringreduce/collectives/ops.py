"""Reduce operations and all-reduce. reductions.py and data_movement.py have the other collectives.

Every function takes a NumPy array or what buffers.readable() understands, gives back ndarrays (a NumPy scalar for a
scalar; for an array on a GPU one of the same library, see docs/user/cuda.md), and runs on `process_set`, by default all
ranks. The *_async forms return a Handle. All ranks of the set make the same call; operations with a `name` may be
submitted in any order, the others in one order on all ranks.

Raised by all of them: NotInitializedError before init(); InvalidArgumentError for a bad argument, a name that is
already in flight, or a rank outside the set; MismatchError when the ranks' calls do not fit together (no data moves
and the set stays usable); PeerLostError, TimeoutError and ShutdownError when a rank is gone (the job is over).

An exception from a signal's handler, such as KeyboardInterrupt, may come out of a call that waits. Its arrays are the
caller's again then: what all ranks have called is finished first, and the rest is withdrawn, so the other ranks get
MismatchError (between hosts, and on a GPU, from all later calls). Operations of a few bytes end as usual elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from numpy import empty_like, ndarray

from ringreduce.collectives import buffers
from ringreduce.collectives.buffers import PLAIN, native, readable, result, writable
from ringreduce.collectives.handles import Handle
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of, no_process_set


class ReduceOp(IntEnum):
    """Reduce operations; the first six have Horovod's numbers."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5
    LogicalAnd = 6
    LogicalOr = 7
    BitwiseAnd = 8
    BitwiseOr = 9


Average = ReduceOp.Average
"""The sum divided by the number of ranks; an average of integers truncates toward zero."""
Sum = ReduceOp.Sum
"""The sum over the ranks."""
Adasum = ReduceOp.Adasum
"""The adaptive sum of float tensors (Maleki et al. 2021), which depends on the angle between the ranks' tensors. For
the tensors of torch and TensorFlow."""
Min = ReduceOp.Min
"""The smallest value; NaN where a rank has NaN."""
Max = ReduceOp.Max
"""The largest value; NaN where a rank has NaN."""
Product = ReduceOp.Product
"""The product over the ranks."""
LogicalAnd = ReduceOp.LogicalAnd
"""1 where all ranks have a nonzero element, else 0; integers and bool."""
LogicalOr = ReduceOp.LogicalOr
"""1 where a rank has a nonzero element, else 0; integers and bool."""
BitwiseAnd = ReduceOp.BitwiseAnd
"""The bits that are set on all ranks; integers and bool."""
BitwiseOr = ReduceOp.BitwiseOr
"""The bits that are set on any rank; integers and bool."""


def check_op(op: object) -> None:
    """Raises InvalidArgumentError for what is no reduce operation, such as its name."""
    if isinstance(op, int) or hasattr(op, "__index__"):
        return  # the core knows the numbers
    near = [one.name for one in ReduceOp if isinstance(op, str) and one.name.lower() == op.lower()]
    if near:
        raise InvalidArgumentError(f"op={op!r} is a string: write op=hvd.{near[0]}, or ringreduce.{near[0]}")
    names = ", ".join(one.name for one in ReduceOp)
    raise InvalidArgumentError(f"op={op!r} is no reduce operation; these are {names}, as in op=hvd.Sum")


def allreduce(
    tensor: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Any:
    """Reduces a tensor over all ranks; every rank gets the same bits.

    Args:
        tensor: any shape and supported dtype, the same on all ranks.
        name: identifies the tensor; None uses the order of calls.
        op: Average (default; truncates integers toward zero), Sum, Min, Max, Product, LogicalAnd, LogicalOr,
            BitwiseAnd, BitwiseOr. ReduceOp says of each which dtypes it is for; an Average of bool is not one.
        prescale_factor, postscale_factor: multiply each input, and the result.
        process_set: the ranks that take part.
        wire: how float32 elements travel between hosts, for op Average and Sum: "fp16", "bf16" or "int8" (the first
            two for Min and Max as well); the same on all ranks. None (default): as they are, as they always do within
            a host, and up to the eager limit (8 KiB or less) between hosts. Sums are float32.
            docs/reference/algorithms.md has formats and error bounds.

    Returns:
        A new ndarray of the tensor's shape and dtype; a NumPy scalar when the tensor is a scalar.

    >>> ringreduce.allreduce(np.array([1.0, 2.0]), op=ringreduce.Sum)  # on two ranks
    array([2., 4.])
    """
    if type(op) is not ReduceOp and type(op) is not int:  # a call of check_op() takes 5 % of a call of 8 bytes
        check_op(op)
    try:
        group = process_set.group
    except AttributeError:
        raise no_process_set(process_set) from None
    if type(tensor) is ndarray and tensor.dtype in PLAIN and tensor.flags.carray:  # as readable() would have it
        fresh = empty_like(tensor)
        group.allreduce(tensor, fresh, op, prescale_factor, postscale_factor, name, wire)
        return fresh
    source = readable(tensor)
    output = buffers.empty_like(source)
    group.allreduce(native(source), native(output), op, prescale_factor, postscale_factor, name, wire)
    return result(tensor, output)


def allreduce_(
    tensor: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Any:
    """allreduce() in place: overwrites the tensor and returns it. It must be writable and contiguous."""
    if type(op) is not ReduceOp and type(op) is not int:
        check_op(op)
    try:
        group = process_set.group
    except AttributeError:
        raise no_process_set(process_set) from None
    if type(tensor) is ndarray and tensor.dtype in PLAIN and tensor.flags.carray:  # as writable() would have it
        group.allreduce(tensor, tensor, op, prescale_factor, postscale_factor, name, wire)
        return tensor
    target = native(writable(tensor))
    group.allreduce(target, target, op, prescale_factor, postscale_factor, name, wire)
    return tensor


def allreduce_async(
    tensor: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Handle[Any]:
    """allreduce() without waiting. The tensor must not change until the handle is done."""
    check_op(op)
    source = readable(tensor)
    output = buffers.empty_like(source)
    work = group_of(process_set).allreduce_async(
        [native(source)], [native(output)], op, prescale_factor, postscale_factor, name, wire
    )
    return Handle(work, lambda _: result(tensor, output), keep=source)


def allreduce_async_(
    tensor: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Handle[Any]:
    """allreduce_() without waiting. The tensor must be left alone until the handle is done."""
    check_op(op)
    memory = writable(tensor)
    target = native(memory)
    work = group_of(process_set).allreduce_async([target], [target], op, prescale_factor, postscale_factor, name, wire)
    return Handle(work, lambda _: tensor)


def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> list[Any]:
    """allreduce() of several tensors as one operation, which succeeds or fails as a whole. Returns a list."""
    return grouped_allreduce_async(
        tensors,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        wire=wire,
    ).wait_or_withdraw()


def grouped_allreduce_(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> list[Any]:
    """grouped_allreduce() in place: overwrites the tensors and returns them as a list."""
    return grouped_allreduce_async_(
        tensors,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        wire=wire,
    ).wait_or_withdraw()


def grouped_allreduce_async(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Handle[list[Any]]:
    """grouped_allreduce() without waiting. The tensors must not change until the handle is done."""
    check_op(op)
    tensors = list(tensors)
    if _are_plain(tensors):
        results = list(map(empty_like, tensors))
        work = group_of(process_set).allreduce_async(
            tensors, results, op, prescale_factor, postscale_factor, name, wire
        )
        return Handle(work, lambda _: results)
    sources = [readable(tensor) for tensor in tensors]
    outputs = [buffers.empty_like(source) for source in sources]
    work = group_of(process_set).allreduce_async(
        [native(source) for source in sources],
        [native(output) for output in outputs],
        op,
        prescale_factor,
        postscale_factor,
        name,
        wire,
    )
    return Handle(
        work,
        lambda _: [result(tensor, output) for tensor, output in zip(tensors, outputs, strict=True)],
    )


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Handle[list[Any]]:
    """grouped_allreduce_() without waiting. The tensors must be left alone until the handle is done."""
    check_op(op)
    tensors = list(tensors)
    memories = [] if _are_plain(tensors) else [writable(tensor) for tensor in tensors]
    targets = [native(memory) for memory in memories] or tensors
    work = group_of(process_set).allreduce_async(targets, targets, op, prescale_factor, postscale_factor, name, wire)
    return Handle(work, lambda _: tensors)


def _are_plain(tensors: Sequence[Any]) -> bool:
    """Whether all are as readable() and writable() would have them, and as native() would hand them to the core.

    Without calls for each: the core takes 0.3 us for a small tensor, and those would take 0.6 us.
    """
    return all(type(tensor) is ndarray and tensor.dtype in PLAIN and tensor.flags.carray for tensor in tensors)
