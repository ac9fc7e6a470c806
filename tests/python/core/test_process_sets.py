"""Process sets: Horovod's semantics and texts, overlapping sets at once, ranks that are global everywhere."""

from __future__ import annotations

import re
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from deadlines import SOON_S
from ranks import receive_from_test, run_ranks, send_to_test, start_ranks

from ringreduce import ProcessSet, global_process_set, state
from ringreduce.errors import InvalidArgumentError, NotInitializedError
from ringreduce.job.collective_json import allgather_json


def caught(call: Any) -> str:
    """The class and text of what a call raises."""
    try:
        return f"no error but {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def number_from_one() -> None:
    """As in a process that has had no job: those of mpirun run many tests, and go on numbering."""
    state.next_set_id = 1


def life_of_a_set() -> dict[str, Any]:
    import ringreduce as rr

    number_from_one()
    seen: dict[str, Any] = {}
    odd = rr.ProcessSet([3, 1])
    seen["unregistered"] = (str(odd), odd.size(), odd.rank(), odd.included())
    with rr.init(process_sets=[odd]) as world:
        seen["global"] = (str(rr.global_process_set), rr.global_process_set.size(), rr.global_process_set.rank())
        seen["odd"] = (str(odd), odd.size(), odd.included())
        even = rr.add_process_set([0, 2])
        seen["even"] = (str(even), even.process_set_id, even.ranks)
        mine = odd if world.rank % 2 else even
        theirs = even if world.rank % 2 else odd
        seen["rank"] = (mine.rank(), caught(theirs.rank))
        seen["sum"] = rr.allreduce(world.rank, op=rr.Sum, process_set=mine)
        seen["average"] = rr.allreduce(float(world.rank), process_set=mine)
        seen["gathered"] = rr.allgather(np.array([world.rank]), process_set=mine).tolist()
        root = 2 + world.rank % 2  # roots are global ranks
        seen["from root"] = int(rr.broadcast(10 * world.rank, root, process_set=mine))
        seen["bad root"] = caught(lambda: rr.broadcast(1, (root + 1) % 4, process_set=mine))
        seen["outside"] = caught(lambda: rr.allreduce(1, process_set=theirs))
        seen["outside gather"] = caught(lambda: rr.allgather_async(np.ones(1), process_set=theirs))
        seen["duplicate"] = caught(lambda: rr.add_process_set([2, 0]))
        seen["the world"] = caught(lambda: rr.add_process_set(range(4)))
        seen["same object"] = caught(lambda: rr.add_process_set(odd))
        seen["out of range"] = caught(lambda: rr.add_process_set([0, 4]))
        seen["empty"] = caught(lambda: rr.add_process_set([]))
        seen["different"] = caught(lambda: rr.add_process_set([0, 1 + world.rank % 2]))
        seen["single"] = [
            int(rr.allreduce(5, op=rr.Sum, process_set=single))
            for single in [rr.add_process_set([rank]) for rank in range(4)]
            if single.included()
        ]
        seen["removed"] = (rr.remove_process_set(even), rr.remove_process_set(even), str(even))
        seen["global stays"] = rr.remove_process_set(rr.global_process_set)
        seen["gone"] = caught(lambda: rr.allreduce(1, process_set=even))
        seen["again"] = rr.add_process_set(even).process_set_id
        seen["still"] = int(rr.allreduce(1, op=rr.Sum, process_set=mine))
        rr.barrier()
    seen["after shutdown"] = (odd.process_set_id, caught(lambda: rr.allreduce(1, process_set=odd)))
    return seen


