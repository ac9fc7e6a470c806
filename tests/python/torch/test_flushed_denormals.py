"""What ranks compute in Python from the same bits has the same bits where a rank's threads make denormals zero."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402
from ringreduce.torch.alike import computed_alike, flushes_denormals  # noqa: E402

COUNT = 100_000  # torch takes several threads for so many
SMALLEST = 2.0**-126  # of the float32 that are not denormal


def tiny(dtype: Any = torch.float32, count: int = COUNT) -> Any:
    """Numbers of which many are denormal, or are so when they are halved; other ones on each rank."""
    numbers = np.random.default_rng(hvd.rank()).standard_normal(count)
    return torch.from_numpy(numbers * (3e-39 if dtype is torch.float32 else 1e-308)).to(dtype)


def sparse(values: Any) -> Any:
    places = torch.arange(len(values))[None]
    return torch.sparse_coo_tensor(places, values, (len(values), *values.shape[1:]), check_invariants=False)


def sum_sparse(op: Any, dtype: Any) -> Any:
    return hvd.sparse_allreduce_async(sparse(tiny(dtype)), None, op)().values()


def sum_sparse_in_torch_distributed(op: Any) -> Any:
    tensor = sparse(tiny())
    dist.all_reduce(tensor, op)
    return tensor.coalesce().values()


def step(parameter: Any, grad: Any, plain: Callable[..., Any] = torch.optim.SGD, **options: Any) -> Any:
    """The optimizer, whose only parameter has its reduced gradient."""
    optimizer = hvd.DistributedOptimizer(plain([parameter], lr=1.0), **options)
    parameter.grad = grad
    optimizer.synchronize()
    return optimizer


def sum_sparse_gradients() -> Any:
    table = torch.nn.Embedding(1000, 32, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    values = tiny(count=32_000).view(1000, 32)
    (table(torch.arange(1000)) * values).sum().backward()
    optimizer.synchronize()
    return table.weight.grad.coalesce().values()


def adasum(dtype: Any) -> Any:
    return hvd.allreduce(tiny(dtype), op=hvd.Adasum)


def step_by_adasum() -> Any:
    parameter = torch.nn.Parameter(torch.full((COUNT,), 1.5 * SMALLEST))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Adasum)
    parameter.grad = torch.full((COUNT,), SMALLEST * (1 + hvd.rank() / 8))
    optimizer.step()
    return parameter.detach()


def compress(dtype: Any, compression: Any) -> Any:
    parameter = torch.nn.Parameter(torch.zeros(400, 250, dtype=dtype))
    step(parameter, tiny(torch.float32).to(dtype).view(400, 250), compression=compression)
    return parameter.grad


def normalize(dtype: Any, scale: float) -> Any:
    """The statistics of all ranks, of deviations whose squares are denormal, or which are so themselves."""
    layer = hvd.SyncBatchNorm(3, momentum=0.9).to(dtype)
    layer.running_var.zero_()
    torch.manual_seed(hvd.rank())
    layer(scale * torch.randn(8, 3, dtype=torch.float64).to(dtype))
    return torch.cat([layer.running_mean, layer.running_var])


def step_locally(change: float, outer: Any, has_last: bool = True) -> Any:
    """Without the last rank, which has joined, the others' averages are divided anew."""
    parameter = torch.nn.Parameter(torch.full((COUNT,), 1.5 * SMALLEST))
    optimizer = hvd.LocalSGD(torch.optim.SGD([parameter], lr=1.0), every=1, outer=outer)
    if has_last or hvd.rank() < hvd.size() - 1:
        for _ in range(2):
            parameter.grad = torch.full((COUNT,), change * (1 + hvd.rank() / 8))
            optimizer.step()
    if not has_last:
        hvd.join()
    return parameter.detach()


