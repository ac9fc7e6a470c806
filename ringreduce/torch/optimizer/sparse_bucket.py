"""Sparse gradients: indices and values travel by two all-gathers, as in Horovod, and only rows that were touched do."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringreduce._core import Work
from ringreduce.collectives.ops import Average, ReduceOp, Sum
from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.gradient_reduction import Channel
from ringreduce.torch.optimizer.buckets import Bucket, Slot, changed
from ringreduce.torch.sparse_sum import sparse_sum
from ringreduce.torch.submission import received


class SparseBucket(Bucket):
    """One parameter whose gradients are sparse COO tensors, of sparse_dim sparse dimensions.

    Each rank sends the coalesced indices and values; the sum of equal indices is taken in rank order by everybody
    (sparse_sum() says what is done with an index that one gradient has twice). A rank without a gradient sends none;
    one with a dense gradient sends that as if all its rows had been touched.
    """

    __slots__ = ("channel", "gathered", "given", "sparse_dim", "version", "work")

    def __init__(self, slot: Slot, name: str, channel: Channel, sparse_dim: int) -> None:
        super().__init__([slot], name)
        if channel.op not in (Average, Sum):
            raise InvalidArgumentError(
                f"sparse gradients ({slot.name}) are reduced by op Average and Sum, not {ReduceOp(channel.op).name}; "
                "pass sparse_as_dense=True to DistributedOptimizer"
            )
        self.channel = channel
        self.sparse_dim = sparse_dim
        self.gathered: Sequence[torch.Tensor] = ()
        self.given: torch.Tensor | None = None  # the gradient that is under way
        self.version = 0
        self.work: Sequence[Work] = ()

    def begin(self) -> None:
        """See Bucket."""
        (slot,) = self.slots
        parameter, grad = slot.parameter, slot.parameter.grad
        self.given, self.version = grad, 0 if grad is None else grad._version
        if grad is None:
            self.absent.append(slot)
            indices = torch.empty((0, self.sparse_dim), dtype=torch.int64, device=parameter.device)
            values = parameter.new_empty((0, *parameter.shape[self.sparse_dim :]), requires_grad=False)
        else:
            if grad.layout is torch.strided:
                grad = grad.to_sparse(self.sparse_dim)
            grad = grad.coalesce()
            indices, values = grad.indices().t().contiguous(), grad.values().contiguous()
        self.gathered = (indices, values)
        self.work = (
            self.channel.allgather(indices, f"{self.name}.indices"),
            self.channel.allgather(values, f"{self.name}.values"),
        )

    def finish(self) -> None:
        """See Bucket."""
        (slot,) = self.slots
        given, grad = self.given, slot.parameter.grad
        is_changed = grad is not given or (grad is not None and grad._version != self.version) or self.has_dropped()
        for work in self.work:
            work.wait()
        indices, values = (received(work, like) for work, like in zip(self.work, self.gathered, strict=True))
        channel, counts = self.channel, self.work[1].counts
        divisor = channel.size if channel.op == Average else 1
        total = sparse_sum(indices, values, counts, slot.parameter.shape, channel.prescale, channel.postscale, divisor)
        self.gathered, self.work, self.given = (), (), None
        if is_changed:
            raise changed()
        slot.parameter.grad = total
