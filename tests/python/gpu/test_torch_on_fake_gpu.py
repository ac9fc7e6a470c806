"""ringreduce.torch on GPU memory from end to end, on the fake CUDA driver (fake_torch_gpu.py)."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import oracle
import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch")

import cuda_devices  # noqa: E402
from fake_torch_gpu import Gpu, on_gpu, start  # noqa: E402


def given(seed: int, rank: int, shape: tuple[int, ...], name: str = "float32") -> Any:
    count = int(torch.Size(shape).numel())
    return torch.from_numpy(oracle.values(seed, rank, count, name)).reshape(shape)


def collectives() -> dict[str, int]:
    hvd = start()
    size, rank = hvd.size(), hvd.rank()

    def mine(seed: int, *shape: int, name: str = "float32") -> Any:
        return on_gpu(given(seed, rank, shape, name))

    def all_of(seed: int, *shape: int, name: str = "float32") -> list[Any]:
        return [given(seed, r, shape, name).numpy() for r in range(size)]

    def right(result: Any, inputs: list[Any], op: int = oracle.SUM) -> None:
        assert type(result) is Gpu
        assert not (bad := oracle.wrong(result.cpu().numpy(), inputs, op)), bad

    for name in ("float32", "float64", "int32", "uint8"):
        right(hvd.allreduce(mine(1, 1009, name=name), op=hvd.Sum), all_of(1, 1009, name=name))
    tensor = mine(2, 70_001)
    assert hvd.allreduce_(tensor, op=hvd.Max) is tensor
    right(tensor, all_of(2, 70_001), oracle.MAX)
    handles = [hvd.allreduce_async(mine(seed, 99 + seed), name=f"n{seed}", op=hvd.Sum) for seed in range(5)]
    for seed in (3, 1, 4, 0, 2):
        right(hvd.synchronize(handles[seed]), all_of(seed, 99 + seed))
        assert hvd.poll(handles[seed])
    outputs = hvd.grouped_allreduce([mine(1, 5), mine(2, 3, 4, name="int64"), mine(3, 1)], op=hvd.Sum)
    for output, inputs in zip(outputs, (all_of(1, 5), all_of(2, 3, 4, name="int64"), all_of(3, 1)), strict=True):
        right(output, inputs)
    # rows: as many from each, and not
    for counts in ([4] * size, [1 + 2 * r for r in range(size)]):
        expected = torch.cat([given(7, r, (counts[r], 3)) for r in range(size)])
        gathered = hvd.allgather(mine(7, counts[rank], 3))
        assert type(gathered) is Gpu
        assert torch.equal(gathered.cpu(), expected)
    assert torch.equal(hvd.broadcast(mine(8, 33), size - 1).cpu(), given(8, size - 1, (33,)))
    splits = [[1 + (r + s) % 2 for s in range(size)] for r in range(size)]
    received, counts_of = hvd.alltoall(mine(9, sum(splits[rank]), 2), splits[rank])
    parts = [torch.split(given(9, r, (sum(splits[r]), 2)), splits[r])[rank] for r in range(size)]
    assert torch.equal(received.cpu(), torch.cat(parts))
    assert counts_of.tolist() == [splits[r][rank] for r in range(size)]
    mine_of = oracle.rows(2 * size + 1, rank, size)
    right(
        hvd.reducescatter(mine(10, 2 * size + 1, 3), op=hvd.Sum),
        [array[mine_of] for array in all_of(10, 2 * size + 1, 3)],
    )
    half = hvd.allreduce(mine(11, 500), op=hvd.Sum, compression=hvd.Compression.bf16)
    assert torch.allclose(half.cpu(), sum(map(torch.from_numpy, all_of(11, 500))), atol=0.1)
    state = {"a": mine(12, 40, 3), "b": mine(13, 7).t(), "c": given(14, rank, (5,))}
    hvd.broadcast_parameters(state, 0)
    assert torch.equal(state["a"].cpu(), given(12, 0, (40, 3)))
    assert torch.equal(state["c"], given(14, 0, (5,)))
    # what is refused
    torn = hvd.allreduce_async(mine(1, 4) if rank == 0 else given(1, rank, (4,)), name="torn")
    while not hvd.poll(torn):
        pass
    with pytest.raises(hvd.MismatchError, match="CPU/GPU device selection"):
        hvd.synchronize(torn)
    with pytest.raises((hvd.HorovodInternalError, hvd.InvalidArgumentError), match="on same device"):
        hvd.grouped_allreduce([mine(1, 4), torch.ones(4)])
    right(hvd.allreduce(mine(15, 3), op=hvd.Sum), all_of(15, 3))
    return {key: count for key, count in hvd.stats().items() if count}


@pytest.mark.parametrize(("size", "path"), [(2, "ipc"), (3, "staged")])
def test_collectives(size: int, path: str) -> None:
    env = cuda_devices.fake_environment(RINGREDUCE_GPU_PATH=path)
    run_ranks(collectives, size, env=env)


def model() -> Any:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 700), torch.nn.Tanh(), torch.nn.Linear(700, 120), torch.nn.Linear(120, 3)
    )


def batch(step: int, rank: int) -> Any:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 20, generator=generator)


def process_group() -> None:
    """The methods that torch.distributed's functions call, on GPU memory."""
    hvd = start()
    import torch.distributed as dist

    size, rank = hvd.size(), hvd.rank()
    dist.init_process_group("ringreduce", init_method="ringreduce://")
    group = dist.group.WORLD
    everybody = [given(1, r, (size, 3)) for r in range(size)]
    total = sum(everybody)

    def mine() -> Any:
        return on_gpu(everybody[rank])

    def done(work: Any) -> None:
        assert work.wait()
        assert work.is_completed()
        assert work.wait(), "a second time, for another stream"

    tensor = mine()
    done(group.allreduce([tensor]))
    assert torch.allclose(tensor.cpu(), total)
    tensor = mine()
    done(group.allreduce([tensor.t()]))  # through a copy, and back
    assert torch.allclose(tensor.cpu(), total)
    tensor = mine()
    work = group.allreduce([tensor.t()])
    torch.cuda.is_current_stream_capturing = lambda: True
    with pytest.raises(hvd.UnavailableError, match="wait for the operation before the capture"):
        work.wait()
    torch.cuda.is_current_stream_capturing = lambda: False
    done(work)
    assert torch.allclose(tensor.cpu(), total)
    options = dist.BroadcastOptions()
    options.rootRank = 1
    tensor = mine()
    done(group.broadcast([tensor], options))
    assert torch.equal(tensor.cpu(), everybody[1])
    gathered = on_gpu(torch.zeros(size * size, 3))
    done(group._allgather_base(gathered, mine()))
    assert torch.equal(gathered.cpu(), torch.cat(everybody))
    apart = [on_gpu(torch.zeros(size, 3)) for _ in range(size)]
    done(group.allgather([apart], [mine()]))
    assert torch.equal(torch.cat([one.cpu() for one in apart]), torch.cat(everybody))
    part = on_gpu(torch.zeros(1, 3))
    done(group._reduce_scatter_base(part, mine()))
    assert torch.allclose(part.cpu(), total[rank : rank + 1])
    received = on_gpu(torch.zeros(size, 3))
    done(group.alltoall_base(received, mine(), [], []))
    assert torch.equal(received.cpu(), torch.stack([one[rank] for one in everybody]))
    rooted = dist.GatherOptions()
    rooted.rootRank = 1
    places = [[on_gpu(torch.zeros(size, 3)) for _ in range(size)]] if rank == 1 else [[]]
    done(group.gather(places, [mine()], rooted))
    assert all(torch.equal(place.cpu(), want) for place, want in zip(places[0], everybody, strict=False))
    dealt = on_gpu(torch.zeros(3))
    dealing = dist.ScatterOptions()
    done(group.scatter([dealt], [[on_gpu(row) for row in everybody[0]]] if rank == 0 else [[]], dealing))
    assert torch.equal(dealt.cpu(), everybody[0][rank])
    if rank == 0:
        done(group.send([mine()], 1, 5))
    elif rank == 1:
        tensor = on_gpu(torch.zeros(size, 3))
        work = group.recv_anysource([tensor], 5)
        done(work)
        assert work._source_rank() == 0
        assert torch.equal(tensor.cpu(), everybody[0])
    bits = on_gpu(torch.tensor([1 << rank, 7]))
    xor = dist.AllreduceOptions()
    xor.reduceOp = dist.ReduceOp.BXOR
    done(group.allreduce([bits], xor))
    assert bits.cpu().tolist() == [(1 << size) - 1, 7 if size % 2 else 0]
    dist.destroy_process_group()


