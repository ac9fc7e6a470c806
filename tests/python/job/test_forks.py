"""Children of a rank: forked workers and programs that it starts. They are no ranks, and end without a trace."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from deadlines import HANG_S, SOON_S
from kills import survivors
from processes import asleep, completed
from ranks import clean_environment, receive_from_test, run_ranks, send_to_test, start_ranks

from ringreduce import state
from ringreduce.collectives import buffers


def test_what_is_in_flight_is_no_matter_of_a_process_that_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has inherited what JAX had under way, and not the threads that would end it."""
    waits: list[str] = []
    monkeypatch.setattr(state, "_before_join", [lambda: waits.append("for ever")])
    state.finish_in_flight()
    assert not waits


def loads_data() -> Any:
    import torch
    from torch.utils.data import DataLoader, Dataset

    import ringreduce as rr

    torch.set_num_threads(1)

    class Numbers(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> torch.Tensor:
            with pytest.raises(rr.NotInitializedError, match="forked from rank"):
                rr.allreduce(1.0)
            return torch.full((100,), float(index))

    world = rr.init()
    gradient = rr.symmetric_empty(20_000)
    steps = 0
    try:
        while True:
            loader = DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork")
            for batch in loader:
                gradient[:] = float(batch.sum())
                rr.allreduce_(gradient, op=rr.Sum)
                assert gradient[-1] == world.size * float(batch.sum())
                handle = rr.allreduce_async(np.ones(3), name="loss", op=rr.Sum)
                assert handle.wait()[0] == world.size
                steps += 1
                if steps == 10:  # in the second round, with new workers
                    send_to_test("training")
    except rr.Error as error:
        return time.monotonic(), f"{type(error).__name__}: {error}"


def test_a_rank_with_data_loader_workers_is_killed() -> None:
    pytest.importorskip("torch")
    with start_ranks(loads_data, 3) as job:
        killed, others = survivors(job, 1, "training")
    for moment, text in others:
        assert moment - killed < SOON_S
        assert text.startswith("PeerLostError: ")
        assert "lost rank 1:" in text


def in_child(work: Any) -> str:
    """What work() returns or raises in a forked child, and how that ends."""
    return start_child(work)()


def start_child(work: Any) -> Callable[[], str]:
    """in_child(), which goes on beside the child: its result is what the result returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)

    def outcome() -> str:
        with os.fdopen(read) as pipe:
            text = pipe.read()
        return text + ("" if os.waitpid(child, 0)[1] == 0 else " (died)")

    return outcome


def makes_a_job_of_helpers() -> list[str]:
    import ringreduce as rr

    with rr.init() as world:

        def helper(rank: int) -> float:
            with rr.init(rank=rank, size=2, job=f"helpers of {world.rank}"):
                return float(rr.allreduce(10.0 * world.rank + rank, op=rr.Sum))

        texts = [outcome() for outcome in [start_child(partial(helper, rank)) for rank in (0, 1)]]
        assert rr.allreduce(1, op=rr.Sum) == 2
        return texts


def test_forked_children_of_two_ranks_make_two_jobs() -> None:
    """One has its parent's rank, which is another rank in a job of another name."""
    assert run_ranks(makes_a_job_of_helpers, 2) == [["1.0"] * 2, ["21.0"] * 2]


def descriptors() -> list[str]:
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the one that listed them
    return [name for name in names if "pidfd" in name or "socket" in name or "ringreduce" in name]


def children() -> list[str]:
    import gc

    import ringreduce as rr

    with rr.init():
        x = rr.symmetric_empty(1000)
        x[:] = 1
        pending = rr.allreduce_async(x, name="pending", op=rr.Sum)

        def frees_everything() -> str:
            nonlocal x, pending
            del x, pending
            gc.collect()
            rr.shutdown()
            return "freed"

        def alone() -> str:
            for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"):
                for prefix in ("RINGREDUCE_", "HOROVOD_"):
                    os.environ.pop(prefix + name, None)
            with rr.init(rank=0, size=1):
                return str(rr.allreduce_async(np.full(2, 5.0), name="own").wait()[0])

        show = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
        texts = [
            in_child(pending.done),
            in_child(pending.wait),
            in_child(lambda: rr.poll(pending)),
            in_child(frees_everything),
            in_child(descriptors),
            in_child(alone),
            in_child(lambda: sys.exit(0)),  # runs no exit handlers here, but finalizes nothing either
            subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, close_fds=False).stdout,
        ]
        assert len([name for name in descriptors() if "pidfd" in name]) == rr.size() - 1
        return [*texts, str(pending.wait()[0]), str(rr.allreduce(np.ones(2), op=rr.Sum)[0])]


