"""What is asked of the library of an array on a GPU. The program has imported it; nothing is imported here."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from ringreduce import state
from ringreduce.gpu.arrays import DEFAULT_STREAM, DeviceArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ringreduce import _core


class Library:
    """Of arrays that only say where they are. What is new is a DeviceArray."""

    __slots__ = ()

    def current_stream(self, array: Any, ordinal: int) -> int:
        """The stream on which work with the array would be put now."""
        offered = getattr(array, "__cuda_array_interface__", None)
        return DEFAULT_STREAM if offered is None else offered.get("stream") or DEFAULT_STREAM

    def empty(self, like: Any, shape: Sequence[int], dtype: np.dtype[Any], ordinal: int) -> Any:
        """A new array, where `like` is and of its dtype, which NumPy calls so."""
        memory = state.require().context.device_memory(ordinal, math.prod(shape) * dtype.itemsize)
        return DeviceArray(memory, shape, dtype, self.current_stream(like, ordinal))

    def received(
        self, memory: _core.DeviceMemory, like: Any, shape: Sequence[int], dtype: np.dtype[Any], ordinal: int
    ) -> Any:
        """Memory that an operation has filled, as an array of the dtype of `like`."""
        return DeviceArray(memory, shape, dtype, self.current_stream(like, ordinal))

    def copy(self, array: Any) -> Any:
        """A new array with the same content, as work on the current stream sees it; None: the library has no way."""
        return None

    def contiguous(self, array: Any) -> Any:
        """The content in C order; None: the library has no way."""
        return None


class CuPy(Library):
    """CuPy's."""

    __slots__ = ("_cupy",)

    def __init__(self, module: Any) -> None:
        self._cupy = module

    def current_stream(self, array: Any, ordinal: int) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr) or DEFAULT_STREAM

    def empty(self, like: Any, shape: Sequence[int], dtype: np.dtype[Any], ordinal: int) -> Any:
        with self._cupy.cuda.Device(ordinal):
            return self._cupy.empty(tuple(shape), dtype)

    def received(
        self, memory: _core.DeviceMemory, like: Any, shape: Sequence[int], dtype: np.dtype[Any], ordinal: int
    ) -> Any:
        return self._cupy.asarray(super().received(memory, like, shape, dtype, ordinal))

    def copy(self, array: Any) -> Any:
        return array.copy()

    def contiguous(self, array: Any) -> Any:
        return self._cupy.ascontiguousarray(array)


class Torch(Library):
    """torch's. Its bfloat16 has no typestr, so the dtype comes from the tensor."""

    __slots__ = ("_torch",)

    def __init__(self, module: Any) -> None:
        self._torch = module

    def current_stream(self, array: Any, ordinal: int) -> int:
        return int(self._torch.cuda.current_stream(ordinal).cuda_stream) or DEFAULT_STREAM

    def empty(self, like: Any, shape: Sequence[int], dtype: np.dtype[Any], ordinal: int) -> Any:
        return self._torch.empty(tuple(shape), dtype=like.dtype, device=like.device)

    def received(
        self, memory: _core.DeviceMemory, like: Any, shape: Sequence[int], dtype: np.dtype[Any], ordinal: int
    ) -> Any:
        return self._torch.as_tensor(memory, device=like.device).view(like.dtype).view(tuple(shape))

    def copy(self, array: Any) -> Any:
        return array.clone()

    def contiguous(self, array: Any) -> Any:
        return array.contiguous()


_BARE = Library()
_KNOWN = {"cupy": CuPy, "torch": Torch}


def library_of(array: Any) -> Library:
    """The library that makes arrays like this one, where we know how to ask it."""
    top = type(array).__module__.partition(".")[0]
    module = sys.modules.get(top) if top in _KNOWN else None
    return _BARE if module is None else _KNOWN[top](module)
