"""Gradient compression by Horovod's pairs of functions around a collective: what is the same in every framework.

A framework's CastCompressor says which of its tensors are floating-point, and how they are cast; its FP16Compressor and
BF16Compressor say to what.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: T) -> tuple[T, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: T, ctx: Any) -> T:
        return tensor


class CastCompressor:
    """Sends floating-point tensors in another dtype; others as they are. The base of a framework's own."""

    dtype: Any
    """What they are sent in."""

    @staticmethod
    def floating(tensor: Any) -> Any:
        """The dtype of a floating-point tensor; None for another."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another dtype."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: T) -> tuple[T, Any]:
        dtype = cls.floating(tensor)
        return (tensor, None) if dtype is None else (cls.cast(tensor, cls.dtype), dtype)

    @classmethod
    def decompress(cls, tensor: T, ctx: Any) -> T:
        return tensor if ctx is None else cls.cast(tensor, ctx)