def test_life_of_a_set() -> None:
    everyone = run_ranks(life_of_a_set, 4)
    for rank, seen in enumerate(everyone):
        mine = [1, 3] if rank % 2 else [0, 2]
        assert seen["unregistered"][0] == "ProcessSet(process_set_id=None, ranks=[1, 3], mpi_comm=None)"
        assert seen["unregistered"][1:] == (None, None, None)
        assert seen["global"] == ("ProcessSet(process_set_id=0, ranks=[0, 1, 2, 3], mpi_comm=None)", 4, rank)
        assert seen["odd"] == ("ProcessSet(process_set_id=1, ranks=[1, 3], mpi_comm=None)", 2, rank % 2 == 1)
        assert seen["even"] == ("ProcessSet(process_set_id=2, ranks=[0, 2], mpi_comm=None)", 2, [0, 2])
        assert seen["rank"][0] == rank // 2
        assert seen["rank"][1] == "InvalidArgumentError: Process is not part of provided process set."
        assert seen["sum"] == sum(mine)
        assert seen["average"] == sum(mine) / 2
        assert seen["gathered"] == mine
        assert seen["from root"] == 10 * mine[1]
        assert "broadcast received invalid root rank" in seen["bad root"]
        text = f"Rank {rank} is not a member of the provided process set."
        assert seen["outside"] == f"InvalidArgumentError: Allreduce: {text}"
        assert seen["outside gather"] == f"InvalidArgumentError: Allgather: {text}"
        for key in ("duplicate", "the world", "same object"):
            assert "InvalidArgumentError: Attempted to add a duplicate process set: " in seen[key], seen[key]
        assert "does not exist: this job has ranks 0 to 3" in seen["out of range"]
        assert "a process set has one or more ranks; this job has ranks 0 to 3" in seen["empty"]
        assert seen["different"].startswith("MismatchError: Mismatched add_process_set"), seen["different"]
        assert seen["single"] == [5]
        assert seen["removed"] == (True, False, "ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)")
        assert seen["global stays"] is False
        gone = "Allreduce: Process set provided does not exist, or has not been registered."
        assert seen["gone"] == f"InvalidArgumentError: {gone}"
        assert seen["again"] == everyone[0]["again"]
        assert seen["still"] == 2
        assert seen["after shutdown"] == (None, f"InvalidArgumentError: {gone}")


def test_before_init() -> None:
    assert global_process_set.process_set_id == 0
    for call in (global_process_set.size, global_process_set.rank, global_process_set.included):
        with pytest.raises(NotInitializedError, match=r"use hvd.init\(\)"):
            call()
    for wrong in (["a"], "01", 3, None, [1.5]):
        with pytest.raises(InvalidArgumentError, match="should be initialized with a list of process ranks"):
            ProcessSet(wrong)  # type: ignore[arg-type]


def without_a_set() -> dict[str, str]:
    import ringreduce as rr

    x = np.ones(2)
    calls: dict[str, tuple[Any, ...]] = {"scatter": (x, x, 0), "barrier": (), "join": (), "symmetric_empty": (2,)}
    for form in ("allreduce", "allreduce_", "allreduce_async", "allreduce_async_"):
        calls |= {form: (x,), f"grouped_{form}": ([x],)}
    calls |= dict.fromkeys(("allgather", "alltoall", "reducescatter", "allgather_object"), (x,))
    calls |= dict.fromkeys(("grouped_allgather", "grouped_reducescatter"), ([x],))
    calls |= dict.fromkeys(("reduce", "gather", "broadcast", "broadcast_", "send", "recv", "broadcast_object"), (x, 0))
    with rr.init():
        seen = {}
        for form, given in calls.items():
            seen[form] = caught(partial(getattr(rr, form), *given, process_set=[0]))
            assert rr.allreduce(1, op=rr.Sum) == 2, form  # the job goes on
        seen["remove_process_set"] = caught(lambda: rr.remove_process_set([0]))
        seen["root"] = caught(lambda: rr.broadcast(x, [0]))
    return seen


def test_what_is_no_set_or_no_rank_is_an_error_that_says_what_to_give() -> None:
    for seen in run_ranks(without_a_set, 2):
        assert seen.pop("root").startswith("InvalidArgumentError: broadcast received invalid root rank [0]")
        for form, text in seen.items():
            assert text.startswith("InvalidArgumentError: process_set=[0] is no ProcessSet: give what add_"), (
                form,
                text,
            )


