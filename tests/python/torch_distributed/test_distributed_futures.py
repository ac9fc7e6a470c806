"""Futures of the torch.distributed backend: collectives in callbacks, in whichever thread these run, and errors."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deadlines import SOON_S
from ranks import receive_from_test, send_to_test, start_ranks

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from test_distributed import join  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402
from ringreduce.torch.distributed import work as works  # noqa: E402

COUNT = 3
"""Elements of every tensor: what is matched with another operation's has a wrong sum, and no mismatch."""


def of(number: float) -> torch.Tensor:
    return torch.full((COUNT,), number, dtype=torch.float32)


def sum_at_once(number: float) -> torch.Tensor:
    total = of(number)
    dist.all_reduce(total)
    return total


def sum_by_future(number: float) -> torch.Tensor:
    return dist.all_reduce(of(number), async_op=True).get_future().wait()[0]


def gather(number: float) -> torch.Tensor:
    parts = [torch.empty(COUNT) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, of(number))
    return sum(parts)


CALLS = {call.__name__: call for call in (sum_at_once, sum_by_future, gather)}


def callbacks(path: str, call: str) -> list[float]:
    """Rank 1's callbacks call after the program's second operation, in another thread; rank 0's before it."""
    rank, _ = join(path)
    alone = [dist.new_group([member]) for member in range(2)][rank]
    second_is_called = threading.Event()
    threads = []

    def again(future: Any) -> torch.Tensor:
        threads.append(threading.current_thread())
        if rank == 0:
            dist.all_reduce(of(1), group=alone)  # which concerns nobody else
        assert rank == 0 or second_is_called.wait(SOON_S)
        return future.value()[0] + CALLS[call](100)

    def once_more(future: Any) -> torch.Tensor:
        nested = dist.all_reduce(of(10000), async_op=True).get_future().then(lambda f: f.value()[0] + CALLS[call](1000))
        return future.value() + nested.wait()

    work = dist.all_reduce(of(1), async_op=rank == 1)  # the same operation, waited for at once or later
    if rank == 1:
        work.wait()
    if rank == 0:
        receive_from_test()  # rank 1's first operation is pending until its callbacks are there
    first = dist.all_reduce(of(1), async_op=True)
    if rank == 0:
        first.get_future().wait()
        first.get_future().add_done_callback(threads.append)
        assert len(threads) == 1
        threads.clear()
    answer = first.get_future().then(again).then(once_more)
    if rank == 1:
        send_to_test("added")
    second = dist.all_reduce(of(10), async_op=True)
    second_is_called.set()
    third = sum_at_once(20)
    assert second.wait()
    sums = [answer.wait(), second.result()[0], third, sum_by_future(30)]
    # A callback that not all ranks of a group run calls it like the program.
    of_one = dist.all_reduce(of(1), group=alone, async_op=True).get_future()
    sums.append(of_one.then(lambda _: sum_at_once(40)).wait())
    # Nor does it matter then who calls it in a callback, and who in the program.
    if rank == 0:
        of_one.then(lambda _: sum_at_once(1)).wait()
    else:
        sum_at_once(1)
    sums.append(dist.all_reduce(of(2), async_op=True).get_future().then(lambda _: sum_at_once(50)).wait())
    assert (threads == [threading.main_thread()]) == (rank == 0)
    dist.destroy_process_group()
    assert all(torch.equal(total, of(total[0].item())) for total in sums)
    return [total[0].item() for total in sums]


@pytest.mark.parametrize("call", CALLS)
def test_collectives_in_callbacks_are_not_taken_for_the_programs(call: str, tmp_path: Path) -> None:
    with start_ranks(callbacks, 2, args=(str(tmp_path), call)) as job:
        assert job.receive(1) == "added"
        job.send(0)
        outcomes = job.wait()
        assert [outcome.error for outcome in outcomes] == [None, None], job.report()
        assert [outcome.value for outcome in outcomes] == 2 * [[2 * 11101, 20, 40, 60, 80, 100]]


def fails(future: Any) -> Any:
    raise hvd.HorovodInternalError("lost rank 7")


