"""Collectives that move data without reducing it. ops.py says what all collectives have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringreduce import gpu
from ringreduce.collectives.buffers import copy, empty, empty_like, native, readable, result, writable
from ringreduce.collectives.handles import Handle, Submitted, Works, numbered
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringreduce._core import Work
    from ringreduce.collectives.buffers import Array, Memory


def allgather(tensor: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Concatenates every rank's tensor along the first dimension, in rank order, on every rank.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others and the dtype may not.

    Returns:
        A new ndarray.
    """
    return allgather_async(tensor, name=name, process_set=process_set).wait_or_withdraw()


def allgather_async(
    tensor: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array]:
    """allgather() without waiting. The tensor must not change until the handle is done."""
    group = group_of(process_set)
    submit = group.allgather_async
    source = readable(tensor)
    room = _room(source, group.size)
    work = submit(native(source), name, None if room is None else native(room))
    return Handle(work, lambda done: _received(done, source, room))


def grouped_allgather(
    tensors: Sequence[Any], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """allgather() of several tensors, all in flight together. Returns a list of new ndarrays."""
    return grouped_allgather_async(tensors, name=name, process_set=process_set).wait_or_withdraw()


def grouped_allgather_async(
    tensors: Sequence[Any], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[Array]]:
    """grouped_allgather() without waiting. The tensors must not change until the handle is done."""
    group = group_of(process_set)
    sources = [readable(tensor) for tensor in tensors]  # all are checked before the first goes
    rooms = [_room(source, group.size) for source in sources]
    calls = [
        (native(source), numbered(name, index, len(sources)), None if room is None else native(room))
        for index, (source, room) in enumerate(zip(sources, rooms, strict=True))
    ]
    with Submitted(group.allgather_async, calls) as works:
        return Handle(
            Works(works),
            lambda done: [_received(*each) for each in zip(done.each, sources, rooms, strict=True)],
        )


def gather(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array | None:
    """allgather() for one rank: a new ndarray on the root (a global rank), None on the others."""
    return gather_async(tensor, root_rank, name=name, process_set=process_set).wait_or_withdraw()


def gather_async(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array | None]:
    """gather() without waiting. The tensor must not change until the handle is done."""
    group = group_of(process_set)
    submit = group.gather_async
    root = process_set.position(root_rank, "gather")
    source = readable(tensor)
    work = submit(native(source), root, name)
    is_root = group.rank == root
    return Handle(work, lambda done: _received(done, source) if is_root else None)


def scatter(
    tensor: Any,
    output: Any,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Deals the root's tensor out to all ranks, in equal parts along the first dimension.

    Args:
        tensor: on the root: size times as many elements as output, the part for group rank 0 first. Elsewhere: None.
        output: writable and contiguous, the same shape and dtype on all ranks; receives this rank's part.
        root_rank: global rank that has the tensor.

    Returns:
        output.
    """
    return scatter_async(tensor, output, root_rank, name=name, process_set=process_set).wait_or_withdraw()


def scatter_async(
    tensor: Any,
    output: Any,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """scatter() without waiting. Tensor and output must be left alone until the handle is done."""
    group = group_of(process_set)
    submit = group.scatter_async
    root = process_set.position(root_rank, "scatter")
    target = writable(output)
    source = readable(tensor) if group.rank == root else None
    if source is not None and (source.dtype != target.dtype or source.size != target.size * group.size):
        raise InvalidArgumentError(
            f"scatter of {source.dtype.name} {list(source.shape)} into {group.size} times {target.dtype.name} "
            f"{list(target.shape)}: the root's tensor has {group.size} times the elements of output, in its dtype"
        )
    if source is not None and _overlap(source, target, root):
        source = copy(source)  # the root's part would be written before the others' parts were sent
    work = submit(None if source is None else native(source), native(target), root, name)
    return Handle(work, lambda _: output, keep=source)


def _overlap(source: Memory, target: Memory, root: int) -> bool:
    """Whether what scatter deals out and the root's output share memory; on a GPU not where that is the root's part."""
    if isinstance(source, gpu.Operand) and isinstance(target, gpu.Operand):
        begin, other = source.address, target.address
        is_shared = begin < other + target.nbytes and other < begin + source.nbytes
        return is_shared and other != begin + root * target.nbytes
    return isinstance(source, np.ndarray) and isinstance(target, np.ndarray) and np.may_share_memory(source, target)


def broadcast(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's tensor, on every rank.

    Args:
        tensor: the same shape and dtype on all ranks; the content matters on the root only.
        root_rank: global rank whose tensor it is.

    Returns:
        A new ndarray of the tensor's shape and dtype; a NumPy scalar when the tensor is a scalar.
    """
    return broadcast_async(tensor, root_rank, name=name, process_set=process_set).wait_or_withdraw()


def broadcast_async(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Any]:
    """broadcast() without waiting. The tensor may change at once: the operation works on its own copy."""
    group = group_of(process_set)
    submit = group.broadcast_async
    root = process_set.position(root_rank, "broadcast")
    source = readable(tensor)
    output = copy(source) if group.rank == root else empty_like(source)
    return Handle(submit(native(output), root, name), lambda _: result(tensor, output))


def broadcast_(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """broadcast() in place: overwrites the tensor with the root's and returns it."""
    return broadcast_async_(tensor, root_rank, name=name, process_set=process_set).wait_or_withdraw()


def broadcast_async_(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Any]:
    """broadcast_() without waiting. The tensor must be left alone until the handle is done."""
    submit = group_of(process_set).broadcast_async
    root = process_set.position(root_rank, "broadcast")
    target = writable(tensor)
    return Handle(submit(native(target), root, name), lambda _: tensor)


def alltoall(
    tensor: Any, splits: Any = None, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends rows of the tensor to every rank, and concatenates the rows that come from them, in rank order.

    Args:
        tensor: at least one dimension; all but the first, and the dtype, are the same on all ranks.
        splits: how many rows go to each rank, in rank order: 1-D integers, one per rank. None: equal parts.

    Returns:
        The received rows as a new ndarray; with splits, (rows, received_splits): rows received from each rank, int32
        (int64 where a count needs it).
    """
    output, received = alltoall_async(tensor, splits, name=name, process_set=process_set).wait_or_withdraw()
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Any, splits: Any = None, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[tuple[Array, Array]]:
    """alltoall() without waiting; the result is (rows, received_splits) in either case, as in Horovod."""
    source = readable(tensor)
    room = _room(source, 1)  # enough where all ranks send each other the same
    work = group_of(process_set).alltoall_async(
        native(source), rows_for_each(splits), name, None if room is None else native(room)
    )
    return Handle(work, lambda done: (_received(done, source, room), _counts(done)))


def send(tensor: Any, dest: int, *, tag: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Sends a tensor to another rank (a global rank), which calls recv() with the same tag, shape and dtype."""
    send_async(tensor, dest, tag=tag, process_set=process_set).wait_or_withdraw()


def send_async(tensor: Any, dest: int, *, tag: int = 0, process_set: ProcessSet = global_process_set) -> Handle[None]:
    """send() without waiting. The tensor must not change until the handle is done."""
    submit = group_of(process_set).send_async
    source = readable(tensor)
    work = submit(native(source), process_set.position(dest, "send"), tag)
    return Handle(work, lambda _: None, keep=source)


def recv(tensor: Any, source: int, *, tag: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Receives into a tensor, in place, what rank `source` (a global rank) sends with this tag, and returns it."""
    return recv_async(tensor, source, tag=tag, process_set=process_set).wait_or_withdraw()


def recv_async(tensor: Any, source: int, *, tag: int = 0, process_set: ProcessSet = global_process_set) -> Handle[Any]:
    """recv() without waiting. The tensor must be left alone until the handle is done."""
    submit = group_of(process_set).recv_async
    target = writable(tensor)
    work = submit(native(target), process_set.position(source, "recv"), tag)
    return Handle(work, lambda _: tensor)


def _room(source: Memory, parts: int) -> Memory | None:
    """Where an all-gather of equal parts puts its result on a GPU, so that the core need not allocate there."""
    if not isinstance(source, gpu.Operand) or source.ndim == 0:
        return None
    return empty((source.shape[0] * parts, *source.shape[1:]), source)


def _received(work: Work, like_rows_of: Memory, room: Memory | None = None) -> Any:
    """The bytes that an operation allocated, as rows of the tensor's row shape and dtype."""
    shape = (sum(work.counts), *like_rows_of.shape[1:])
    if isinstance(like_rows_of, gpu.Operand):
        found = work.output
        if found is not None:
            return like_rows_of.received(found, shape)
        taken = room if room is not None and room.shape == shape else empty(shape, like_rows_of)
        return result(None, taken)
    output = work.output
    if not output:
        return np.empty(shape, like_rows_of.dtype)
    return np.ndarray(shape, like_rows_of.dtype, buffer=output)


def _counts(work: Work) -> Array:
    return narrow(work.counts)


def narrow(counts: Sequence[int]) -> Array:
    """Numbers of rows as int32, as in Horovod, or as int64 where one of them needs it."""
    return np.array(counts, np.int32 if max(counts, default=0) <= np.iinfo(np.int32).max else np.int64)


def rows_for_each(splits: Any) -> list[int] | None:
    """Checked rows for each rank. What depends on the group and the tensor is checked by the core."""
    if splits is None:
        return None
    counts = np.asarray(splits)
    if counts.ndim != 1:
        raise InvalidArgumentError("alltoall expects a 1D splits tensor")
    if counts.dtype.kind not in "iu" and counts.size:
        raise InvalidArgumentError("alltoall expects splits to contain 32-bit integer elements.")
    if counts.size == 0:
        raise InvalidArgumentError("Number of entries in splits does not equal number of workers.")
    if counts.min() < 0:
        raise InvalidArgumentError(f"alltoall expects splits of at least 0 rows, got {counts.tolist()}")
    return [int(count) for count in counts]
