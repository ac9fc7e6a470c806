"""The sum of sparse (COO) tensors: what is gathered of each rank, and what becomes of it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.torch import cuda
from ringreduce.torch.distributed.layout import LINEAR, Reduction, gathered
from ringreduce.torch.sparse_sum import sparse_sum

if TYPE_CHECKING:
    from ringreduce._core import Work


class Coordinates:
    """A sparse tensor in parts that can be gathered, and the place of the result.

    Attributes:
        parts: what must be the same on all ranks, and then the indices, nonzero by nonzero; and the values. Ranks may
            have different numbers of nonzeros.

    Raises:
        InvalidArgumentError: another operation than SUM, AVG and PREMUL_SUM; of bool, one that divides or multiplies.
    """

    def __init__(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        if reduction.name not in LINEAR:
            raise InvalidArgumentError(
                f"sparse tensors can be reduced with {', '.join(LINEAR)}, not {reduction.name}; use tensor.to_dense()"
            )
        # The core, which refuses these of dense tensors, only gathers here.
        if tensor.dtype is torch.bool and (reduction.name == "AVG" or reduction.factor != 1.0):
            what = "average" if reduction.name == "AVG" else f"the factor {reduction.factor:g} of PREMUL_SUM"
            raise InvalidArgumentError(f"{what} has no meaning for bool; use SUM, which is logical or")
        if not tensor.is_cpu and not (tensor.is_cuda and cuda.BUILT):
            raise InvalidArgumentError(f"a sparse tensor in {tensor.device.type} memory; use tensor.cpu()")
        self._tensor = tensor  # not detached: a copy_ gives a sparse tensor new indices, which only it itself sees
        self._reduction = reduction
        mine = tensor.detach().coalesce()
        self._dims, self._like = mine.sparse_dim(), mine.values()
        (factor,) = struct.unpack("q", struct.pack("d", reduction.factor))
        self._same = [LINEAR.index(reduction.name), factor, self._dims, mine.dim(), *mine.shape]
        same = mine.indices().new_tensor(self._same)
        self.parts = [torch.cat([same, mine.indices().t().flatten()]), mine.values().contiguous()]

    def sum(self, natives: Sequence[Work], size: int) -> None:
        """Writes the sum over all ranks, in rank order, to the tensor; natives are the finished gathers of the parts.

        Raises MismatchError where the ranks' operations or shapes differ.
        """
        rows, values = (gathered(native, part.dtype, part) for native, part in zip(natives, self.parts, strict=True))
        parts = torch.split(rows, list(natives[0].counts))
        for rank, part in enumerate(parts):
            theirs = part[: 4 + int(part[3])].tolist()
            if theirs != self._same:
                raise MismatchError(
                    f"all_reduce of sparse tensors: this rank called {_call(self._same)}, and rank {rank} of the group "
                    f"{_call(theirs)}"
                )
        indices = torch.cat([part[len(self._same) :] for part in parts]).view(-1, self._dims)
        counts = [(len(part) - len(self._same)) // self._dims for part in parts]
        values = values.view(-1, *self._like.shape[1:])
        shape, divisor = self._tensor.shape, size if self._reduction.name == "AVG" else 1
        torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=True)  # raises for an index outside
        self._tensor.copy_(sparse_sum(indices, values, counts, shape, self._reduction.factor, divisor=divisor))


def _call(told: Sequence[int]) -> str:
    """What a rank's call was, of what it has told the others."""
    op, bits, dims, _, *shape = told
    (factor,) = struct.unpack("d", struct.pack("q", bits))
    return f"{LINEAR[op]} with factor {factor:g} of the shape {shape} with {dims} sparse dimensions"
