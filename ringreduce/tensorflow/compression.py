"""Gradient compression: pairs of functions around a collective, under Horovod's names."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from ringreduce.common import compression as common
from ringreduce.common.compression import NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor(Protocol):
    """What may be passed as `compression`: any class with these two static functions."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """What travels in place of the tensor, and what decompress() needs to know."""

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The result of the collective, in the dtype that the tensor had."""


class CastCompressor(common.CastCompressor):
    """Sends floating-point tensors in another dtype; others as they are."""

    dtype: tf.DType

    @staticmethod
    def floating(tensor: tf.Tensor) -> tf.DType | None:
        return tensor.dtype if tensor.dtype.is_floating else None

    @staticmethod
    def cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tensor, dtype)


class FP16Compressor(CastCompressor):
    """float16: 11 significant bits, nothing above 65504."""

    dtype = tf.float16


class BF16Compressor(CastCompressor):
    """bfloat16: 8 significant bits, the range of float32."""

    dtype = tf.bfloat16


class Compression:
    """The compressors there are; any class with the same two functions may be passed in their place."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
