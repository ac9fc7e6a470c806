"""Arrays in GPU memory that ringreduce makes itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ringreduce import _core

DEFAULT_STREAM = 1
"""The default stream, as __cuda_array_interface__ and DLPack call it."""


class DeviceArray:
    """A C-contiguous array in GPU memory of ringreduce's own, for every library that reads __cuda_array_interface__.

    Its content is ready for work on `stream`. The memory is given back with the last reference.
    """

    __slots__ = ("__weakref__", "_memory", "dtype", "shape", "stream")

    def __init__(self, memory: _core.DeviceMemory, shape: Sequence[int], dtype: np.dtype[Any], stream: int) -> None:
        self._memory = memory
        self.shape = tuple(shape)
        self.dtype = dtype
        self.stream = stream

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def ordinal(self) -> int:
        """The GPU, as CUDA counts them in this process."""
        return self._memory.ordinal

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._memory.address, False),
            "strides": None,
            "version": 3,
            "stream": self.stream,
        }

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, gpu={self.ordinal})"
