"""Sums of sparse tensors have the bits of a fold in rank order, which are those of dense tensors with these values."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402

WIDTH = 2


def part_of(rank: int, count: int) -> tuple[Any, Any]:
    """Rows of a table of 2 count rows, none twice, and what a rank has there: numbers of many magnitudes."""
    rng = np.random.default_rng([rank, count])
    values = rng.standard_normal((count, WIDTH)) * np.exp(4 * rng.standard_normal((count, WIDTH)))
    values[:, 0] = np.where(values[:, 0] < -2, -0.0, values[:, 0])
    return rng.permutation(2 * count)[:count], values.astype(np.float32)


def folded(ranks: int, count: int) -> Any:
    """0.0 where no rank has a row, else the sum by IEEE 754 of those that have one: of -0.0 alone it is -0.0."""
    total = np.full((2 * count, WIDTH), -0.0, np.float32)
    has = np.zeros(2 * count, bool)
    for rows, values in (part_of(rank, count) for rank in range(ranks)):
        total[rows] += values
        has[rows] = True
    total[~has] = 0.0
    return total


def sparse(rows: Any, values: Any, size: int) -> Any:
    indices, values = torch.from_numpy(rows)[None], torch.from_numpy(values)
    return torch.sparse_coo_tensor(indices, values, (size, WIDTH), check_invariants=False)


def in_torch_distributed(tensor: Any, op: Any) -> Any:
    tensor = tensor.clone()
    dist.all_reduce(tensor, op)
    return tensor


def as_gradient(tensor: Any, **options: Any) -> Any:
    table = torch.nn.Embedding(*tensor.shape, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), **options)
    (table(tensor._indices()[0]) * tensor._values()).sum().backward()
    optimizer.synchronize()
    return table.weight.grad


def sum_each_way(path: str) -> list[str]:
    """What differs from the fold, or from the dense all-reduce."""
    differing = []
    with hvd.init() as world:
        n = world.size
        dist.init_process_group("ringreduce", init_method=f"file://{path}", rank=world.rank, world_size=n)
        ways: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "sum": (hvd.Sum, lambda t: hvd.sparse_allreduce_async(t, None, hvd.Sum)()),
            "average": (hvd.Average, lambda t: hvd.sparse_allreduce_async(t, None, hvd.Average)()),
            "SUM": (hvd.Sum, lambda t: in_torch_distributed(t, dist.ReduceOp.SUM)),
            "AVG": (hvd.Average, lambda t: in_torch_distributed(t, dist.ReduceOp.AVG)),
            "sum of gradients": (hvd.Sum, lambda t: as_gradient(t, op=hvd.Sum)),
            "average of gradients": (hvd.Average, as_gradient),
        }
        for count in (100, 1000, 40_000):
            mine = sparse(*part_of(world.rank, count), 2 * count)
            total = folded(n, count)
            for name, (op, way) in ways.items():
                result = way(mine)
                assert result.is_coalesced()
                expected = total * np.float32(1 / n) if op == hvd.Average else total
                got = np.zeros_like(total)
                got[result.indices()[0].numpy()] = result.values().numpy()  # to_dense() makes 0.0 of -0.0
                if got.tobytes() != expected.tobytes():
                    differing.append(f"{name} of {count}: {(got != expected).sum()} are not the fold")
                dense = hvd.allreduce(mine.to_dense(), op=op).numpy()
                if not np.array_equal(got, dense):
                    differing.append(f"{name} of {count}: {(got != dense).sum()} are not as dense ones")
        dist.destroy_process_group()
    return differing


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_sparse_sums_are_folded_in_rank_order(run_ranks: Callable[..., Any], tmp_path: Path, ranks: int) -> None:
    assert run_ranks(sum_each_way, ranks, args=(os.fspath(tmp_path / "store"),)) == [[]] * ranks


def multiply_integers(path: str) -> list[str]:
    """Which products are not as in the all-reduce of dense tensors."""
    differing = []
    with hvd.init() as world:
        dist.init_process_group("ringreduce", init_method=f"file://{path}", rank=world.rank, world_size=world.size)
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
            span = torch.iinfo(dtype)
            numbers = [3, -3, 7 + world.rank, span.max, span.min, span.max - world.rank, 0]
            values = torch.tensor([number if number >= span.min else 1 for number in numbers], dtype=dtype)
            for factor in (0.5, 1.0, 1.5, -0.25, 3.7, 1e30):
                dense = torch.cat([values, torch.zeros(2, dtype=dtype)])
                tensor = dense.to_sparse()
                op = dist._make_nccl_premul_sum(factor)
                dist.all_reduce(dense, op)
                dist.all_reduce(tensor, op)
                assert tensor.dtype is dtype
                if not torch.equal(tensor.to_dense(), dense):
                    differing.append(f"{factor} of {dtype}: {tensor.to_dense().tolist()}, not {dense.tolist()}")
        dist.destroy_process_group()
    return differing


def test_integers_are_multiplied_as_in_dense_tensors(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    assert run_ranks(multiply_integers, 3, args=(os.fspath(tmp_path / "store"),)) == [[]] * 3
