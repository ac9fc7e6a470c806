"""Timelines while they are written: what is recorded of each operation, and what a file has when a rank ends early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deadlines import SOON_S
from processes import completed
from ranks import clean_environment, receive_from_test, run_ranks, send_to_test, start_ranks

from ringreduce.timeline import record_file
from ringreduce.timeline.analysis.thread_time import times_of
from ringreduce.timeline.job import Job
from ringreduce.watch.board import Board

SIZE = 3


def works(path: str) -> None:
    """Each kind of operation once or more, between start_timeline() and stop_timeline()."""
    import ringreduce as hvd

    with hvd.init() as world:
        few, many = np.ones(2, np.float32), np.ones(100_000, np.float32)
        hvd.allreduce(few)  # before: it is no record
        hvd.start_timeline(path)
        hvd.allreduce(few)
        hvd.allreduce(few, name="loss", op=hvd.Sum)
        hvd.allreduce(few, name="loss", op=hvd.Sum)
        hvd.allreduce(many, op=hvd.Max)
        handles = [hvd.allreduce_async(many, name=f"gradient {i}") for i in range(3)]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.broadcast(many, 1, name="weights")
        hvd.allgather(few)
        if world.rank == 0:
            hvd.send(many, 1)
        elif world.rank == 1:
            hvd.recv(many, 0)
        hvd.barrier()
        hvd.stop_timeline()
        hvd.allreduce(few)  # after


def test_every_operation_is_a_record_on_every_rank(tmp_path: Path) -> None:
    run_ranks(works, SIZE, args=(str(tmp_path),))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank-{rank:04}.rr" for rank in range(SIZE)]
    job = Job.load(tmp_path)
    assert not job.warnings
    found = sorted(
        (job.files[0].kinds[operation["kind"]], job.names[operation["name"]], int(operation["nbytes"]))
        for operation in job.operations
    )
    assert found == sorted(
        [
            ("allreduce", "", 8),
            ("allreduce", "loss", 8),
            ("allreduce", "loss", 8),
            ("allreduce", "", 400_000),
            *(("allreduce", f"gradient {i}", 400_000) for i in range(3)),
            ("broadcast", "weights", 400_000),
            ("allgather", "", 8),
            ("barrier", "", 0),
        ]
    )
    assert set(job.operations["rows"]) == {SIZE}
    rows = job.rows
    assert (rows["called_ns"] <= rows["started_ns"]).all()
    assert (rows["started_ns"] <= rows["ended_ns"]).all()
    # Nobody ends before all have called: the clock is one.
    complete = np.repeat(job.operations["complete_ns"], job.operations["rows"])
    order = np.argsort(rows["operation"], kind="stable")
    assert (rows["ended_ns"][order] >= complete).all()
    assert job.waits.size >= 1
    assert (job.waits["begin_ns"] <= job.waits["end_ns"]).all()
    ends = sorted((int(message["rank"]), int(message["peer"]), int(message["nbytes"])) for message in job.messages)
    assert ends == [(0, 1, 400_000), (1, 0, 400_000)]


def waits_in_join(path: str) -> None:
    import ringreduce as hvd

    with hvd.init() as world:
        hvd.start_timeline(path)
        send_to_test("met")
        for _ in range(1 + world.rank):
            hvd.allreduce(np.ones(3), name="loss")
            if world.rank == 1:
                receive_from_test()
        hvd.join()
        hvd.stop_timeline()


def test_the_wait_in_join_is_recorded(tmp_path: Path) -> None:
    with start_ranks(waits_in_join, 2, args=(str(tmp_path),)) as ranks:
        deadline = time.monotonic() + SOON_S
        for rank in range(2):
            assert ranks.receive(rank) == "met"
        board = Board(ranks.procs[0].pid)
        while board.look()[0].ranks[0].state != "joined":
            assert time.monotonic() < deadline
        ranks.send(1)
        ranks.send(1)
        ranks.wait()
    job = Job.load(tmp_path)
    (mine,) = (wait for wait in job.waits if wait["rank"] == 0 and job.kinds[wait["kind"]] == "join")
    assert mine["operation"] == -1
    time_of_0 = times_of(job)[0]
    assert time_of_0.waiting_ns >= mine["end_ns"] - mine["begin_ns"] > 0
    assert time_of_0.message_ns == 0


def refuses(path: str) -> None:
    import ringreduce as hvd

    with hvd.init() as world:
        hvd.start_timeline(path)
        with pytest.raises(hvd.MismatchError):
            hvd.allreduce(np.ones(2 + world.rank, np.float32), name="unequal")
        hvd.stop_timeline()


def test_an_operation_that_failed_says_so(tmp_path: Path) -> None:
    run_ranks(refuses, 2, args=(str(tmp_path),))
    job = Job.load(tmp_path)
    assert [job.names[operation["name"]] for operation in job.operations] == ["unequal"]
    assert (job.rows["flags"] & record_file.FAILED != 0).all()


def traces(folder: str) -> dict[str, str]:
    """As Horovod's tests read the trace: while the job runs, and after stop_timeline()."""
    import ringreduce as hvd

    texts = {}
    with hvd.init() as world:
        path = Path(folder) / "first.json"
        hvd.start_timeline(path, mark_cycles=True)
        hvd.allreduce(np.ones(3, np.float32), name="test_allreduce")
        while world.rank == 0 and "test_allreduce" not in path.read_text():
            time.sleep(0.005)
        if world.rank == 0:
            texts["while it runs"] = path.read_text()
        hvd.start_timeline(Path(folder) / "second.json")  # ends the first
        hvd.allreduce(np.ones(3, np.float32), name="test_allreduce")
        hvd.stop_timeline()
        if world.rank == 0:
            texts["first"] = path.read_text()
            texts["second"] = (Path(folder) / "second.json").read_text()
    return texts


