"""A bucket in registered memory: gradients lie where they are reduced, and a step neither packs nor unpacks.

Each slot has its place in a stretch of memory that all ranks of the host map; on a GPU, of the GPU's. A gradient that
torch has put elsewhere is moved there, and parameter.grad is that place from then on.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ringreduce._core import Work, stream
from ringreduce.collectives import memory
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch import cuda
from ringreduce.torch.gradient_reduction import Channel
from ringreduce.torch.optimizer.buckets import Bucket, Slot, changed, densified, frozen, is_other
from ringreduce.torch.profiling import profiled, ranged
from ringreduce.torch.tensors import Operand, from_bytes, on_stream, operand

ALIGNMENT = 64  # of slots; buckets start on pages
HOST = torch.device("cpu")

STREAMED_NBYTES = 8 << 20
"""In a bucket of this size large gradients go to their places past the caches: they would not be there any more when
they are reduced, and lines that are overwritten whole need not be read first. Two ranks, 80 MB of gradients: a step of
224 to 260 ms instead of 235 to 289 ms."""


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """nbytes rounded up to a multiple of the alignment."""
    return -(-nbytes // alignment) * alignment


class RegisteredBucket(Bucket):
    """Gradients are views of one stretch of registered memory, and stay there."""

    __slots__ = (
        "addresses",
        "channel",
        "memory",
        "missed",
        "parameters",
        "streams",
        "version",
        "views",
        "whole",
        "work",
    )

    def __init__(self, slots: list[Slot], name: str, raw: torch.Tensor, channel: Channel) -> None:
        super().__init__(slots, name)
        self.channel = channel
        self.whole = raw.view(slots[0].parameter.dtype).data  # .data: with a version of its own, not all buckets'
        self.streams = self.whole.is_cpu and self.whole.nbytes >= STREAMED_NBYTES
        self.memory = [operand(self.whole)]
        self.work: Work
        for slot, view in zip(slots, places(slots, self.whole), strict=True):
            slot.view = view
            slot.address = view.data_ptr()
            slot.strides = view.stride()
        self.missed: list[Slot] = []
        self.parameters: list[torch.Tensor] = []
        self.views: list[torch.Tensor] = []
        self.addresses: list[int] = []
        self.version = 0  # of the memory and of all views, when the reduction began

    @staticmethod
    def nbytes(slots: Sequence[Slot]) -> int:
        """What such a bucket takes, padding included."""
        return sum(aligned(slot.parameter.numel() * slot.parameter.dtype.itemsize) for slot in slots)

    def collect(self, slot: Slot) -> None:
        """Brings the gradient to its place: a large one at once, while it is in a cache."""
        try:
            self._collect(slot)
        except RuntimeError:
            self._check(slot)
            raise

    def _collect(self, slot: Slot) -> None:
        grad, view = slot.parameter.grad, self.view_of(slot)
        if grad is None or grad is view:
            return
        grad = densified(slot, grad)
        address, alike = grad.data_ptr(), grad.stride() == view.stride() and grad.dtype == view.dtype
        if self.streams and alike and address not in (0, slot.address):  # 0: no memory of its own
            _copy_streaming(slot.address, address, view.nbytes)  # views are dense, so equal strides are equal bytes
        elif address != slot.address or not alike:
            view.copy_(grad)
        slot.parameter.grad = view

    def batch_small_gradients(self) -> None:
        """See Bucket."""
        super().batch_small_gradients()
        self.parameters = [slot.parameter for slot in self.batched]
        self.views = [slot.view for slot in self.batched]
        self.addresses = [slot.address for slot in self.batched]

    def view_of(self, slot: Slot) -> torch.Tensor:
        """The slot's place, as the tensor that parameter.grad may be.

        torch gives the tensor other memory when a model is converted: model.double().float() does so, and
        model.to(memory_format=...), through parameter.grad.data; and when it is shared, by model.share_memory() or a
        queue of torch.multiprocessing. Then the place gets a new tensor.
        """
        view = slot.view
        if view.data_ptr() == slot.address and view.stride() == slot.strides:
            return view
        self._check(slot)
        slot.view = part(self.whole, slot.address, slot.parameter.size(), slot.strides)
        return slot.view

    def _check(self, slot: Slot) -> None:
        """Raises InvalidArgumentError for a parameter whose gradients no longer fit in their place."""
        parameter, whole, view = slot.parameter, self.whole, slot.view
        if parameter.dtype != whole.dtype or parameter.shape != view.shape:
            raise InvalidArgumentError(
                f"{slot.name} was {whole.dtype} {list(view.shape)} when its gradients got their memory, and is "
                f"{parameter.dtype} {list(parameter.shape)} now: convert the model before DistributedOptimizer is made"
            )

    def gather(self) -> None:
        """Brings all gradients to their places; the small ones by one call."""
        try:
            self._gather_each(self.hooked)
            if self.batched and not self._gather_at_once():
                self._gather_each(self.batched)
        except RuntimeError:
            for slot in self.slots:
                self._check(slot)
            raise

    def _gather_at_once(self) -> bool:
        """Gathers the batched gradients, if each has a new and dense one. By lists, at 0.7 us a gradient."""
        if list(map(_address, self.views)) != self.addresses:
            self.views = [self.view_of(slot) for slot in self.batched]
        parameters, targets = self.parameters, self.views
        grads: list[Any] = [parameter.grad for parameter in parameters]
        if type(None) in map(type, grads) or any(map(operator.is_, grads, targets)) or set(map(_kind, grads)) != _PLAIN:
            return False
        copy_all(targets, grads)
        for parameter, target in zip(parameters, targets, strict=True):
            parameter.grad = target
        return True

    def _gather_each(self, slots: Sequence[Slot]) -> None:
        sources, targets, strided = [], [], torch.strided
        for slot in slots:
            parameter, view = slot.parameter, self.view_of(slot)
            grad = parameter.grad
            if grad is view:
                continue
            if grad is None:
                view.zero_()
                if not parameter.requires_grad:  # since the layout was made: no gradient for it either
                    self.miss(slot)
                    continue
                self.absent.append(slot)
            else:
                if grad.requires_grad or grad.layout is not strided:
                    grad = densified(slot, grad)
                if grad.data_ptr() != slot.address or grad.stride() != slot.strides:
                    sources.append(grad)
                    targets.append(view)
            parameter.grad = view
        if sources:
            copy_all(targets, sources)

    def miss(self, slot: Slot) -> None:
        """Called for a parameter that no longer requires a gradient: it is to be so on all ranks."""
        self.missed.append(slot)

    def begin(self) -> None:
        """See Bucket."""
        self.missed.clear()
        self.gather()
        self.work = self.reduce()
        self.version = self.whole._version

    def reduce(self) -> Work:
        """Starts the reduction of the bucket's memory."""
        channel, memory = self.channel, self.operands()
        work = profiled(channel.process_set.group).allreduce_async(
            memory, memory, channel.op, channel.prescale, channel.postscale, self.name, channel.wire
        )
        return on_stream(work, self.whole)

    def operands(self) -> list[Operand]:
        """The bucket's memory for the core; of a GPU's with the stream that is current now."""
        return self.memory if self.whole.is_cpu else [operand(self.whole)]

    def finish(self) -> None:
        """See Bucket. Raises InvalidArgumentError if somebody has changed gradients since begin()."""
        is_changed = self.whole._version != self.version or any(
            is_other(slot, slot.view) or slot.view.data_ptr() != slot.address for slot in self.slots
        )
        is_changed |= self.has_dropped()
        self.work.wait()
        if is_changed:
            raise changed()
        for slot in self.missed if self.whole.is_cpu else ():  # a look at a GPU's memory would wait for it
            if slot.view.any():
                raise frozen(slot)


