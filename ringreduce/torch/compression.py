"""Gradient compression: Horovod's pairs of functions around a collective, and what keeps state from step to step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ringreduce.collectives.ops import Average, Max, Min, Sum
from ringreduce.common import compression as common
from ringreduce.common.compression import NoneCompressor
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch.alike import computed_alike
from ringreduce.torch.gradient_reduction import Channel, Compressor, Stateful
from ringreduce.torch.powersgd import PowerSGD
from ringreduce.torch.quantization import Int8
from ringreduce.torch.tracing import is_compiling

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "Stateful"]


class CastCompressor(common.CastCompressor):
    """Sends floating-point tensors in another dtype; others as they are."""

    dtype: torch.dtype

    @staticmethod
    def floating(tensor: torch.Tensor) -> torch.dtype | None:
        return tensor.dtype if tensor.dtype.is_floating_point else None

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if dtype is not torch.float64 or is_compiling():
            return tensor.to(dtype)
        with computed_alike(tensor.device):  # of these casts the only one that depends on how denormals are taken
            return tensor.to(dtype)


class FP16Compressor(CastCompressor):
    """float16: 11 significant bits, nothing above 65504."""

    dtype = torch.float16


class BF16Compressor(CastCompressor):
    """bfloat16: 8 significant bits, the range of float32."""

    dtype = torch.bfloat16


class Compression:
    """The compressors there are; any class with the same two functions may be passed in their place.

    none, fp16 and bf16 are for any call that takes a compression; int8(block=...) and powersgd(rank=...) keep state
    from step to step, and are for DistributedOptimizer. Among several hosts fp16, bf16 and int8 of float32 are wires of
    the core (wire_for): docs/user/optimizer.md.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8
    powersgd = PowerSGD


def wire_for(compression: Any, dtypes: Iterable[torch.dtype], op: int, process_set: ProcessSet) -> str | None:
    """The wire that does between hosts what compress() would do on all ranks; None: compress() is to be called.

    Then nothing is cast where memory is shared, each host's sum is rounded once, and sums are carried in float32. That
    is for float32, in a set on several hosts, and for these two compressors themselves: a class made of one of them may
    do something else.
    """
    wire = "fp16" if compression is FP16Compressor else "bf16" if compression is BF16Compressor else None
    if wire is None or op not in (Average, Sum, Min, Max) or not process_set.spans_hosts():
        return None
    return wire if all(dtype is torch.float32 for dtype in dtypes) else None


def way_for(compression: Any, dtypes: Iterable[torch.dtype], channel: Channel) -> tuple[Any, Channel]:
    """What compresses tensors of these dtypes here, and the channel they go by, which may compress between hosts."""
    wire = wire_for(compression, dtypes, channel.op, channel.process_set)
    return (compression, channel) if wire is None else (NoneCompressor, channel._replace(wire=wire))
