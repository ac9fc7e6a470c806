"""Gradient compression: Horovod's pairs of functions around a collective, and what keeps state from step to step."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.torch.exchange import Compressor, Stateful
from ringreduce.torch.powersgd import PowerSGD
from ringreduce.torch.quantization import Int8

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "Stateful"]


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class CastCompressor:
    """Sends floating-point tensors in another dtype; others as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if tensor.dtype.is_floating_point:
            return tensor.to(cls.dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(CastCompressor):
    """float16: 11 significant bits, nothing above 65504."""

    dtype = torch.float16


class BF16Compressor(CastCompressor):
    """bfloat16: 8 significant bits, the range of float32."""

    dtype = torch.bfloat16


class Compression:
    """The compressors there are; any class with the same two functions may be passed in their place.

    none, fp16 and bf16 are for any call that takes a compression; int8(block=...) and powersgd(rank=...) keep state
    from step to step, and are for DistributedOptimizer.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8
    powersgd = PowerSGD