def opposite_orders(rounds: int) -> list[str]:
    """Three sets that overlap pairwise, and the world; every rank submits to them in an order of its own."""
    import random

    import ringreduce as rr

    faults = []
    with rr.init() as world:
        ring = [rr.add_process_set(members) for members in ([0, 1], [1, 2], [0, 2])]
        sets = [rr.global_process_set, *[one for one in ring if one.included()]]
        order = random.Random(world.rank)
        for round_ in range(rounds):
            inputs = [oracle.values(round_, rank, 100, "int64") for rank in range(world.size)]
            handles: list[tuple[Any, Any]] = []
            for process_set in order.sample(sets, len(sets)):
                for repeat in range(2):
                    handle = rr.allreduce_async(
                        inputs[world.rank], name=f"x{repeat}", op=rr.Sum, process_set=process_set
                    )
                    handles.append((process_set, handle))
            order.shuffle(handles)
            for process_set, handle in handles:
                if fault := oracle.wrong(handle.wait(), [inputs[rank] for rank in process_set.ranks], oracle.SUM):
                    faults.append(f"round {round_} {process_set}: {fault}")
            mine, other = sets[1 + round_ % 2], sets[2 - round_ % 2]  # a pending operation does not block another set
            pending = rr.allreduce_async(inputs[world.rank], op=rr.Sum, process_set=mine, name="pending")
            rr.allreduce(inputs[world.rank], op=rr.Sum, process_set=rr.global_process_set)
            late = rr.allreduce_async(inputs[world.rank], op=rr.Sum, process_set=other, name="pending")
            pending.wait()
            late.wait()
        rr.barrier()
    return faults


def test_overlapping_sets_in_opposite_orders() -> None:
    assert run_ranks(opposite_orders, 3, args=(300,)) == [[]] * 3


def many_sets(rounds: int) -> int:
    import os

    import ringreduce as rr

    with rr.init():
        for round_ in range(rounds):
            added = rr.add_process_set([0, 1])
            if added.included():
                rr.allreduce(1, process_set=added)
            rr.remove_process_set(added)
            if round_ == 2:
                before = len(os.listdir("/proc/self/fd"))
        return len(os.listdir("/proc/self/fd")) - before


def test_sets_come_and_go_without_leaks() -> None:
    assert run_ranks(many_sets, 3, args=(40,)) == [0, 0, 0]


def ids_after_a_failure() -> list[int | None]:
    """The ids of two sets, after a call that failed on rank 0 only: the other ranks have counted it."""
    import ringreduce as rr

    number_from_one()
    with rr.init() as world:
        state.next_set_id += 0 if world.rank == 0 else 1
        return [rr.add_process_set(ranks).process_set_id for ranks in ([0, 1], [1, 2])]


def test_ids_are_the_same_after_a_failure_on_one_rank() -> None:
    assert run_ranks(ids_after_a_failure, 3) == [[2, 3]] * 3


def last_sets() -> tuple[int | None, int, str]:
    """A set with the last id that the network has channels for, and one more."""
    import ringreduce as rr

    number_from_one()
    with rr.init():
        most = state.require().context.most_group
        state.next_set_id = most
        last = rr.add_process_set([0, 1])
        refused = caught(lambda: rr.add_process_set([1, 2]))
        rr.barrier()  # the job goes on
        return last.process_set_id, most, refused


def test_a_set_for_which_the_network_has_no_channels_is_refused_on_all_ranks() -> None:
    for number, most, refused in run_ranks(last_sets, 3):
        assert number == most
        assert refused.startswith("InvalidArgumentError: add_process_set: this job has had"), refused
        assert "MPI_TAG_UB" in refused


