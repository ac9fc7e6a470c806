"""Gradient compression for every backend of Keras: Horovod's pair of functions around a collective."""

from __future__ import annotations

from typing import Any, Protocol

from keras import ops
from keras.backend import is_float_dtype, standardize_dtype

from ringreduce.common import compression as common
from ringreduce.common.compression import NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor(Protocol):
    """A pair of functions around a collective; a class of your own will do."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what decompress() needs."""
        ...

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """The received tensor as the caller expects it."""
        ...


class CastCompressor(common.CastCompressor):
    """Sends floating-point tensors in another dtype; others as they are."""

    dtype: str

    @staticmethod
    def floating(tensor: Any) -> str | None:
        dtype = standardize_dtype(tensor.dtype)
        return dtype if is_float_dtype(dtype) else None

    @staticmethod
    def cast(tensor: Any, dtype: str) -> Any:
        return ops.cast(tensor, dtype)


class FP16Compressor(CastCompressor):
    """float16: 11 significant bits, nothing above 65504."""

    dtype = "float16"


class BF16Compressor(CastCompressor):
    """bfloat16: 8 significant bits, the range of float32."""

    dtype = "bfloat16"


class Compression:
    """The compressors there are; any class with the same two functions may be passed in their place."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
