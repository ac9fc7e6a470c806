"""Streams, memory and deaths on a GPU: order, what allocators are told, and that nothing hangs."""

from __future__ import annotations

import os
import signal
from typing import Any

import cuda_devices
import oracle
import pytest
from cuda_ranks import busy, environment, from_torch, start, to_torch
from ranks import receive_from_test, run_ranks, send_to_test, start_ranks

pytestmark = pytest.mark.usefixtures("torch_gpu")


def sides() -> None:
    """A slow producer on one stream, the consumer on another, which nothing but the operation orders."""
    torch, hvd, device = start()
    size, rank = hvd.size(), hvd.rank()
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    inputs = [oracle.values(6, r, 300_007, "float32") for r in range(size)]
    given = to_torch(inputs[rank], device)
    tensors = [torch.full_like(given, 99.0) for _ in range(4)]
    small = torch.ones(1, device=device)
    hvd.allreduce_(small)  # whatever is set up at first
    torch.cuda.synchronize()
    results = []
    torch.cuda.set_sync_debug_mode("error")
    for tensor in tensors:
        with torch.cuda.stream(producer):
            busy(torch, device)
            tensor.copy_(given)  # only now is the input there
            handle = hvd.allreduce_async(tensor, op=hvd.Sum)
        with torch.cuda.stream(consumer):
            results.append(hvd.synchronize(handle) * 2.0)
        with torch.cuda.stream(producer):
            hvd.allreduce_(tensor, op=hvd.Sum)
            tensor.mul_(0.5)
    del handle
    spoiler = [torch.full_like(given, -1.0) for _ in range(8)]  # what was freed too early would be written over
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    for result in results:
        assert not oracle.wrong(from_torch(result * 0.5), inputs, oracle.SUM)
    for tensor in tensors:
        assert not oracle.wrong(from_torch(tensor * 2.0), inputs, oracle.SUM)
    assert len(spoiler) == 8


@pytest.mark.parametrize("path", ["ipc", "staged", "nccl"])
def test_an_operation_orders_streams(path: str) -> None:
    run_ranks(sides, 2, env=environment(path))


def traced() -> list[str]:
    """Names of what the CUDA runtime and driver were asked during steady all-reduces."""
    torch, hvd, device = start()
    from torch.profiler import ProfilerActivity, profile

    tensors = [torch.ones(100_003, device=device) for _ in range(4)]
    for _ in range(3):
        hvd.grouped_allreduce_(tensors)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(5):
            hvd.grouped_allreduce_(tensors)
    torch.cuda.synchronize()
    return sorted({event.key for event in trace.key_averages()})


def test_nothing_waits_for_the_gpu() -> None:
    for names in run_ranks(traced, 2):
        waits = [name for name in names if "Synchronize" in name and name != "cudaDeviceSynchronize"]
        assert not waits, names


def segments() -> list[bool]:
    """Large tensors that come and go, so that segments grow and shrink; whether each of the allocator's can."""
    torch, hvd, device = start()
    size, rank = hvd.size(), hvd.rank()
    for turn in range(6):
        count = (1 << 20) * (1 + 7 * (turn % 3)) + 3
        inputs = [oracle.values(turn, r, 64, "float32") for r in range(size)]
        tensor = to_torch(inputs[rank], device).repeat(count // 64 + 1)[5 : 5 + count]
        result = hvd.allreduce(tensor.contiguous(), op=hvd.Sum)
        want = to_torch(sum(array.astype("float64") for array in inputs), device).repeat(count // 64 + 1)[5 : 5 + count]
        assert torch.allclose(result.double(), want, atol=1e-5)
        del tensor, result, want
        if turn % 2:
            torch.cuda.empty_cache()
    return [bool(segment.get("is_expandable")) for segment in torch.cuda.memory_snapshot()]


@pytest.mark.parametrize("path", ["ipc", "staged"])
def test_expandable_segments(path: str) -> None:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # until torch 2.9, and since
    env = {"RINGREDUCE_GPU_PATH": path, **dict.fromkeys(names, "expandable_segments:True")}
    found = run_ranks(segments, 2, env=env)
    assert all(any(ranks_segments) for ranks_segments in found), "the allocator had expandable segments"


def lost() -> str:
    """Rank 1 dies while rank 0 waits for it; returns what rank 0 is told."""
    torch, hvd, device = start()
    tensor = torch.ones(1 << 20, device=device)
    hvd.allreduce_(tensor)
    torch.cuda.synchronize()
    if hvd.rank() == 1:
        send_to_test("here")
        receive_from_test()
        return ""
    handle = hvd.allreduce_async_(tensor, name="never")
    send_to_test("waits")
    with pytest.raises(hvd.PeerLostError):
        hvd.synchronize(handle)
    torch.cuda.synchronize()
    with pytest.raises(hvd.PeerLostError) as caught:
        hvd.allreduce_(tensor)
    return str(caught.value)


@pytest.mark.parametrize("path", ["ipc", "staged", "nccl"])
def test_a_rank_dies_while_another_waits(path: str) -> None:
    with start_ranks(lost, 2, env=environment(path)) as job:
        assert job.receive(1) == "here"
        assert job.receive(0) == "waits"
        job.kill(1, signal.SIGKILL)
        outcomes = job.wait()
    assert outcomes[0].error is None, outcomes[0]
    assert outcomes[0].status == 0
    assert "rank 1" in outcomes[0].value
    assert outcomes[1].status == -signal.SIGKILL


def ordinals() -> None:
    """One rank, one GPU: what of another one is refused by name."""
    torch, hvd, _ = start()
    hvd.allreduce(torch.ones(2, device="cuda:0"))
    with pytest.raises(hvd.InvalidArgumentError, match="one rank, one GPU"):
        hvd.allreduce(torch.ones(2, device="cuda:1"))
    with pytest.raises((hvd.HorovodInternalError, hvd.InvalidArgumentError), match="on same device"):
        hvd.grouped_allreduce([torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")])


def test_tensors_of_two_gpus() -> None:
    if cuda_devices.need() < 2:
        pytest.skip("one CUDA device: two are needed")
    run_ranks(ordinals, 1)


def forgotten() -> Any:
    """Ends without shutdown() while an operation is under way that nobody else takes part in."""
    torch, hvd, device = start()
    hvd.allreduce_(torch.ones(8, device=device))
    if hvd.rank() == 0:
        hvd.allreduce_async(torch.ones(8, device=device), name="alone")
    return os.getpid()


def test_a_process_that_leaves_an_operation_behind_ends() -> None:
    with start_ranks(forgotten, 2) as job:
        outcomes = job.wait()
    assert [one.status for one in outcomes] == [0, 0], job.report()