def ids_of_jobs() -> tuple[list[list[int | None]], int]:
    """The ids of the sets of three jobs, and the highest that there is. The last job begins with it."""
    import ringreduce as rr

    number_from_one()
    ids, most = [], 0
    for number in range(3):
        if number == 2:
            state.next_set_id = most
        with rr.init() as world:
            most = state.require().context.most_group
            if number == 1 and world.rank == 2:
                state.next_set_id += 1  # as where this process alone was in one more job between the two
            sets = [rr.add_process_set(ranks) for ranks in ([0, 1], [1, 2])]
            ids.append([one.process_set_id for one in sets])
            sums = [int(rr.allreduce(1, op=rr.Sum, process_set=one)) for one in sets if one.included()]
            assert sums == ([2, 2] if world.rank == 1 else [2])
            rr.barrier()
    return ids, most


def test_ids_of_a_job_are_none_of_an_earlier_job_while_the_network_has_others() -> None:
    for ids, most in run_ranks(ids_of_jobs, 3):
        assert ids == [[1, 2], [4, 5], [most, 1]]


def one_set_off() -> str:
    import ringreduce as rr

    rr.init()
    return caught(lambda: rr.add_process_set([0]))


def test_dynamic_sets_can_be_switched_off() -> None:
    expected = "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod initialization."
    for text in run_ranks(one_set_off, 2, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "0"}):
        assert text == f"InvalidArgumentError: {expected}"


def lost_in_a_set() -> None:
    import os
    import signal

    import ringreduce as rr

    with rr.init() as world:
        pair = rr.add_process_set([0, 1])
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if pair.included():
            rr.allreduce(1, process_set=pair)


def test_a_death_fails_the_set() -> None:
    with start_ranks(lost_in_a_set, 3) as job:
        outcomes = job.wait()
    assert outcomes[0].kind == "PeerLostError", outcomes[0]
    assert outcomes[1].status == -9


def replaced_after_a_failure(flag: Path) -> tuple[str, list[float], list[float], float]:
    """A set whose ranks wait for different operations times out; it is removed, and another one takes its place."""
    import ringreduce as rr

    with rr.init() as world:
        pair = rr.add_process_set([0, 1])
        failure, kept = "", np.zeros(0)
        if world.rank < 2:
            kept = rr.symmetric_empty(1 << 15, np.float32, process_set=pair)
            kept[:] = world.rank + 1
            rr.allreduce_(kept, op=rr.Sum, process_set=pair)
            alone = rr.allreduce_async(np.ones(3), name=f"only rank {world.rank}", process_set=pair)
            while not rr.poll(alone):
                time.sleep(0.01)
            failure = caught(alone.wait)
            if world.rank == 0:
                flag.touch()
        while not flag.exists():  # nobody waits in the group of all ranks, which has the same timeout
            time.sleep(0.01)
        assert rr.remove_process_set(pair)
        replacement = rr.add_process_set([0, 1])
        sums: list[float] = []
        if world.rank < 2:
            registered = rr.symmetric_empty(1 << 15, np.float32, process_set=replacement)
            registered[:] = world.rank + 1
            rr.allreduce_(registered, op=rr.Sum, process_set=replacement)
            sums = [registered.min().item(), registered.max().item()]
        total = rr.allreduce(1.0, op=rr.Sum)
    return failure, sums, [kept.min().item(), kept.max().item()] if kept.size else [], float(total)


def test_a_set_that_has_failed_is_replaced_and_its_registered_memory_stays_readable(tmp_path: Path) -> None:
    seen = run_ranks(replaced_after_a_failure, 3, args=(tmp_path / "failed",), env={"RINGREDUCE_TIMEOUT": "5"})
    assert seen[2] == ("", [], [], 3.0)
    for failure, sums, kept, total in seen[:2]:
        assert failure.startswith("TimeoutError: "), failure
        assert "only rank" in failure, failure
        assert (sums, kept, total) == ([3.0, 3.0], [3.0, 3.0], 3.0)