def test_a_trace_is_as_horovods_tests_want_it(tmp_path: Path) -> None:
    texts = run_ranks(traces, 2, args=(str(tmp_path),))[0]
    for name, text in texts.items():
        for part in ("allreduce.test_allreduce", "NEGOTIATE_ALLREDUCE", "start_time_since_epoch_in_micros"):
            assert part in text, (name, text)
    assert "CYCLE_START" in texts["while it runs"]
    assert "CYCLE_START" in texts["first"]
    assert "CYCLE_START" not in texts["second"]
    for name in ("first", "second"):
        events = json.loads(texts[name])
        ticks = {event["name"] for event in events if event.get("ph") == "X" and event["name"].isdigit()}
        assert ticks == {"0", "1"}, name  # when each rank had called


def replaces(folder: str) -> list[int]:
    """How often the ends of the other ranks' files had been awaited before each timeline, and at the end."""
    import ringreduce as hvd
    from ringreduce.job import recording

    awaited = 0
    await_ends = recording._await_ends

    def count(folder: Path) -> None:
        nonlocal awaited
        awaited += 1
        await_ends(folder)

    recording._await_ends = count
    counts = []
    with hvd.init():
        for name, path in enumerate(("trace", "trace", "link/trace", "other")):
            hvd.start_timeline(Path(folder) / path)
            counts.append(awaited)
            hvd.barrier()
            hvd.allreduce(np.ones(3, np.float32), name=str(name))
        hvd.stop_timeline()
    return [*counts, awaited]


