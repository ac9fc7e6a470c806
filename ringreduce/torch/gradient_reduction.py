"""How a bucket's gradients are reduced over the ranks.

The first protocol, Compressor, is Horovod's: two functions around one all-reduce. The second, Exchange, is for what
needs memory from step to step, or other collectives than one all-reduce: a bucket calls begin() when its gradients are
final on this rank, and finish() when it wants them reduced; in between, other buckets do the same. Casting makes an
Exchange of a Compressor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from ringreduce._core import Work
from ringreduce.collectives.ops import Average
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch.profiling import profiled
from ringreduce.torch.submission import gather, received
from ringreduce.torch.tensors import on_stream, operand


class Compressor(Protocol):
    """compress() gives the tensor to send and what decompress() needs to restore the result."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]: ...

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor: ...


class Channel(NamedTuple):
    """How an exchange reaches the other ranks, and what its result is to be: post * op(pre * gradient)."""

    process_set: ProcessSet
    op: int
    prescale: float
    postscale: float
    wire: str | None = None
    """What float32 travels as between hosts; None: as it is."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.process_set.ranks)

    @property
    def factor(self) -> float:
        """What the plain sum over the ranks is to be multiplied by."""
        return self.prescale * self.postscale / (self.size if self.op == Average else 1)

    def allreduce(self, tensors: Sequence[torch.Tensor], name: str) -> Work:
        """Reduces contiguous tensors in place, with the factors."""
        memory = [operand(tensor) for tensor in tensors]
        work = profiled(self.process_set.group).allreduce_async(
            memory, memory, self.op, self.prescale, self.postscale, name, self.wire
        )
        return on_stream(work, *tensors)

    def allgather(self, tensor: torch.Tensor, name: str) -> Work:
        """Concatenates contiguous tensors along the first dimension; rows() has the result."""
        return gather(self.process_set.group, operand(tensor), tensor, name)

    @staticmethod
    def rows(work: Work, like: torch.Tensor) -> list[torch.Tensor]:
        """What each rank gave to an allgather that has been waited for."""
        return list(torch.split(received(work, like), work.counts))


class Exchange(Protocol):
    """One bucket's exchange, with whatever it remembers. All ranks end with the same bits."""

    def begin(self, gradients: Sequence[torch.Tensor], name: str) -> None:
        """Starts the reduction of these gradients: the same shapes in each step, any dense strides."""

    def finish(self) -> None:
        """Waits, and leaves the results in the tensors that begin() was given."""

    def wait(self) -> None:
        """Waits until what begin() has started has ended, and starts nothing: for results that stay unused."""

    def state_dict(self) -> dict[str, Any]:
        """What the exchange remembers on this rank, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""


class Stateful:
    """Base of the compressors that make exchanges; they have no compress() that would do for a single tensor."""

    def exchange(self, channel: Channel) -> Exchange:
        """A new bucket's exchange."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Raises InvalidArgumentError: there is nobody here to remember what compression leaves out."""
        raise InvalidArgumentError(
            f"{cls.__name__} keeps state from step to step: pass it to DistributedOptimizer; for single tensors use "
            "Compression.none, fp16 or bf16"
        )

    decompress = compress


class Casting:
    """The Exchange that a Compressor amounts to: one all-reduce of what compress() gives."""

    def __init__(self, compressor: Any, channel: Channel) -> None:
        self._compressor = compressor
        self._channel = channel
        self._gradients: Sequence[torch.Tensor] = ()
        self._sent: list[torch.Tensor] = []
        self._contexts: list[Any] = []
        self._work: Work

    def begin(self, gradients: Sequence[torch.Tensor], name: str) -> None:
        """See Exchange."""
        compress = self._compressor.compress
        pairs = [compress(gradient) for gradient in gradients]
        self._gradients = gradients
        self._contexts = [context for _, context in pairs]
        self._sent = [sent.contiguous() for sent, _ in pairs]
        self._work = self._channel.allreduce(self._sent, name)

    def wait(self) -> None:
        """See Exchange."""
        self._work.wait()

    def finish(self) -> None:
        """See Exchange."""
        self.wait()
        for gradient, sent, context in zip(self._gradients, self._sent, self._contexts, strict=True):
            result = self._compressor.decompress(sent, context)
            if result is not gradient:
                gradient.copy_(result)
        self._gradients, self._sent = (), []

    def state_dict(self) -> dict[str, Any]:
        """See Exchange: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Exchange: nothing."""


def instance_of(compression: Any) -> Any:
    """The compressor itself: the class of one that keeps state stands for one with its defaults."""
    return compression() if isinstance(compression, type) and issubclass(compression, Stateful) else compression


def described(compression: Any) -> str:
    """A compressor in words that are the same on all ranks, for them to compare, where it has the same settings.

    object's own repr() holds an address, which differs from rank to rank.
    """
    if isinstance(compression, type):
        return compression.__qualname__
    kind: Any = type(compression)
    if kind.__repr__ is not object.__repr__:
        return repr(compression)
    attributes = getattr(compression, "__dict__", {}).items()
    settings = {name: value for name, value in attributes if isinstance(value, int | float | str)}
    return f"{kind.__qualname__} {settings}"


def make(compression: Any, channel: Channel) -> Exchange:
    """The exchange of one bucket for a compressor of either protocol."""
    if isinstance(compression, Stateful):
        return compression.exchange(channel)
    return Casting(compression, channel)
