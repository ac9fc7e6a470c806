"""The sum of sparse (COO) tensors of all ranks, of what was gathered: the core sums dense tensors only."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringreduce.torch.alike import computed_alike


def sparse_sum(
    indices: torch.Tensor,
    values: torch.Tensor,
    counts: Sequence[int],
    shape: Sequence[int],
    prescale: float = 1.0,
    postscale: float = 1.0,
    divisor: int = 1,
) -> torch.Tensor:
    """The coalesced sum, with the bits that all ranks get and that the core's kernels give to dense tensors.

    Each element is folded in rank order, whatever else there is, in a type that holds the sum. What one rank has at an
    index several times is not this function's: coalesce() adds it before, in an order that torch does not promise, and
    all ranks get the result of that.

    Args:
        indices: a row of the sparse dimensions' numbers for each nonzero, rank after rank; of one rank no row twice.
        values: a row for each nonzero, in the dtype that the result has.
        counts: how many nonzeros each rank has.
        shape: of the result.
        prescale: multiplies each value, in the type of the sum; integers in double precision, and each product is
            truncated toward zero, and clamped, to the dtype, as is the sum but of int64, which wraps around.
        postscale, divisor: multiply and divide the sum. postscale is 1 for integers, which are divided exactly and
            truncated toward zero.
    """
    dtype, is_complex = values.dtype, values.is_complex()
    with computed_alike(values.device):
        places, where = torch.unique(_places(indices, shape), return_inverse=True)
        wide = _widened(torch.view_as_real(values) if is_complex else values, prescale)
        # Of floating-point numbers -0.0 is what changes no other, 0.0 included: the sum of nothing but -0.0 is that.
        nothing = -0.0 if wide.is_floating_point() else 0
        total = wide.new_full((len(places), *wide.shape[1:]), nothing)
        # A rank at a time: where no index is twice, the order in which index_add_() adds makes no difference. With 4
        # ranks and 100 000 numbers of each this takes 19 ms, with 10 000 rows of 64 of each 4 ms; coalesce(), whose
        # sort leaves equal indices in another order, takes 17 ms and 2 ms with 2 threads.
        for part, to in zip(torch.split(wide, list(counts)), torch.split(where, list(counts)), strict=True):
            total.index_add_(0, to, part)
        if wide.is_floating_point():
            if postscale / divisor != 1.0:
                total.mul_(postscale / divisor)
        elif divisor != 1:
            total.div_(divisor, rounding_mode="trunc")
        elif prescale != 1.0:
            total.clamp_(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        total = (torch.view_as_complex(total) if is_complex else total).to(dtype)
    coordinates = _coordinates(places, shape, indices.shape[1])
    return torch.sparse_coo_tensor(
        coordinates, total, tuple(shape), device=values.device, is_coalesced=True, check_invariants=False
    )


def _places(indices: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The number of each row of indices in the order of coalesced tensors."""
    places = indices.new_zeros(len(indices))
    for column, size in zip(indices.unbind(1), shape[: indices.shape[1]], strict=True):
        places = places * size + column
    return places


def _coordinates(places: torch.Tensor, shape: Sequence[int], dims: int) -> torch.Tensor:
    """A column of indices for each of the places."""
    rows = []
    for size in reversed(shape[1:dims]):
        rows.append(places % size)
        places = torch.div(places, size, rounding_mode="floor")
    rows.append(places)
    return torch.stack(rows[::-1])[:dims]


def _widened(values: torch.Tensor, factor: float) -> torch.Tensor:
    """The values, times the factor, in a type that their sum over the ranks fits in, as the core's sums do."""
    if values.is_floating_point():
        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        return wide if factor == 1.0 else wide * factor
    if factor == 1.0:
        return values.to(torch.int64)
    span = torch.iinfo(values.dtype)
    # The next float64 below the largest int64, which is none.
    highest = float(span.max) if span.bits < 64 else float(2**63 - 1024)
    products = values.double() * factor
    return torch.where(products >= span.min, products, span.min).clamp(max=highest).long()  # a NaN is the least number
