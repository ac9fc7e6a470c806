"""Buckets: gradients that are reduced together, which of them are final in a round, and the bucket for compressors."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import torch

from ringreduce import config
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.torch import cuda
from ringreduce.torch.gradient_reduction import Casting, Exchange

LARGE_NBYTES = 256 << 10
"""A gradient of this size goes to its place as soon as it is there; smaller ones together, to save calls."""

BATCH_NBYTES = 1 << 20
"""So much of a bucket may wait for the next hooked gradient, or for step(), before it is launched. A Python function as
autograd's hook costs 1 us, a method of a list 0.1."""


class Slot:
    """A parameter and the place of its gradient.

    section: slots of different sections never share a bucket.
    """

    __slots__ = (
        "address",
        "bucket",
        "hook",
        "is_large",
        "name",
        "parameter",
        "passes_left",
        "section",
        "strides",
        "view",
    )

    def __init__(self, parameter: torch.nn.Parameter, name: str, section: int = 0) -> None:
        self.parameter = parameter
        self.name = name
        self.section = section
        self.is_large = parameter.numel() * parameter.dtype.itemsize >= LARGE_NBYTES
        self.bucket: Bucket | None = None  # until the gradients are laid out
        self.view: torch.Tensor  # where the gradient is reduced, in registered memory
        self.address = 0  # of the view, with these strides, whatever memory somebody has given the tensor since
        self.strides: tuple[int, ...] = ()
        self.passes_left = 0
        self.hook: Any  # what removes the hook on the parameter


class Bucket:
    """Slots that are reduced together.

    name: of its operation, the same on all ranks.
    hooked: slots whose hook calls the reducer; all of them until batch_small_gradients().
    batched: the others, whose hook only appends the parameter to arrived.
    arrived: parameters of batched slots whose gradients are final in this round.
    waiting: number of hooked slots whose gradient is not final yet in this round.
    passes: how many times each gradient is computed in this round.
    absent: slots that had no gradient when the reduction began.
    producers: streams of a GPU that have made gradients in this round.
    """

    __slots__ = ("absent", "arrived", "batched", "hooked", "name", "passes", "producers", "slots", "waiting")

    def __init__(self, slots: list[Slot], name: str) -> None:
        self.slots = slots
        self.name = name
        self.hooked = slots
        self.batched: list[Slot] = []
        self.arrived: list[torch.Tensor] = []
        self.waiting = len(slots)
        self.passes = 1
        self.absent: list[Slot] = []
        self.producers: set[int] = set()
        for slot in slots:
            slot.bucket = self

    def batch_small_gradients(self) -> None:
        """Makes small gradients batched; at least every BATCH_NBYTES, and at the end, one stays hooked."""
        unhooked_nbytes = 0
        self.hooked = []
        for slot in self.slots:
            unhooked_nbytes += slot.parameter.numel() * slot.parameter.dtype.itemsize
            if slot.is_large or unhooked_nbytes >= BATCH_NBYTES or slot is self.slots[-1]:
                self.hooked.append(slot)
                unhooked_nbytes = 0
            else:
                self.batched.append(slot)
                self.arrived += [slot.parameter] * (self.passes - slot.passes_left)

    def expect(self, passes: int) -> None:
        """Begins a round, in which each gradient is computed so many times."""
        self.passes = passes
        self.absent.clear()
        self.waiting = len(self.hooked)
        self.arrived.clear()
        self.producers.clear()
        for slot in self.hooked:
            slot.passes_left = passes

    def is_complete(self, passes: int) -> bool:
        """Whether all gradients are final, computed `passes` times each, and the stream that is current has made them.

        Those of a backward() on several streams are reduced after it: then torch has joined them.
        """
        if self.waiting or len(self.arrived) != passes * len(self.batched) or self.has_arrived_too_often(passes):
            return False
        return not self.producers or self.producers == {_stream(self.slots[0].parameter)}

    def has_arrived_too_often(self, passes: int) -> bool:
        """Whether a batched gradient was computed more than `passes` times."""
        if passes == 1:
            return len(set(map(id, self.arrived))) < len(self.arrived)
        return any(times > passes for times in Counter(map(id, self.arrived)).values())

    def has_dropped(self) -> bool:
        """Whether gradients that were final had been taken away when the reduction began, as by `grad = None`."""
        if not self.absent:
            return False
        arrived, batched = Counter(map(id, self.arrived)), set(map(id, self.batched))
        return any(
            (arrived[id(slot.parameter)] == self.passes) if id(slot) in batched else slot.passes_left == 0
            for slot in self.absent
        )

    def collect(self, slot: Slot) -> None:
        """May be called as soon as the slot's gradient is final on this rank."""

    def arrive_on_gpu(self, parameter: torch.Tensor) -> None:
        """The hook of a batched slot on a GPU."""
        self.note_stream(parameter)
        self.arrived.append(parameter)

    def note_stream(self, parameter: torch.Tensor) -> None:
        """Called in the parameter's hook, where the stream that has made its gradient is current."""
        if parameter.is_cuda:
            self.producers.add(_stream(parameter))

    def begin(self) -> None:
        """Called when all gradients are final on this rank: starts the reduction."""
        raise NotImplementedError

    def finish(self) -> None:
        """Waits for the reduction and leaves the results in parameter.grad."""
        raise NotImplementedError


