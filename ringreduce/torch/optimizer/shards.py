"""Buckets whose gradients are reduced in shares: each rank gets its share of the sum, and owns that of the parameters.

A bucket's gradients and its parameters lie in two stretches of registered memory with one layout, in as many equal
shares as there are ranks. Reduce-scatter reads all ranks' gradients where autograd's hook left them and writes this
rank's share in place; all-gather reads each share where its owner updated it and writes it where the models read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ringreduce._core import Work
from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.gradient_reduction import Channel
from ringreduce.torch.optimizer.buckets import Bucket, Slot, densified
from ringreduce.torch.optimizer.reducer import Reducer
from ringreduce.torch.optimizer.registered_bucket import ALIGNMENT, RegisteredBucket, aligned, allocate, part, places
from ringreduce.torch.profiling import profiled
from ringreduce.torch.tensors import on_stream, operand

PIECE_NBYTES = 512 << 10
"""An optimizer passes over its arrays several times (Adam: eight operations on five arrays), and finds a piece of this
size in a cache from the second time on. Adam on 40 MB, one core of an EPYC 9004: 56 ms whole, 25, 21, 19 ms in pieces
of 128, 256 and 512 KiB; plain SGD, which passes once, 3.7 and 3.9 ms."""


class ShardedBucket(RegisteredBucket):
    """Slots of one section, their gradients and their parameters.

    section: the parameter group that all of them are of.
    values: the flat parameters.
    shard: this rank's share of values; shard.grad is that of the gradients.
    pieces: the shard once more, in parts of PIECE_NBYTES with a grad each: what the optimizer updates.
    places: each slot's part of values, with its address.
    shared: parameters that other processes look at, in torch's shared memory, each with its place.
    """

    __slots__ = (
        "pieces",
        "places",
        "section",
        "shard",
        "shared",
        "values",
    )

    def __init__(
        self, slots: list[Slot], name: str, gradients: torch.Tensor, values: torch.Tensor, channel: Channel
    ) -> None:
        super().__init__(slots, name, gradients, channel)
        self.section = slots[0].section
        self.values = values.view(slots[0].parameter.dtype)
        self.shard = self.share_of(self.values)
        self.shard.grad = self.share_of(self.whole)
        whole = max(1, self.shard.numel())  # on a GPU a pass over a piece costs more than the cache saves
        self.pieces = torch.split(self.shard, PIECE_NBYTES // self.shard.element_size() if self.whole.is_cpu else whole)
        for piece, grad in zip(self.pieces, torch.split(self.shard.grad, self.pieces[0].numel()), strict=True):
            piece.grad = grad
        self.places = [
            (slot, place, place.data_ptr()) for slot, place in zip(slots, places(slots, self.values), strict=True)
        ]
        self.shared: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.adopt()

    @staticmethod
    def share_nbytes(slots: Sequence[Slot], size: int) -> int:
        """What such a bucket takes, in whole cache lines for each of `size` ranks."""
        return aligned(RegisteredBucket.nbytes(slots), ALIGNMENT * size)

    def share_of(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's share of a tensor with the bucket's layout."""
        count = flat.numel() // self.channel.size
        return flat.narrow(0, self.channel.process_set.group.rank * count, count)

    def adopt(self) -> None:
        """Makes the parameters views of the flat ones, with the values they have; also after somebody moved them.

        Those in torch's shared memory stay there, for whoever has mapped it; publish() keeps them up to date.
        """
        self.shared.clear()
        for at, (slot, place, address) in enumerate(self.places):
            parameter = slot.parameter
            if parameter.data_ptr() == address:
                continue
            if parameter.dtype != place.dtype or parameter.shape != place.shape:
                raise InvalidArgumentError(
                    f"{slot.name} was {place.dtype} {list(place.shape)} when DistributedOptimizer(shard_step=True) was "
                    f"made, and is {parameter.dtype} {list(parameter.shape)} now; convert the model before"
                )
            if place.data_ptr() != address:  # moved with the parameter
                place = part(self.values, address, place.size(), place.stride())
                self.places[at] = (slot, place, address)
            place.copy_(parameter.data)
            if parameter.is_cpu and parameter.is_shared():  # type: ignore[no-untyped-call]
                self.shared.append((parameter.data, place))
            else:
                parameter.data = place

    def publish(self) -> None:
        """Called when all ranks' shares of the parameters are there."""
        for shared, place in self.shared:
            shared.copy_(place)

    def miss(self, slot: Slot) -> None:
        """See RegisteredBucket."""
        raise InvalidArgumentError(
            f"{slot.name} no longer requires a gradient; with shard_step=True the parameters of a group are updated "
            "together. Freeze it before DistributedOptimizer is made, or give it a group with lr=0"
        )

    def has_gradients(self) -> bool:
        """Whether the parameters have gradients: all of them, or none. Raises InvalidArgumentError otherwise."""
        missing = [slot for slot in self.slots if slot.parameter.grad is None]
        if missing and len(missing) < len(self.slots):
            raise InvalidArgumentError(
                f"the gradient of {missing[0].name} was taken away (grad = None), and others of its parameter group "
                "were not; with shard_step=True the parameters of a group are updated together. Give it a group with "
                "lr=0, or take away all gradients"
            )
        return not missing

    def begin(self) -> None:
        """See Bucket."""
        self.adopt()
        super().begin()

    def reduce(self) -> Work:
        """See RegisteredBucket: a reduce-scatter in place."""
        channel, mine = self.channel, self.shard.grad
        assert mine is not None
        work = profiled(channel.process_set.group).reducescatter_async(
            operand(self.whole), operand(mine), channel.op, channel.prescale, channel.postscale, self.name
        )
        return on_stream(work, mine)

    def share_gradients(self) -> Work:
        """Starts to give all ranks all shares of the gradients."""
        assert self.shard.grad is not None
        return self._share(self.shard.grad, self.whole, "gradients")

    def share_values(self) -> Work:
        """Starts to give all ranks all shares of the parameters."""
        return self._share(self.shard, self.values, "parameters")

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like the shard, from all ranks, as one like the flat parameters. Collective."""
        output = torch.empty(self.whole.numel(), dtype=tensor.dtype, device=tensor.device)
        self._share(tensor.contiguous(), output, "state").wait()
        return output

    def _share(self, mine: torch.Tensor, all_of_it: torch.Tensor, what: str) -> Work:
        group = profiled(self.channel.process_set.group)
        shares = [mine.numel()] * group.size
        work = group.allgather_async(operand(mine), f"{self.name}.{what}", operand(all_of_it), shares)
        return on_stream(work, all_of_it)

    def has_replaced(self) -> bool:
        """Whether a gradient was replaced since the reduction; one that was taken away was not."""
        return any(slot.parameter.grad is not None and slot.parameter.grad is not slot.view for slot in self.slots)

    def recollect(self) -> None:
        """Brings gradients that were replaced since the reduction back to their place."""
        for slot in self.slots:
            grad = slot.parameter.grad
            view = self.view_of(slot)
            if grad is not None and grad is not view:
                view.copy_(densified(slot, grad))
                slot.parameter.grad = view


class ShardedReducer(Reducer):
    """A Reducer of ShardedBuckets, which are there from the start."""

    has_shares = True
    shards: list[ShardedBucket]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shards = []
        with torch.no_grad():
            self._use(self._lay_out({}))
        self._expect()

    def _lay_out(self, sparse: Mapping[int, int], may_register: bool = True) -> list[Bucket]:
        groups = self._groups()
        sizes = [ShardedBucket.share_nbytes(slots, self._channel.size) for slots in groups]
        stretches = allocate(sizes * 2, [slots[0].parameter.device for slots in groups] * 2, self._process_set)
        for index, slots in enumerate(groups):
            gradients, values = stretches[index], stretches[index + len(groups)]
            self.shards.append(ShardedBucket(slots, f"{self._prefix}.{index}", gradients, values, self._channel))
        return list(self.shards)
