"""Compression.int8: gradients as signed bytes, with a scale for each block, and what rounding left out sent next time.

In a step each rank quantises x = gradient + error, block by block: q = round(x / s) with s = max|x| / 127, and keeps
error = x - s q. The error is fed back, so that over the steps nothing is lost: sum of what was sent = sum of the
gradients - the last error.

On one host codes and scales of all ranks are gathered, and everybody adds up the same s q in rank order: a rank sends
1/4 + 1/block of the bytes of float32, and receives that from every other rank, so it is for few ranks. On several hosts
s q is all-reduced over the wire int8, which sends as much for any number of hosts. That rounds sums of a host's ranks,
and the result, once more, to 1/254 of the largest in a block; these errors are not fed back.

Sources: Seide, Fu, Droppo, Li and Yu, 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
Distributed Training of Speech DNNs, Interspeech 2014; Karimireddy, Rebjock, Stich and Jaggi, Error Feedback Fixes
SignSGD and other Gradient Compression Schemes, ICML 2019, arXiv:1901.09847.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce._core import WIRE_BLOCK, Work, wire_round_trip
from ringreduce.collectives.ops import Average, Sum
from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.alike import computed_alike
from ringreduce.torch.gradient_reduction import Channel, Stateful
from ringreduce.torch.profiling import ranged
from ringreduce.torch.tensors import DTYPES, refusal

LARGEST = 127
SCALE_NBYTES = 4
WIRE = "int8"

_round_trip = ranged("quantize int8")(wire_round_trip)


class Int8(Stateful):
    """Eight bits an element.

    Args:
        block: elements that share a scale; a multiple of 4.

    Raises:
        InvalidArgumentError: block is something else; or, when the optimizer is made, op is not Average or Sum.

    >>> hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.int8(block=256))
    """

    def __init__(self, block: int = 256) -> None:
        if block <= 0 or block % SCALE_NBYTES:
            raise InvalidArgumentError(f"Compression.int8: block is a positive multiple of 4, not {block}")
        self.block = block

    def exchange(self, channel: Channel) -> Int8Exchange:
        """See Stateful: on several hosts the wire int8, if block is the wire's; else codes and scales are gathered."""
        if channel.op not in (Average, Sum):
            raise InvalidArgumentError("Compression.int8 supports op Average and Sum")
        if self.block == WIRE_BLOCK and channel.process_set.spans_hosts():
            return WiredInt8(self.block, channel)
        return GatheredInt8(self.block, channel)

    def __repr__(self) -> str:
        return f"int8(block={self.block})"


class Int8Exchange:
    """An Exchange; its error is one float32 an element, in the order of the gradients."""

    def __init__(self, block: int, channel: Channel) -> None:
        self._block = block
        self._channel = channel
        self._gradients: Sequence[torch.Tensor] = ()
        self._work: Work
        self.error: torch.Tensor | None = None

    def begin(self, gradients: Sequence[torch.Tensor], name: str) -> None:
        """See Exchange. Raises InvalidArgumentError for a dtype that cannot be reduced, such as complex numbers."""
        for gradient in gradients:
            if gradient.dtype not in DTYPES:
                raise refusal(gradient)
        count = sum(gradient.numel() for gradient in gradients)
        whole = -(-count // self._block) * self._block
        x = torch.zeros(whole, dtype=torch.float32, device=gradients[0].device)
        torch.cat([gradient.reshape(-1).float() for gradient in gradients], out=x[:count])
        if self.error is not None:
            self.error = self.error.to(x.device)  # which a checkpoint need not have been loaded to
            x += self.error
        left = x - self._quantised(x)
        if self.error is not None:  # what cannot be sent, an infinity, is not kept either
            left = torch.where(left.isfinite(), left, self.error)
        self.error = left.nan_to_num_(0.0, 0.0, 0.0)
        self._gradients = gradients
        self._work = self._sent(name)

    def wait(self) -> None:
        """See Exchange."""
        self._work.wait()

    def finish(self) -> None:
        """See Exchange."""
        self.wait()
        start = 0
        with computed_alike(self._gradients[0].device):
            total = self._total()
            for gradient in self._gradients:
                gradient.copy_(total[start : start + gradient.numel()].view(gradient.shape))
                start += gradient.numel()
        self._gradients = ()

    def _quantised(self, x: torch.Tensor) -> torch.Tensor:
        """What the others will see of x, which has whole blocks."""
        raise NotImplementedError

    def _sent(self, name: str) -> Work:
        """Sends what was quantised last."""
        raise NotImplementedError

    def _total(self) -> torch.Tensor:
        """The sum of what all ranks have sent, times the channel's factor."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """See Exchange."""
        return {"error": self.error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Exchange."""
        self.error = None if state["error"] is None else state["error"].clone()


class GatheredInt8(Int8Exchange):
    """Everybody gets everybody's codes and scales, and adds up."""

    _codes: torch.Tensor  # and scales

    def _quantised(self, x: torch.Tensor) -> torch.Tensor:
        codes, scales = quantise(x, self._block)
        self._codes = torch.cat([codes, scales.view(torch.int8)])
        return dequantise(codes, scales)

    def _sent(self, name: str) -> Work:
        return self._channel.allgather(self._codes, name)

    def _total(self) -> torch.Tensor:
        total: torch.Tensor | None = None
        for theirs in Channel.rows(self._work, self._codes):
            cut = theirs.numel() * self._block // (self._block + SCALE_NBYTES)
            part = dequantise(theirs[:cut], theirs[cut:].clone().view(torch.float32))
            total = part if total is None else total.add_(part)
        assert total is not None
        return total.mul_(self._channel.factor)


class WiredInt8(Int8Exchange):
    """An all-reduce of float32 that have gone through the wire's codec here, so that this rank knows what it lost.

    What is encoded again has the same bits, so that is all that is lost of them where a host has one rank. The blocks
    of the wire begin where those here do, because tensors have whole blocks.
    """

    _values: torch.Tensor

    def _quantised(self, x: torch.Tensor) -> torch.Tensor:
        here = x.cpu() if x.is_cuda else x.clone()  # the codec is the CPU's
        _round_trip(WIRE, here.data_ptr(), here.numel())
        self._values = here.to(x.device)
        return self._values

    def _sent(self, name: str) -> Work:
        channel = self._channel._replace(op=Sum, prescale=1.0, postscale=self._channel.factor, wire=WIRE)
        return channel.allreduce([self._values], name)

    def _total(self) -> torch.Tensor:
        return self._values


def quantise(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8 codes, one float32 scale for each block) of a flat float32 tensor of whole blocks."""
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / LARGEST
    divisors = torch.where(scales > 0, scales, 1.0).unsqueeze(1)
    codes = (rows / divisors).round_().clamp_(-LARGEST, LARGEST).nan_to_num_(1.0)
    return codes.to(torch.int8).view(-1), scales


def dequantise(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float32 values; a block with an infinity or a NaN has no finite value but zero."""
    return (codes.view(scales.numel(), -1).float() * scales.unsqueeze(1)).view(-1)
