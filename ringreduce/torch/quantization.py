"""Compression.int8: gradients as signed bytes, with a scale for each block, and what rounding left out sent next time.

In a step each rank quantises x = gradient + error, block by block: q = round(x / s) with s = max|x| / 127, and keeps
error = x - s q. Codes and scales of all ranks are gathered, and everybody adds up the same s q in rank order: a rank
sends 1/4 + 1/block of the bytes of float32, and receives that from every other rank, so it is for few ranks. The error
is fed back, so that over the steps nothing is lost: sum of what was sent = sum of the gradients - the last error.

Sources: Seide, Fu, Droppo, Li and Yu, 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
Distributed Training of Speech DNNs, Interspeech 2014; Karimireddy, Rebjock, Stich and Jaggi, Error Feedback Fixes
SignSGD and other Gradient Compression Schemes, ICML 2019, arXiv:1901.09847.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce._core import Work
from ringreduce.errors import InvalidArgumentError
from ringreduce.ops import Average, Sum
from ringreduce.torch.exchange import Channel, Stateful

LARGEST = 127
SCALE_NBYTES = 4


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
        """See Stateful."""
        if channel.op not in (Average, Sum):
            raise InvalidArgumentError("Compression.int8 supports op Average and Sum")
        return Int8Exchange(self.block, channel)

    def __repr__(self) -> str:
        return f"int8(block={self.block})"


class Int8Exchange:
    """An Exchange; its error is one float32 an element, in the order of the gradients."""

    def __init__(self, block: int, channel: Channel) -> None:
        self._block = block
        self._channel = channel
        self._gradients: Sequence[torch.Tensor] = ()
        self._sent: torch.Tensor
        self._work: Work
        self.error: torch.Tensor | None = None

    def begin(self, gradients: Sequence[torch.Tensor], name: str) -> None:
        """See Exchange."""
        count = sum(gradient.numel() for gradient in gradients)
        x = torch.zeros(-(-count // self._block) * self._block, dtype=torch.float32)
        torch.cat([gradient.reshape(-1).float() for gradient in gradients], out=x[:count])
        if self.error is not None:
            x += self.error
        codes, scales = quantise(x, self._block)
        left = x - dequantise(codes, scales)
        if self.error is not None:  # what cannot be sent, an infinity, is not kept either
            left = torch.where(left.isfinite(), left, self.error)
        self.error = left.nan_to_num_(0.0, 0.0, 0.0)
        self._gradients = gradients
        self._sent = torch.cat([codes, scales.view(torch.int8)])
        self._work = self._channel.allgather(self._sent, name)

    def finish(self) -> None:
        """See Exchange."""
        self._work.wait()
        total: torch.Tensor | None = None
        for theirs in Channel.rows(self._work, self._sent):
            cut = theirs.numel() * self._block // (self._block + SCALE_NBYTES)
            part = dequantise(theirs[:cut], theirs[cut:].clone().view(torch.float32))
            total = part if total is None else total.add_(part)
        assert total is not None
        total.mul_(self._channel.factor)
        start = 0
        for gradient in self._gradients:
            gradient.copy_(total[start : start + gradient.numel()].view(gradient.shape))
            start += gradient.numel()
        self._gradients = ()

    def state_dict(self) -> dict[str, Any]:
        """See Exchange."""
        return {"error": self.error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Exchange."""
        self.error = None if state["error"] is None else state["error"].clone()


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