RESULTS: dict[str, Callable[[], Any]] = {
    "sparse average": lambda: sum_sparse(hvd.Average, torch.float32),
    "sparse sum of float64": lambda: sum_sparse(hvd.Sum, torch.float64),
    "sparse average of torch.distributed": lambda: sum_sparse_in_torch_distributed(dist.ReduceOp.AVG),
    "sparse product and sum of torch.distributed": lambda: sum_sparse_in_torch_distributed(
        dist._make_nccl_premul_sum(0.5)
    ),
    "sparse gradients": sum_sparse_gradients,
    "Adasum": lambda: adasum(torch.float32),
    "Adasum of float64": lambda: adasum(torch.float64),
    "Adasum of changes": step_by_adasum,
    "int8": lambda: compress(torch.float32, hvd.Compression.int8()),
    "int8 of float64": lambda: compress(torch.float64, hvd.Compression.int8()),
    "bf16 of float64": lambda: compress(torch.float64, hvd.Compression.bf16),
    "powersgd": lambda: compress(torch.float32, hvd.Compression.powersgd(rank=2)),
    "statistics": lambda: normalize(torch.float32, 1e-38),
    "statistics in float64": lambda: normalize(torch.float64, 1e-160),
    "LocalSGD": lambda: step_locally(SMALLEST, hvd.diloco()),
    "LocalSGD with denormal changes": lambda: step_locally(SMALLEST / 8, hvd.diloco()),
}
"""By what makes it: a tensor that all ranks are to have alike."""
WITHOUT_THE_LAST: dict[str, Callable[[], Any]] = {
    "LocalSGD, averages": lambda: step_locally(SMALLEST / 2, None, has_last=False),
    "LocalSGD, averages of changes": lambda: step_locally(SMALLEST / 2, hvd.diloco(), has_last=False),
}
"""Likewise all but the last rank."""


def compare(flushing: list[bool], threads: list[int], path: str, is_without_last: bool = False) -> list[str]:
    """Which results differ between ranks with these modes and these numbers of threads."""
    before, differing = torch.get_num_threads(), []
    with hvd.init() as world:
        r = world.rank
        dist.init_process_group("ringreduce", init_method=f"file://{path}", rank=r, world_size=world.size)
        torch.set_num_threads(threads[r])
        torch.ones(1 << 20).mul_(2.0)  # the other threads begin, in the mode that this one has
        for name, result in (WITHOUT_THE_LAST if is_without_last else RESULTS).items():
            try:
                torch.set_flush_denormal(flushing[r])
                bits = result().contiguous().numpy().tobytes()
                is_flushing = not bool(torch.tensor(2.0**-140) * 1.0)
            finally:
                torch.set_flush_denormal(False)
            assert is_flushing == flushing[r], name
            assert torch.get_num_threads() == threads[r], name
            every = hvd.allgather_object(bits)
            if len(set(every[: world.size - is_without_last])) > 1:
                differing.append(name)
        dist.destroy_process_group()
    torch.set_num_threads(before)
    return differing


@pytest.mark.parametrize(
    ("flushing", "threads"),
    [([True, False], [1, 1]), ([False, True], [2, 2]), ([True, True], [1, 2])],
    ids=["one", "the other", "threads"],
)
def test_all_ranks_get_the_same_bits(
    run_ranks: Callable[..., Any], tmp_path: Path, flushing: list[bool], threads: list[int]
) -> None:
    need_the_mode()
    assert run_ranks(compare, 2, args=(flushing, threads, os.fspath(tmp_path / "store"))) == [[]] * 2


def test_all_ranks_get_the_same_bits_where_one_has_joined(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    need_the_mode()
    path = os.fspath(tmp_path / "store")
    assert run_ranks(compare, 3, args=([True, False, False], [1, 1, 1], path, True)) == [[]] * 3


def test_the_mode_comes_back() -> None:
    """Also after an error, and within another one."""
    need_the_mode()
    device, before = torch.device("cpu"), torch.get_num_threads()

    def fail() -> None:
        with computed_alike(device):
            with computed_alike(device):
                assert not flushes_denormals()
            assert not flushes_denormals()
            assert torch.get_num_threads() == 1
            raise KeyError

    try:
        for mode in (False, True):
            torch.set_flush_denormal(mode)
            with pytest.raises(KeyError):
                fail()
            assert flushes_denormals() is mode
            assert torch.get_num_threads() == before
    finally:
        torch.set_flush_denormal(False)


def need_the_mode() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("torch cannot flush denormals on this processor")
