"""The rest of Horovod's collectives of torch tensors: alltoall, reducescatter, grouped and sparse forms, join.

Expected values are made by every rank from all ranks' inputs, with NumPy or torch on one process.
"""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")

from test_torch import DTYPES, array_of, tensor_of  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402


def table(seed: int, rank: int, rows: int, columns: int, name: str) -> np.ndarray:
    return oracle.values(seed, rank, rows * columns, name).reshape(rows, columns)


def same(tensor: Any, array: np.ndarray) -> bool:
    got = array_of(tensor)
    return got.dtype == array.dtype and got.shape == array.shape and oracle.digest(got) == oracle.digest(array)


def exchange() -> list[str]:
    """alltoall in every form and dtype, and grouped_allgather."""
    faults = []
    with hvd.init() as world:
        n, r, ranks = world.size, world.rank, range(world.size)
        for name in DTYPES:
            every = [table(1, rank, 2 * n, 3, name) for rank in ranks]
            equal = np.concatenate([one[2 * r : 2 * r + 2] for one in every])
            mine = tensor_of(every[r])
            if not same(hvd.alltoall(mine), equal):
                faults.append(f"alltoall {name}")
            rows, counts = hvd.synchronize(hvd.alltoall_async(mine, name="equal"))
            if not same(rows, equal) or counts.tolist() != [2] * n or counts.dtype != torch.int32:
                faults.append(f"alltoall_async {name}: {counts}")
            splits = [[(sender + 2 * receiver) % 3 for receiver in ranks] for sender in ranks]
            every = [table(2, rank, sum(splits[rank]) + 1, 2, name) for rank in ranks]  # the last row goes to nobody
            starts = [sum(splits[rank][:r]) for rank in ranks]
            want = np.concatenate([every[rank][starts[rank] :][: splits[rank][r]] for rank in ranks])
            mine = tensor_of(every[r])
            forms = {
                "list": splits[r],
                "int32": torch.tensor(splits[r], dtype=torch.int32),
                "int64": torch.tensor(splits[r]),
            }
            for form, given in forms.items():
                rows, counts = hvd.alltoall(mine, given)
                if not same(rows, want) or counts.tolist() != [split[r] for split in splits]:
                    faults.append(f"alltoall {name}, splits as {form}: {counts}")
            strided, strided_counts = hvd.alltoall(mine.repeat_interleave(2, 1)[:, ::2], splits=splits[r], name="s")
            if not same(strided, want) or strided_counts.dtype != torch.int32:
                faults.append(f"alltoall of a strided {name}")

            gathered = [np.concatenate([table(k, rank, rank + k, 2, name) for rank in ranks]) for k in range(3)]
            mine_of = [tensor_of(table(k, r, r + k, 2, name)) for k in range(3)]
            handle = hvd.grouped_allgather_async(mine_of, name="named")
            for results in (hvd.grouped_allgather(mine_of), hvd.synchronize(handle)):
                if not isinstance(results, list) or not all(map(same, results, gathered)):
                    faults.append(f"grouped_allgather {name}")
            if not hvd.poll(handle):
                faults.append("poll() of a finished group")
        if hvd.grouped_allgather([]) != []:
            faults.append("grouped_allgather of nothing")
        # 2^33 rows of nothing: row counts beyond 32 bits, without the memory.
        rows, counts = hvd.alltoall(torch.empty(n << 33, 0), [1 << 33] * n)
        if rows.shape != (n << 33, 0) or counts.tolist() != [1 << 33] * n or counts.dtype != torch.int64:
            faults.append(f"alltoall of 2^33 rows: {rows.shape} {counts}")
        if hvd.allgather(torch.empty((1 << 33) + r, 0)).shape != ((n << 33) + sum(ranks), 0):
            faults.append("allgather of 2^33 rows")
        if hvd.reducescatter(torch.empty((n << 33) + 1, 0)).shape != ((1 << 33) + (r == 0), 0):
            faults.append("reducescatter of 2^33 rows")
    return faults


