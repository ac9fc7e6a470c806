"""Compression of what is all-reduced: Horovod's pairs of functions around a collective."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class NoneCompressor:
    """Sends arrays as they are."""

    @staticmethod
    def compress(tensor: jax.Array) -> tuple[jax.Array, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: jax.Array, ctx: Any) -> jax.Array:
        return tensor


class CastCompressor:
    """Sends floating-point arrays in another dtype; others as they are."""

    dtype: Any

    @classmethod
    def compress(cls, tensor: jax.Array) -> tuple[jax.Array, Any]:
        if jnp.issubdtype(tensor.dtype, jnp.floating):
            return tensor.astype(cls.dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: jax.Array, ctx: Any) -> jax.Array:
        return tensor if ctx is None else tensor.astype(ctx)


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
