"""The critical path over the ranks, also of records that say anything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from timeline_files import US, RankFile, call, found_in, pair

from ringreduce.timeline import report
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.critical_path import COMPUTING, MESSAGE
from ringreduce.timeline.analysis.found import Analysis, analyse
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import ASYNCHRONOUS, RECORD
from ringreduce.timeline.report_json import as_json


def segments(found: Analysis) -> list[tuple[int, int, int, int]]:
    """(begin, end, rank, operation) of the path, in us."""
    return [(begin // US, end // US, rank, operation) for begin, end, rank, operation in found.path.segments.tolist()]


def test_the_critical_path_goes_over_the_last_ranks_and_what_they_computed(tmp_path: Path) -> None:
    first, second = pair()
    call(first, 0, 50, 100, 120, name="a")
    call(first, 0, 200, 200, 230, name="b")
    call(second, 0, 100, 100, 125, name="a")
    call(second, 0, 140, 200, 231, name="b")
    second.message(0, 0, 30 * US, "recv from rank 0", 0)
    second.wait(0, 10 * US, 30 * US, "recv from rank 0")
    found = found_in((first, second), tmp_path)
    a, b = (found.job.names.index(name) for name in "ab")
    of = {int(row["name"]): index for index, row in enumerate(found.job.operations)}
    assert segments(found) == [
        (0, 10, 1, COMPUTING),
        (10, 30, 1, MESSAGE),
        (30, 100, 1, COMPUTING),
        (100, 120, 0, of[a]),
        (120, 200, 0, COMPUTING),
        (200, 231, 1, of[b]),
    ]
    path = found.path
    assert (path.span_ns, path.message_ns) == (231 * US, 20 * US)
    assert path.computing_ns == {0: 80 * US, 1: 80 * US}
    assert path.communication_ns == {(0, b): 31 * US, (0, a): 20 * US}
    assert path.others_stood_ns == {0: 65 * US, 1: 50 * US}  # 120-125 and 140-200; 50-100


def test_the_critical_path_follows_the_queue_of_a_rank(tmp_path: Path) -> None:
    """b was called at 20 but ran after a, which ran to 100: what both ranks computed since 10 is not on the path."""
    files = pair()
    for file in files:
        call_at = 10 - file.rank
        file.operation(0, call_at * US, 10 * US, 100 * US, "a", flags=ASYNCHRONOUS)
        file.operation(0, (20 - file.rank) * US, 101 * US, 150 * US, "b", flags=ASYNCHRONOUS)
        file.wait(0, 60 * US, 100 * US, "a")
        file.wait(0, 100 * US, 150 * US, "b")
        file.message(0, 0, 1, "send to rank 1", 1)
    found = found_in(files, tmp_path)
    assert segments(found) == [(0, 10, 0, COMPUTING), (10, 100, 0, 0), (100, 150, 0, 1)]


def test_a_wait_for_what_has_ended_before_is_not_on_the_path(tmp_path: Path) -> None:
    files = pair()
    for file in files:
        file.operation(0, (0 + file.rank) * US, 5 * US, 20 * US, "a", flags=ASYNCHRONOUS)
        file.wait(0, 90 * US, 91 * US, "a")
        call(file, 0, 100 + file.rank, 102, 110, name="b")
    found = found_in(files, tmp_path)
    assert segments(found) == [(1, 101, 1, COMPUTING), (101, 110, 0, 1)]


def test_the_path_names_a_rank_whose_calls_come_late_one_by_one(tmp_path: Path) -> None:
    """Gradients: each of ten calls of rank 2 comes 50 us after the one before, and takes 45 us to reduce. The others
    wait 5 us for each, and see 45 us of communication; but all of it goes by while rank 2 computes."""
    files = [RankFile(rank, 4) for rank in range(4)]
    for step in range(20):
        for index in range(10):
            late = step * 1000 + 100 + 50 * (index + 1)
            for file in files:
                called = late if file.rank == 2 else step * 1000 + 50
                file.operation(step, called * US, late * US, (late + 45) * US, f"g{index}", flags=ASYNCHRONOUS)
                begin = step * 1000 + 601 if file.rank == 2 else max(called, late - 5)
                if begin < late + 45:
                    file.wait(step, begin * US, (late + 45) * US, f"g{index}")
    found = found_in(files, tmp_path)
    assert found.lateness.late == []
    assert found.path.late == found.late == [2]
    assert "Rank 2 makes the others wait: its computing is" in conclusions(found)[0]


def test_a_path_over_operations_of_lost_records_is_not_relied_on(tmp_path: Path) -> None:
    """Rank 1 computes 90 us of each 100; killed, or cut off, in the middle it leaves the others' half of the records,
    in which nobody is the last to call and all of that time looks like communication."""
    files = pair()
    for step in range(60):
        for file in files:
            call(file, step, 100 * step + 90 * file.rank, 100 * step + 90, 100 * step + 100, name="a")
    lost, kept = files[1].records[60:], files[1].records[:60]
    assert found_in(files, tmp_path).path.doubt == ""
    files[1].records = kept
    for change in ("has_ended", "dropped"):
        files[1].has_ended, files[1].dropped = change != "has_ended", len(lost) * (change == "dropped")
        found = found_in(files, tmp_path)
        assert found.path.doubt == "the records of some ranks are missing"
        assert not any("critical path" in sentence for sentence in conclusions(found))
    files[1].has_ended, files[1].dropped = True, 0  # nothing is lost: it has joined, say
    assert found_in(files, tmp_path).path.doubt == ""
    files[1].records, files[1].has_ended = kept + lost[:-2], False  # little of the path
    assert found_in(files, tmp_path).path.doubt == ""


def random_records(generator: np.random.Generator, count: int) -> np.ndarray:
    """Well-formed, and senseless as a whole: operations end on one rank before another calls them."""
    records = np.zeros(count, RECORD)
    records["called_ns"] = generator.integers(10**9, 10**9 + 2000, count)
    records["ended_ns"] = records["called_ns"] + generator.integers(0, 300, count)
    middle = records["called_ns"] + (records["ended_ns"] - records["called_ns"]) // 2
    records["type"] = generator.choice([0, 0, 1, 1, 3], count)
    records["started_ns"] = np.where((records["type"] == 0) & (generator.random(count) < 0.9), middle, 0)
    for column, most in (("number", 12), ("name", 4), ("nbytes", 1 << 22), ("kind", 3), ("thread", 2), ("flags", 32)):
        records[column] = generator.integers(0, most, count)
    records["peer"] = -1
    return records


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_records_say_the_parts_add_up_and_the_path_goes_back(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 5))
    for rank in range(size):
        file = RankFile(rank, size, host=f"node{generator.integers(0, 2)}")
        for name in "abc":
            file.names[name] = len(file.names) + 1
        file.write(tmp_path, random_records(generator, int(generator.integers(0, 120))))
    found = analyse(Job.load(tmp_path))
    for time in found.times:
        assert time.computing_ns + time.waiting_ns + time.exposed_ns + time.message_ns == time.span_ns
        assert min(time.computing_ns, time.waiting_ns, time.exposed_ns, time.message_ns) >= 0
        assert 0 <= time.hidden_ns <= time.communication_ns <= time.span_ns
        begins, ends = time.standing["begin_ns"], time.standing["end_ns"]
        assert (begins[1:] >= ends[:-1]).all()
    path = found.path.segments
    assert (path["end_ns"] > path["begin_ns"]).all()
    assert (path["begin_ns"][1:] == path["end_ns"][:-1]).all()
    assert found.path.span_ns <= found.job.span_ns
    assert len(report.text(found).splitlines()) <= 100
    json.dumps(as_json(found), allow_nan=False)