def test_children_are_no_ranks_and_hold_nothing() -> None:
    for rank, texts in enumerate(run_ranks(children, 3)):
        for text in texts[:3]:
            assert text.startswith("NotInitializedError: "), text
            assert f"forked from rank {rank}" in text
        assert texts[3:7] == ["freed", "[]", "5.0", "SystemExit: 0"]
        assert "pidfd" not in texts[7]
        assert "ringreduce" not in texts[7]
        assert "socket" not in texts[7]
        assert texts[8:] == ["3.0", "3.0"]


CALLS_AS_ITS_PARENT = """
import os, sys
import ringreduce as rr
place = {"rank": int(sys.argv[1]), "size": 2}
with rr.init(**place):
    child = os.fork()
    if child == 0:
        try:
            rr.init(**place)
        except rr.Error as error:
            os.write(1, f"{type(error).__name__}: {error}\\n".encode())
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_child_that_calls_init_as_its_parent_has_is_refused() -> None:
    environ = {name: value for name, value in clean_environment().items() if not name.startswith("RINGREDUCE_")}
    ranks = [
        subprocess.Popen([sys.executable, "-c", CALLS_AS_ITS_PARENT, str(rank)], env=environ, stdout=subprocess.PIPE)
        for rank in (0, 1)
    ]
    for rank, process in enumerate(ranks):
        text = process.communicate(timeout=HANG_S)[0].decode()
        assert text.startswith("NotInitializedError: "), text
        assert f"forked from rank {rank}" in text


def forks_beside_a_call() -> str:
    import ringreduce as rr

    rr.init()
    if rr.rank() == 1:
        receive_from_test()
        rr.send(np.ones(3), 0)
        rr.shutdown()
        return ""
    received = np.zeros(3)
    waiting = threading.Thread(target=rr.recv, args=(received, 1))
    waiting.start()
    assert waiting.native_id is not None
    asleep(os.getpid(), waiting.native_id)

    def has_a_job_of_its_own() -> float:
        for name in [name for name in os.environ if name.startswith(("RINGREDUCE_", "HOROVOD_"))]:
            del os.environ[name]
        rr.init(rank=0, size=1)
        rr.allreduce(np.ones(3))
        began = time.monotonic()
        rr.shutdown()
        return time.monotonic() - began

    text = in_child(has_a_job_of_its_own)
    send_to_test("forked")
    waiting.join()
    assert received.tolist() == [1, 1, 1]
    rr.shutdown()
    return text


def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    with start_ranks(forks_beside_a_call, 2) as job:
        assert job.receive(0) == "forked"
        job.send(1)
        first, _ = job.wait()
    assert float(first.value) < 4, "shutdown() waits 5 s for threads that are inside calls"


def in_later_child(work: Any) -> Any:
    """Forks a child that does the work, which returns a text, once the function is called that this one returns."""
    orders, order = os.pipe()

    def when_told() -> Any:
        os.read(orders, 1)
        return work()

    outcome = start_child(when_told)

    def answered() -> str:
        os.write(order, b"!")
        return outcome()

    return answered


def copies_on_fork() -> list[str]:
    import ringreduce as rr

    with rr.init() as world:
        x = rr.symmetric_empty(5000, "f8")
        x[:] = 1

        def writes() -> str:
            seen = float(x.sum())
            x[::2] = 7
            in_grandchild = in_child(lambda: x.fill(9))
            return f"{seen} {x.sum()} {in_grandchild}"

        first = in_later_child(writes)
        second = in_later_child(writes)  # of the same content
        assert len([name for name in descriptors() if "fork" in name]) == 1
        x[:] = 2
        third = in_later_child(writes)
        assert float(rr.allreduce_(x, op=rr.Sum)[0]) == 2 * world.size
        assert not [name for name in descriptors() if "fork" in name]  # nothing is kept for children to come
        texts = [first(), second(), third(), in_child(writes)]
        own = str(x.sum())
        rr.barrier()
    return [*texts, own, in_child(writes), str(x.sum())]  # plain memory after shutdown()


def test_a_forked_child_has_a_copy_of_registered_memory() -> None:
    ones, twos, fours = (f"{5000.0 * value} {2500.0 * (value + 7)} None" for value in (1, 2, 4))
    assert run_ranks(copies_on_fork, 2) == [[ones, ones, twos, fours, "20000.0", fours, "20000.0"]] * 2


def forks_with_a_model(shard_step: bool) -> list[float]:
    import torch

    import ringreduce.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), shard_step=shard_step
    )
    model(torch.ones(2, 40)).sum().backward()
    optimizer.step()
    tensors = [tensor for p in model.parameters() for tensor in (p.detach(), p.grad) if tensor is not None]
    before = [tensor.clone() for tensor in tensors]

    def zeroes() -> bool:
        was_right = all(map(torch.equal, tensors, before))
        for tensor in tensors:
            tensor.zero_()
        return was_right and not any(tensor.any() for tensor in tensors)

    assert in_child(zeroes) == "True"
    hvd.barrier()
    assert all(map(torch.equal, tensors, before))
    hvd.shutdown()
    return [float(tensor.sum()) for tensor in tensors]


@pytest.mark.parametrize("shard_step", [False, True])
def test_a_forked_child_does_not_write_into_its_parents_model(shard_step: bool) -> None:
    pytest.importorskip("torch")
    assert all(run_ranks(forks_with_a_model, 2, args=(shard_step,))[0])


def exit_status(child: int) -> int:
    """Of a child that ends soon; else it is killed, which gives -9."""
    pidfd = os.pidfd_open(child)
    if not select.select([pidfd], [], [], SOON_S)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forks_while_a_thread_is_in_init() -> int:
    """A lock that another thread had at the fork has nobody in the child who would give it back."""
    import ringreduce as rr
    from ringreduce import basics

    status = 0
    if os.environ["RINGREDUCE_RANK"] == "0":
        thread = threading.Thread(target=rr.init)
        thread.start()
        while basics._lock.acquire(blocking=False):
            basics._lock.release()
        child = os.fork()
        if child == 0:
            rr.shutdown()  # as at the end of every process that has imported ringreduce
            os._exit(7)
        status = exit_status(child)
        send_to_test("forked")
        thread.join()
    else:
        receive_from_test()
        rr.init()
    rr.shutdown()
    return status


def test_a_child_forked_while_another_thread_is_in_init_ends() -> None:
    with start_ranks(forks_while_a_thread_is_in_init, 2) as job:
        assert job.receive(0) == "forked"
        job.send(1)
        assert [outcome.value for outcome in job.wait()] == [7, 0], job.report()


def test_a_child_forked_while_another_thread_counts_a_copy_counts_its_own() -> None:
    before = buffers.copied()
    with buffers._copied_lock:
        child = os.fork()
        if child == 0:
            buffers.readable(np.ones((2, 3)).T)
            os._exit((buffers.copied() - before) // 8)
    assert exit_status(child) == 6


BETWEEN = """
import os
calls = []
os.register_at_fork(before=lambda: [call() for call in calls])  # the hooks registered last come first
import numpy as np
import ringreduce as rr

rr.init()
x = rr.symmetric_empty(1 << 20)
x[:] = 1
calls.append(lambda: rr.allreduce_(x))
child = os.fork()
if child == 0:
    x[:] = 5
    os._exit(int(x[-1]))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x[-1])
"""


def test_an_operation_between_the_copy_and_the_fork() -> None:
    done = completed([sys.executable, "-c", BETWEEN], env=clean_environment())
    assert done.stdout == "5 1.0\n", done.stderr