def removed_with_pending_work() -> list[str]:
    import ringreduce as rr

    with rr.init() as world:
        pair = rr.add_process_set([0, 1])
        handles = []
        if world.rank < 2:
            other = 1 - world.rank
            handles = [
                rr.allreduce_async(np.ones(1 << 16), name="large", op=rr.Sum, process_set=pair),
                rr.allreduce_async(np.ones(3), name=f"only rank {world.rank}", op=rr.Sum, process_set=pair),
                rr.recv_async(np.ones(3), other, process_set=pair),
            ]
        rr.remove_process_set(pair)
        rr.barrier()
        texts = []
        for handle in handles:
            try:
                texts.append(str(handle.wait(SOON_S)[0]))
            except rr.Error as error:
                texts.append(f"{type(error).__name__}: {error}")
        return texts


def test_removing_a_set_ends_what_is_pending_in_it() -> None:
    for texts in run_ranks(removed_with_pending_work, 3)[:2]:
        assert texts[0] == "2.0" or texts[0].startswith("ShutdownError: "), texts
        for text in texts[1:]:
            assert text.startswith("ShutdownError: "), texts
            assert "the process set was removed while this operation was pending" in text


def removed_with_an_unnamed_call_of_one() -> tuple[bool, str, float]:
    import ringreduce as rr

    with rr.init() as world:
        pair = rr.add_process_set([0, 1])
        handle = rr.allreduce_async(np.ones(3), op=rr.Sum, process_set=pair) if world.rank == 0 else None
        is_removed = rr.remove_process_set(pair)
        text = ""
        if handle is not None:
            try:
                handle.wait()
            except rr.Error as error:
                text = f"{type(error).__name__}: {error}"
        again = rr.add_process_set([0, 1])
        rr.remove_process_set(again)
        return is_removed, text, float(rr.allreduce(1.0, op=rr.Sum))


def test_a_set_is_removed_although_one_rank_alone_has_called_an_unnamed_operation() -> None:
    outcomes = run_ranks(removed_with_an_unnamed_call_of_one, 3, env={"RINGREDUCE_VERDICT": "0"})
    assert [(is_removed, total) for is_removed, _, total in outcomes] == [(True, 3.0)] * 3
    mismatch = r"MismatchError: .*One rank did an ALLREDUCE, but another rank did a BARRIER"
    removed = r"ShutdownError: .*the process set was removed while this operation was pending"
    assert re.match(f"{mismatch}|{removed}", outcomes[0][1]), outcomes


def remove_under_a_call() -> str:
    """Rank 0 removes a set while a thread of it waits there, in a call that rank 1 never makes."""
    import threading

    import ringreduce as rr

    def calls() -> int:
        return rr.stats()["operations"]

    with rr.init() as world:
        first = rr.add_process_set([0, 1])
        before = calls()
        rr.remove_process_set(first)
        of_a_removal = calls() - before - 1  # the last barrier is for when rank 1 has come, too
        pair = rr.add_process_set([0, 1])
        if world.rank == 2:
            return str(rr.remove_process_set(pair))
        if world.rank == 1:
            context = state.require().context
            group = pair.group
            allgather_json(rr.global_process_set.group, "remove_process_set", [pair.process_set_id, False])
            receive_from_test()
            context.remove_group(group)
            return "removed"
        before = calls()
        remover = threading.Thread(target=lambda: rr.remove_process_set(pair))
        remover.start()
        while calls() != before + of_a_removal:
            pass
        texts: list[str] = []

        def wait() -> None:
            texts.append(caught(lambda: rr.allreduce(np.ones(2), process_set=pair)))

        waiter = threading.Thread(target=wait)
        waiter.start()
        while calls() != before + of_a_removal + 1:
            pass
        send_to_test("waits")
        for thread in (remover, waiter):
            thread.join()
        return texts[0]


def test_a_set_is_removed_under_a_call_of_another_thread() -> None:
    with start_ranks(remove_under_a_call, 3) as job:
        assert job.receive(0) == "waits"
        job.send(1)
        texts = [outcome.value for outcome in job.wait()]
        assert texts[0] is not None, job.report()
    assert texts[0].startswith("ShutdownError: "), texts
    assert "the process set was removed" in texts[0]
    assert texts[1:] == ["removed", "True"]