def _stream(parameter: torch.Tensor) -> int:
    return cuda.current_stream(parameter.get_device())


class ExchangeBucket(Bucket):
    """Gradients stay where torch put them, and an Exchange reduces them."""

    __slots__ = ("exchange", "given", "versions")

    def __init__(self, slots: list[Slot], name: str, exchange: Exchange) -> None:
        super().__init__(slots, name)
        self.exchange = exchange
        self.given: list[torch.Tensor] = []  # what is under way
        self.versions: list[int] = []

    def begin(self) -> None:
        """See Bucket."""
        gradients = []
        for slot in self.slots:
            grad = slot.parameter.grad
            if grad is None:
                grad = torch.zeros_like(slot.parameter)
                if slot.parameter.requires_grad:  # else since the layout was made: no gradient for it
                    slot.parameter.grad = grad
                    self.absent.append(slot)
            gradients.append(densified(slot, grad))
        self.exchange.begin(gradients, self.name)
        self.given, self.versions = gradients, [gradient._version for gradient in gradients]

    def finish(self) -> None:
        """See Bucket."""
        given, versions = self.given, self.versions
        self.given, self.versions = [], []
        is_changed = [gradient._version for gradient in given] != versions or any(
            is_other(slot, gradient) for slot, gradient in zip(self.slots, given, strict=True)
        )
        is_changed |= self.has_dropped()
        self.exchange.finish()
        if is_changed:
            raise changed()
        if not isinstance(self.exchange, Casting):
            return  # what error feedback remembers of a frozen parameter is no gradient of another rank
        for slot, gradient in zip(self.slots, given, strict=True):
            if slot.parameter.grad is None and not slot.parameter.requires_grad and gradient.is_cpu and gradient.any():
                raise frozen(slot)


def frozen(slot: Slot) -> MismatchError:
    """What to raise on a rank where a parameter requires no gradient, and another rank has sent one."""
    return MismatchError(
        f"{slot.name} no longer requires a gradient on this rank, and another rank has one: its values would differ "
        "from now on. Call requires_grad_() with the same value on all ranks, between the same steps"
    )


def is_other(slot: Slot, given: torch.Tensor) -> bool:
    """Whether a gradient was replaced, or taken away, since it was given away. A frozen parameter has none."""
    grad = slot.parameter.grad
    return grad is not given and (grad is not None or slot.parameter.requires_grad)


def changed() -> InvalidArgumentError:
    """What to raise for gradients that somebody has changed, or taken away, while they were reduced.

    The ranks cannot know of each other whether a gradient was taken away or has not been computed.
    """
    return InvalidArgumentError(
        "gradients were changed after backward() and before step(), or taken away (grad = None), while they are being "
        "reduced: the ranks would get different ones. To clip them, call optimizer.clip_grad_norm_(max_norm). For "
        "anything else call optimizer.synchronize() first, change them (scaler.unscale_(optimizer), "
        "torch.nn.utils.clip_grad_value_), and then call step() within `with optimizer.skip_synchronize():`"
    )


def densified(slot: Slot, grad: torch.Tensor) -> torch.Tensor:
    """A gradient that can lie in a dense bucket. Raises AssertionError for one that has a graph.

    A sparse one is made dense: the buckets were laid out in the first step, where it was dense or missing everywhere.
    """
    if grad.requires_grad:
        raise AssertionError(
            "gradients that require gradients, as those of backward(create_graph=True), cannot be reduced in place: "
            "compute what the second derivatives are of by torch.autograd.grad(..., create_graph=True), add it to the "
            "loss, call optimizer.zero_grad(), and then a plain backward()"
        )
    if grad.layout is torch.strided:
        return grad
    warnings.warn(
        f"the gradient of {slot.name} is sparse, and was dense or missing on all ranks in the first step: it is "
        "reduced as a dense one. Pass model= to broadcast_optimizer_state(), or sparse_as_dense=True to "
        "DistributedOptimizer",
        RuntimeWarning,
        stacklevel=config.users_level(),
    )
    dense = grad.to_dense()
    slot.parameter.grad = dense
    return dense
