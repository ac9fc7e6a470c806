"""Buckets: which gradients travel together, and the memory they travel in. Knows nothing of hooks or of passes.

plan() is arithmetic. A bucket is a stretch of registered memory with a slot for each of its gradients; a gradient that
lies in its slot is reduced where it lies, so that a step neither packs nor unpacks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ringreduce import memory
from ringreduce._core import Work, stream
from ringreduce.errors import InvalidArgumentError
from ringreduce.process_sets import ProcessSet
from ringreduce.torch.exchange import Channel, Exchange
from ringreduce.torch.tensors import from_bytes, operand

BUCKET_NBYTES = 32 << 20
"""A bucket is closed before it would exceed this, so that on ranks with cores to spare the first ones travel while
later gradients are still being computed. One larger gradient is a bucket of its own."""

ALIGNMENT = 64  # of slots; buckets start on pages

LARGE_NBYTES = 256 << 10
"""A gradient of this size goes to its place as soon as it is there; smaller ones together, to save calls."""

STREAMED_NBYTES = 8 << 20
"""In a bucket of this size large gradients go to their places past the caches: they would not be there any more when
they are reduced, and lines that are overwritten whole need not be read first. Two ranks, 80 MB of gradients: a step of
224 to 260 ms instead of 235 to 289 ms."""


def plan(nbytes: Sequence[int], kinds: Sequence[Hashable], limit: int) -> list[list[int]]:
    """Deals tensors out to buckets, in order: each bucket has tensors of one kind, and at most limit bytes if several.

    Args:
        nbytes: bytes of each tensor, in the order in which they become ready.
        kinds: what must be equal within a bucket (dtype, group).

    Returns:
        The indices of each bucket's tensors, ascending; the buckets in the order in which they become complete.
    """
    buckets: list[list[int]] = []
    current: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    for index, (count, kind) in enumerate(zip(nbytes, kinds, strict=True)):
        if kind not in current or filled[kind] + count > limit:
            current[kind] = []
            filled[kind] = 0
            buckets.append(current[kind])
        current[kind].append(index)
        filled[kind] += count
    return sorted(buckets, key=lambda bucket: bucket[-1])


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """nbytes rounded up to a multiple of the alignment."""
    return -(-nbytes // alignment) * alignment


class Slot:
    """A parameter and the place of its gradient.

    section: slots of different sections never share a bucket.
    """

    __slots__ = ("address", "bucket", "is_large", "name", "parameter", "passes_left", "section", "view")

    def __init__(self, parameter: torch.nn.Parameter, name: str, section: int = 0) -> None:
        self.parameter = parameter
        self.name = name
        self.section = section
        self.is_large = parameter.numel() * parameter.dtype.itemsize >= LARGE_NBYTES
        self.bucket: Bucket | None = None  # until the gradients are laid out
        self.view: torch.Tensor  # where the gradient is reduced, in registered memory
        self.address = 0  # of the view
        self.passes_left = 0


class Bucket:
    """Slots that are reduced together.

    name: of its operation, the same on all ranks.
    waiting: slots whose gradient has not come yet in this round.
    """

    __slots__ = ("name", "slots", "waiting")

    def __init__(self, slots: list[Slot], name: str) -> None:
        self.slots = slots
        self.name = name
        self.waiting = len(slots)
        for slot in slots:
            slot.bucket = self

    def collect(self, slot: Slot) -> None:
        """May be called as soon as the slot's gradient is final on this rank."""

    def begin(self) -> None:
        """Called when all gradients are final on this rank: starts the reduction."""
        raise NotImplementedError

    def finish(self) -> None:
        """Waits for the reduction and leaves the results in parameter.grad."""
        raise NotImplementedError