def remove_while_joining() -> list[str]:
    """Rank 0 has joined on the set, in a thread, when all ranks want to remove it."""
    import threading

    import ringreduce as rr

    texts = []
    with rr.init() as world:
        pair = rr.add_process_set([0, 1])
        joins = threading.Thread(target=lambda: rr.join(pair))
        if world.rank == 0:
            joins.start()
            while not pair.group.is_joining:
                pass
        texts.append(caught(lambda: rr.remove_process_set(pair)))
        if world.rank == 1:
            rr.join(pair)
        if world.rank == 0:
            joins.join()
        texts.append(str(rr.remove_process_set(pair)))
        texts.append(str(rr.add_process_set([0, 1]).ranks))
    return texts


def test_a_set_on_which_a_rank_has_joined_stays_everywhere() -> None:
    for refused, removed, again in run_ranks(remove_while_joining, 3):
        assert refused.startswith("InvalidArgumentError: remove_process_set: rank 0 has called join()")
        assert (removed, again) == ("True", "[0, 1]")


def removed_under_way() -> list[Any]:
    """What the operations of a set become that is removed as soon as they were called."""
    import ringreduce as rr

    with rr.init() as world:
        seen: list[Any] = []
        for is_registered in (False, True) * 3:
            pair = rr.add_process_set([0, 1])
            data = np.ones((2, 1 << 22), np.float32)
            if is_registered and world.rank < 2:
                data = rr.symmetric_empty((2, 1 << 22), np.float32, process_set=pair)
                data[:] = 1
            handles = []
            if world.rank < 2:
                handles = [rr.allreduce_async_(half, op=rr.Sum, process_set=pair) for half in data]
            if world.rank == 0:
                handles.append(rr.allreduce_async(np.ones(3), name="of one rank", process_set=pair))
            rr.remove_process_set(pair)
            seen.append(
                [caught(lambda handle=handle: handle.wait().sum().item()).partition(": ")[0] for handle in handles]
            )
        return seen


def test_what_all_members_have_called_ends_well_when_the_set_is_removed() -> None:
    first, second, third = run_ranks(removed_under_way, 3)
    total = f"no error but {2.0 * (1 << 22)}"
    assert second == [[total, total]] * 6
    assert first == [[total, total, "ShutdownError"]] * 6
    assert third == [[]] * 6


def sets_of_a_second_init() -> dict[str, Any]:
    import ringreduce as rr

    number_from_one()
    seen: dict[str, Any] = {}
    even, twin = rr.ProcessSet([0, 2]), rr.ProcessSet([2, 0])

    def told(*process_sets: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            rr.init(process_sets=list(process_sets))
        return [str(one.message) for one in warned]

    with rr.init(process_sets=[even]) as world:
        seen["same"] = told(even) + told([0, 2])
        seen["twin"] = told(even, twin)
        seen["new"] = told([1, 3]) if world.rank == 1 else []  # nobody waits for it
        seen["sum"] = int(rr.allreduce(1, op=rr.Sum))
        seen["ids"] = list(state.require().process_sets)
    return seen


def test_a_second_init_tells_of_process_sets_that_it_does_not_register() -> None:
    for rank, seen in enumerate(run_ranks(sets_of_a_second_init, 4)):
        assert seen["same"] == []
        (told,) = seen["twin"]
        assert told == (
            "init(): process_sets entry number 1, ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None), has no "
            "effect, because a job runs. Its ranks are registered as ProcessSet(process_set_id=1, ranks=[0, 2], "
            "mpi_comm=None): use that one"
        )
        assert len(seen["new"]) == (rank == 1)
        assert all("Call add_process_set() on all ranks if it is not registered" in text for text in seen["new"])
        assert (seen["sum"], seen["ids"]) == (4, [1])