def no_room() -> None:
    """Outputs that have not the size of what comes: an error of the rank that gave them, as in host memory."""
    hvd = start()
    import torch.distributed as dist

    size, rank = hvd.size(), hvd.rank()
    dist.init_process_group("ringreduce", init_method="ringreduce://")
    group = dist.group.WORLD
    rooted = dist.GatherOptions()
    rooted.rootRank = 1

    def outcome(work: Any) -> str:
        """The error's text without the operation's number and the queue's name for it, "" if there is none."""
        with contextlib.suppress(hvd.MismatchError):
            work.wait()
        while not work.is_completed():
            continue
        error = work.exception()
        assert work.is_success() == (error is None)
        if error is not None:
            with pytest.raises(hvd.MismatchError, match="have room for"):
                work.wait()
        return "" if error is None else re.sub(r" ('device\.\w+\.\d+' )?#\d+", "", str(error))

    def outcomes(place: Any) -> list[str]:
        mine = place(given(3, rank, (2 + rank,)))
        room = [2 + r for r in range(size)]
        if rank == 1:
            room[1] -= 1
        wrong = list(room) if rank == 1 else []
        outputs = [place(torch.zeros(count)) for count in room]
        found = [outcome(group.allgather([outputs], [mine]))]
        if rank == 0:
            for r, output in enumerate(outputs):
                assert torch.equal(output.cpu(), given(3, r, (2 + r,))), "the others have theirs"
        found.append(outcome(group.gather([outputs] if rank == 1 else [[]], [mine], rooted)))
        # As much in all, but not from each.
        sent = place(given(4, rank, (2 * size,)))
        splits = [2] * size
        if rank == 1:
            splits[0], splits[1] = 1, 3
        received = place(torch.zeros(2 * size))
        found.append(outcome(group.alltoall_base(received, sent, splits, [2] * size)))
        # All of one size, and the others send more: BXOR gathers.
        xor = dist.AllreduceOptions()
        xor.reduceOp = dist.ReduceOp.BXOR
        found.append(outcome(group.allreduce([place(torch.ones(3 + rank, dtype=torch.int64))], xor)))
        # A raw gather whose output is one tensor, of this rank's size times the ranks.
        found.append(outcome(group._allgather_base(place(torch.zeros(size * (2 + rank))), mine)))
        whole = place(given(5, rank, (size,)))
        part = place(torch.zeros(1))
        assert not outcome(group._reduce_scatter_base(part, whole)), "the group goes on"
        assert torch.allclose(part.cpu(), sum(given(5, r, (size,)) for r in range(size))[rank])
        says = f"the ranks sent {[2 + r for r in range(size)]} elements, but the outputs here have room for {wrong}"
        assert [bool(text) for text in found] == [rank == 1, rank == 1, rank == 1, True, True], found
        assert not wrong or (says in found[0] and says in found[1]), found
        assert all(f"[ringreduce rank {rank}/{size}" in text for text in found if text), found
        return found

    assert outcomes(on_gpu) == outcomes(lambda tensor: tensor)
    # Nobody asks: the next call on GPU memory raises it.
    group.allgather([[on_gpu(torch.zeros(2 - rank)) for _ in range(size)]], [on_gpu(torch.ones(2))])
    tensor = on_gpu(torch.ones(5))
    if rank == 1:
        told: Exception | None = None
        while not isinstance(told, hvd.MismatchError):  # by a call that goes no further than this rank
            with pytest.raises((hvd.MismatchError, hvd.InvalidArgumentError), match=r"room for|another rank") as raised:
                group.send([tensor], 1, 0)
            told = raised.value
    dist.barrier()
    group.allreduce([tensor]).wait()
    assert tensor.cpu().tolist() == [size] * 5
    dist.destroy_process_group()