@pytest.mark.parametrize("size", [1, 3])
def test_rows_go_where_they_belong(size: int, run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(exchange, size) == [[]] * size


def scatter_sums() -> list[str]:
    """reducescatter of every dtype and operation, uneven rows included."""
    faults = []
    with hvd.init() as world:
        n, r, ranks = world.size, world.rank, range(world.size)
        for name, op in [
            (name, op) for name in DTYPES for op in (oracle.SUM, oracle.AVERAGE) if oracle.meaningful(name, op)
        ]:
            for rows in (0, 1, n + 1, 2 * n):
                every = [oracle.values(op, rank, 5 * rows, name, op).reshape(rows, 5) for rank in ranks]
                cut = [one[oracle.rows(rows, r, n)] for one in every]
                mine = tensor_of(every[r])
                strided = mine.repeat_interleave(2, 1)[:, ::2]
                handle = hvd.grouped_reducescatter_async([mine, mine[:1]], name="g", op=op)
                first = [one[:1][oracle.rows(min(rows, 1), r, n)] for one in every]
                results = {
                    "plain": (hvd.reducescatter(mine, op=op), cut),
                    "strided": (hvd.reducescatter(strided, "s", op=op), cut),
                    "async": (hvd.synchronize(hvd.reducescatter_async(mine, "a", op)), cut),
                    "grouped": (hvd.grouped_reducescatter([mine[:1], mine], op=op)[1], cut),
                    "grouped, async": (hvd.synchronize(handle)[1], first),
                }
                for form, (result, inputs) in results.items():
                    if wrong := oracle.wrong(array_of(result), inputs, op):
                        faults.append(f"{form} of {rows} rows {name}, op {op}: {wrong}")
        every = [oracle.scalable_values(9, rank, 4 * n, "float64", oracle.SUM) for rank in ranks]
        scaled = hvd.reducescatter(
            tensor_of(every[r]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, name="scaled"
        )
        cut = [one[oracle.rows(4 * n, r, n)] for one in every]
        if wrong := oracle.wrong(array_of(scaled), cut, oracle.SUM, 0.5, 4.0):
            faults.append(f"scaled: {wrong}")
        halves = hvd.reducescatter(torch.full((n, 2), r + 1.5), compression=hvd.Compression.fp16)
        if halves.dtype != torch.float32 or halves.tolist() != [[(n + 1) / 2 + 0.5] * 2]:
            faults.append(f"compressed: {halves}")
    return faults


def reduce_to_one() -> list[Any]:
    """What each root gets of every rank's [rank + 1, 2 (rank + 1)], strided; also that the inputs are left alone."""
    with hvd.init() as world:
        mine = torch.tensor([[world.rank + 1.0, 0.0], [2.0 * (world.rank + 1), 0.0]])[:, 0]
        results = [hvd.reduce(mine, root, op=hvd.Sum, postscale_factor=2.0) for root in range(world.size)]
        results.append(hvd.reduce_async(mine, 0, "named", hvd.Max).wait())
        return [None if one is None else one.tolist() for one in [mine, *results]]


def test_reduce(run_ranks: Callable[..., Any]) -> None:
    size = 3
    for rank, (mine, *results, largest) in enumerate(run_ranks(reduce_to_one, size)):
        assert mine == [rank + 1.0, 2.0 * (rank + 1)]
        assert results == [[12.0, 24.0] if root == rank else None for root in range(size)]
        assert largest == ([3.0, 6.0] if rank == 0 else None)


@pytest.mark.parametrize("size", [1, 3])
def test_reducescatter_of_every_dtype_and_operation(size: int, run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(scatter_sums, size) == [[]] * size


def differentiate() -> None:
    """Gradients as Horovod defines them, by hand; weights differ by rank and by row."""
    with hvd.init() as world:
        n, r, ranks = world.size, world.rank, range(world.size)
        f64 = torch.float64

        # alltoall: rank s sends splits[s][d] rows to d and keeps one; the gradient of a row is the weight it met there.
        splits = [[1 + (s + d) % 2 for d in ranks] for s in ranks]
        x = (torch.arange(3.0 * (sum(splits[r]) + 1), dtype=f64).view(-1, 3) + r).requires_grad_()
        rows, counts = hvd.alltoall(x * x, splits[r])
        assert counts.tolist() == [split[r] for split in splits]
        assert not counts.requires_grad

        def weights(rank: int) -> Any:
            return torch.arange(1.0, 1 + sum(split[rank] for split in splits), dtype=f64)[:, None] * 10.0**rank

        (slope,) = torch.autograd.grad((rows * weights(r)).sum(), x, create_graph=True)
        parts = [weights(d).split([split[d] for split in splits])[r] for d in ranks]
        weight = torch.cat([*parts, torch.zeros(1, 1, dtype=f64)])
        assert torch.equal(slope.detach(), 2 * x.detach() * weight)
        (curvature,) = torch.autograd.grad((slope * slope).sum(), x)
        assert torch.equal(curvature, 8 * x.detach() * weight**2)
        y = torch.ones(2 * n, dtype=f64, requires_grad=True)
        (hvd.alltoall(y) * (r + 1)).sum().backward()
        assert y.grad.tolist() == [float(d + 1) for d in ranks for _ in range(2)]

        # reducescatter: the gathered gradients, times n for Sum, times both factors; uneven rows.
        for op, factor in ((hvd.Average, 1.0), (hvd.Sum, float(n))):
            x = torch.arange(1.0, 2 * (n + 1) + 1, dtype=f64).view(-1, 2).requires_grad_()
            out = hvd.reducescatter(x**3, op=op, prescale_factor=0.5, postscale_factor=3.0)
            (slope,) = torch.autograd.grad((out * (r + 1.0)).sum(), x, create_graph=True)
            owner = torch.cat([torch.full((2 if d == 0 else 1, 1), d + 1.0, dtype=f64) for d in ranks])
            expected = 3 * x.detach() ** 2 * owner * factor * 1.5
            assert torch.allclose(slope.detach(), expected, rtol=1e-14), (slope, expected)
            (curvature,) = torch.autograd.grad(slope.sum(), x)
            assert torch.allclose(curvature, expected * 2 / x.detach(), rtol=1e-14)
        a, b = (torch.ones(n, requires_grad=True) for _ in range(2))
        first, second = hvd.grouped_reducescatter([a * 2, b * 3], op=hvd.Average)
        (first * (r + 1) + second).sum().backward()
        assert a.grad.tolist() == [2.0 * (d + 1) for d in ranks]
        assert b.grad.tolist() == [3.0] * n

        # grouped_allgather: this rank's rows of the averaged gradient.
        a, b = (torch.ones(r + k, 2, dtype=f64, requires_grad=True) for k in (1, 0))
        whole, other = hvd.grouped_allgather([a * 2, b])
        position = torch.arange(1.0, len(whole) + 1, dtype=f64)[:, None]
        ((whole * position).sum() * (r + 1) + other.sum()).backward()
        start = sum(rank + 1 for rank in ranks[:r])
        assert torch.allclose(
            a.grad, (2 * position * (n + 1) / 2)[start : start + r + 1].expand(-1, 2), rtol=1e-14, atol=0
        )
        assert torch.equal(b.grad, torch.ones_like(b))
        a.grad = b.grad = None
        for output in hvd.grouped_allgather([a, b]):  # one backward() after the other, through one operation
            output.sum().backward()
        assert torch.equal(a.grad, torch.ones_like(a))
        assert torch.equal(b.grad, torch.ones_like(b))

        with torch.no_grad():
            assert not hvd.reducescatter(torch.ones(n, requires_grad=True)).requires_grad
            assert not hvd.alltoall(torch.ones(n, requires_grad=True)).requires_grad
            assert not hvd.grouped_allgather([torch.ones(n, requires_grad=True)])[0].requires_grad


def test_gradients(run_ranks: Callable[..., Any]) -> None:
    run_ranks(differentiate, 3)


def sum_sparse() -> None:
    with hvd.init() as world:
        n, r, ranks = world.size, world.rank, range(world.size)

        def of(rank: int, dtype: Any) -> Any:
            """rank + 1 values at positions that overlap between ranks, one of them twice."""
            indices = torch.tensor([[0, *range(rank + 1)], [3, *range(rank, 2 * rank + 1)]])
            values = torch.arange(2.0 * (rank + 2)).view(-1, 2).to(dtype) + rank
            return torch.sparse_coo_tensor(indices, values, (n + 1, 2 * n + 3, 2))

        for dtype in (torch.float64, torch.bfloat16, torch.int32):
            total = sum(of(rank, torch.float64).to_dense() for rank in ranks)
            handle = hvd.sparse_allreduce_async(of(r, dtype), "grads", hvd.Sum)
            result = handle()
            assert result.is_sparse
            assert result.is_coalesced()
            assert result.dtype == dtype
            assert torch.equal(result.to_dense().double(), total)
            assert hvd.synchronize(handle) is result
            assert hvd.poll(handle)
            mean = hvd.sparse_allreduce_async(of(r, dtype), name=None, op=hvd.Average)().to_dense().double()
            expected = total / n if dtype.is_floating_point else torch.trunc(total / n)
            assert torch.allclose(mean, expected, rtol=1e-2 if dtype is torch.bfloat16 else 1e-15)
        empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (5,))
        assert hvd.sparse_allreduce_async(empty, "nothing", hvd.Sum)()._nnz() == 0
        wider = torch.sparse_coo_tensor(torch.tensor([[r]]), torch.ones(1), (5 + r,))
        with pytest.raises(hvd.MismatchError, match="Mismatched sparse ALLREDUCE tensor shapes"):
            hvd.sparse_allreduce_async(wider, "wider", hvd.Sum)()
        for bad, op, text in (
            (torch.ones(2), hvd.Sum, "sparse_coo"),
            (empty, hvd.Max, "Average or Sum"),
            (empty.bool(), hvd.Average, "average has no meaning for bool"),
        ):
            with pytest.raises(ValueError, match=text):
                hvd.sparse_allreduce_async(bad, "bad", op)
        last = hvd.sparse_allreduce_async(of(r, torch.float64), "last", hvd.Sum)
        while not hvd.poll(last):
            pass
        hvd.barrier()
    total = sum(of(rank, torch.float64).to_dense() for rank in ranks)
    assert torch.equal(last().to_dense(), total)  # what has ended before shutdown() has a result after it


def test_sparse_tensors(run_ranks: Callable[..., Any]) -> None:
    run_ranks(sum_sparse, 3)


def sum_sparse_beyond_the_type() -> None:
    """The sum of the ranks' values does not fit in their type, their average does: sparse is as dense."""
    with hvd.init():
        for dtype, value in ((torch.int8, 100), (torch.int8, -101), (torch.float16, 60000.0), (torch.float16, 2**-24)):
            sparse = torch.sparse_coo_tensor([[0]], torch.tensor([value], dtype=dtype), (4,))
            average = hvd.sparse_allreduce_async(sparse, name=None, op=hvd.Average)()
            assert average.dtype is dtype
            assert average.is_coalesced()
            assert average.to_dense().tolist() == [value, 0, 0, 0]
            assert torch.equal(average.to_dense(), hvd.allreduce(sparse.to_dense(), op=hvd.Average))
        fine = torch.sparse_coo_tensor([[0]], torch.tensor([2**-9 + hvd.rank()], dtype=torch.bfloat16), (1,))
        total = hvd.sparse_allreduce_async(fine, name=None, op=hvd.Sum)().to_dense()
        assert torch.equal(total, hvd.allreduce(fine.to_dense(), op=hvd.Sum))


def test_sparse_tensors_whose_sum_does_not_fit_in_their_type(run_ranks: Callable[..., Any]) -> None:
    run_ranks(sum_sparse_beyond_the_type, 2)


def replace_the_data() -> None:
    """Rank 1 gives its tensor other memory while rank 0 has not begun; the operation writes the memory it had."""
    count, token = 1 << 15, torch.zeros(1)
    with hvd.init() as world:
        is_root = world.rank == 0
        calls: dict[str, Callable[[Any], Any]] = {
            "allreduce": lambda tensor: hvd.allreduce_async_(tensor, op=hvd.Sum),
            "grouped allreduce": lambda tensor: hvd.grouped_allreduce_async_([tensor], op=hvd.Sum),
            "broadcast": lambda tensor: hvd.broadcast_async_(tensor, 0),
            "scatter": lambda tensor: hvd.scatter_async(tensor.repeat(2) if is_root else None, tensor, 0),
            "recv": lambda tensor: hvd.send_async(tensor, 1) if is_root else hvd.recv_async(tensor, 0),
        }
        for name, call in calls.items():
            memory = np.full(count, 3.0 + world.rank, np.float32)
            tensor = torch.nn.Parameter(torch.frombuffer(memory, dtype=torch.float32), requires_grad=False)
            seen = weakref.ref(memory)
            del memory
            if is_root:
                hvd.recv(token, 1, tag=1)
                call(tensor).wait()
                continue
            handle = call(tensor)
            tensor.data = torch.zeros(count)
            kept = seen()
            assert kept is not None, f"{name}: the memory is free, and the operation is about to write it"
            hvd.send(token, 0, tag=1)
            handle.wait()
            assert set(kept.tolist()) == {7.0 if "allreduce" in name else 3.0}, name
            assert not tensor.any(), name
            del handle, kept


def test_operations_in_place_keep_the_memory_that_a_tensor_had(run_ranks: Callable[..., Any]) -> None:
    run_ranks(replace_the_data, 2)


def run_out_of_data() -> tuple[list[list[float]], str, int]:
    """Rank r has r + 1 batches; whoever has none left joins. (sums it saw, what a broadcast raised, join()'s result)"""
    with hvd.init() as world:
        n, r = world.size, world.rank
        seen = []
        for batch in range(r + 1):
            group = hvd.grouped_allreduce([torch.full((2,), r + 1.0), torch.tensor(batch)], op=hvd.Sum)
            mean = hvd.allreduce(torch.full((3000,), r + 1.0), name=f"batch {batch}")
            seen.append([group[0][1].item(), group[1].item(), mean[2999].item() * n])
            # Registered memory and names that others stated while this rank was still there go on as well.
        raised = ""
        if r == n - 1:
            calls: list[Callable[[], Any]] = [
                lambda: hvd.broadcast(torch.ones(2), r),
                lambda: hvd.allgather(torch.ones(2)),
                lambda: hvd.alltoall(torch.ones(n)),
                lambda: hvd.reducescatter(torch.ones(n)),
            ]
            for call in calls:
                with pytest.raises(hvd.HorovodInternalError, match="is not supported with Join at this time") as error:
                    call()
                raised += str(error.value).split()[0] + " "
        last = hvd.join()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n  # afterwards all are there again
        return seen, raised, last


def test_ranks_that_joined_add_zeros_and_all_learn_who_was_last(run_ranks: Callable[..., Any]) -> None:
    results = run_ranks(run_out_of_data, 4)
    for rank, (seen, raised, last) in enumerate(results):
        there = [sum(range(batch + 1, 5)) for batch in range(rank + 1)]
        expected = [[total, batch * (4 - batch), total] for batch, total in enumerate(there)]
        assert seen == expected
        assert last == 3
        assert raised == ("Broadcast Allgather Alltoall Reducescatter " if rank == 3 else "")
