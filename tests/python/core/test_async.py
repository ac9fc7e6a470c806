"""Asynchronous, grouped and named operations: any order, several threads, many names, ranks that have joined."""

from __future__ import annotations

import cProfile
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import oracle
import pytest
from ranks import SIZES, receive_from_test, run_ranks, send_to_test, start_ranks


def any_order(rounds: int) -> list[str]:
    """Named all-reduces of several dtypes, submitted and waited for in another order on every rank."""
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        order = random.Random(world.rank)
        for round_ in range(rounds):
            tensors = {}
            for index in range(24):
                name = oracle.DTYPES[index % len(oracle.DTYPES)]
                count = (index * 37) % 300 if index % 5 else 20_000
                tensors[f"{name}.{index}"] = [oracle.values(round_, rank, count, name) for rank in range(world.size)]
            handles = {}
            for key in order.sample(sorted(tensors), len(tensors)):
                mine = tensors[key][world.rank]
                if hash(key) % 2:  # in place on some ranks, out of place on others
                    handles[key] = rr.allreduce_async(mine, name=key, op=rr.Sum)
                else:
                    handles[key] = rr.allreduce_async_(mine.copy(), name=key, op=rr.Sum)
            for key in order.sample(sorted(handles), len(handles)):
                if order.random() < 0.3:
                    while not rr.poll(handles[key]):
                        time.sleep(0)
                if fault := oracle.wrong(rr.synchronize(handles[key]), tensors[key], oracle.SUM):
                    faults.append(f"round {round_} {key}: {fault}")
    return faults


@pytest.mark.parametrize("size", SIZES)
def test_any_order(size: int) -> None:
    assert run_ranks(any_order, size, args=(10,)) == [[]] * size


@pytest.mark.parametrize("threshold", ["0", "4096"])
def test_any_order_with_other_fusion(threshold: str) -> None:
    assert run_ranks(any_order, 3, args=(5,), env={"RINGREDUCE_FUSION_THRESHOLD": threshold}) == [[]] * 3


def every_kind_at_once() -> list[str]:
    """Handles of every collective in flight together, named, in opposite orders on even and odd ranks."""
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        me, size = world.rank, world.size
        mine = np.arange(12.0).reshape(6, 2) + 100 * me
        everyone = [np.arange(12.0).reshape(6, 2) + 100 * rank for rank in range(size)]
        total = np.sum(everyone, axis=0)
        scattered = np.empty((6, 2))
        submit = [
            lambda: rr.allreduce_async(mine, name="a", op=rr.Sum),
            lambda: rr.allgather_async(mine, name="b"),
            lambda: rr.broadcast_async(mine, 0, name="c"),
            lambda: rr.reducescatter_async(mine, name="d", op=rr.Sum),
            lambda: rr.alltoall_async(mine, [6] + [0] * (size - 1), name="e"),
            lambda: rr.reduce_async(mine, size - 1, name="f", op=rr.Sum),
            lambda: rr.gather_async(mine, 0, name="g"),
            lambda: rr.scatter_async(np.concatenate(everyone) if me == 0 else None, scattered, 0, name="h"),
            lambda: rr.grouped_allreduce_async([mine, 2 * mine], name="i", op=rr.Sum),
        ]
        for _ in range(20):
            order = range(len(submit)) if me % 2 else reversed(range(len(submit)))
            handles = {index: submit[index]() for index in order}
            got = [handles[index].result for index in range(len(submit))]
            stacked = np.concatenate(everyone)
            want: list[Any] = [total, stacked, everyone[0], total[oracle.rows(6, me, size)]]
            want += [stacked if me == 0 else stacked[:0], total if me == size - 1 else None]
            want += [stacked if me == 0 else None, everyone[me]]
            got[4] = got[4][0]
            for index, (one, other) in enumerate(zip(got, want, strict=False)):
                if not (one is None and other is None) and not np.array_equal(one, other):
                    faults.append(f"{'abcdefgh'[index]}: {one} instead of {other}")
            if not np.array_equal(got[8][0], total) or not np.array_equal(got[8][1], 2 * total):
                faults.append("grouped")
    return faults


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_kind_at_once(size: int) -> None:
    assert run_ranks(every_kind_at_once, size) == [[]] * size


