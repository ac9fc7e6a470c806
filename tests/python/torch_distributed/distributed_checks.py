"""What test_distributed.py asks of a process group of the backend ringreduce, on every rank: each collective, against
the oracle or against what every rank can compute of the others' tensors."""

import functools
import operator
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.distributed as dist

OPS = {
    "SUM": oracle.SUM,
    "AVG": oracle.AVERAGE,
    "PRODUCT": oracle.PRODUCT,
    "MIN": oracle.MIN,
    "MAX": oracle.MAX,
    "BAND": oracle.BITWISE_AND,
    "BOR": oracle.BITWISE_OR,
}
DTYPES = [name for name in oracle.DTYPES if hasattr(torch, name)]
OTHERS = [torch.complex64, torch.float8_e4m3fn, torch.bool, torch.bfloat16, torch.int16]


def tensor_of(array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def array_of(tensor: Any) -> np.ndarray:
    tensor = tensor.contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(oracle.dtype("bfloat16"))
    return tensor.numpy()


def value(rank: int, shape: tuple[int, ...] = (2, 3), dtype: Any = torch.float32, start: int = 1) -> Any:
    """A tensor whose elements say whose it is and where they are."""
    count = int(np.prod(shape))
    flat = torch.arange(start, start + count) + 100 * rank
    if dtype is torch.bool:
        return (flat * 7 % 3 == rank % 3).view(shape)
    if dtype.is_complex:
        return torch.complex(flat.float(), -flat.float() * (rank + 1)).to(dtype).view(shape)
    return (flat % 120 if dtype.itemsize == 1 else flat).to(dtype).view(shape)


def same(one: Any, other: Any) -> bool:
    """Equal bits, also of dtypes that torch cannot compare."""
    one, other = one.contiguous().reshape(-1), other.contiguous().reshape(-1)
    if one.dtype is not other.dtype or one.numel() != other.numel():
        return False
    return one.numel() == 0 or torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def every_reduction(rank: int, size: int) -> list[str]:
    """What is wrong with the reductions, over operations, dtypes, counts and layouts."""
    problems = []
    for name in DTYPES:
        for op, code in OPS.items():
            if not oracle.meaningful(name, code):
                continue
            for count in (0, 1, 1009):
                inputs = [oracle.values(code, r, count * size, name, code) for r in range(size)]
                mine, which = tensor_of(inputs[rank]), getattr(dist.ReduceOp, op)
                part = slice(count * rank, count * (rank + 1))
                results: dict[str, tuple[Any, list[Any]]] = {}

                whole = mine.clone()
                dist.all_reduce(whole, which)
                results["all_reduce"] = whole, inputs
                strided = mine.repeat_interleave(2)[::2]
                dist.all_reduce(strided, which, async_op=True).wait()
                results["strided"] = strided, inputs
                rooted = mine.clone()
                dist.reduce(rooted, size - 1, which)
                if rank == size - 1:
                    results["reduce"] = rooted, inputs
                elif not same(rooted, mine):
                    problems.append(f"reduce of {name} {op} wrote on rank {rank}")
                single = torch.empty_like(mine[:count])
                dist.reduce_scatter_tensor(single, mine, which)
                results["reduce_scatter_tensor"] = single, [array[part] for array in inputs]
                listed = torch.empty_like(mine[:count])
                dist.reduce_scatter(listed, [chunk.clone() for chunk in mine.view(size, count)], which)
                results["reduce_scatter"] = listed, [array[part] for array in inputs]
                for form, (result, given) in results.items():
                    if wrong := oracle.wrong(array_of(result), given, code):
                        problems.append(f"{form} of {count} {name} {op}: {wrong}")
    return problems


def odd_reductions(rank: int, size: int) -> None:
    every = range(size)
    for dtype in (torch.int32, torch.uint8, torch.bool):
        expected = functools.reduce(operator.xor, [value(r, dtype=dtype) for r in every])
        mine = value(rank, dtype=dtype)
        dist.all_reduce(mine, dist.ReduceOp.BXOR)
        assert torch.equal(mine, expected)
    part = torch.empty(3, dtype=torch.int32)
    dist.reduce_scatter_tensor(part, value(rank, (3 * size,), torch.int32), dist.ReduceOp.BXOR)
    whole = functools.reduce(operator.xor, [value(r, (3 * size,), torch.int32) for r in every])
    assert torch.equal(part, whole[3 * rank : 3 * rank + 3])

    scaled = dist._make_nccl_premul_sum(0.5)
    mine = value(rank)
    dist.all_reduce(mine, scaled)
    assert torch.equal(mine, sum(value(r) for r in every) / 2)

    for layout in (lambda t: t.clone(), lambda t: t.t().contiguous().t(), lambda t: t.conj().resolve_conj().conj()):
        mine = layout(value(rank, dtype=torch.complex64))
        dist.group.WORLD.allreduce([mine]).wait()
        expected = sum(layout(value(r, dtype=torch.complex64)) for r in every)
        assert torch.allclose(mine.resolve_conj(), expected.resolve_conj())

    tensors = [value(rank), value(rank, (5,), torch.int64), value(rank, (4, 4), torch.float64).t()]
    with dist._coalescing_manager():
        for tensor in tensors[:1]:
            dist.all_reduce(tensor)
    assert torch.equal(tensors[0], sum(value(r) for r in every))
    merged_on_a_device(rank, size)
    options = dist.AllreduceCoalescedOptions()
    dist.group.WORLD.allreduce_coalesced(tensors[1:], options).wait()
    assert torch.equal(tensors[1], sum(value(r, (5,), torch.int64) for r in every))
    assert torch.equal(tensors[2], sum(value(r, (4, 4), torch.float64) for r in every).t())

    uneven = torch.empty(rank + 1)
    dist.reduce_scatter(uneven, [value(rank, (r + 1,)) for r in every])
    assert torch.equal(uneven, sum(value(r, (rank + 1,)) for r in every))

    outputs, inputs = [torch.empty(2), torch.empty(3)], [value(rank, (2 * size,)), value(rank, (3 * size,))]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(outputs, inputs, dist.ReduceScatterOptions()).wait()
    for width, output in ((2, outputs[0]), (3, outputs[1])):
        total = sum(value(r, (width * size,)) for r in every)
        assert torch.equal(output, total[width * rank : width * (rank + 1)])

    indices = torch.tensor([[0, rank + 1], [1, rank]])
    sparse = torch.sparse_coo_tensor(
        indices, torch.tensor([1.0, 10.0 * rank]), (size + 2, size + 2), check_invariants=True
    )
    expected = sum(
        torch.sparse_coo_tensor([[0, r + 1], [1, r]], [1.0, 10.0 * r], (size + 2, size + 2)).to_dense() for r in every
    )
    dist.group.WORLD.allreduce([sparse]).wait()
    assert torch.equal(sparse.to_dense(), expected)

    for op, total in ((dist.ReduceOp.SUM, size * 2**24 + size), (dist.ReduceOp.AVG, 2**24 + 1)):
        integers = torch.sparse_coo_tensor([[1]], torch.tensor([2**24 + 1]), (3,), check_invariants=True)
        dist.all_reduce(integers, op)
        assert integers.to_dense().tolist() == [0, total, 0]
    for number, dtype in ((100, torch.int8), (40_000, torch.float16)):  # whose sum of two is no number of the type
        average = torch.sparse_coo_tensor([[1]], torch.tensor([number], dtype=dtype), (3,), check_invariants=True)
        dist.all_reduce(average, dist.ReduceOp.AVG)
        assert average.dtype is dtype
        assert average.to_dense().tolist() == [0, number, 0]
    truth = torch.sparse_coo_tensor([[0, 1]], torch.tensor([True, rank == 0]), (3,), check_invariants=True)
    for op, what in ((dist.ReduceOp.AVG, "average"), (dist._make_nccl_premul_sum(0.5), "the factor 0.5")):
        with pytest.raises(ValueError, match=f"{what}.* has no meaning for bool"):
            dist.all_reduce(truth, op)
    dist.all_reduce(truth)
    assert truth.to_dense().tolist() == [True, True, False]


def merged_on_a_device(rank: int, size: int) -> None:
    """Collectives of one kind, which torch merges, or messages and others, which it does not, with device=."""
    every, cpu = range(size), torch.device("cpu")
    for is_async in (True, False):
        for op, fold in ((dist.ReduceOp.SUM, operator.add), (dist.ReduceOp.PRODUCT, operator.mul)):
            tensors = [value(rank), value(rank, (4, 4)).t()]
            parts = [torch.empty(2), torch.empty(2, 2)[:, 0]]
            whole = value(rank, (2 * size,))
            with dist._coalescing_manager(device=cpu, async_ops=is_async) as manager:
                for tensor in tensors:
                    dist.all_reduce(tensor, op)
            manager.wait()
            with dist._coalescing_manager(device=cpu, async_ops=is_async) as manager:
                for part in parts:
                    dist.reduce_scatter_tensor(part, whole, op)
            manager.wait()
            assert torch.equal(tensors[0], functools.reduce(fold, [value(r) for r in every]))
            assert torch.equal(tensors[1], functools.reduce(fold, [value(r, (4, 4)) for r in every]).t())
            reduced = functools.reduce(fold, [value(r, (2 * size,)) for r in every])
            for part in parts:
                assert torch.equal(part, reduced[2 * rank : 2 * rank + 2])
        outputs = [torch.empty(size, 2), torch.empty(size, 3)]
        with dist._coalescing_manager(device=cpu, async_ops=is_async) as manager:
            for output in outputs:
                dist.all_gather_into_tensor(output, value(rank, output.shape[1:]))
        manager.wait()
        for output in outputs:
            assert torch.equal(output, torch.stack([value(r, output.shape[1:]) for r in every]))
    incoming, root = torch.zeros(2, 3).t(), value(rank)
    with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
        dist.isend(value(rank, (3, 2)), (rank + 1) % size)
        dist.irecv(incoming, (rank - 1) % size)
        dist.broadcast(root, 0, async_op=True)
    manager.wait()
    assert torch.equal(incoming, value((rank - 1) % size, (3, 2)))
    assert torch.equal(root, value(0))
    with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
        pass
    manager.wait()


def every_movement(rank: int, size: int) -> None:
    every = range(size)
    for dtype in OTHERS:
        for shape in ((2, 3), (0,), (1,), (257, 5)):
            for root in every:
                mine = value(rank, shape, dtype)
                dist.broadcast(mine, root)
                assert same(mine, value(root, shape, dtype))
            outputs = [torch.empty(shape, dtype=dtype) for _ in every]
            dist.all_gather(outputs, value(rank, shape, dtype))
            assert all(same(outputs[r], value(r, shape, dtype)) for r in every)
            whole = torch.empty((size, *shape), dtype=dtype)
            dist.all_gather_into_tensor(whole, value(rank, shape, dtype))
            assert all(same(whole[r], value(r, shape, dtype)) for r in every)
            chunks = list(torch.empty((size, *shape), dtype=dtype))
            dist.all_gather(chunks, value(rank, shape, dtype))
            assert all(same(chunks[r], value(r, shape, dtype)) for r in every)
            root = size - 1
            gathered = [torch.empty(shape, dtype=dtype) for _ in every] if rank == root else None
            dist.gather(value(rank, shape, dtype), gathered, root)
            assert gathered is None or all(same(gathered[r], value(r, shape, dtype)) for r in every)
            dealt = torch.empty(shape, dtype=dtype)
            dist.scatter(dealt, [value(10 + r, shape, dtype) for r in every] if rank == root else None, root)
            assert same(dealt, value(10 + rank, shape, dtype))
            sent = [value(10 * rank + r, shape, dtype) for r in every]
            received = [torch.empty(shape, dtype=dtype) for _ in every]
            dist.all_to_all(received, sent)
            assert all(same(received[r], value(10 * r + rank, shape, dtype)) for r in every)

    turned = torch.zeros(3, 2).t()
    dist.broadcast(turned.copy_(value(rank)), 0)
    assert torch.equal(turned, value(0))
    with torch.no_grad():
        parameter = torch.nn.Parameter(value(rank))
        dist.broadcast(parameter, 1)
        assert torch.equal(parameter, value(1))

    ragged = [torch.empty(r + 1) for r in every]
    dist.all_gather(ragged, value(rank, (rank + 1,)))
    assert all(torch.equal(ragged[r], value(r, (r + 1,))) for r in every)

    rows = torch.arange(size * (size + 1) // 2 * 2.0).view(-1, 2) + 1000 * rank
    splits = [r + 1 for r in every]
    output = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(output, rows, [rank + 1] * size, splits)
    start = rank * (rank + 1) // 2
    assert torch.equal(output, torch.cat([(rows - 1000 * rank + 1000 * r)[start : start + rank + 1] for r in every]))
    even = torch.empty(size, 2, dtype=torch.complex64)
    dist.all_to_all_single(even, value(rank, (size, 2), torch.complex64))
    assert torch.equal(even, torch.stack([value(r, (size, 2), torch.complex64)[rank] for r in every]))

    outputs, inputs = [torch.empty(size, 2), torch.empty(size, 3)], [value(rank, (2,)), value(rank, (3,))]
    dist.group.WORLD.allgather_into_tensor_coalesced(outputs, inputs).wait()
    assert torch.equal(outputs[1], torch.stack([value(r, (3,)) for r in every]))
    lists = [[torch.empty(2), torch.empty(3)] for _ in every]
    dist.group.WORLD.allgather_coalesced(lists, inputs).wait()
    assert all(torch.equal(lists[r][1], value(r, (3,))) for r in every)

    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
    assert objects == [{"rank": r, "text": "x" * 1000 * r} for r in every]
