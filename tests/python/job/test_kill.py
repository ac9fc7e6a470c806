"""A rank killed at a random moment, whatever the ranks were doing: all others say who, soon, and stay consistent.

That nothing is left in /dev/shm is checked for the whole run, in conftest.py.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from deadlines import SOON_S
from kills import survivors
from processes import completed
from ranks import receive_from_test, send_to_test, start_ranks
from tcp_jobs import tcp_environment

KILLS = int(os.environ.get("RR_TEST_KILLS", "48"))
NOTICED_S = 1.0  # from the kill to the error on every survivor: the median of many kills
NOTICED_OVER_TCP_S = 0.5
LATEST_S = 0.03  # the kill comes at a random moment within this, once all ranks are at work
MIB = 1 << 18  # float32 elements


def small() -> Callable[[], Any]:
    import ringreduce as rr

    return lambda: rr.allreduce(np.ones(2))


def eager() -> Callable[[], Any]:
    import ringreduce as rr

    return lambda: rr.allreduce(np.ones(900))


def named() -> Callable[[], Any]:
    import ringreduce as rr

    tensors = [np.ones(5000 * (index + 1)) for index in range(8)]

    def step() -> None:
        order = random.sample(range(8), 8)  # another one on each rank
        for handle in [rr.allreduce_async(tensors[index], name=f"gradient {index}") for index in order]:
            handle.wait()

    return step


def many_names() -> Callable[[], Any]:
    import ringreduce as rr

    count = itertools.count()
    return lambda: rr.allreduce(np.ones(5000), name=f"loss {next(count)}")


def private() -> Callable[[], Any]:
    import ringreduce as rr

    x = np.ones(4 * MIB, np.float32)
    return lambda: rr.allreduce_(x)


def registered() -> Callable[[], Any]:
    import ringreduce as rr

    x = rr.symmetric_empty(4 * MIB)
    x[:] = 1
    return lambda: rr.allreduce_(x)


def barrier() -> Callable[[], Any]:
    import ringreduce as rr

    return rr.barrier


def broadcast() -> Callable[[], Any]:
    import ringreduce as rr

    x = np.ones(MIB, np.float32)
    roots = itertools.cycle(range(rr.size()))
    return lambda: rr.broadcast_(x, root_rank=next(roots))


def messages() -> Callable[[], Any]:
    import ringreduce as rr

    x, y = np.ones(MIB // 4, np.float32), np.empty(MIB // 4, np.float32)

    def step() -> None:
        sent = rr.send_async(x, (rr.rank() + 1) % rr.size())
        rr.recv(y, (rr.rank() - 1) % rr.size())
        sent.wait()

    return step


def gathers() -> Callable[[], Any]:
    import ringreduce as rr

    x = np.ones((rr.size() * (1 << 12), 5))

    def step() -> None:
        rr.allgather(x[: 100 * (rr.rank() + 1)])
        rr.alltoall(x)
        rr.reducescatter(x)

    return step


def process_sets() -> Callable[[], Any]:
    """Each rank is in two sets, with its neighbours; the operation of all ranks is the one that is waited for first."""
    import ringreduce as rr

    # Of two ranks no pair, since all ranks have a set already.
    others = {(0,), (1,)} if rr.size() == 2 else {(rank, (rank + 1) % rr.size()) for rank in range(rr.size())}
    sets = [rr.add_process_set(ranks) for ranks in sorted(others)]
    mine = [one for one in sets if one.included()]
    x = np.ones(5000)

    def step() -> None:
        handles = [rr.allreduce_async(x, name="loss")]
        handles += [rr.allreduce_async(x[: random.randrange(2, 5000)][:2], process_set=one) for one in mine]
        for handle in handles:
            handle.wait()

    return step


def join() -> Callable[[], Any]:
    """Ranks have different numbers of steps, and wait for each other in join()."""
    import ringreduce as rr

    def step() -> None:
        for index in range(random.randrange(5)):
            rr.allreduce(np.ones(2), name=f"small {index}")
            rr.allreduce(np.ones(5000), name=f"large {index}")
        rr.join()

    return step


def optimizer() -> Callable[[], Any]:
    import torch

    import ringreduce.torch as hvd

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(50, 70), torch.nn.ReLU(), torch.nn.Linear(70, 3))
    training: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    training = hvd.DistributedOptimizer(training, named_parameters=model.named_parameters())

    def step() -> None:
        training.zero_grad()
        model(torch.ones(8, 50)).sum().backward()
        training.step()

    return step


def anything() -> Callable[[], Any]:
    """One kind after the other, in an order that all ranks have."""
    steps = [kind() for kind in KINDS if kind not in (anything, join)]  # a rank that has joined gathers nothing
    order = random.Random(1)
    return lambda: order.choice(steps)()


KINDS = [
    small,
    eager,
    named,
    many_names,
    private,
    registered,
    barrier,
    broadcast,
    messages,
    gathers,
    process_sets,
    join,
    optimizer,
    anything,
]


def until_it_fails(kind: str) -> Any:
    """A rank: steps until one fails, then tries twice more. When the first failed, and what was raised each time."""
    import ringreduce as rr

    rr.init()
    random.seed(rr.rank())
    step = globals()[kind]()
    step()
    send_to_test("at work")
    raised = []
    moment = 0.0
    while len(raised) < 3:
        try:
            if raised and kind in ("optimizer", "anything"):
                rr.barrier()  # the optimizer is in the middle of a step
            else:
                step()
        except rr.Error as error:
            moment = moment or time.monotonic()
            raised.append(f"{type(error).__name__}: {error}")
        else:
            assert not raised, f"a step succeeded after {raised}"
    begin = time.monotonic()
    rr.shutdown()
    return moment, raised, time.monotonic() - begin


def what_is_lost(text: str) -> str:
    """The text of a PeerLostError without the place of the rank that raised it."""
    return text.partition("] lost rank ")[2] or text


def one_kill(kind: str, size: int, victim: int, delay_s: float, env: Mapping[str, str]) -> float:
    """A job that loses a rank: seconds until all others had noticed."""
    with start_ranks(until_it_fails, size, args=(kind,), env=env) as job:
        killed, said = survivors(job, victim, "at work", delay_s=delay_s)
        assert {outcome.status for outcome in job.outcomes() if outcome.rank != victim} == {0}, job.report()
    for moment, raised, leaving_s in said:
        assert moment - killed < SOON_S, f"noticed after {moment - killed:.2f} s"
        assert leaving_s < SOON_S, f"shutdown() took {leaving_s:.2f} s"
        assert all(text.startswith("PeerLostError: ") and f"lost rank {victim}: " in text for text in raised), raised
    # A group tells all ranks of a host the same of a death, whoever found it. A process set may tell another thing.
    # Where ranks meet for a new group, each says what it was about to do when the rank that gathers them was lost.
    of_all = [t for _, raised, _ in said for t in raised if "process set" not in t and ": [rendezvous] " not in t]
    if "RINGREDUCE_ADDRESS" not in env:
        assert len({what_is_lost(text) for text in of_all}) == 1, said
    return max(moment for moment, _, _ in said) - killed


def kill(kills: int, kinds: Sequence[Callable[[], Any]], env: Callable[[], Mapping[str, str]]) -> float:
    """The median of the seconds until all others had noticed. env: of each job anew."""
    seed = int.from_bytes(os.urandom(4), "big")
    chance = random.Random(seed)
    names = [kind.__name__ for kind in kinds]
    chance.shuffle(names)
    wrong = []
    noticed_s = []
    for number in range(kills):
        kind, size, delay_s = names[number % len(names)], chance.randint(2, 4), chance.uniform(0, LATEST_S)
        victim = chance.randrange(size)
        try:
            noticed_s.append(one_kill(kind, size, victim, delay_s, env()))
        except AssertionError as error:
            case = f"{kind}, rank {victim} of {size} killed after {delay_s * 1e3:.2f} ms (seed {seed}, number {number})"
            wrong.append(f"{case}: {error}")
    print(f"{kills} kills, noticed within {max(noticed_s, default=0):.3f} s, {len(wrong)} wrong")
    assert not wrong, "\n".join(wrong)
    return median(noticed_s)


@pytest.mark.timeout(600 + 3 * KILLS)
def test_a_killed_rank_is_named_by_all_others() -> None:
    assert kill(KILLS, KINDS, dict) < NOTICED_S


@pytest.mark.timeout(600 + 3 * KILLS)
def test_a_killed_rank_is_named_by_all_others_over_tcp(tmp_path: Path) -> None:
    assert kill(max(1, KILLS // 4), KINDS, lambda: tcp_environment(tmp_path)) < NOTICED_OVER_TCP_S


def bystanders() -> Any:
    """Ranks 0 and 1 keep a set of their own busy, on another thread, while they wait for rank 2."""
    import threading

    import ringreduce as rr

    with rr.init() as world:
        pair = rr.add_process_set([0, 1])
        if world.rank == 2:
            return receive_from_test()  # it will be killed
        stop = 0.0

        def keep_busy() -> None:
            while rr.allreduce(np.array([stop]), op=rr.Max, process_set=pair)[0] == 0:
                pass

        other = threading.Thread(target=keep_busy)
        other.start()
        send_to_test("waiting")
        try:
            rr.allreduce(np.ones(2))
            raised = "nothing"
        except rr.Error as error:
            raised = f"{type(error).__name__}: {error}"
        moment = time.monotonic()
        stop = 1.0
        other.join()
        return moment, raised, rr.allreduce(np.ones(2), op=rr.Sum, process_set=pair).tolist()


def test_busy_ranks_notice_too() -> None:
    with start_ranks(bystanders, 3) as job:
        assert [job.receive(rank) for rank in (0, 1)] == ["waiting"] * 2
        killed = job.kill(2)
        for outcome in job.wait()[:2]:
            assert outcome.value is not None, job.report()
            moment, raised, total = outcome.value
            assert moment - killed < SOON_S
            assert "lost rank 2" in raised
            assert total == [2.0, 2.0]  # a set without the dead rank goes on


def lost_while_memory_is_shared(victim: int, how: str, call: str) -> Any:
    """The victim goes when all have agreed on new memory, and before they have it. (what was raised, seconds)"""
    import ringreduce as rr
    from ringreduce.job import collective_json

    rr.init()
    if rr.rank() == victim:
        go = rr.shutdown if how == "shutdown" else lambda: os.kill(os.getpid(), signal.SIGKILL)
        collective_json.FdExchange.memory_file = lambda *_: go()  # type: ignore[method-assign]
    begun = time.monotonic()
    try:
        if call == "add_process_set":
            rr.add_process_set([0, 1, 2])
        else:
            rr.symmetric_empty(1000)
        raised = "nothing"
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    send_to_test("through")
    if rr.rank() != victim:
        receive_from_test()  # whoever ends before the others have raised is another one that they may name
    return raised, seconds


@pytest.mark.parametrize("call", ["add_process_set", "symmetric_empty"])
@pytest.mark.parametrize(("victim", "how"), [(0, "kill"), (1, "kill"), (0, "shutdown"), (2, "shutdown")])
def test_a_rank_that_goes_while_memory_is_shared(victim: int, how: str, call: str) -> None:
    with start_ranks(lost_while_memory_is_shared, 4, args=(victim, how, call)) as job:
        others = [rank for rank in range(4) if rank != victim]
        assert [job.receive(rank) for rank in others] == ["through"] * 3
        for rank in others:
            job.send(rank)
        outcomes = job.wait()
    gone = f"PeerLostError: .* lost rank {victim}: " if how == "kill" else f"ShutdownError: .*rank {victim} "
    texts = set()
    for outcome in outcomes:
        if outcome.rank == victim or (outcome.rank == 3 and call == "add_process_set"):  # 3: no member, needs no memory
            continue
        assert outcome.value is not None, job.report()
        raised, seconds = outcome.value
        assert re.match(gone, raised), raised
        assert seconds < SOON_S  # RINGREDUCE_INIT_TIMEOUT is 60 s
        assert f"[ringreduce rank {outcome.rank}/4 " in raised or how == "shutdown"
        texts.add(what_is_lost(raised))
    assert how == "shutdown" or len(texts) == 1, texts  # who leaves leaves no record of a failure


REPLACES_ITSELF = """
import os, sys
import numpy as np
import ringreduce
with ringreduce.init() as world:
    ringreduce.barrier()
    if world.rank == 1:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"])
    ringreduce.allreduce(np.ones(4))
"""


def test_a_rank_that_runs_another_program_is_lost() -> None:
    """As a script that starts itself anew does. The process, which lives, is not the rank."""
    ringrun = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "3", "--grace", "0.1"]
    done = completed([*ringrun, sys.executable, "-c", REPLACES_ITSELF])
    assert done.returncode == 1
    assert "lost rank 1: its process runs another program since an exec() without shutdown()" in done.stderr
