"""op=Adasum against an oracle written apart: the paper's formula, recursively, in NumPy's long double."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402
from ringreduce.common.adasum import BLOCK, combine  # noqa: E402

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 2.0**-48}


def adasum(vectors: Any) -> Any:
    """Halves the ranks, and combines what the halves give."""
    if len(vectors) == 1:
        return vectors[0].astype(np.longdouble)
    half = len(vectors) // 2
    a, b = adasum(vectors[:half]), adasum(vectors[half:])
    product = (a * b).sum()
    result = np.zeros_like(a)
    for one in (a, b):
        norm = (one * one).sum()
        result += one if norm == 0 else (1 - product / (2 * norm)) * one
    return result


def combine_everything() -> str:
    """Checks each form on this rank; returns a hash of all results' bits."""
    bits = hashlib.blake2b()
    with hvd.init() as world:
        n, r = world.size, world.rank

        def check(result: Any, inputs: Any, name: str) -> None:
            expected = adasum([one.ravel() for one in inputs]).reshape(inputs[0].shape)
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            got = result.detach().double().numpy()
            assert got.shape == expected.shape
            assert float(np.abs(got - expected).max(initial=0)) <= 4 * EPS[name] * scale, name
            bits.update(got.tobytes())

        def inputs(seed: int, count: int, dtype: Any) -> tuple[Any, list[Any]]:
            """This rank's tensor, and every rank's as float64."""
            every = [torch.from_numpy(oracle.values(seed, rank, count, "float64")).to(dtype) for rank in range(n)]
            return every[r], [one.double().numpy() for one in every]

        for name in EPS:
            dtype = getattr(torch, name)
            for count in (0, 1, 7, 70_001):
                mine, every = inputs(count, count, dtype)
                kept = mine.clone()
                check(hvd.allreduce(mine, op=hvd.Adasum), every, name)
                assert torch.equal(mine, kept)
                in_place, handed_over = mine.clone(), mine.clone()
                assert hvd.allreduce_(in_place, op=hvd.Adasum, name="in place") is in_place
                check(in_place, every, name)
                handle = hvd.allreduce_async_(handed_over, op=hvd.Adasum, name="handed over")
                check(hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Adasum)), every, name)
                assert hvd.synchronize(handle) is handed_over
                check(handed_over, every, name)
            first, of_first = inputs(1, 40, dtype)
            second, of_second = inputs(2, 9, dtype)
            results = hvd.grouped_allreduce([first.view(8, 5).t(), second], op=hvd.Adasum)
            check(results[0], [one.reshape(8, 5).T for one in of_first], name)  # each tensor by itself
            check(results[1], of_second, name)

        mine, every = inputs(3, 50, torch.float64)
        scaled = hvd.allreduce(mine, op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3.0)
        check(scaled, [1.5 * one for one in every], "float64")
        zeros = [one * (rank % 2) for rank, one in enumerate(every)]
        check(hvd.allreduce(mine * (r % 2), op=hvd.Adasum), zeros, "float64")
        assert not hvd.allreduce(torch.zeros(3), op=hvd.Adasum).any()
        same = torch.arange(1.0, 6.0)
        assert torch.equal(hvd.allreduce(same, op=hvd.Adasum), same)  # parallel: their average
        unit = torch.zeros(n)
        unit[r] = 2.0
        assert torch.equal(hvd.allreduce(unit, op=hvd.Adasum), torch.full((n,), 2.0))  # orthogonal: their sum

        traced = same.clone().requires_grad_()
        (only,) = hvd.grouped_allreduce([traced], op=hvd.Adasum)
        for result in (hvd.allreduce(traced, op=hvd.Adasum), only):
            assert torch.equal(result.detach(), same)
            with pytest.raises(hvd.InvalidArgumentError, match="not for Adasum"):
                result.sum().backward()
        half = hvd.allreduce(torch.full((3,), r + 1.0), op=hvd.Adasum, compression=hvd.Compression.fp16)
        assert half.dtype is torch.float32
        with pytest.raises(hvd.InvalidArgumentError, match="floating-point"):
            hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)
        if n > 1:
            with pytest.raises(hvd.MismatchError, match="dimension 1 equal to"):
                hvd.allreduce(torch.ones(2 + r), op=hvd.Adasum)
        with pytest.raises(ValueError, match="contiguous"):
            hvd.allreduce_(torch.ones(4, 4).t()[1:], op=hvd.Adasum)
        if n > 2:
            three = hvd.add_process_set([0, 1, 2])
            two = hvd.add_process_set([1, 3])
            if r < 3:
                with pytest.raises(NotImplementedError, match="Running Adasum with non-power of 2 ranks"):
                    hvd.allreduce(same, op=hvd.Adasum, process_set=three)
            if r in (1, 3):
                result = hvd.allreduce(torch.tensor([float(r)]), op=hvd.Adasum, process_set=two)
                assert result.item() == (1 - 3 / 2) * 1 + (1 - 3 / 18) * 3
    return bits.hexdigest()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_adasum(size: int, run_ranks: Callable[..., Any]) -> None:
    assert len(set(run_ranks(combine_everything, size))) == 1


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
@pytest.mark.parametrize(("first", "last"), [(np.inf, -np.inf), (np.inf, np.nan), (1e154, 1e154)])
def test_infinities_give_what_the_formula_gives_whatever_the_number_of_elements(first: float, last: float) -> None:
    """With BLOCK elements or fewer one partial sum has both values; with more each has one of its own."""
    found = []
    for count in (2, BLOCK + 1):
        a, b = np.zeros(count), np.ones(count)
        a[0], a[-1] = first, last
        b[1:-1] = 0.0
        result = combine([a, b])
        assert not result[1:-1].any() or np.isnan(result).all()
        found.append(result[[0, -1]])
    np.testing.assert_array_equal(found[0], found[1])