@pytest.mark.parametrize("callbacks", [(fails,), (fails, lambda future: future.value())], ids=["last", "first"])
def test_an_error_of_a_callback_comes_out_of_ddp(callbacks: Any, tmp_path: Path) -> None:
    dist.init_process_group("ringreduce", store=dist.FileStore(f"{tmp_path}/store", 1), rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        seen = []

        def hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            for callback in callbacks:
                future = future.then(callback)
            seen.append(future)
            return future

        model.register_comm_hook(None, hook)
        with pytest.raises(RuntimeError, match="lost rank 7"):
            model(torch.ones(1, 2)).sum().backward()
        for ask in (seen[0].wait, seen[0].value, lambda: torch.futures.wait_all(seen)):
            with pytest.raises(RuntimeError, match="lost rank 7"):
                ask()
        assert seen[0].done()
    finally:
        dist.destroy_process_group()


class JustEnded:
    """An operation that ends, well or with the error, between a wait that runs out and the question whether it has."""

    peer = -1

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> None:
        self.waits.append(timeout)
        if timeout is not None:
            raise hvd.TimeoutError("the wait ran out")
        if self.error is not None:
            raise self.error

    def done(self) -> bool:
        return len(self.waits) > 0


def end_as_a_wait_runs_out(count: int) -> None:
    limit = timedelta(seconds=1)
    natives: list[Any] = [JustEnded() for _ in range(count)]
    for native in natives[1:]:
        native.waits.append(0.0)  # the others have ended before
    native = natives[0] if count == 1 else works.Several(natives)
    output = torch.zeros(1)
    work = works.Work(native, [output], lambda _: output.fill_(1.0))
    assert work.wait(limit)
    assert work.is_success()
    assert output.item() == 1.0
    assert natives[0].waits[0] is not None

    for error in (hvd.PeerLostError("lost rank 1"), hvd.TimeoutError("the group's limit")):
        natives[0] = JustEnded(error)
        native = natives[0] if count == 1 else works.Several(natives)
        work = works.Work(native, [output], lambda _: pytest.fail("an operation that failed has no result"))
        with pytest.raises(type(error), match=str(error)):
            work.wait(limit)
        assert work.exception() is error

    pending = JustEnded()
    pending.done = lambda: False
    work = works.Work(pending, [output])
    with pytest.raises(hvd.TimeoutError, match="the wait ran out"):
        work.wait(limit)
    assert pending.waits == [1.0]
    assert not work.is_completed()


@pytest.mark.parametrize("count", [1, 2])
def test_an_operation_that_ends_as_a_wait_runs_out_has_its_own_outcome(
    count: int, run_ranks: Callable[..., Any]
) -> None:
    run_ranks(end_as_a_wait_runs_out, 1, args=(count,))


def test_of_several_operations_all_are_waited_for_although_one_has_failed() -> None:
    """The others still write their results."""
    failed, well = JustEnded(hvd.MismatchError("ranks differ")), JustEnded()
    with pytest.raises(hvd.MismatchError, match="ranks differ"):
        works.Several([failed, well]).wait()
    assert (failed.waits, well.waits) == ([None], [None])

    pending = JustEnded(hvd.MismatchError("a signal's handler"))
    pending.done = lambda: False
    with pytest.raises(hvd.MismatchError, match="handler"):
        works.Several([pending, untouched := JustEnded()]).wait()
    assert untouched.waits == []
    with pytest.raises(hvd.MismatchError, match="handler") as caught:
        works.Several([failed, pending]).wait()
    assert caught.value.__cause__ is failed.error


def test_a_completer_that_is_asked_for_after_the_group_was_left_has_no_thread(tmp_path: Path) -> None:
    dist.init_process_group("ringreduce", store=dist.FileStore(f"{tmp_path}/store", 1), rank=0, world_size=1)
    group: Any = dist.group.WORLD
    running = group._completer_of("send", 0)
    dist.destroy_process_group()
    before = threading.active_count()
    for completer in (running, group._completer_of("recv", 0)):
        future = works.Work(JustEnded(), [torch.ones(1)], None, completer).get_future()
        assert future.done()
    assert threading.active_count() == before