def test_a_timeline_that_another_one_replaces_is_not_merged(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert run_ranks(replaces, 2, args=(str(tmp_path),)) == [[0, 0, 0, 1, 2], [0, 0, 0, 0, 0]]
    job = Job.load(tmp_path / "trace.ranks")
    assert not job.warnings
    assert [job.names[operation["name"]] for operation in job.operations if operation["rows"] == 2][-1] == "2"
    assert "allreduce.2" in (tmp_path / "trace").read_text()


IN_ITS_FOLDER = """
import os, sys, ringreduce as hvd
with hvd.init():
    for path in ("trace", "trace", "trace.ranks"):
        print(path, file=sys.stderr)
        hvd.start_timeline(os.path.join(sys.argv[1], path))
    hvd.stop_timeline()
"""


def test_a_trace_that_stays_rank_0s_alone_is_named(tmp_path: Path) -> None:
    done = completed([sys.executable, "-c", IN_ITS_FOLDER, str(tmp_path)], env=clean_environment())
    assert done.returncode == 0, done.stderr
    said = f"ringreduce: the timeline {tmp_path}/trace shows rank 0 alone: another timeline has begun in its folder"
    assert done.stderr.splitlines() == ["trace", "trace", "trace.ranks", said]


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {**clean_environment(), **{name: str(tmp_path / value) for name, value in variables.items()}}


SUMS = """
import numpy as np, ringreduce as hvd
with hvd.init():
    hvd.allreduce(np.ones(3, np.float32), name="test_allreduce")
"""


@pytest.mark.parametrize(
    ("variables", "files"),
    [
        ({"RINGREDUCE_TIMELINE": "records"}, {"records"}),
        ({"RINGREDUCE_TIMELINE": "job.json"}, {"job.json", "job.json.ranks"}),
        ({"HOROVOD_TIMELINE": "job"}, {"job", "job.ranks"}),
    ],
)
def test_a_variable_begins_a_timeline(variables: dict[str, str], files: set[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringreduce", "run", "-np", "2", sys.executable, "-c", SUMS]
    done = completed(command, env=environment(tmp_path, **variables))
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == files
    for path in tmp_path.iterdir():
        if path.is_file():
            events = json.loads(path.read_text())
            assert "allreduce.test_allreduce" in str(events)
            assert {event["name"] for event in events if event["ph"] == "X"} == {"0", "1"}, "ticks, by rank"
        else:
            assert len(Job.load(path).operations) == 1


def test_dynamic_begins_none(tmp_path: Path) -> None:
    variables = {**clean_environment(), "HOROVOD_TIMELINE": "DYNAMIC"}
    subprocess.run([sys.executable, "-c", SUMS], env=variables, check=True, timeout=SOON_S * 3, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_variable() -> None:
    variables = {**clean_environment(), "RINGREDUCE_TIMELINE": "/dev/null/records"}
    ended = subprocess.run([sys.executable, "-c", SUMS], env=variables, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "InvalidArgumentError: RINGREDUCE_TIMELINE=/dev/null/records: " in ended.stderr


def sums_for_ever(path: str) -> None:
    import ringreduce as hvd

    with hvd.init():
        hvd.start_timeline(path)
        for number in range(1 << 62):
            hvd.allreduce(np.ones(2, np.float32))
            if number == 2000:
                send_to_test("summed")


def test_a_killed_rank_leaves_a_file_that_can_be_read(tmp_path: Path) -> None:
    with start_ranks(sums_for_ever, 2, args=(str(tmp_path),)) as ranks:
        for rank in range(2):
            ranks.receive(rank)
        own = tmp_path / "rank-0001.rr"
        wait_until_it_grows(own)
        ranks.kill(1)
        ranks.wait()
    job = Job.load(tmp_path)
    killed = job.files[1]
    assert not killed.has_ended
    assert killed.damage in ("",) or "cut off" in killed.damage
    assert len(killed.records) >= 1
    assert job.files[0].has_ended  # it raised, and ended its file
    assert any("rank 1" in warning for warning in job.warnings)


def wait_until_it_grows(path: Path) -> None:
    """For two more writes: what was recorded before the call is in the file."""
    size = path.stat().st_size
    seen = set()
    pause = threading.Event()
    while len(seen) < 2:
        pause.wait(0.005)
        if path.stat().st_size != size:
            size = path.stat().st_size
            seen.add(size)


def forks(path: str) -> list[int]:
    import ringreduce as hvd

    with hvd.init():
        hvd.start_timeline(path)
        child = os.fork()
        if child == 0:
            os._exit(0 if not hvd.is_initialized() else 1)
        status = os.waitpid(child, 0)[1]
        hvd.allreduce(np.ones(2, np.float32), name="after")
        hvd.stop_timeline()
    return [status]


def test_a_forked_child_leaves_the_files_to_its_parent(tmp_path: Path) -> None:
    assert run_ranks(forks, 2, args=(str(tmp_path),)) == [[0], [0]]
    job = Job.load(tmp_path)
    assert [job.names[operation["name"]] for operation in job.operations] == ["after"]
    assert all(file.has_ended for file in job.files)


ENDS_AS_A_CHILD = """
import os, sys, numpy as np, ringreduce as hvd
hvd.init()
child = os.fork()
if child == 0:
    sys.exit(0)  # all that an interpreter does at its end
assert os.waitpid(child, 0)[1] == 0
hvd.allreduce(np.ones(2, np.float32), name="after")
"""


def test_a_forked_child_ends_as_any_process(tmp_path: Path) -> None:
    variables = environment(tmp_path, RINGREDUCE_TIMELINE="records")
    subprocess.run([sys.executable, "-c", ENDS_AS_A_CHILD], env=variables, check=True, timeout=SOON_S * 3)
    (file,) = Job.load(tmp_path / "records").files
    assert file.has_ended
    assert list(file.names.values()) == ["after"]


RANKS_OF_MULTIPROCESSING = """
import multiprocessing, os, sys, numpy as np, ringreduce as hvd
def work(rank, size):
    global pending
    hvd.init(rank=rank, size=size, job=f"forked by {os.getppid()}")
    if size > 1 and rank == 0:
        pending = hvd.allreduce_async(np.ones(3, np.float32), name="pending")
    hvd.allreduce(np.ones(3, np.float32), name="summed")
size = int(sys.argv[1])
context = multiprocessing.get_context("fork")
children = [context.Process(target=work, args=(rank, size)) for rank in range(size)]
for child in children:
    child.start()
for child in children:
    child.join()
sys.exit(max(child.exitcode for child in children))
"""


@pytest.mark.parametrize("size", [1, 2])
def test_a_timeline_ends_with_a_forked_child_of_multiprocessing(size: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANKS_OF_MULTIPROCESSING, str(size)]
    done = completed(command, env=environment(tmp_path, HOROVOD_TIMELINE="trace"))
    assert (done.returncode, done.stderr) == (0, "")
    job = Job.load(tmp_path / "trace.ranks")
    assert not job.warnings
    assert all(file.has_ended for file in job.files)
    named = {job.names[operation["name"]]: operation for operation in job.operations}
    assert named["summed"]["rows"] == size
    assert ("pending" in named) == (size > 1), "the record is made when the rank leaves its job"
    assert json.loads((tmp_path / "trace").read_text())


def joins_a_group(path: str) -> Any:
    import ringreduce as hvd

    with hvd.init() as world:
        hvd.start_timeline(path)
        pair = hvd.add_process_set([0, 2])
        if world.rank != 1:
            hvd.allreduce(np.ones(2, np.float32), name="both", process_set=pair)
        hvd.barrier()
        hvd.stop_timeline()


def test_an_operation_of_a_process_set_has_its_ranks(tmp_path: Path) -> None:
    run_ranks(joins_a_group, SIZE, args=(str(tmp_path),))
    job = Job.load(tmp_path)
    (operation,) = [operation for operation in job.operations if job.names[operation["name"]] == "both"]
    assert job.groups[operation["group"]].ranks == (0, 2)
    assert operation["rows"] == 2


def waits_elsewhere(path: str) -> list[tuple[int, int]]:
    """Rank 0 waits in another thread than its main one, which computes or stands still.

    Returns moments while it computed: CLOCK_MONOTONIC, and the CPU time of the main thread so far, in ns.
    """
    import ringreduce as hvd

    moments = []
    with hvd.init() as world:
        hvd.start_timeline(path)
        for name in ("main computes", "main stands still"):
            thread = threading.Thread(target=hvd.allreduce, args=(np.ones(50_000, np.float32),), kwargs={"name": name})
            if world.rank == 0:
                called = hvd.stats()["operations"]
                thread.start()
                while hvd.stats()["operations"] == called:
                    pass
                begin = time.thread_time_ns()
                while name == "main computes" and time.thread_time_ns() - begin < 50_000_000:
                    moments.append((time.monotonic_ns(), time.thread_time_ns()))
                send_to_test("go")
            else:
                receive_from_test()
                time.sleep(0.2)  # the wait is longer than what starting and joining a thread computes
                thread.start()
            thread.join()
        hvd.stop_timeline()
    return moments


def test_a_wait_of_another_thread_tells_what_the_main_thread_computed(tmp_path: Path) -> None:
    with start_ranks(waits_elsewhere, 2, args=(str(tmp_path),)) as ranks:
        for _ in range(2):
            ranks.receive(0)
            ranks.send(1)
        moments, _ = (outcome.value for outcome in ranks.wait())
    file = record_file.read(tmp_path / "rank-0000.rr")
    waits = {file.names[wait["name"]]: wait for wait in file.records if wait["type"] == record_file.WAIT}
    computes, still = waits["main computes"], waits["main stands still"]
    assert computes["thread"] != 0
    within = [used_ns for moment, used_ns in moments if moment >= computes["called_ns"]]
    assert not within or computes["nbytes"] >= within[-1] - within[0]
    assert still["nbytes"] < 0.5 * (still["ended_ns"] - still["called_ns"])


WITHIN_A_JOB = """
import os, subprocess, sys, numpy as np, ringreduce as hvd
with hvd.init() as world:
    if world.rank == 0:
        ours = ("RINGREDUCE_", "HOROVOD_", "_RINGREDUCE_")
        inner = {n: text for n, text in os.environ.items() if "TIMELINE" in n or not n.startswith(ours)}
        code = "import ringreduce as hvd; hvd.init(); hvd.barrier()"
        ended = subprocess.run([sys.executable, "-c", code], env=inner, capture_output=True, text=True, timeout=60)
        print(ended.returncode, ended.stderr, flush=True)
    hvd.allreduce(np.ones(3, np.float32), name="after")
"""


def test_a_job_within_a_job_leaves_the_outer_ones_files_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringreduce", "run", "-np", "2", sys.executable, "-c", WITHIN_A_JOB]
    variables = environment(tmp_path, RINGREDUCE_TIMELINE="records")
    ended = subprocess.run(command, env=variables, check=True, timeout=SOON_S * 3, capture_output=True, text=True)
    assert ended.stdout.startswith("0 ringreduce: no timeline of this process: RINGREDUCE_TIMELINE="), ended.stdout
    job = Job.load(tmp_path / "records")
    assert not job.warnings
    assert [(job.names[operation["name"]], operation["rows"]) for operation in job.operations] == [("after", 2)]


def joins(path: str) -> None:
    """Rank 1 has fewer batches; rank 0 makes a mistake besides, in a call that its name is busy for."""
    import ringreduce as hvd

    with hvd.init() as world:
        hvd.start_timeline(path)
        for _ in range(2):
            for batch in range(4 - 2 * world.rank):
                hvd.allreduce(np.ones(3, np.float32), name="gradient")
                if world.rank == 0 and batch == 0:
                    handle = hvd.allreduce_async(np.ones(5000, np.float32), name="busy")
                    with pytest.raises(hvd.InvalidArgumentError, match="same name"):
                        hvd.allreduce_async(np.ones(5000, np.float32), name="busy")
                elif batch == 0:
                    handle = hvd.allreduce_async(np.ones(5000, np.float32), name="busy")
            hvd.synchronize(handle)
            hvd.join()
        hvd.stop_timeline()


def test_calls_are_counted_alike_after_a_join_and_a_refused_call(tmp_path: Path) -> None:
    run_ranks(joins, 2, args=(str(tmp_path),))
    job = Job.load(tmp_path)
    assert not [warning for warning in job.warnings if "before another" in warning], job.warnings
    rows = sorted((job.names[operation["name"]], int(operation["rows"])) for operation in job.operations)
    assert rows == [("busy", 2)] * 2 + [("gradient", 1)] * 4 + [("gradient", 2)] * 4


def test_a_link_to_a_trace_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "trace.json")
    subprocess.run(
        [sys.executable, "-c", SUMS], env=environment(tmp_path, HOROVOD_TIMELINE="link"), check=True, timeout=SOON_S * 3
    )
    assert (tmp_path / "link").is_symlink()
    assert "allreduce.test_allreduce" in str(json.loads((tmp_path / "trace.json").read_text()))


TWO_LIVES = """
import os, torch, torch.distributed as dist, ringreduce.torch.distributed
for life in range(2):
    dist.init_process_group("ringreduce", init_method=f"file://{os.environ['MEET']}{life}", rank=0, world_size=1)
    for _ in range(3 + life):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
"""


def test_a_group_of_torch_that_is_made_anew_is_another_one(tmp_path: Path) -> None:
    variables = environment(tmp_path, RINGREDUCE_TIMELINE="records", MEET="meet")
    subprocess.run([sys.executable, "-c", TWO_LIVES], env=variables, check=True, timeout=SOON_S * 6)
    job = Job.load(tmp_path / "records")
    assert not job.warnings
    assert sum(job.kinds[operation["kind"]] == "allreduce" for operation in job.operations) == 7


def of_a_smaller_job(path: str) -> None:
    import ringreduce as hvd

    with hvd.init():
        hvd.start_timeline(path)
        hvd.barrier()


def test_a_smaller_job_removes_what_a_larger_one_left(tmp_path: Path) -> None:
    for size in (3, 2):
        run_ranks(of_a_smaller_job, size, args=(str(tmp_path),))
    assert [file.rank for file in Job.load(tmp_path).files] == [0, 1]
