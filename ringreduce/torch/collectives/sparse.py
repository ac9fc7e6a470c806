"""All-reduce of sparse tensors: what the ranks have is gathered, and the tensor that it makes is the sum."""

from __future__ import annotations

import torch

from ringreduce.collectives.handles import Handle, Works
from ringreduce.collectives.ops import Average, Sum
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of
from ringreduce.torch.sparse_sum import sparse_sum
from ringreduce.torch.submission import gathers, received
from ringreduce.torch.tracing import ASYNC, untraced


class SparseHandle(Handle[torch.Tensor]):
    """A handle that may also be called, as Horovod's: waits and returns the result."""

    __slots__ = ()

    def __call__(self) -> torch.Tensor:
        return self.wait()


@untraced(ASYNC)
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> SparseHandle:
    """Sums or averages a sparse COO tensor over all ranks, by two all-gathers (of indices and of values).

    Each element is summed in rank order; sparse_sum() says what is done with an index that a tensor has twice.

    Args:
        tensor: torch.sparse_coo; size, number of sparse dimensions and dtype are the same on all ranks, the number of
            values is not.
        name: the operations are `name.indices` and `name.values`; None uses the order of calls.
        op: Average or Sum.

    Returns:
        A handle: handle(), handle.wait() and synchronize(handle) give a coalesced sparse tensor, the same on all ranks.

    Raises:
        InvalidArgumentError: the tensor is not sparse COO, or op is another operation, or Average for bool.
        MismatchError: on waiting, when the sizes differ.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise InvalidArgumentError("sparse_allreduce_async takes a tensor of layout torch.sparse_coo")
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"sparse tensors are reduced with op Average or Sum, not {op!r}")
    if op == Average and tensor.dtype is torch.bool:  # the core, which refuses it of dense tensors, only gathers here
        raise InvalidArgumentError("average has no meaning for bool; use op=Sum, which is logical or")
    local = tensor.detach().coalesce()
    size, dims = local.size(), local.sparse_dim()
    # The first row says how large the tensor is: all-gather compares the dense dimensions, and none of the sparse ones.
    indices = torch.cat([local.indices().new_tensor([size[:dims]]).view(1, dims), local.indices().t()])
    values = local.values().contiguous()
    names = [None if name is None else f"{name}.{what}" for what in ("indices", "values")]
    group = group_of(process_set)
    ranks = list(process_set.ranks)  # shutdown() takes them away, and a result may be asked for after it
    works = gathers(group, [indices, values], names)

    def finish(done: Works) -> torch.Tensor:
        gathered, counts = received(done.each[0], indices), done.each[0].counts
        parts = torch.split(gathered, list(counts))
        for rank, part in zip(ranks, parts, strict=True):
            if part[0].tolist() != list(size[:dims]):
                raise MismatchError(
                    f"Mismatched sparse ALLREDUCE tensor shapes: this rank sent sparse dimensions {list(size[:dims])}, "
                    f"but rank {rank} sent {part[0].tolist()}."
                )
        found, each = torch.cat([part[1:] for part in parts]), done.each[1]
        return sparse_sum(found, received(each, values), each.counts, size, divisor=len(counts) if op == Average else 1)

    return SparseHandle(works, finish)
