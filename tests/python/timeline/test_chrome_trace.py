"""job.json shows the same slices as job.pftrace, to the ns."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

from timeline_files import EPOCH_NS, RankFile, steady_job, write_all
from trace_reader import Slice, perfetto_trace

from ringreduce.timeline.export import chrome, perfetto
from ringreduce.timeline.job import Job

Event = dict[str, Any]


def written(folder: Path, *files: RankFile) -> tuple[Job, dict[str, Any]]:
    job = Job.load(write_all(files, folder / "records"))
    chrome.write(job, folder / "job.json")
    text = (folder / "job.json").read_text()
    document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return job, document


def named(document: dict[str, Any], what: str) -> dict[Any, str]:
    """The names of processes by pid, or of threads by tid."""
    events = [event for event in document["traceEvents"] if event["name"] == f"{what}_name"]
    return {event["tid" if what == "thread" else "pid"]: event["args"]["name"] for event in events}


def ns(us: Decimal) -> int:
    value = Decimal(us) * 1000
    assert value == int(value)
    return int(value)


def slices(document: dict[str, Any]) -> list[Slice]:
    """As the viewer names them; lanes by their common name."""
    processes, threads = named(document, "process"), named(document, "thread")
    return [
        Slice(
            processes[event["pid"]],
            threads[event["tid"]].split(" (")[0],
            event["name"],
            ns(event["ts"]),
            ns(event["ts"]) + ns(event["dur"]),
            event.get("args", {}),
        )
        for event in document["traceEvents"]
        if event["ph"] == "X"
    ]


def a_mixed_job() -> list[RankFile]:
    """Late ranks, overlapping operations, two groups, threads, messages, one that never began."""
    files = steady_job(4, 3, late_rank=2, late_ns=300_123)
    for file in files:
        pair = file.group((0, 1) if file.rank < 2 else (2, 3), 7)
        at = 7_000_001 + file.rank
        for number in range(3):
            file.operation(number, at + number, at + 70_000, at + 90_000, "half", "reducescatter", group=pair, thread=1)
        file.operation(99, at + 100_000, None, at + 200_000, kind="barrier", algorithm="", flags=2)
    files[1].message(50, 8_000_000, 8_000_500, "send to rank 2", 2)
    files[1].wait(50, 8_000_000, 8_000_500, "send to rank 2", thread=5)
    return files


def test_it_shows_the_slices_of_the_perfetto_trace(tmp_path: Path) -> None:
    job, document = written(tmp_path, *a_mixed_job())
    perfetto.write(job, tmp_path / "job.pftrace")

    def key(part: Slice) -> tuple[str, str, str, int, int]:
        return part.process, part.track, part.name, part.begin, part.end

    ours = sorted(slices(document), key=key)
    other = sorted(perfetto_trace(tmp_path / "job.pftrace").slices, key=key)
    assert list(map(key, ours)) == list(map(key, other))
    assert [part.args for part in ours] == [part.args for part in other]


def test_slices_of_a_thread_do_not_overlap(tmp_path: Path) -> None:
    _, document = written(tmp_path, *a_mixed_job())
    by_thread: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            times = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            by_thread.setdefault((event["pid"], event["tid"]), []).append(times)
    assert len(by_thread) == len(named(document, "thread"))
    for each in by_thread.values():
        assert all(begin > end for (_, end), (begin, _) in pairwise(sorted(each)))


def test_processes_are_ranks_in_order(tmp_path: Path) -> None:
    files = steady_job(3, 1)
    files[2].host = "node2"
    files[2].question(0, 5, 10, files[0])
    _, document = written(tmp_path, *files)
    assert named(document, "process") == {
        3: "all ranks",
        0: "rank 0 (node0)",
        1: "rank 1 (node0)",
        2: "rank 2 (node2)",
    }
    order = {e["pid"]: e["args"]["sort_index"] for e in document["traceEvents"] if e["name"] == "process_sort_index"}
    assert order == {3: -1, 0: 0, 1: 1, 2: 2}


def test_arrows_begin_and_end_in_slices(tmp_path: Path) -> None:
    _, document = written(tmp_path, *steady_job(3, 2, late_rank=1, late_ns=60_000))
    threads = named(document, "thread")
    found: dict[int, list[Event]] = {}
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            found.setdefault(event["id"], []).append(event)
    assert len(found) == 4 * 2
    for begin, end in found.values():
        assert (begin["ph"], begin["pid"], threads[begin["tid"]]) == ("s", 1, "negotiation")
        assert (end["ph"], end["bp"], threads[end["tid"]]) == ("f", "e", "operations")
        assert end["pid"] in (0, 2)
        for event in (begin, end):
            assert any(
                other["ts"] == event["ts"] and (other["pid"], other["tid"]) == (event["pid"], event["tid"])
                for other in document["traceEvents"]
                if other["ph"] == "X"
            )


def test_counters_are_those_of_the_perfetto_trace(tmp_path: Path) -> None:
    job, document = written(tmp_path, *a_mixed_job())
    perfetto.write(job, tmp_path / "job.pftrace")
    found: dict[str, list[tuple[int, float]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "C":
            (value,) = event["args"].values()
            found.setdefault(event["name"], []).append((ns(event["ts"]), float(value)))
    other = perfetto_trace(tmp_path / "job.pftrace").counters
    assert found.keys() == other.keys()
    for name, values in found.items():
        assert [at for at, _ in values] == [at for at, _ in other[name]]
        assert all(abs(ours - value) <= 1e-5 * value for (_, ours), (_, value) in zip(values, other[name], strict=True))


def test_whole_ns_stay_after_a_year(tmp_path: Path) -> None:
    year = 365 * 86400 * 10**9
    file = RankFile(0, 1)
    file.operation(0, 5, 6, 7)
    file.operation(1, year + 123, year + 456, year + 789)
    _, document = written(tmp_path, file)
    begin, end = [(part.begin, part.end) for part in slices(document) if part.track == "operations"]
    assert (end[0] - begin[0], end[1] - end[0]) == (year + 450, 333)


def test_it_is_json_whatever_a_name_contains(tmp_path: Path) -> None:
    name = '"}],\n\\ %d \u2028 \x00 層'
    file = RankFile(0, 2, host='h"%s')
    file.operation(0, 1, 2, 3, name)
    file.wait(0, 1, 3, name)
    file.group((0,), context='c"%d')
    file.group((0,), context='d"%d')
    file.operation(0, 5, 6, 7, group=1)
    job, document = written(tmp_path, file)
    assert {part.name for part in slices(document) if name in part.name} == {
        f"allreduce {name}",
        f"negotiate allreduce {name}",
        f"wait allreduce {name}",
    }
    assert document["baseTimeNanoseconds"] == job.base_realtime_ns == EPOCH_NS
    assert document["otherData"]["warnings"] == job.warnings


def test_a_job_without_operations_is_a_trace(tmp_path: Path) -> None:
    _, document = written(tmp_path, RankFile(0, 1))
    assert slices(document) == []
