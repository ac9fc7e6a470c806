"""torch tensors in the memory of the fake CUDA driver, for ranks on a machine without a GPU.

A Gpu is a CPU tensor for torch's arithmetic, whose memory is the fake driver's, and which says of itself that it is on
GPU 0: ringreduce.torch then takes it for a CUDA tensor, and the core communicates it as one. torch's operations on it
run when the fake driver's stream has come to its end, as if they were on it. Autograd and optimizers know nothing of
that, so whoever waits for an operation does too.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch


class Driver:
    """The fake driver's memory and its default stream."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["RINGREDUCE_CUDA_LIBRARY"])
        self._call("cuInit", 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._context = context
        self._blocks: list[tuple[int, int]] = []

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def allocate(self, nbytes: int) -> Any:
        """A flat uint8 tensor over new memory of the GPU, as the CPU sees it. Never freed."""
        self._call("cuCtxSetCurrent", self._context)
        address = ctypes.c_uint64()
        size = max(nbytes, 1)
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._blocks.append((address.value, address.value + size))
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address.value), dtype=torch.uint8)[:nbytes]

    def has(self, address: int) -> bool:
        """Whether the GPU's memory is there."""
        return any(begin <= address < end for begin, end in self._blocks)

    def wait(self) -> None:
        """Until the default stream has come to its end."""
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuStreamSynchronize", None)


class Gpu(torch.Tensor):
    """See above. What is computed from Gpus is one, in memory of its own, unless autograd keeps it."""

    driver: Driver
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    device = property(lambda self: torch.device("cuda", 0))

    def get_device(self) -> int:
        return 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in QUIET:
            cls.driver.wait()
        if isinstance(kwargs.get("device"), torch.device) and kwargs["device"].type == "cuda":
            kwargs["device"] = torch.device("cpu")
        if func is torch.Tensor.cpu:
            with torch._C.DisableTorchFunctionSubclass():
                return args[0].as_subclass(torch.Tensor).clone()
        result = super().__torch_function__(func, types, args, kwargs)
        if type(result) in (list, tuple):
            return type(result)(cls._moved(item) for item in result)
        return cls._moved(result)

    @classmethod
    def _moved(cls, result: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if type(result) is not cls or result.grad_fn is not None or result.layout is not torch.strided:
                return result
            if torch.Tensor.device.__get__(result).type == "meta" or not result.numel():
                return result
            if cls.driver.has(result.data_ptr()):
                return result
            return on_gpu(result)


# Asked for while operands are made; the order of streams does not come into it.
QUIET = {torch.Tensor.data_ptr, torch.Tensor.is_contiguous, torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__}


def on_gpu(tensor: Any) -> Any:
    """A copy of the tensor on the GPU, with its strides where it is dense."""
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().as_subclass(torch.Tensor)
        like = torch.empty_like(plain)
        memory = Gpu.driver.allocate(like.numel() * like.element_size()).view(like.dtype)
        return memory.as_strided(like.size(), like.stride()).copy_(plain).as_subclass(Gpu)


class Event:
    """torch.cuda.Event where what is put on the stream has been done at once."""

    def record(self, stream: Any) -> None:
        Gpu.driver.wait()

    def query(self) -> bool:
        return True


class Stream:
    """torch's current stream, as far as events wait on it."""

    def wait_event(self, event: Event) -> None:
        pass


def start() -> Any:
    """ringreduce.torch, initialised, which takes Gpus for CUDA tensors."""
    import ringreduce.torch as hvd
    from ringreduce.torch import cuda

    hvd.init()
    Gpu.driver = Driver()
    hold = cuda.DeviceWork.wait

    def wait(self: Any, timeout: float | None = None) -> None:
        hold(self, timeout)
        Gpu.driver.wait()

    def allocate(sizes: Any, device: torch.device) -> list[Any]:
        assert device.type == "cuda"
        return [on_gpu(torch.zeros(size, dtype=torch.uint8)) for size in sizes]

    def flat(memory: Any, dtype: torch.dtype, device: torch.device) -> Any:
        shape = memory.__cuda_array_interface__["shape"]
        found = (ctypes.c_uint8 * shape[0]).from_address(memory.address)
        return on_gpu(torch.frombuffer(found, dtype=torch.uint8).view(dtype))

    cuda.BUILT, cuda.current_stream, cuda.allocate, cuda.flat = True, lambda device: 0, allocate, flat
    cuda.DeviceWork.wait = wait  # type: ignore[method-assign]
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.Event, torch.cuda.current_stream = Event, lambda device=None: Stream()  # type: ignore[assignment, misc]
    return hvd