def starts(slots: Sequence[Slot], itemsize: int) -> Iterator[int]:
    """The first element of each slot, in the memory of a bucket with elements of that many bytes."""
    start = 0
    for slot in slots:
        yield start
        start += aligned(slot.parameter.numel() * itemsize) // itemsize


def views(slots: Sequence[Slot], whole: torch.Tensor) -> Iterator[torch.Tensor]:
    """The part of a tensor with a bucket's layout that is each slot's, in the shape and strides of its gradient."""
    for slot, start in zip(slots, starts(slots, whole.element_size()), strict=True):
        like = slot.parameter
        flat = whole[start : start + like.numel()]
        yield flat.as_strided(like.size(), strides_of(like)) if like.numel() else torch.empty_like(like)


def places(slots: Sequence[Slot], whole: torch.Tensor) -> Iterator[torch.Tensor]:
    """views() of a bucket's memory as tensors for the user: see part()."""
    first, itemsize = whole.data_ptr(), whole.element_size()
    for slot, start in zip(slots, starts(slots, itemsize), strict=True):
        like = slot.parameter
        if like.numel():
            yield part(whole, first + start * itemsize, like.size(), strides_of(like))
        else:
            yield torch.empty_like(like)


def part(whole: torch.Tensor, address: int, size: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The part of a bucket's memory that begins at an address, as a dense tensor with the bucket's version counter.

    On the CPU its storage is this part only. torch saves and shares storages whole: of a view, all of the bucket would
    be written to a checkpoint, and would move to other memory when somebody puts a bias on a queue.
    """
    start, count = (address - whole.data_ptr()) // whole.element_size(), math.prod(size)
    if count == 0:
        return torch.empty_strided(size, strides, dtype=whole.dtype, device=whole.device)
    if not whole.is_cpu:
        return whole[start : start + count].as_strided(size, strides)
    of_bytes = whole.view(torch.uint8).numpy()[start * whole.element_size() :][: count * whole.element_size()]
    tensor = whole.detach()
    tensor.data = torch.frombuffer(of_bytes, dtype=whole.dtype).as_strided(size, strides)
    return tensor


_copy_streaming = ranged("copy gradient")(stream)
_address = operator.methodcaller("data_ptr")
_kind = operator.attrgetter("requires_grad", "layout")
_PLAIN = {(False, torch.strided)}


def _copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


copy_all: Any = getattr(torch, "_foreach_copy_", _copy_each)  # torch >= 2.1.1
"""Copies each of some tensors to its target."""


def strides_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """The strides that torch gives the parameter's gradient: its own if it is dense, else those of a contiguous one."""
    return torch.empty_like(parameter, device="meta").stride()


def allocate(sizes: Sequence[int], devices: Sequence[torch.device], process_set: ProcessSet) -> list[torch.Tensor]:
    """Stretches of bytes, each on its device, on pages of one allocation a device, all zero.

    On the CPU it is registered memory, and this is collective over the set. What is padding is reduced along, and zeros
    stay zeros.
    """
    stretches: dict[int, torch.Tensor] = {}
    for device in dict.fromkeys(devices):
        here = [index for index, its in enumerate(devices) if its == device]
        paged = [aligned(sizes[index], memory.PAGE) for index in here]
        if device == HOST:
            raw = memory.symmetric_empty(sum(paged), np.uint8, process_set)
            raw[:] = 0
            parts = list(torch.split(from_bytes(raw, torch.uint8), paged))
        else:
            parts = cuda.allocate(paged, device)
        stretches.update((index, part[: sizes[index]]) for index, part in zip(here, parts, strict=True))
    return [stretches[index] for index in range(len(sizes))]
