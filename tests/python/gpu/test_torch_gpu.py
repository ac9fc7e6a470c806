"""What ringreduce.torch does with CUDA tensors, where there is no GPU: stand-ins take the place of torch's CUDA."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ringreduce.errors import InvalidArgumentError, UnavailableError  # noqa: E402
from ringreduce.torch import cuda, tensors  # noqa: E402
from ringreduce.torch.optimizer.buckets import LARGE_NBYTES, Bucket, Slot  # noqa: E402
from ringreduce.torch.optimizer.registered_bucket import allocate  # noqa: E402


class Gpu(torch.Tensor):
    """A CPU tensor that says that it is on GPU 3."""

    told: list[Any]
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return 3

    def record_stream(self, stream: Any) -> None:
        self.told.append(stream)


def on_gpu(*shape: int, dtype: Any = None) -> Any:
    tensor = torch.zeros(*shape, dtype=dtype).as_subclass(Gpu)
    tensor.told = []
    return tensor


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The last one is torch's current stream."""
    current = [77]
    monkeypatch.setattr(cuda, "BUILT", True)
    monkeypatch.setattr(cuda, "current_stream", lambda device: current[-1] + device - 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream", current[-1], device))
    return current


def test_an_operand_says_where_and_after_what(streams: list[int]) -> None:
    tensor = on_gpu(4, 5, dtype=torch.int32)
    address, shape, code, owner, device, stream = tensors.operand(tensor)
    assert (address, tuple(shape), device, stream) == (tensor.data_ptr(), (4, 5), 3, 77)
    assert code == tensors.DTYPES[torch.int32]
    assert owner is tensor
    streams.append(78)
    assert tensors.operand(tensor)[5] == 78
    assert len(tensors.operand(torch.zeros(2))) == 4
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        tensors.operand(on_gpu(4, 5).t())
    with pytest.raises(InvalidArgumentError, match="not supported; supported: float16"):
        tensors.operand(on_gpu(4, dtype=torch.complex64))


def test_what_is_refused_is_said(streams: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match=r"in meta memory, and ringreduce communicates CPU and CUDA memory"):
        tensors.operand(torch.zeros(2, device="meta"))
    monkeypatch.setattr(cuda, "BUILT", False)
    with pytest.raises(UnavailableError, match=r"ringreduce communicates CPU memory here; use tensor.cpu\(\)"):
        tensors.operand(on_gpu(2))


class Native:
    """The core's side of an operation."""

    def __init__(self, counts: list[int], output: Any = None) -> None:
        self.calls: list[Any] = []
        self.counts = counts
        self.output = output
        self.peer = -1

    def wait(self, timeout: float | None = None) -> None:
        self.calls.append("wait")

    def done(self) -> bool:
        return True


def test_waiting_waits_and_tells_the_allocator_of_another_stream(streams: list[int]) -> None:
    native, output = Native([]), on_gpu(4)
    work: Any = tensors.on_stream(native, output)  # type: ignore[arg-type]
    work.wait()
    assert native.calls == ["wait"]
    assert output.told == []
    streams.append(78)
    work.wait(1.5)
    assert native.calls == ["wait", "wait"]
    assert output.told == [("stream", 78, 3)]
    assert work.done()
    assert tensors.handle(work, lambda _: output).wait() is output
    assert tensors.on_stream(native, torch.zeros(3)) is native  # type: ignore[comparison-overlap, arg-type]


def test_what_came_is_where_there_was_room_for_it(streams: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    like = on_gpu(2, 5)
    room = cuda.room_for(like, 3)
    assert room.shape == (6, 5)
    native = Native([2, 2, 2])
    work = cuda.DeviceWork(native, [like], room)
    assert work.received(like) is room
    room.told = []
    streams.append(78)
    work.wait()
    assert room.told == [("stream", 78, 3)]
    assert "wait" in native.calls
    asked = []
    monkeypatch.setattr(cuda, "flat", lambda *arguments: asked.append(arguments) or torch.arange(15.0))
    more = cuda.DeviceWork(Native([2, 0, 1], output="memory"), [like], room).received(like)
    assert more.shape == (3, 5)
    assert more[2, 4] == 14
    assert asked == [("memory", torch.float32, like.device)]
    assert cuda.DeviceWork(Native([0, 0, 0]), [like], room).received(like).shape == (0, 5)


@pytest.mark.parametrize("count", [LARGE_NBYTES // 4, 4], ids=["large", "small"])
def test_gradients_of_several_streams_are_reduced_after_backward(count: int, streams: list[int]) -> None:
    slots = [Slot(torch.nn.Parameter(torch.zeros(count)), name) for name in ("a", "b")]
    for slot in slots:
        slot.parameter = on_gpu(count)
    bucket = Bucket(slots, "bucket")
    bucket.batch_small_gradients()
    assert [slot.name for slot in bucket.batched] == ([] if slots[0].is_large else ["a"])

    def arrive(slot: Slot) -> None:
        if slot in bucket.batched:
            bucket.arrive_on_gpu(slot.parameter)
        else:
            bucket.note_stream(slot.parameter)
            bucket.waiting -= 1

    bucket.expect(1)
    for slot in slots:
        arrive(slot)
    assert bucket.is_complete(1)
    bucket.expect(1)
    arrive(slots[0])
    streams.append(78)
    arrive(slots[1])
    assert not bucket.is_complete(1), "of stream 78 nobody knows whether it comes after stream 77"
    bucket.expect(1)
    for slot in slots:
        arrive(slot)
    assert bucket.is_complete(1)
    streams.append(79)
    assert not bucket.is_complete(1)


def test_stretches_are_on_their_devices_and_zero() -> None:
    gpu = torch.device("meta")  # as good as any that is not the CPU: nothing collective happens
    stretches = allocate([100, 5000, 64], [gpu] * 3, process_set=None)  # type: ignore[arg-type]
    assert [(part.numel(), part.device, part.dtype) for part in stretches] == [
        (count, gpu, torch.uint8) for count in (100, 5000, 64)
    ]
    assert [part.storage_offset() for part in stretches] == [0, 4096, 12288]
    assert allocate([], [], process_set=None) == []  # type: ignore[arg-type]
