"""How tensors are handed to the core and results taken back, the same with autograd and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.errors import HorovodInternalError, InvalidArgumentError
from ringreduce.handles import Works
from ringreduce.ops import Average, Sum
from ringreduce.process_sets import ProcessSet
from ringreduce.torch.tensors import operand


def allgathers(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet) -> Works:
    """Submits an all-gather of each tensor; all operands are checked before the first goes."""
    operands = [operand(tensor) for tensor in tensors]
    submit = process_set.group.allgather_async
    return Works([submit(item, numbered(name, i, len(tensors))) for i, item in enumerate(operands)])


def reducescatters(
    tensors: Sequence[torch.Tensor], name: str | None, op: int, pre: float, post: float, process_set: ProcessSet
) -> tuple[list[torch.Tensor], Works]:
    """Submits a reduce-scatter of each tensor; all operands are checked before the first goes.

    Raises:
        InvalidArgumentError: a tensor has no dimension.
        HorovodInternalError: op is neither Average nor Sum.
    """
    group = process_set.group
    submit = group.reducescatter_async
    if op not in (Average, Sum):
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    pairs, outputs = [], []
    for tensor in tensors:
        if tensor.dim() == 0:
            raise InvalidArgumentError("Reducescatter does not support scalar inputs")
        outputs.append(tensor.new_empty(own_rows(tensor.shape[0], group.rank, group.size), *tensor.shape[1:]))
        pairs.append((operand(tensor), operand(outputs[-1])))
    works = [submit(src, dst, op, pre, post, numbered(name, i, len(pairs))) for i, (src, dst) in enumerate(pairs)]
    return outputs, Works(works)


def own_rows(rows: int, rank: int, size: int) -> int:
    """How many of the rows reduce-scatter leaves with a rank: the first rows % size ranks have one more."""
    return rows // size + (rank < rows % size)


def numbered(name: str | None, index: int, count: int) -> str | None:
    """The name of one tensor of several; a single one has the name itself."""
    return name if name is None or count == 1 else f"{name}_{index + 1}of{count}"


def received(work: Any, like_rows_of: torch.Tensor) -> torch.Tensor:
    """The bytes that an operation allocated, as rows of the tensor's row shape and dtype."""
    shape = (sum(work.counts), *like_rows_of.shape[1:])
    if not work.output:
        return like_rows_of.new_empty(shape)
    return torch.frombuffer(work.output, dtype=like_rows_of.dtype).view(shape)