class RegisteredBucket(Bucket):
    """Gradients are views of one stretch of registered memory, and stay there."""

    __slots__ = ("channel", "destinations", "memory", "streams", "whole", "work")

    def __init__(self, slots: list[Slot], name: str, raw: Any, channel: Channel) -> None:
        super().__init__(slots, name)
        self.channel = channel
        self.whole = from_bytes(raw, slots[0].parameter.dtype)
        self.streams = self.whole.nbytes >= STREAMED_NBYTES
        self.memory = [operand(self.whole)]
        self.work: Work
        for slot, view in zip(slots, views(slots, self.whole), strict=True):
            slot.view = view
            slot.address = view.data_ptr()
        self.destinations = [(slot.parameter, slot.view, slot.address, slot) for slot in slots]

    @staticmethod
    def nbytes(slots: Sequence[Slot]) -> int:
        """What such a bucket takes, padding included."""
        return sum(aligned(slot.parameter.numel() * slot.parameter.dtype.itemsize) for slot in slots)

    def collect(self, slot: Slot) -> None:
        """Brings the gradient to its place: a large one at once, while it is in a cache."""
        grad, view = slot.parameter.grad, slot.view
        if grad is None or grad is view:
            return
        check_dense(slot, grad)
        address, alike = grad.data_ptr(), grad.stride() == view.stride() and grad.dtype == view.dtype
        if self.streams and alike and address != slot.address:
            stream(slot.address, address, view.nbytes)  # views are dense, so equal strides are equal bytes
        elif address != slot.address or not alike:
            view.copy_(grad)
        slot.parameter.grad = view

    def gather(self) -> None:
        """Brings all gradients to their places; the small ones by one call."""
        sources, targets, strided = [], [], torch.strided
        for parameter, view, address, slot in self.destinations:
            grad = parameter.grad
            if grad is view:
                continue
            if grad is None:
                view.zero_()
                if not parameter.requires_grad:  # since the layout was made: no gradient for it either
                    self.miss(slot)
                    continue
            else:
                if grad.requires_grad or grad.layout is not strided:
                    check_dense(slot, grad)
                if grad.data_ptr() != address or grad.stride() != view.stride():
                    sources.append(grad)
                    targets.append(view)
            parameter.grad = view
        if sources:
            copy_all(targets, sources)

    def miss(self, slot: Slot) -> None:
        """Called for a parameter that no longer requires a gradient."""

    def begin(self) -> None:
        """See Bucket."""
        self.gather()
        channel, memory = self.channel, self.memory
        self.work = channel.process_set.group.allreduce_async(
            memory, memory, channel.op, channel.prescale, channel.postscale, self.name
        )

    def finish(self) -> None:
        """See Bucket."""
        self.work.wait()


class ExchangeBucket(Bucket):
    """Gradients stay where torch put them, and travel as an Exchange has it."""

    __slots__ = ("exchange",)

    def __init__(self, slots: list[Slot], name: str, exchange: Exchange) -> None:
        super().__init__(slots, name)
        self.exchange = exchange

    def begin(self) -> None:
        """See Bucket."""
        gradients = []
        for slot in self.slots:
            grad = slot.parameter.grad
            if grad is None:
                grad = torch.zeros_like(slot.parameter)
                if slot.parameter.requires_grad:  # else since the layout was made: no gradient for it
                    slot.parameter.grad = grad
            check_dense(slot, grad)
            gradients.append(grad)
        self.exchange.begin(gradients, self.name)

    def finish(self) -> None:
        """See Bucket."""
        self.exchange.finish()


def check_dense(slot: Slot, grad: torch.Tensor) -> None:
    """Raises AssertionError for a gradient that has a graph, InvalidArgumentError for a sparse one."""
    if grad.requires_grad:
        raise AssertionError("gradients that require gradients (create_graph=True) cannot be reduced in place")
    if grad.layout is not torch.strided:
        raise InvalidArgumentError(
            f"the gradient of {slot.name} is sparse, and was dense or missing on all ranks in the first step; "
            "pass sparse_as_dense=True to DistributedOptimizer"
        )


def views(slots: Sequence[Slot], whole: torch.Tensor) -> Iterator[torch.Tensor]:
    """The part of a bucket's memory that belongs to each slot, in the shape and strides of its gradient."""
    start = 0
    for slot in slots:
        like = slot.parameter
        flat = whole[start : start + like.numel()]
        yield flat.as_strided(like.size(), strides_of(like)) if like.numel() else torch.empty_like(like)
        start += aligned(like.numel() * whole.element_size()) // whole.element_size()


def _copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


copy_all: Any = getattr(torch, "_foreach_copy_", _copy_each)  # torch >= 2.1.1
"""Copies each of some tensors to its target."""


def strides_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """The strides that torch gives the parameter's gradient: its own if it is dense, else those of a contiguous one."""
    return torch.empty_like(parameter, device="meta").stride()


def allocate(sizes: Sequence[int], process_set: ProcessSet) -> list[Any]:
    """Stretches of registered memory of so many bytes, on pages of one allocation, all zero. Collective over the set.

    What is padding is reduced along, and zeros stay zeros.
    """
    page = memory.PAGE
    raw = memory.symmetric_empty(sum(aligned(size, page) for size in sizes), np.uint8, process_set)
    raw[:] = 0
    stretches = []
    start = 0
    for size in sizes:
        stretches.append(raw[start : start + size])
        start += aligned(size, page)
    return stretches
