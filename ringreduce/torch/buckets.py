"""Buckets: which gradients travel together, and the memory they travel in. Knows nothing of hooks or of passes.

plan() is arithmetic. A bucket is a stretch of registered memory with a slot for each of its gradients; a gradient that
lies in its slot is reduced where it lies, so that a step neither packs nor unpacks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from ringreduce import memory
from ringreduce.process_sets import ProcessSet
from ringreduce.torch.compression import Compressor
from ringreduce.torch.tensors import Operand, from_bytes, operand

BUCKET_NBYTES = 32 << 20
"""A bucket is closed before it would exceed this, so that on ranks with cores to spare the first ones travel while
later gradients are still being computed. One larger gradient is a bucket of its own."""

ALIGNMENT = 64  # of slots; buckets start on pages


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
    """A parameter and the place of its gradient."""

    __slots__ = ("bucket", "context", "name", "parameter", "passes_left", "view")

    def __init__(self, parameter: torch.nn.Parameter, name: str) -> None:
        self.parameter = parameter
        self.name = name
        self.bucket: Bucket
        self.view: torch.Tensor  # what is reduced
        self.context: Any = None  # what the compressor needs afterwards
        self.passes_left = 0


class Bucket:
    """Slots that are reduced as one operation."""

    __slots__ = ("slots", "waiting")

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.waiting = 0  # slots whose gradient has not come yet
        for slot in slots:
            slot.bucket = self

    def collect(self, slot: Slot) -> None:
        """Called when parameter.grad is final on this rank: sees to it that the slot's view has its value."""
        raise NotImplementedError

    def operands(self) -> list[Operand]:
        """What to reduce in place, once all slots are collected; the same shapes on all ranks."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called after the reduction: leaves the results in parameter.grad."""


class RegisteredBucket(Bucket):
    """Gradients are views of one stretch of registered memory, and stay there."""

    __slots__ = ("whole",)

    def __init__(self, slots: list[Slot], raw: Any) -> None:
        super().__init__(slots)
        dtype = slots[0].parameter.dtype
        self.whole = from_bytes(raw, dtype)
        start = 0
        for slot in slots:
            like = slot.parameter
            flat = self.whole[start : start + like.numel()]
            slot.view = flat.as_strided(like.size(), strides_of(like)) if like.numel() else torch.empty_like(like)
            start += aligned(like.numel() * dtype.itemsize) // dtype.itemsize

    @staticmethod
    def nbytes(slots: Sequence[Slot]) -> int:
        """What such a bucket takes, padding included."""
        return sum(aligned(slot.parameter.numel() * slot.parameter.dtype.itemsize) for slot in slots)

    def collect(self, slot: Slot) -> None:
        grad, view = slot.parameter.grad, slot.view
        if grad is view:
            return
        if grad is None:
            view.zero_()
        elif grad.data_ptr() != view.data_ptr() or grad.stride() != view.stride():
            view.copy_(grad)
        slot.parameter.grad = view

    def operands(self) -> list[Operand]:
        return [operand(self.whole)]


class TensorBucket(Bucket):
    """Gradients stay where torch put them; compressed ones travel in tensors of their own."""

    __slots__ = ("compression",)

    def __init__(self, slots: list[Slot], compression: type[Compressor]) -> None:
        super().__init__(slots)
        self.compression = compression

    def collect(self, slot: Slot) -> None:
        if slot.parameter.grad is None:
            slot.parameter.grad = torch.zeros_like(slot.parameter)
        compressed, slot.context = self.compression.compress(slot.parameter.grad)
        slot.view = compressed.contiguous()

    def operands(self) -> list[Operand]:
        return [operand(slot.view) for slot in self.slots]

    def finish(self) -> None:
        for slot in self.slots:
            result, grad = self.compression.decompress(slot.view, slot.context), slot.parameter.grad
            if grad is not None and result is not grad:
                grad.copy_(result)


def strides_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """The strides that torch gives the parameter's gradient: its own if it is dense, else those of a contiguous one."""
    return torch.empty_like(parameter, device="meta").stride()


def registered(groups: Sequence[list[Slot]], process_set: ProcessSet) -> list[Bucket]:
    """A bucket for each group of slots, all in one allocation. Collective over the set."""
    page = memory.PAGE
    sizes = [RegisteredBucket.nbytes(slots) for slots in groups]
    raw = memory.symmetric_empty(sum(aligned(size, page) for size in sizes), np.uint8, process_set)
    raw[:] = 0  # padding is reduced along: zeros stay zeros
    buckets: list[Bucket] = []
    start = 0
    for slots, size in zip(groups, sizes, strict=True):
        buckets.append(RegisteredBucket(slots, raw[start : start + size]))
        start += aligned(size, page)
    return buckets
