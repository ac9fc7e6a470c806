"""The sum of sparse (COO) tensors: what is gathered of each rank, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ringreduce.errors import InvalidArgumentError
from ringreduce.torch import cuda
from ringreduce.torch.distributed.layout import LINEAR, Reduction, gathered

if TYPE_CHECKING:
    from ringreduce._core import Work


class Coordinates:
    """A sparse tensor in parts that can be gathered, and the place of the result.

    Attributes:
        parts: the indices, nonzero by nonzero, and the values; ranks may have different numbers of nonzeros.

    Raises:
        InvalidArgumentError: another operation than SUM, AVG and PREMUL_SUM.
    """

    def __init__(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        if reduction.name not in LINEAR:
            raise InvalidArgumentError(
                f"sparse tensors can be reduced with {', '.join(LINEAR)}, not {reduction.name}; use tensor.to_dense()"
            )
        if not tensor.is_cpu and not (tensor.is_cuda and cuda.BUILT):
            raise InvalidArgumentError(f"a sparse tensor in {tensor.device.type} memory; use tensor.cpu()")
        self._tensor = tensor  # not detached: a copy_ gives a sparse tensor new indices, which only it itself sees
        self._reduction = reduction
        mine = tensor.detach().coalesce()
        self._dims, self._like = mine.sparse_dim(), mine.values()
        self.parts = [mine.indices().t().contiguous(), mine.values().contiguous()]

    def sum(self, natives: Sequence[Work], size: int) -> None:
        """Writes the sum over all ranks to the tensor; natives are the finished gathers of the parts."""
        indices, values = (gathered(native, part.dtype, part) for native, part in zip(natives, self.parts, strict=True))
        values = values.view(-1, *self._like.shape[1:]) * self._reduction.factor
        if self._reduction.name == "AVG":
            values = values / size
        total = torch.sparse_coo_tensor(
            indices.view(-1, self._dims).t(), values.to(self._like.dtype), self._tensor.shape, check_invariants=True
        )
        self._tensor.copy_(total.coalesce())
