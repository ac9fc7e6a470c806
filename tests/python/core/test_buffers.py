"""The one door for memory: what comes in, what is copied, what is refused and with which words."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import run_ranks

import ringreduce
from ringreduce import gpu
from ringreduce.collectives import buffers
from ringreduce.errors import InvalidArgumentError, UnavailableError

BASE = np.arange(24, dtype=np.float32).reshape(4, 6)


class Interface:
    """An object with __array_interface__ and nothing else."""

    def __init__(self, base: Any) -> None:
        self.base = base
        self.__array_interface__ = base.__array_interface__


class Exporter:
    """An object with DLPack and nothing else; the device can be faked."""

    def __init__(self, base: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.base = base
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self.base.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Cuda:
    """What a CuPy array looks like."""

    def __init__(self) -> None:
        self.__cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 3}


def address(thing: Any) -> int:
    return int(thing.__array_interface__["data"][0])


@pytest.mark.parametrize("wrap", [np.asarray, Interface, Exporter, memoryview], ids=lambda wrap: wrap.__name__)
def test_no_copy_of_contiguous_memory(wrap: Any) -> None:
    before = buffers.copied()
    for door in (buffers.readable, buffers.writable):
        seen = door(wrap(BASE.copy() if wrap is memoryview else BASE))
        assert seen.dtype == BASE.dtype
        assert np.array_equal(seen, BASE)
        if wrap is not memoryview:
            assert address(seen) == address(BASE)
    assert buffers.copied() == before


def test_bytes_and_arrays_of_the_standard_library() -> None:
    assert buffers.readable(b"abc").tolist() == [97, 98, 99]
    assert buffers.readable(array.array("d", [1, 2])).dtype == np.float64
    target = bytearray(3)
    buffers.writable(target)[:] = 7
    assert target == b"\7\7\7"


@pytest.mark.parametrize(
    "view",
    [BASE.T, BASE[:, ::2], BASE[::-1], np.broadcast_to(BASE[0], (3, 6)), np.asfortranarray(BASE)],
    ids=["transposed", "strided", "reversed", "broadcast", "fortran"],
)
def test_inputs_that_are_not_contiguous_are_copied_once_and_counted(view: Any) -> None:
    before = buffers.copied()
    seen = buffers.readable(view)
    assert seen.flags.c_contiguous
    assert np.array_equal(seen, view)
    assert buffers.copied() == before + view.nbytes
    assert buffers.readable(seen) is not None
    assert buffers.copied() == before + view.nbytes


def test_outputs_that_are_not_contiguous_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Tensor is required to be contiguous.*strides \(4, 24\)"):
        buffers.writable(BASE.T)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.broadcast_to(BASE, (4, 6)), "read-only"),
        (b"abc", "read-only"),
        ([1.0], "a list cannot be written in place"),
        (1.0, "a float cannot be written in place"),
        (np.float32(1), "a float32 cannot be written in place"),
    ],
)
def test_what_cannot_be_written_is_refused(value: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        buffers.writable(value)


@pytest.mark.parametrize("value", [np.ones(2, np.complex64), np.array(["a"]), np.array([{}]), np.ones(2, "M8[s]")])
def test_dtypes_without_a_code_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"Tensor type {value.dtype.name.split('[')[0]}.* is not supported"):
        buffers.readable(value)


def test_byte_swapped_numbers_are_refused_with_advice() -> None:
    with pytest.raises(InvalidArgumentError, match=r"byte-swapped.*newbyteorder"):
        buffers.readable(np.ones(2, ">f4"))


@pytest.mark.parametrize("door", [buffers.readable, buffers.writable])
def test_memory_that_we_cannot_reach_is_refused(door: Any) -> None:
    with pytest.raises(UnavailableError, match="DLPack device type 10 memory, and ringreduce communicates"):
        door(Exporter(BASE, (10, 0)))
    # Without a driver because of that; with one because there is nothing of a GPU at that address.
    with pytest.raises((UnavailableError, InvalidArgumentError), match="in CUDA memory"):
        door(Cuda())


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous"),
    [
        ((2, 3), None, True),
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 3), (6, 2), False),
        ((1, 3), (77, 1), True),
        ((3, 1, 2), (2, 5, 1), True),
        ((0, 3), (1, 1), True),
        ((), (), True),
        ((3,), (-1,), False),
    ],
)
def test_contiguity_of_gpu_arrays(shape: Any, strides: Any, contiguous: bool) -> None:
    assert gpu.is_contiguous(shape, strides) is contiguous


def test_bfloat16_and_misaligned_arrays_go_by_address() -> None:
    half = np.ones((2, 3), ml_dtypes.bfloat16)
    assert buffers.native(half)[:3] == (address(half), (2, 3), buffers.CODES["bfloat16"])
    assert buffers.native(half)[3] is half  # whoever holds the operand keeps the memory
    odd = np.zeros(9, np.uint8)[1:].view(np.float64)
    assert buffers.native(odd)[:3] == (address(odd), (1,), buffers.CODES["float64"])
    assert buffers.native(BASE) is BASE


def dropped_operands(name: str) -> list[float]:
    """Rank 0 drops operands and handles of operations that rank 1 has not submitted yet."""
    import gc

    import ringreduce as rr

    with rr.init() as world:
        if world.rank == 0:
            for index in range(8):
                rr.allreduce_async(np.full(500_000, index + 1).astype(name), name=str(index), op=rr.Sum)
            gc.collect()
            garbage = [np.full(500_000, 99.0).astype(name) for _ in range(8)]
            rr.barrier()
            rr.barrier()
            return [float(one[0]) for one in garbage]
        rr.barrier()
        sums = [rr.allreduce(np.full(500_000, 1.0).astype(name), name=str(index), op=rr.Sum) for index in range(8)]
        rr.barrier()
        return [float(one.astype(np.float64).mean()) for one in sums]


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_operands_live_as_long_as_their_operation(name: str) -> None:
    first, second = run_ranks(dropped_operands, 2, args=(name,))
    assert first == [99.0] * 8
    assert second == [index + 2.0 for index in range(8)]


def through_the_door() -> list[str]:
    """Everything that can be an operand, through real collectives."""
    import torch

    import ringreduce as rr

    faults = []
    with rr.init() as world:
        total = world.size * (world.size + 1) / 2
        mine = np.full((2, 3), world.rank + 1.0, np.float32)
        inputs = {
            "interface": Interface(mine),
            "dlpack": Exporter(mine),
            "torch": torch.from_numpy(mine),
            "bfloat16 of torch": torch.from_numpy(mine.copy()).bfloat16(),
            "memoryview": memoryview(mine),
            "list": mine.tolist(),
            "subclass": mine.view(np.matrix),
            "bfloat16": mine.astype(ml_dtypes.bfloat16),
            "read-only": np.broadcast_to(mine[:1], (2, 3)),
        }
        for kind, value in inputs.items():
            for result in (rr.allreduce(value, op=rr.Sum), rr.allreduce_async(value, op=rr.Sum).wait()):
                if type(result) is not np.ndarray or result.shape != (2, 3) or not np.all(result == total):
                    faults.append(f"{kind}: {result!r}")
            if rr.allgather(value).shape != (2 * world.size, 3):
                faults.append(f"allgather of {kind}")
        for kind in ("interface", "dlpack", "torch", "bfloat16 of torch", "memoryview", "subclass", "bfloat16"):
            value = inputs[kind]
            if rr.allreduce_(value, op=rr.Sum) is not value or not np.all(buffers.readable(value) == total):
                faults.append(f"{kind} in place")
            buffers.writable(value)[...] = world.rank + 1
        before = rr.stats()["bytes_copied"]
        rr.allreduce(mine.T)
        rr.allgather(mine[:, 1])
        copied = rr.stats()["bytes_copied"] - before
        if copied < mine.nbytes + 8:
            faults.append(f"bytes_copied grew by {copied}")
        whole = np.array([mine, mine])
        del mine
        dropped = [rr.allreduce_async(whole[0] * index, name=str(index), op=rr.Sum) for index in range(50)]
        del dropped  # the operands live until the operations have finished
        rr.barrier()
    return faults


@pytest.mark.parametrize("size", [1, 2])
def test_through_the_door(size: int) -> None:
    pytest.importorskip("torch")
    assert run_ranks(through_the_door, size) == [[]] * size


def test_a_tensor_without_memory_is_refused() -> None:
    torch = pytest.importorskip("torch")
    for door in (buffers.readable, buffers.writable):
        with pytest.raises(InvalidArgumentError, match="this Tensor has no memory that could be communicated"):
            door(torch.ones(2, device="meta"))


def test_masked_arrays_are_refused() -> None:
    masked = np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0])
    for door in (buffers.readable, buffers.writable):
        with pytest.raises(InvalidArgumentError, match=r"lose its mask: pass value\.filled"):
            door(masked)
    assert np.array_equal(buffers.readable(masked.filled(0.0)), [1.0, 0.0, 3.0])


def address_0() -> None:
    with ringreduce.init() as world:
        group = ringreduce.global_process_set.group
        there = np.ones(3, np.float32)
        nowhere = (0, (3,), buffers.CODES["float32"], None)
        plain = (ringreduce.Sum, 1.0, 1.0, None)
        calls: list[Callable[[], Any]] = [
            lambda: group.allreduce(nowhere, nowhere, *plain),
            lambda: group.allreduce(there, nowhere, *plain),
            lambda: group.allreduce_async([there, nowhere], [there, there], *plain),
            lambda: group.broadcast_async(nowhere, 0, None),
            lambda: group.send_async(nowhere, 1 - world.rank, 0),
        ]
        for call in calls:
            with pytest.raises(InvalidArgumentError, match="an array of 3 elements has no memory"):
                call()
        nothing = (0, (0,), buffers.CODES["float32"], None)
        group.allreduce(nothing, nothing, *plain)
        group.allreduce(there, there, *plain)
        assert there.tolist() == [2.0] * 3


def test_elements_at_address_0_are_refused() -> None:
    run_ranks(address_0, 2)
