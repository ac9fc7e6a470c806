"""All-reduce against the oracle: every dtype, operation, count, kind of memory and algorithm; the same bits always."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from ranks import SIZES, run_ranks

LARGE = 1_048_579  # 1 Mi + 3
BIG_DTYPES = ["float32", "bfloat16", "float64", "int32"]
ALGORITHMS = ["two_shot", "ring", "recursive_doubling"]

Result = tuple[list[str], list[str], dict[str, int]]
"""What each rank returns: faults, digests of its results, stats()."""


def check(results: list[Result], algorithm: str = "") -> None:
    """No faults, the same digests everywhere, and the algorithm was used."""
    for rank, (faults, digests, stats) in enumerate(results):
        assert not faults, f"rank {rank}: {len(faults)} faults, first: {faults[:5]}"
        assert digests == results[0][1], f"rank {rank} has other bits than rank 0"
        # Across hosts (mpirun_pool.py) there is no memory that all ranks map.
        used = "hierarchical" if stats["bytes_on_wire"] and algorithm in ("direct", "two_shot") else algorithm
        assert not used or stats[used] > 0, f"rank {rank} did not use {used}: {stats}"
    assert results[0][1], "nothing was compared"


def every_pair(dtypes: list[str], counts: list[int]) -> Result:
    """Every meaningful (dtype, op) pair and every count, in place and out of place, plain and scaled.

    The ranks take turns in asking the oracle, which takes longer than the sum; check() compares their digests.
    """
    import ringreduce as rr

    faults: list[str] = []
    digests: list[str] = []

    def wrong(result: Any, inputs: list[Any], *how: Any) -> str:
        return oracle.wrong(result, inputs, *how) if len(digests) % world.size == world.rank else ""

    with rr.init() as world:
        for name in dtypes:
            for op in filter(lambda op: oracle.meaningful(name, op), oracle.OPS):
                few = [0, 1, world.size, 127]
                for seed, count in enumerate(counts or (oracle.counts(world.size) if name in BIG_DTYPES else few)):
                    inputs = [oracle.values(seed, rank, count, name, op) for rank in range(world.size)]
                    mine = inputs[world.rank]
                    before = mine.copy()
                    result = rr.allreduce(mine, op=op)
                    fault = wrong(result, inputs, op)
                    if not np.array_equal(mine.view(np.uint8), before.view(np.uint8)):
                        fault += " and the input was changed"
                    in_place = rr.allreduce_(mine, op=op)
                    if in_place is not mine or oracle.digest(mine) != oracle.digest(result):
                        fault += " and in place differs from out of place"
                    digests.append(oracle.digest(result))
                    if fault:
                        faults.append(f"{name} op {op} count {count}: {fault}")
                if oracle.scalable(name, op):
                    inputs = [oracle.scalable_values(99, rank, 37, name, op) for rank in range(world.size)]
                    for pre, post in ((2.0, 1.0), (1.0, 0.5), (0.5, 4.0)):
                        result = rr.allreduce(inputs[world.rank], op=op, prescale_factor=pre, postscale_factor=post)
                        digests.append(oracle.digest(result))
                        if fault := wrong(result, inputs, op, pre, post):
                            faults.append(f"{name} op {op} scaled {pre}, {post}: {fault}")
        stats = rr.stats()
    return faults, digests, stats


@pytest.mark.parametrize("size", SIZES)
def test_every_dtype_op_and_count(size: int) -> None:
    check(run_ranks(every_pair, size, args=(oracle.DTYPES, [])))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_forced_algorithms(algorithm: str, size: int) -> None:
    args = (["float32", "bfloat16", "float64", "int32", "bool"], [0, 1, 13, 4097, 50_021])
    check(run_ranks(every_pair, size, args=args, env={"RINGREDUCE_ALGORITHM": algorithm}), algorithm)


@pytest.mark.parametrize("isa", ["portable", "x86-64-v2", "avx2", "avx512"])
def test_every_isa_gives_the_same_bits(isa: str) -> None:
    from ringreduce import _core

    if isa not in _core.isas():
        pytest.skip(f"this machine cannot run {isa}")
    args = (["float16", "bfloat16", "float32", "int64"], [1, 127, 1009])
    forced = run_ranks(every_pair, 3, args=args, env={"RINGREDUCE_ISA": isa})
    check(forced)
    auto = run_ranks(every_pair, 3, args=args)
    assert [digests for _, digests, _ in forced] == [digests for _, digests, _ in auto]


def memory_kinds(counts: list[int]) -> Result:
    """Operands in private, registered, mixed, misaligned and strided memory."""
    import ringreduce as rr

    faults, digests = [], []
    with rr.init() as world:
        for name in BIG_DTYPES:
            dtype = oracle.dtype(name)
            for seed, count in enumerate(counts):
                inputs = [oracle.values(seed, rank, count, name) for rank in range(world.size)]
                mine = inputs[world.rank]
                operands = _operands(rr, world, mine, dtype, count)
                for kind, (source, target) in operands.items():
                    if target is None:
                        result = rr.allreduce(source, op=rr.Sum)
                    else:
                        target[...] = source
                        result = rr.allreduce_(target, op=rr.Sum)
                    digests.append(oracle.digest(result))
                    its_turn = len(digests) % world.size == world.rank  # the others' bits are compared by check()
                    if its_turn and (fault := oracle.wrong(np.asarray(result), inputs, oracle.SUM)):
                        faults.append(f"{kind} {name} count {count}: {fault}")
                    if digests[-1] != digests[-1 - list(operands).index(kind)]:
                        faults.append(f"{kind} {name} count {count}: other bits than private memory")
        stats = rr.stats()
    return faults, digests, stats


def _operands(rr: Any, world: Any, mine: Any, dtype: Any, count: int) -> dict[str, tuple[Any, Any]]:
    registered = rr.symmetric_empty(count + 2 * world.size, dtype)
    offset = 2 * world.rank  # a slice is registered too, at different offsets on different ranks
    registered_slice = registered[offset : offset + count]
    bytes_ = np.empty(count * dtype.itemsize + 1, np.uint8)
    misaligned = bytes_[1:].view(dtype)
    strided = np.zeros((count, 3), dtype)
    strided[:, 1] = mine
    reversed_ = mine[::-1].copy()[::-1]
    misaligned[...] = mine
    return {
        "private": (mine, None),
        "private in place": (mine, mine.copy()),
        "registered": (mine, registered_slice),
        "mixed": (mine, registered_slice if world.rank % 2 else mine.copy()),
        "misaligned": (misaligned, None),
        "misaligned in place": (mine, bytes_[1:].view(dtype)),
        "strided": (strided[:, 1], None),
        "reversed": (reversed_, None),
    }


@pytest.mark.parametrize("size", SIZES)
def test_memory_kinds(size: int) -> None:
    check(run_ranks(memory_kinds, size, args=([0, 1, 1009, 65_537],)), "direct")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_large(size: int) -> None:
    check(run_ranks(memory_kinds, size, args=([LARGE],)), "direct")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large_with_forced_algorithms(algorithm: str) -> None:
    args = (["float32", "float16"], [LARGE])
    check(run_ranks(every_pair, 3, args=args, env={"RINGREDUCE_ALGORITHM": algorithm}), algorithm)


def sums_of_many_sizes() -> list[str]:
    import ringreduce as rr

    with rr.init() as world:
        return [
            oracle.digest(rr.allreduce(oracle.values(1, world.rank, count, name), op=rr.Average))
            for name in ("float32", "float16", "float64")
            for count in (1, 100, 10_007, 300_007)
            for _ in range(3)
        ]


@pytest.mark.parametrize("size", [3, 4])
def test_two_runs_give_the_same_bits(size: int) -> None:
    first, second = run_ranks(sums_of_many_sizes, size), run_ranks(sums_of_many_sizes, size)
    assert first == second
    assert all(digests == first[0] for digests in first)
    for group in range(0, len(first[0]), 3):  # and from call to call
        assert len(set(first[0][group : group + 3])) == 1


def special_values() -> list[str]:
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        for name in oracle.FLOATS:
            table = np.zeros((world.size, 6), oracle.dtype(name))
            table[:, 0] = np.inf  # inf
            table[0, 1] = -np.inf  # -inf with numbers
            table[-1, 2] = np.nan  # nan with numbers
            table[:, 3] = -0.0
            table[0, 4], table[-1, 4] = np.inf, -np.inf
            table[:, 5] = 1.0 + np.arange(world.size)
            for op in (rr.Sum, rr.Min, rr.Max):
                result = rr.allreduce(table[world.rank], op=op)
                with np.errstate(invalid="ignore"):
                    if fault := oracle.wrong(result, list(table), op):
                        faults.append(f"{name} {op!r}: {fault}")
    return faults


def test_infinities_and_nans() -> None:
    assert run_ranks(special_values, 2) == [[], []]


def shapes_and_scalars() -> list[str]:
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        total = sum(range(1, world.size + 1))
        mine = world.rank + 1
        for shape in ((), (2, 0, 3), (1,) * 8):
            result = rr.allreduce(np.full(shape, float(mine)), op=rr.Sum)
            if type(result) is not np.ndarray or result.shape != shape or not np.all(result == total):
                faults.append(f"{type(result)} {result!r} for shape {shape}")
        for value, kind in ((mine, np.int64), (float(mine), np.float64), (np.float32(mine), np.float32)):
            result = rr.allreduce(value, op=rr.Sum)
            if type(result) is not kind or result != total:
                faults.append(f"{result!r} for the scalar {value!r}")
        if rr.allreduce([mine, 2 * mine], op=rr.Sum).tolist() != [total, 2 * total]:
            faults.append("list")
        fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3) * mine)
        result = rr.allreduce(fortran, op=rr.Sum)
        if not result.flags.c_contiguous or not np.array_equal(result, np.arange(6.0).reshape(2, 3) * total):
            faults.append(f"Fortran order: {result!r}")
        if rr.allreduce(np.array([7 * mine, -7 * mine])).tolist() != [
            int(7 * total / world.size),
            int(-7 * total / world.size),
        ]:
            faults.append("integer Average does not truncate toward zero")
    return faults


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shapes_and_scalars(size: int) -> None:
    assert run_ranks(shapes_and_scalars, size) == [[]] * size
