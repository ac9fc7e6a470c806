"""Compression of what is all-reduced: Horovod's pairs of functions around a collective."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ringreduce.common import compression as common
from ringreduce.common.compression import NoneCompressor


class CastCompressor(common.CastCompressor):
    """Sends floating-point arrays in another dtype; others as they are."""

    dtype: Any

    @staticmethod
    def floating(tensor: jax.Array) -> Any:
        return tensor.dtype if jnp.issubdtype(tensor.dtype, jnp.floating) else None

    @staticmethod
    def cast(tensor: jax.Array, dtype: Any) -> jax.Array:
        return tensor.astype(dtype)


class FP16Compressor(CastCompressor):
    """float16: 11 significant bits, nothing above 65504."""

    dtype = jnp.float16


class BF16Compressor(CastCompressor):
    """bfloat16: 8 significant bits, the range of float32."""

    dtype = jnp.bfloat16


class Compression:
    """The compressors there are; any class with the same two functions may be passed in their place."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
