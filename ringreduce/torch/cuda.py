"""CUDA tensors: the stream that an operation comes after.

All that is torch's of CUDA is in this file. An operation on GPU memory is submitted with torch's current stream, and
begins when that stream has come there. wait() blocks until it is done.

Memory. The operands are kept by the core until the operation is done, so torch's allocator does not give them away
before. What is used on another stream than it was submitted on is told to the allocator (record_stream).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce._core import cuda_built

BUILT = cuda_built() and bool(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call]
"""Whether this build communicates GPU memory, and torch's has any. Says nothing about the machine."""

_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # what torch's own compiler calls; CUDA builds


def current_stream(device: int) -> int:
    """torch's current stream on a GPU, as CUDA knows it; 0 is the default stream."""
    if _raw_stream is not None:
        raw: int = _raw_stream(device)
        return raw
    return int(torch.cuda.current_stream(device).cuda_stream)


def operand(tensor: torch.Tensor, shape: Sequence[int], code: int) -> tuple[int, Sequence[int], int, Any, int, int]:
    """A contiguous CUDA tensor in the form that the core takes: with its GPU and the current stream there."""
    device = tensor.get_device()
    return (tensor.data_ptr(), shape, code, tensor, device, current_stream(device))


class DeviceWork:
    """An operation on GPU memory, as Works, Handle and the buckets use one of the core's.

    Args:
        work: the core's.
        tensors: the operation's outputs, at least one tensor of its GPU; kept until this is dropped.
        room: where an all-gather or all-to-all puts its result if that has just this size.
    """

    __slots__ = ("_device", "_room", "_submitted_on", "_tensors", "_work")

    def __init__(self, work: Any, tensors: Sequence[torch.Tensor], room: torch.Tensor | None = None) -> None:
        self._work = work
        self._tensors = tensors
        self._room = room
        self._device = tensors[0].get_device()
        self._submitted_on = current_stream(self._device)

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the operation is done, so that work on any stream from here on sees the result.

        Args:
            timeout: seconds; None waits without limit (the group's own timeout still holds).
        """
        self._work.wait(timeout)
        if current_stream(self._device) != self._submitted_on:
            now = torch.cuda.current_stream(self._device)
            for tensor in (*self._tensors, *([] if self._room is None else [self._room])):
                tensor.record_stream(now)

    def withdraw(self) -> None:
        """For a synchronous call that an exception has ended: the tensors are left alone from here on."""
        self._work.withdraw()

    def done(self) -> bool:
        """True once the operation is done, or has failed."""
        finished: bool = self._work.done()
        return finished

    @property
    def counts(self) -> list[int]:
        """Rows received from each rank. Blocks until they are known."""
        self._work.wait()
        counts: list[int] = self._work.counts
        return counts

    @property
    def peer(self) -> int:
        """Of a message, the other rank. Blocks until it is known."""
        self._work.wait()
        peer: int = self._work.peer
        return peer

    @property
    def output(self) -> Any:
        """What the operation allocated, as an object with __cuda_array_interface__; None where it had room."""
        return self._work.output

    def received(self, like_rows_of: torch.Tensor) -> torch.Tensor:
        """The rows that came. Blocks until they are there."""
        shape = (sum(self.counts), *like_rows_of.shape[1:])
        found = self.output
        if found is None and self._room is not None and self._room.shape == shape:
            return self._room
        if found is None:
            return like_rows_of.new_empty(shape)
        return flat(found, like_rows_of.dtype, like_rows_of.device).view(shape)


def flat(memory: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A flat tensor over GPU memory of the core's, which it keeps alive."""
    return torch.as_tensor(memory, device=device).view(-1).view(dtype)


def room_for(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Where rows from every rank go if all have as many as this one."""
    return tensor.new_empty((tensor.shape[0] * size, *tensor.shape[1:]))


def allocate(sizes: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """Zeroed stretches of one allocation, of so many bytes each; multiples of 256."""
    whole = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
    return list(torch.split(whole, list(sizes)))
