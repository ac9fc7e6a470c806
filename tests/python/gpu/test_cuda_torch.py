"""Collectives of torch's CUDA tensors against the oracle, on ranks that share the GPU, by each path."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from cuda_ranks import environment, from_torch, start, takes_nccl, to_torch
from ranks import run_ranks

from ringreduce import stats

COUNTS = (1, 1009, 65_537)
CASES = [(1, "auto"), (2, "auto"), (2, "ipc"), (2, "staged"), (4, "ipc"), (4, "staged"), (2, "nccl"), (4, "nccl")]


pytestmark = pytest.mark.usefixtures("torch_gpu")


def reductions() -> list[str]:
    """Every dtype, operation and a few sizes, twice; returns a digest of each result, and fails on a wrong one."""
    _, hvd, device = start()
    digests = []
    for turn in range(2):
        for name in oracle.DTYPES:
            for op in oracle.OPS:
                if not oracle.meaningful(name, op):
                    continue
                for count in COUNTS:
                    inputs = [oracle.values(count, rank, count, name, op) for rank in range(hvd.size())]
                    tensor = to_torch(inputs[hvd.rank()], device)
                    result = from_torch(hvd.allreduce(tensor, op=op, name=f"{name}.{op}.{count}" if turn else None))
                    assert not (bad := oracle.wrong(result, inputs, op)), f"{name} {op} {count}: {bad}"
                    assert np.array_equal(from_torch(tensor).view(np.uint8), inputs[hvd.rank()].view(np.uint8))
                    digests.append(oracle.digest(result))
                if oracle.scalable(name, op):
                    small = [oracle.scalable_values(5, rank, 1009, name, op) for rank in range(hvd.size())]
                    tensor = to_torch(small[hvd.rank()], device)
                    hvd.allreduce_(tensor, op=op, prescale_factor=0.5, postscale_factor=2.0)
                    result = from_torch(tensor)
                    assert not (bad := oracle.wrong(result, small, op, 0.5, 2.0)), f"{name} {op} scaled: {bad}"
                    digests.append(oracle.digest(result))
    half = len(digests) // 2
    assert digests[:half] == digests[half:], "the same bits in every run"
    assert not takes_nccl() or stats()["cuda_nccl"] > len(oracle.DTYPES)
    return digests


@pytest.mark.parametrize(("size", "path"), CASES)
def test_every_dtype_and_operation(size: int, path: str) -> None:
    found = run_ranks(reductions, size, env=environment(path))
    assert all(digests == found[0] for digests in found), "the same bits on all ranks"
    assert len(found[0]) > 500


def kinds() -> None:
    """Every other collective, waited for and not, and what autograd makes of them."""
    torch, hvd, device = start()
    size, rank = hvd.size(), hvd.rank()

    def rows(of: int, count: int, name: str = "float32") -> Any:
        return to_torch(oracle.values(3, of, count * 4, name).reshape(count, 4), device)

    # as many rows from each, and another number from each
    for counts in ([5] * size, [2 + r for r in range(size)], [3 * (r % 2) for r in range(size)]):
        expected = torch.cat([rows(r, counts[r]) for r in range(size)])
        assert torch.equal(hvd.allgather(rows(rank, counts[rank])), expected)
        assert torch.equal(hvd.synchronize(hvd.allgather_async(rows(rank, counts[rank]), name="gathered")), expected)
    two = hvd.grouped_allgather([rows(rank, 2), rows(rank, 1, "int64")], name="both")
    assert torch.equal(two[0], torch.cat([rows(r, 2) for r in range(size)]))
    assert torch.equal(two[1], torch.cat([rows(r, 1, "int64") for r in range(size)]))
    for root in range(size):
        tensor = rows(rank, 70_001)
        assert torch.equal(hvd.broadcast(tensor, root), rows(root, 70_001))
        assert torch.equal(tensor, rows(rank, 70_001)), "the input is left alone"
        hvd.broadcast_(tensor, root, name="rooted")
        assert torch.equal(tensor, rows(root, 70_001))
    # rank r sends 1 + (r + s) % 3 rows to rank s
    splits = [[1 + (r + s) % 3 for s in range(size)] for r in range(size)]
    sent = [rows(r, sum(splits[r])) for r in range(size)]
    expected = torch.cat([torch.split(sent[r], splits[r])[rank] for r in range(size)])
    received, counts_of = hvd.alltoall(sent[rank], torch.tensor(splits[rank]))
    assert torch.equal(received, expected)
    assert counts_of.tolist() == [splits[r][rank] for r in range(size)]
    equal = torch.cat([rows(r, size)[rank : rank + 1] for r in range(size)])
    assert torch.equal(hvd.alltoall(rows(rank, size)), equal)
    for dim0 in (size, 2 * size + 1, 1):
        inputs = [oracle.values(8, r, dim0 * 6, "float32").reshape(dim0, 6) for r in range(size)]
        mine = from_torch(hvd.reducescatter(to_torch(inputs[rank], device), op=hvd.Sum))
        part = oracle.rows(dim0, rank, size)
        assert not oracle.wrong(mine, [array[part] for array in inputs], oracle.SUM)
    # one operation of many tensors, of several dtypes
    shapes = [(7,), (), (3, 5), (0, 2), (1009,)]
    names = ["float32", "float16", "int32", "float32", "bfloat16"]
    many = [
        [oracle.values(i, r, int(np.prod(s)), n).reshape(s) for i, (s, n) in enumerate(zip(shapes, names, strict=True))]
        for r in range(size)
    ]
    for outputs in (
        hvd.grouped_allreduce([to_torch(array, device) for array in many[rank]], op=hvd.Sum),
        hvd.grouped_allreduce_([to_torch(array, device) for array in many[rank]], op=hvd.Sum, name="many"),
    ):
        for index, output in enumerate(outputs):
            assert not oracle.wrong(from_torch(output), [many[r][index] for r in range(size)], oracle.SUM)
    # compression, and a layout that is not contiguous
    inputs = [oracle.values(2, r, 60, "float32").reshape(6, 10) for r in range(size)]
    tensor = to_torch(inputs[rank], device)
    half = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert half.dtype is torch.float32
    assert torch.allclose(half, to_torch(np.sum(inputs, axis=0, dtype=np.float32), device), atol=0.02)
    result = from_torch(hvd.allreduce(tensor.t(), op=hvd.Sum).contiguous())
    assert not oracle.wrong(result, [array.T for array in inputs], oracle.SUM)
    # gradients
    weight = to_torch(inputs[rank], device).requires_grad_()
    hvd.allreduce(weight, op=hvd.Sum).sum().backward()
    assert torch.equal(weight.grad, torch.full_like(weight, float(size)))
    weight.grad = None
    (hvd.allgather(weight) * 2.0).sum().backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 2.0))
    # sparse, objects, subsets
    index = torch.tensor([[rank, size]], device=device)
    sparse = torch.sparse_coo_tensor(index, torch.tensor([1.0, float(rank)], device=device), (size + 1,))
    total = hvd.synchronize(hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)).to_dense()
    assert total.tolist() == [1.0] * size + [float(sum(range(size)))]
    assert total.is_cuda
    assert hvd.broadcast_object({"from": rank}, 0) == {"from": 0}
    if size > 2:
        odd = hvd.add_process_set([1, 3])
        if rank in (1, 3):
            inputs = [oracle.values(4, r, 500, "float32") for r in (1, 3)]
            result = from_torch(hvd.allreduce(to_torch(inputs[rank // 2], device), op=hvd.Sum, process_set=odd))
            assert not oracle.wrong(result, inputs, oracle.SUM)
        hvd.remove_process_set(odd)


@pytest.mark.parametrize(("size", "path"), CASES)
def test_every_kind(size: int, path: str) -> None:
    run_ranks(kinds, size, env=environment(path))


def handles() -> None:
    """Several operations under way, out of order, some on the CPU; poll() becomes true; mismatches raise."""
    torch, hvd, device = start()
    size, rank = hvd.size(), hvd.rank()
    order = list(range(12)) if rank % 2 == 0 else list(reversed(range(12)))
    tensors = {i: to_torch(oracle.values(i, rank, 4097 + i, "float32"), device if i % 3 else "cpu") for i in order}
    pending = {i: hvd.allreduce_async_(tensors[i], name=f"t.{i}", op=hvd.Sum) for i in order}
    for i in range(12):
        result = from_torch(hvd.synchronize(pending[i]))
        assert not oracle.wrong(result, [oracle.values(i, r, 4097 + i, "float32") for r in range(size)], oracle.SUM)
        assert hvd.poll(pending[i])
    handle = hvd.allreduce_async(torch.ones(8, device=device), op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle).tolist() == [float(size)] * 8
    torn = hvd.allreduce_async(torch.ones(4, device=device if rank == 0 else "cpu"), name="torn")
    uneven = hvd.allreduce_async(torch.ones(4 + rank % 2, device=device), name="uneven")
    while not (hvd.poll(torn) and hvd.poll(uneven)):
        pass
    with pytest.raises(hvd.MismatchError, match="CPU/GPU device selection"):
        hvd.synchronize(torn)
    with pytest.raises(hvd.MismatchError, match="shape"):
        hvd.synchronize(uneven)
    with pytest.raises((hvd.HorovodInternalError, hvd.InvalidArgumentError), match="on same device"):
        hvd.grouped_allreduce([torch.ones(1), torch.ones(1, device=device)])
    assert hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum).tolist() == [float(size)] * 3


def test_handles_and_mismatches() -> None:
    run_ranks(handles, 2)


def distributed() -> None:
    """torch.distributed's own functions on CUDA tensors, by the backend ringreduce."""
    torch, hvd, device = start()
    import torch.distributed as dist

    size, rank = hvd.size(), hvd.rank()
    dist.init_process_group("ringreduce", init_method="ringreduce://")
    inputs = [oracle.values(1, r, 1009, "float32") for r in range(size)]
    tensor = to_torch(inputs[rank], device)
    dist.all_reduce(tensor)
    assert not oracle.wrong(from_torch(tensor), inputs, oracle.SUM)
    gathered = torch.empty(size * 1009, device=device)
    dist.all_gather_into_tensor(gathered, to_torch(inputs[rank], device))
    assert torch.equal(gathered, to_torch(np.concatenate(inputs), device))
    part = torch.empty(1009, device=device)
    dist.reduce_scatter_tensor(part, gathered)
    assert torch.allclose(part, to_torch(inputs[rank], device) * size)
    work = dist.broadcast(tensor, 1, async_op=True)
    work.wait()
    if rank == 0:
        dist.send(part, 1)
    else:
        dist.recv(tensor, 0)
        assert torch.allclose(tensor, to_torch(inputs[0], device) * size)
    model = torch.nn.Linear(8, 3).to(device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped(torch.full((4, 8), float(rank + 1), device=device)).sum().backward()
    mean = 4.0 * sum(range(1, size + 1)) / size
    assert torch.allclose(model.weight.grad, torch.full_like(model.weight, mean))
    dist.destroy_process_group()


def test_torch_distributed() -> None:
    run_ranks(distributed, 2)
