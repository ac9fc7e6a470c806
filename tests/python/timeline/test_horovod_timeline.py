"""Horovod's form of the timeline: what its own tests look for, and events that nest within each process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timeline_files
from timeline_files import EPOCH_NS, RankFile, steady_job, write_all

from ringreduce.timeline.export import horovod
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import ASYNCHRONOUS, SHARED_BUCKET

Event = dict[str, Any]


def written(folder: Path, *files: RankFile, mark_cycles: bool = False) -> tuple[str, list[Event]]:
    job = Job.load(write_all(files, folder / "records"))
    horovod.write(job, folder / "job.json", mark_cycles)
    text = (folder / "job.json").read_text()
    events: list[Event] = json.loads(text)
    return text, events


def processes(events: list[Event]) -> dict[int, str]:
    return {event["pid"]: event["args"]["name"] for event in events[1:] if event.get("name") == "process_name"}


def tree(events: list[Event], pid: int) -> list[Any]:
    """The events of a process, nested: [name, ts, [what is within], ts, args of the end] and [rank, ts] of a tick.

    In the file's order, as a viewer takes events of one time; times never run backwards.
    """
    root: list[Any] = []
    stack: list[list[Any]] = [["", 0, root]]
    last = -1.0
    for event in events:
        if event.get("pid") != pid or event["ph"] == "M":
            continue
        assert event["ph"] == "X" or event["ts"] >= last
        if event["ph"] == "B":
            node = [event["name"], event["ts"], []]
            stack[-1][2].append(node)
            stack.append(node)
        elif event["ph"] == "X":
            assert event["dur"] == 0
            assert stack[-1][1] <= event["ts"]
            stack[-1][2].append([event["name"], event["ts"]])
            continue
        else:
            stack.pop().extend([event["ts"], event.get("args", {})])
        last = event["ts"]
    assert len(stack) == 1
    return root


def test_an_operation_is_a_negotiation_with_a_tick_for_each_rank_and_an_execution(tmp_path: Path) -> None:
    text, events = written(tmp_path, *steady_job(3, 2, names=("test_allreduce",), late_rank=2, late_ns=300_000))
    assert processes(events) == {1: "allreduce.test_allreduce"}
    assert [e["args"]["sort_index"] for e in events if e.get("name") == "process_sort_index"] == [0, 1]
    first, second = tree(events, 1)[::2], tree(events, 1)[1::2]
    zero = first[0][1]
    assert [round(node[1] - zero, 3) for node in first] == [0, 1000]
    for index, (negotiation, execution) in enumerate(zip(first, second, strict=True)):
        begin = negotiation[1]
        assert begin == pytest.approx(zero + 1000 * index)
        name, _, ticks, end, _ = negotiation
        assert name == "NEGOTIATE_ALLREDUCE"
        assert [(rank, round(ts - begin, 3)) for rank, ts in ticks] == [("0", 0), ("1", 0), ("2", 300)]
        assert end == pytest.approx(begin + 310)
        name, began, within, ended, args = execution
        assert (name, args) == ("ALLREDUCE", {"dtype": "float32", "nbytes": 4096})
        assert (began, ended) == (end, pytest.approx(begin + 510))
        assert within == [["RINGREDUCE_RING", began, [], ended, {}]]
    assert "CYCLE_START" not in text


def test_the_first_event_says_when_it_began(tmp_path: Path) -> None:
    _, events = written(tmp_path, *steady_job(2, 1))
    assert events[0]["ph"] == "M"
    assert events[0]["args"] == {"start_time_since_epoch_in_micros": (EPOCH_NS + 100_000 - 1) // 1000}


def test_cycles_are_the_starts_of_buckets(tmp_path: Path) -> None:
    files = [RankFile(rank, 2) for rank in range(2)]
    for file in files:
        for number, started in enumerate((5000, 5000, 9000, None)):
            shift = file.rank * 1000  # rank 1 starts later; rank 0's starts are shown
            at = None if started is None else started + shift
            file.operation(number, number, at, 20_000 + shift, f"t{number}", flags=ASYNCHRONOUS | SHARED_BUCKET)
    text, events = written(tmp_path, *files, mark_cycles=True)
    cycles = [event for event in events if event.get("name") == "CYCLE_START"]
    assert [(event["ph"], event["s"], event["ts"]) for event in cycles] == [("i", "g", 5.001), ("i", "g", 9.001)]
    assert text.count("CYCLE_START") == 2


def test_unnamed_operations_share_processes(tmp_path: Path) -> None:
    files = [RankFile(rank, 2) for rank in range(2)]
    for file in files:
        for number in range(50):
            file.operation(number, number * 1000, number * 1000 + 100, number * 1000 + 200)
        for number in range(50, 53):  # three at one time
            file.operation(number, 60_000, 70_000, 70_100)
        file.operation(53, 80_000, 80_100, 80_200, kind="barrier", algorithm="")
    _, events = written(tmp_path, *files)
    assert sorted(processes(events).values()) == [
        "allreduce.noname.0",
        "allreduce.noname.1",
        "allreduce.noname.2",
        "barrier.noname.0",
    ]
    by_name = {name: pid for pid, name in processes(events).items()}
    assert len(tree(events, by_name["allreduce.noname.0"])) == 51 * 2
    _, barrier = tree(events, by_name["barrier.noname.0"])
    assert barrier[0] == "BARRIER"
    assert barrier[2] == []  # no algorithm


def test_a_name_in_two_groups_is_two_processes(tmp_path: Path) -> None:
    files = [RankFile(rank, 4) for rank in range(4)]
    for file in files:
        pair = file.group((0, 1) if file.rank < 2 else (2, 3), 7)
        file.operation(0, 0, 10, 20, "grad")
        file.operation(0, 30, 40, 50, "grad", group=pair)
    _, events = written(tmp_path, *files)
    assert sorted(processes(events).values()) == [
        "allreduce.grad",
        "allreduce.grad (ranks 0-1)",
        "allreduce.grad (ranks 2-3)",
    ]


def test_a_rank_that_calls_again_early_does_not_break_the_nesting(tmp_path: Path) -> None:
    files = [RankFile(rank, 2) for rank in range(2)]
    for number in range(3):
        at = number * 1000
        files[0].operation(number, at, at + 500, at + 999, "loss")
        files[1].operation(
            number, at - 300 if number else 0, at + 500, at + 600, "loss"
        )  # the next before rank 0's end
    _, events = written(tmp_path, *files)
    nodes = tree(events, 1)
    assert [node[0] for node in nodes] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"] * 3
    assert nodes[2][1] == nodes[1][3]  # it is shown from the former one's end on


def test_an_operation_that_never_began_has_no_execution(tmp_path: Path) -> None:
    file = RankFile(0, 2)
    file.operation(0, 0, None, 5000, "loss", flags=2)
    _, events = written(tmp_path, file)
    assert tree(events, 1) == [["NEGOTIATE_ALLREDUCE", 0.001, [["0", 0.001]], 5.001, {}]]


def test_it_is_json_whatever_a_name_contains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = 'all"reduce'
    monkeypatch.setattr(timeline_files, "KINDS", [kind])
    name = '"}],\n\\ %d \u2028 \x00 層'
    file = RankFile(0, 1)
    file.operation(0, 1, 2, 3, name, kind)
    _, events = written(tmp_path, file)
    assert processes(events) == {1: f"{kind}.{name}"}
    assert [node[0] for node in tree(events, 1)] == [f"NEGOTIATE_{kind.upper()}", kind.upper()]


def test_a_job_without_operations_is_a_timeline(tmp_path: Path) -> None:
    _, events = written(tmp_path, RankFile(0, 1), mark_cycles=True)
    assert len(events) == 2
