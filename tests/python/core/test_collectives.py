"""Every collective but all-reduce, against what NumPy says, on every size and from every root."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from ranks import SIZES, run_ranks

from ringreduce.bench.collectives import COLLECTIVES


def same(got: Any, want: Any) -> bool:
    """The same type, dtype, shape and bits."""
    return (
        isinstance(got, np.ndarray)
        and got.dtype == want.dtype
        and got.shape == want.shape
        and oracle.digest(got) == oracle.digest(want)
    )


def table(rank: int, rows: int, cols: int, name: str) -> Any:
    return oracle.values(7, rank, rows * cols, name).reshape(rows, cols)


def gathers() -> list[str]:
    """allgather, gather and broadcast of every dtype; ragged rows, none on some ranks."""
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        ranks = range(world.size)
        for name in oracle.DTYPES:
            for rows in (lambda rank: rank, lambda rank: 3, lambda rank: 0, lambda rank: 500 * (rank == 1) + 1):
                every = [table(rank, rows(rank), 2, name) for rank in ranks]
                if not same(rr.allgather(every[world.rank]), np.concatenate(every)):
                    faults.append(f"allgather {name} {[len(one) for one in every]}")
                root = len(every[0]) % world.size
                result = rr.gather(every[world.rank], root)
                if not (same(result, np.concatenate(every)) if world.rank == root else result is None):
                    faults.append(f"gather {name} to {root}")
            for root in ranks:
                sent = table(root, 5, 3, name)
                mine = table(world.rank, 5, 3, name)
                kept = mine.copy()
                if not same(rr.broadcast(mine, root), sent) or not same(mine, kept):
                    faults.append(f"broadcast {name} from {root}")
                if rr.broadcast_(mine, root) is not mine or not same(mine, sent):
                    faults.append(f"broadcast_ {name} from {root}")
        strided = table(world.rank, 6, 4, "float32")[::2, ::2]
        if not same(rr.allgather(strided), np.concatenate([table(r, 6, 4, "float32")[::2, ::2] for r in ranks])):
            faults.append("allgather of a strided input")
        if rr.broadcast(world.rank, world.size - 1) != world.size - 1:
            faults.append("broadcast of a scalar")
        result = rr.allgather(np.arange(3.0))
        result += 1.0  # results are writable
    return faults


def exchanges() -> list[str]:
    """alltoall, scatter, send and recv."""
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        ranks, me, size = range(world.size), world.rank, world.size
        for name in oracle.DTYPES:
            every = [table(rank, 2 * size, 3, name) for rank in ranks]
            if not same(rr.alltoall(every[me]), np.concatenate([one[2 * me : 2 * me + 2] for one in every])):
                faults.append(f"alltoall {name}")
            splits = [[(sender + receiver) % 3 for receiver in ranks] for sender in ranks]
            every = [table(rank, sum(splits[rank]), 2, name) for rank in ranks]
            starts = [sum(splits[rank][:me]) for rank in ranks]
            want = np.concatenate([every[rank][starts[rank] :][: splits[rank][me]] for rank in ranks])
            output, received = rr.alltoall(every[me], np.array(splits[me]))
            if not same(output, want) or not same(received, np.array([split[me] for split in splits], np.int32)):
                faults.append(f"alltoall {name} with splits: {received}")
            for root in ranks:
                whole = table(root, size, 4, name)
                output = np.empty((4,), oracle.dtype(name))
                given = rr.scatter(whole if me == root else None, output, root)
                if given is not output or not same(output, whole[me]):
                    faults.append(f"scatter {name} from {root}")
        for root in ranks:  # the output lies in the root's tensor
            memory = np.arange(100_000 * size + 1)
            rr.scatter(memory[:-1] if me == root else None, memory[1:100_001], root)
            if not same(memory[1:100_001], np.arange(100_000 * me, 100_000 * me + 100_000)):
                faults.append(f"scatter from {root} into its own tensor")
        for nbytes in (0, 1, 100, 300_000, 5_000_000) if size > 1 else ():  # a message goes to another rank
            sent = [oracle.values(3, rank, nbytes, "uint8") for rank in ranks]
            into = np.empty(nbytes, np.uint8)
            pending = rr.send_async(sent[me], (me + 1) % size, tag=5)
            rr.recv(into, (me - 1) % size, tag=5)
            pending.wait()
            if not same(into, sent[me - 1]):
                faults.append(f"send/recv {nbytes}")
        rr.barrier()
    return faults


def reductions() -> list[str]:
    """reducescatter and reduce."""
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        me, size = world.rank, world.size
        for name in oracle.DTYPES:
            op = rr.Sum
            for dim0 in (0, 1, size - 1, size, size + 1, 3 * size + 2, 401):
                inputs = [table(rank, dim0, 3, name) for rank in range(size)]
                own = oracle.rows(dim0, me, size)
                result = rr.reducescatter(inputs[me], op=op)
                if fault := oracle.wrong(result, [one[own] for one in inputs], op):
                    faults.append(f"reducescatter {name} {dim0}: {fault}")
                root = dim0 % size
                result = rr.reduce(inputs[me], root, op=op)
                if (me == root) != (result is not None):
                    faults.append(f"reduce {name} to {root}: {result!r}")
                elif result is not None and (fault := oracle.wrong(result, inputs, op)):
                    faults.append(f"reduce {name} to {root}: {fault}")
        inputs = [table(rank, 2 * size + 1, 2, "float32") for rank in range(size)]
        own = oracle.rows(2 * size + 1, me, size)
        result = rr.reducescatter(inputs[me], prescale_factor=2.0, postscale_factor=0.25)
        if fault := oracle.wrong(result, [one[own] for one in inputs], rr.Average, 2.0, 0.25):
            faults.append(f"reducescatter average scaled: {fault}")
    return faults


def groups_and_objects() -> list[str]:
    """grouped_allgather, grouped_reducescatter and objects: of several tensors what the single calls give of each."""
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        me, size = world.rank, world.size
        for name in (None, "named"):
            mine = [table(me, rows, 2, dtype) for rows, dtype in ((3, "float32"), (size + 1, "int64"), (0, "float64"))]
            gathered = rr.grouped_allgather(mine, name=name)
            if not all(same(one, rr.allgather(tensor)) for one, tensor in zip(gathered, mine, strict=True)):
                faults.append(f"grouped_allgather {name}")
            pending = rr.grouped_reducescatter_async(mine, name=name, op=rr.Sum, postscale_factor=2.0)
            expected = [rr.reducescatter(tensor, op=rr.Sum, postscale_factor=2.0) for tensor in mine]
            if not all(same(one, other) for one, other in zip(pending.wait(), expected, strict=True)):
                faults.append(f"grouped_reducescatter {name}")
        if rr.grouped_allgather([]) or rr.grouped_reducescatter([]):
            faults.append("groups of none")
        with pytest.raises(ValueError, match="does not support scalar inputs"):
            rr.grouped_reducescatter([np.ones(2), np.float32(1)])
        for step in range(600):  # more than there are slots for either kind
            if rr.allreduce(np.float32(step + me), op=rr.Max, name="" if step % 3 else None) != step + size - 1:
                faults.append(f"name='' in step {step}")
        if rr.allgather_object({"rank": me}) != [{"rank": rank} for rank in range(size)]:
            faults.append("allgather_object")
        if rr.broadcast_object(["of", me], root_rank=size - 1) != ["of", size - 1]:
            faults.append("broadcast_object")
    return faults


@pytest.mark.parametrize("work", [gathers, exchanges, reductions, groups_and_objects], ids=lambda work: work.__name__)
@pytest.mark.parametrize("size", SIZES)
def test_collectives(work: Any, size: int) -> None:
    assert run_ranks(work, size) == [[]] * size


@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "recursive_doubling", "tree"])
@pytest.mark.parametrize("work", [gathers, reductions], ids=lambda work: work.__name__)
def test_collectives_with_forced_algorithms(work: Any, algorithm: str) -> None:
    assert run_ranks(work, 3, env={"RINGREDUCE_ALGORITHM": algorithm}) == [[]] * 3


def large_moves() -> list[str]:
    import ringreduce as rr

    faults = []
    count = 1_048_579
    with rr.init() as world:
        every = [oracle.values(1, rank, count + rank, "float32") for rank in range(world.size)]
        if not same(rr.allgather(every[world.rank]), np.concatenate(every)):
            faults.append("allgather")
        if not same(rr.broadcast(every[world.rank][:count], 1), every[1][:count]):
            faults.append("broadcast")
        inputs = [one[:count] for one in every]
        own = oracle.rows(count, world.rank, world.size)
        if fault := oracle.wrong(rr.reducescatter(inputs[world.rank], op=rr.Sum), [one[own] for one in inputs], rr.Sum):
            faults.append(f"reducescatter: {fault}")
        rows = [one[: count // world.size * world.size].reshape(world.size, -1) for one in inputs]
        if not same(rr.alltoall(rows[world.rank]), np.stack([one[world.rank] for one in rows])):
            faults.append("alltoall")
    return faults


@pytest.mark.parametrize("size", [2, 3])
def test_large_moves(size: int) -> None:
    assert run_ranks(large_moves, size) == [[]] * size


def barriers(rounds: int) -> list[tuple[float, float]]:
    """When this rank came to each barrier, and when it left; each time another one is late."""
    import time

    import ringreduce as rr

    times = []
    with rr.init() as world:
        for round_ in range(rounds):
            if round_ % world.size == world.rank:
                sum(range(100_000))
            came = time.monotonic()
            rr.barrier()
            times.append((came, time.monotonic()))
    return times


def counted_on_the_bus() -> dict[str, int]:
    """By how much each collective raises bytes_on_bus. An all-gather's output has 12,000 bytes, others' input."""
    import ringreduce as rr

    found = {}
    with rr.init() as world:
        whole = np.ones(3000, np.float32)
        for name, call in {
            "allreduce": lambda: rr.allreduce(whole),
            "reducescatter": lambda: rr.reducescatter(whole),
            "allgather": lambda: rr.allgather(whole[: 3000 // world.size]),
            "broadcast": lambda: rr.broadcast(whole, 0),
            "alltoall": lambda: rr.alltoall(whole),
            "barrier": rr.barrier,
        }.items():
            before = rr.stats()["bytes_on_bus"]
            call()
            found[name] = rr.stats()["bytes_on_bus"] - before
    return found


def counted_on_the_bus_otherwise() -> dict[str, int]:
    """Likewise what `ringreduce bench` does not have, on four ranks."""
    import ringreduce as rr

    found = {}
    with rr.init() as world:
        first, last = rr.add_process_set([0, 1]), rr.add_process_set([2, 3])
        half = first if world.rank < 2 else last
        x, part = np.ones(3000, np.float32), np.ones(750, np.float32)
        other = world.rank ^ 1
        for name, call in {
            "small": lambda: rr.allreduce(np.ones(2)),  # so few bytes go another way
            "named": lambda: rr.allreduce(np.ones(2), name="named"),
            "grouped": lambda: rr.grouped_allreduce([x, x]),
            "in a set": lambda: rr.allreduce(x, process_set=half),
            "reduce": lambda: rr.reduce(x, 0),
            "gather": lambda: rr.gather(part, 0),
            "scatter": lambda: rr.scatter(np.ones((4, 750), np.float32) if world.rank == 0 else None, part, 0),
            "a message": lambda: rr.send(x, other) if world.rank < other else rr.recv(x, other),
        }.items():
            before = rr.stats()["bytes_on_bus"]
            call()
            found[name] = rr.stats()["bytes_on_bus"] - before
    return found


def counted_negotiations() -> dict[str, int]:
    import ringreduce as rr

    found = {}
    with rr.init():
        for name, count, call in (
            ("8 bytes", 100, lambda _: rr.allreduce(np.ones(1))),
            ("4 KiB", 100, lambda _: rr.allreduce(np.ones(512))),
            ("a barrier", 100, lambda _: rr.barrier()),
            ("named", 50, lambda i: rr.allreduce(np.ones(1), name=f"of {i}")),
            ("64 KiB", 50, lambda _: rr.allreduce(np.ones(8192))),
        ):
            before = rr.stats()["negotiations"]
            for i in range(count):
                call(i)
            found[name] = rr.stats()["negotiations"] - before
        found["hosts"] = rr.cross_size()
    return found


def test_short_operations_without_a_name_negotiate_nothing() -> None:
    ranks = run_ranks(counted_negotiations, 2)
    for found in ranks:
        assert (found["8 bytes"], found["4 KiB"], found["a barrier"], found["named"]) == (0, 0, 0, 50)
    if ranks[0]["hosts"] == 1:  # else the hosts' leaders see it
        # Whoever is last sees that all are there; both do where they come at the same moment.
        assert 50 <= sum(found["64 KiB"] for found in ranks) <= 100


@pytest.mark.parametrize("size", [1, 2, 4])
def test_bytes_on_the_bus_are_counted_as_ringreduce_bench_does(size: int) -> None:
    expected = {name: int(12_000 * row.bus(size)) for name, row in COLLECTIVES.items()}
    if size == 4:
        assert (expected["allreduce"], expected["allgather"], expected["broadcast"]) == (18_000, 9000, 12_000)
    assert run_ranks(counted_on_the_bus, size) == [expected] * size


def test_bytes_on_the_bus_of_other_operations() -> None:
    expected = {
        "small": 24,
        "named": 24,
        "grouped": 36_000,
        "in a set": 12_000,
        "reduce": 12_000,
        "gather": 9000,
        "scatter": 9000,
        "a message": 12_000,
    }
    assert run_ranks(counted_on_the_bus_otherwise, 4) == [expected] * 4


def test_barrier_waits_for_the_last() -> None:
    for everyone in zip(*run_ranks(barriers, 3, args=(30,)), strict=True):
        assert min(left for _, left in everyone) >= max(came for came, _ in everyone)


def more_rows_than_32_bits_count() -> None:
    """Rows without elements cost nothing, so there can be 2^34 of them."""
    import ringreduce as rr

    with rr.init() as world:
        many = 1 << 33
        source = np.empty((2 * many, 0), np.uint8)
        for splits in ([many, many], [many * 2 * (to == 1) for to in range(2)]):
            rows, counts = rr.alltoall(source, splits)
            expected = [splits[world.rank]] * 2
            assert rows.shape == (sum(expected), 0)
            assert counts.tolist() == expected
            assert counts.dtype == (np.int64 if max(expected) else np.int32)
        assert rr.alltoall(source).shape == source.shape
        assert rr.alltoall_async(source).wait()[1].tolist() == [many, many]
        assert rr.allgather(source).shape == (4 * many, 0)
        assert rr.reducescatter(source).shape == (many, 0)


def test_more_rows_than_32_bits_count() -> None:
    run_ranks(more_rows_than_32_bits_count, 2)