def grouped(groups: list[list[str]]) -> list[str]:
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        for names in groups:
            for in_place in (False, True):
                counts = [(7 * index) % 50 for index in range(len(names))]
                every = [
                    [
                        oracle.values(at, rank, count, name)
                        for at, (name, count) in enumerate(zip(names, counts, strict=True))
                    ]
                    for rank in range(world.size)
                ]
                reduce = rr.grouped_allreduce_ if in_place else rr.grouped_allreduce
                mine = [tensor.copy() for tensor in every[world.rank]]
                results = reduce(mine, op=rr.Sum)
                if in_place and any(one is not other for one, other in zip(results, mine, strict=True)):
                    faults.append("grouped_allreduce_ returned other arrays")
                for index, result in enumerate(results):
                    if fault := oracle.wrong(result, [tensors[index] for tensors in every], oracle.SUM):
                        faults.append(f"{names[index]} {counts[index]} in place {in_place}: {fault}")
        return faults + among_others(world.rank, world.size)


def among_others(rank: int, size: int) -> list[str]:
    """Plain arrays beside what has to be converted or is refused; and alone, when they must not cost a call each."""
    import ringreduce as rr

    row, ranks = np.arange(6.0), sum(range(size))
    reduced = rr.grouped_allreduce([row + rank, row[::2], float(rank), [1, rank]], op=rr.Sum)
    expected = [row * size + ranks, row[::2] * size, np.float64(ranks), np.array([size, ranks])]
    faults = [
        f"{one!r}, not {other!r}"
        for one, other in zip(reduced, expected, strict=True)
        if type(one) is not type(other) or not np.array_equal(one, other)
    ]
    for refused in (row[::2], [1.0], np.frombuffer(bytes(8))):
        with pytest.raises(rr.InvalidArgumentError):
            rr.grouped_allreduce_([row, refused])
    if not np.array_equal(row, np.arange(6.0)):
        faults.append("a refused call has written")

    def calls(count: int) -> int:
        profile = cProfile.Profile()
        profile.runcall(rr.grouped_allreduce_, [row.copy() for _ in range(count)])
        return sum(entry.callcount for entry in profile.getstats())

    if (more := calls(200) - calls(100)) > 200:
        faults.append(f"100 arrays cost {more} calls")
    return faults


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_grouped(size: int) -> None:
    groups = [["float32"] * 40, ["int8"], *([name] * 5 for name in oracle.DTYPES)]
    assert run_ranks(grouped, size, args=(groups,)) == [[]] * size


def test_grouped_of_several_dtypes() -> None:
    groups = [oracle.DTYPES, oracle.DTYPES[::-1], ["float32", "int8"] * 20]
    assert run_ranks(grouped, 2, args=(groups,)) == [[]] * 2


def from_threads(threads: int, rounds: int) -> list[str]:
    """Every thread has its own names; a tenth of the calls are asynchronous and dropped."""
    import ringreduce as rr

    faults: list[str] = []
    with rr.init() as world:

        def work(thread: int) -> None:
            for round_ in range(rounds):
                inputs = [oracle.values(round_, rank, 50 + thread, "float64") for rank in range(world.size)]
                result = rr.allreduce(inputs[world.rank], name=f"{thread}.{round_ % 7}", op=rr.Sum)
                if fault := oracle.wrong(result, inputs, oracle.SUM):
                    faults.append(f"thread {thread} round {round_}: {fault}")
                if round_ % 10 == 0:
                    rr.allreduce_async(inputs[world.rank], name=f"{thread}.dropped.{round_}")

        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rr.barrier(name="the end")
    return faults


@pytest.mark.parametrize("size", [1, 2, 4])
def test_threads(size: int) -> None:
    assert run_ranks(from_threads, size, args=(4, 150)) == [[]] * size


def many_names(names: int) -> tuple[float, int]:
    """Seconds, and growth of this process's memory in bytes from the 10 000th name on."""
    import ringreduce as rr

    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    with rr.init() as world:
        tensor = np.full(4, world.rank + 1.0)
        start = time.monotonic()
        warm = 0
        for index in range(names):
            result = rr.allreduce(tensor, name=f"a.long.name.of.a.layer.{index}", op=rr.Sum)
            assert result[0] == world.size * (world.size + 1) / 2
            if index == 10_000:
                warm = resident()
        return time.monotonic() - start, resident() - warm


def test_many_names_in_flat_memory() -> None:
    for seconds, grown in run_ranks(many_names, 2, args=(50_000,)):
        assert grown < 4 * 2**20, f"memory grew by {grown} bytes"
        assert seconds < 60