@pytest.mark.parametrize("path", ["ipc", "staged"])
def test_no_room(path: str) -> None:
    run_ranks(no_room, 2, env=cuda_devices.fake_environment(RINGREDUCE_GPU_PATH=path))


def test_process_group() -> None:
    run_ranks(process_group, 2, env=cuda_devices.fake_environment())


def trained() -> list[str]:
    """Digests of what three steps make of the parameters, in each of the ways that there are."""
    hvd = start()
    return [
        digest
        for options in ({}, {"gradient_as_bucket_view": False}, {"shard_step": True})
        for digest in parameters_after(hvd, options)
    ]


def parameters_after(hvd: Any, options: dict[str, Any]) -> list[str]:
    """Three steps on the GPU, compared with what one process makes of all batches."""

    def loss(net: Any, x: Any) -> Any:
        return net(x).square().mean()

    alone = model()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for step in range(3):
        plain.zero_grad()
        loss(alone, torch.cat([batch(step, rank) for rank in range(hvd.size())])).backward()
        plain.step()
    net = model()
    for module in net:
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(on_gpu(parameter)))
    assert all(type(parameter) is Gpu and parameter.is_cuda for parameter in net.parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False), net.named_parameters(), **options
    )
    for step in range(3):
        optimizer.zero_grad()
        loss(net, batch(step, hvd.rank())).backward()
        optimizer.step()
    if options.get("gradient_as_bucket_view", True):
        assert all(Gpu.driver.has(parameter.grad.data_ptr()) for parameter in net.parameters())
    for parameter, want in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(parameter.cpu(), want, rtol=1e-4, atol=1e-6)
    return [oracle.digest(parameter.detach().cpu().numpy()) for parameter in net.parameters()]


def test_optimizer() -> None:
    found = run_ranks(trained, 2, env=cuda_devices.fake_environment())
    assert len(found[0]) == 3 * 6
    assert found[0] == found[1], "the same bits on all ranks"