def joining() -> tuple[list[str], int]:
    """Rank r has r + 1 batches. The others' sums go on without it, their averages divide by the full size."""
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        for epoch in range(3):
            for batch in range(world.rank + 1):
                here = [rank for rank in range(world.size) if rank >= batch]
                value = np.array([10.0**rank for rank in range(5)]) * (world.rank + 1)
                scale = sum(rank + 1 for rank in here)
                if not np.allclose(rr.allreduce(value, op=rr.Sum), value / (world.rank + 1) * scale):
                    faults.append(f"epoch {epoch} batch {batch}: sum")
                if not np.allclose(rr.allreduce(value, name="x"), value / (world.rank + 1) * scale / world.size):
                    faults.append(f"epoch {epoch} batch {batch}: average")
                if rr.allreduce(-world.rank - 1, op=rr.Max) != -here[0] - 1:
                    faults.append(f"epoch {epoch} batch {batch}: max")
            last = rr.join()
        total = rr.allreduce(world.rank, op=rr.Sum)  # unnamed operations go on in step
        if total != sum(range(world.size)):
            faults.append(f"after join: {total}")
    return faults, last


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_join(size: int) -> None:
    results = run_ranks(joining, size)
    assert [faults for faults, _ in results] == [[]] * size
    assert len({last for _, last in results}) == 1
    assert results[0][1] == size - 1  # it had most to do, and the others had joined before its last batch


def join_and_other_collectives() -> list[str]:
    import ringreduce as rr

    texts = []
    with rr.init() as world:
        if world.rank > 0:
            x = np.ones(4)
            calls = [
                lambda: rr.allgather(x),
                lambda: rr.broadcast(x, 1),
                lambda: rr.alltoall(x, [0] * 2 + [4]),
                lambda: rr.reducescatter(x),
            ]
            for call in calls:
                try:
                    call()
                except rr.HorovodInternalError as error:
                    texts.append(str(error))
            texts.append(str(rr.allreduce(x, op=rr.Sum)[0]))
        rr.join()
    return texts


def test_join_with_other_collectives_is_an_error() -> None:
    first, second, third = run_ranks(join_and_other_collectives, 3)
    assert first == []
    assert second == third or [text.replace("rank 1", "") for text in second] == [
        text.replace("rank 2", "") for text in third
    ]
    for text, word in zip(second, ["Allgather", "Broadcast", "Alltoall", "Reducescatter"], strict=False):
        assert f"{word} is not supported with Join at this time." in text
    assert second[-1] == "2.0"


def no_patience() -> str:
    import ringreduce as rr

    with rr.init() as world:
        if world.rank == 1:
            rr.recv(np.empty(1), 0)
            return f"{rr.allreduce(np.ones(4), op=rr.Sum, name='late')[0]}"
        handle = rr.allreduce_async(np.ones(4), op=rr.Sum, name="late")
        with pytest.raises(rr.TimeoutError):
            handle.wait(-1)
        rr.send(np.ones(1), 1)
        return f"{handle.wait()[0]}"


def test_a_negative_timeout_has_run_out() -> None:
    assert run_ranks(no_patience, 2) == ["2.0", "2.0"]


def late_threads() -> list[float]:
    """On each rank one thread waits, for what the other rank's other thread has not called yet."""
    import ringreduce as rr

    with rr.init() as world:
        names = ["a", "b"] if world.rank == 0 else ["b", "a"]

        def total(name: str) -> float:
            return float(rr.allreduce(np.ones(4), op=rr.Sum, name=name)[0])

        def later() -> float:
            for _ in range(2):  # both ranks have begun to wait, and then both have looked around often
                begun = rr.stats()["sleeps"]
                while rr.stats()["sleeps"] < begun + 5 and not first.done():
                    time.sleep(0.01)
                send_to_test("slept")
                receive_from_test()
            return total(names[1])

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(total, names[0])
            second = pool.submit(later)
            return [first.result(), second.result()]


def test_a_thread_that_calls_late_ends_what_another_one_waits_for() -> None:
    with start_ranks(late_threads, 2) as job:
        for _ in range(2):
            assert [job.receive(rank) for rank in range(2)] == ["slept", "slept"]
            for rank in range(2):
                job.send(rank)
        assert [rank.value for rank in job.wait()] == [[2.0, 2.0]] * 2, job.report()
