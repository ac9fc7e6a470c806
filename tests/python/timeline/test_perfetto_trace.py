"""job.pftrace: read by a decoder of its own, it shows every call, negotiation and operation to the ns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from timeline_files import RankFile, steady_job, write_all
from trace_reader import Slice, Trace, decoded, perfetto_trace

from ringreduce.timeline.export import perfetto, protobuf
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import ASYNCHRONOUS, FAILED, SHARED_BUCKET


def written(folder: Path, *files: RankFile) -> tuple[Job, Trace]:
    job = Job.load(write_all(files, folder / "records"))
    perfetto.write(job, folder / "job.pftrace")
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["job.pftrace"]
    return job, perfetto_trace(folder / "job.pftrace")


def on(trace: Trace, track: str, rank: int) -> list[Slice]:
    return [part for part in trace.slices if part.track == track and part.process.startswith(f"rank {rank} ")]


def test_every_rank_shows_its_calls_negotiation_and_operations(tmp_path: Path) -> None:
    job, trace = written(tmp_path, *steady_job(3, 2, late_rank=1, late_ns=300_123))
    assert len(trace.slices) == 3 * 4 * 3
    assert trace.realtime_of_zero == job.base_realtime_ns
    for rank in range(3):
        mine = job.rows[job.rows["rank"] == rank]
        names = ["allreduce loss", "allreduce"] * 2
        waits = on(trace, "calls", rank)
        assert [part.name for part in waits] == [f"wait {name}" for name in names]
        assert [(part.begin, part.end) for part in waits] == mine[["called_ns", "ended_ns"]].tolist()
        negotiated = on(trace, "negotiation", rank)
        assert [part.name for part in negotiated] == [f"negotiate {name}" for name in names]
        assert [(part.begin, part.end) for part in negotiated] == mine[["called_ns", "started_ns"]].tolist()
        operations = on(trace, "operations", rank)
        assert [part.name for part in operations] == names
        assert [(part.begin, part.end) for part in operations] == mine[["started_ns", "ended_ns"]].tolist()
        assert operations[3].args == {
            "bytes": 4096,
            "number": 1,
            "last rank": 1,
            "algorithm": "ring",
            "flags": "-",
            "dtype": "float32",
            "op": "sum",
            "group": "all ranks",
        }


def test_an_arrow_goes_from_the_last_call_to_each_start_that_waited(tmp_path: Path) -> None:
    files = [RankFile(rank, 4) for rank in range(4)]
    for file, called in zip(files, (0, 100_000, 260_000, 300_000), strict=True):
        file.operation(0, called, 310_000, 400_000, "slow")  # rank 2 waited 40 us: no arrow
        file.operation(1, 500_000 + called // 10, 540_000, 600_000, "soon")
    _, trace = written(tmp_path, *files)
    assert len(trace.flows) == 2
    sources, targets = zip(*trace.flows.values(), strict=True)
    assert {(part.process, part.track, part.name) for part in sources} == {
        ("rank 3 (node0)", "negotiation", "negotiate allreduce slow")
    }
    assert [(part.process, part.track, part.name) for part in targets] == [
        (f"rank {rank} (node0)", "operations", "allreduce slow") for rank in range(2)
    ]


def test_counters_say_how_late_and_how_fast(tmp_path: Path) -> None:
    files = [RankFile(rank, 4) for rank in range(4)]
    for file in files:
        pair = file.group((0, 1) if file.rank < 2 else (2, 3), 7)
        called = file.rank * 1000
        file.operation(0, called, 4000, 13_000, nbytes=30_000, dtype="int8")
        file.operation(0, 20_000 + called, 24_000, 25_000, kind="barrier", nbytes=0, group=pair)
    job, trace = written(tmp_path, *files)
    first = int(job.operations["first_called_ns"][0])
    assert dict(trace.counters) == {
        "late, all ranks (us)": [(first + 3000, 3.0)],
        "bus bandwidth, all ranks (GB/s)": [(first + 13_000, 2 * 3 / 4 * 30_000 / 10_000)],
        "late, ranks 0-1 (us)": [(first + 21_000, 1.0)],
        "late, ranks 2-3 (us)": [(first + 23_000, 1.0)],
    }


def test_the_bandwidth_is_that_of_a_whole_bucket(tmp_path: Path) -> None:
    files = [RankFile(rank, 2) for rank in range(2)]
    for file in files:
        file.operation(0, 0, 5000, 9000, "a", nbytes=1000, flags=SHARED_BUCKET)
        file.operation(0, 3000, 5000, 9000, "b", nbytes=5000, flags=SHARED_BUCKET)
        file.operation(0, 10_000, None, 20_000, "c")
    job, trace = written(tmp_path, *files)
    end = int(job.operations["ended_ns"][0])
    assert trace.counters["bus bandwidth, all ranks (GB/s)"] == [(end, 6000 / 6000)]


def test_what_overlaps_is_shown_completely(tmp_path: Path) -> None:
    """Asynchronous operations: three are called before the first starts, and two share a bucket."""
    file = RankFile(0, 1)
    flags = ASYNCHRONOUS | SHARED_BUCKET
    times = [(0, 500, 700), (10, 600, 800), (20, 600, 800), (30, 30, 30), (40, None, 900)]
    for number, (called, started, ended) in enumerate(times):
        file.operation(number, called, started, ended, flags=flags if started else FAILED)
    job, trace = written(tmp_path, file)
    zero = int(job.rows["called_ns"].min())
    assert sorted((part.begin - zero, part.end - zero) for part in on(trace, "negotiation", 0)) == [
        (0, 500),
        (10, 600),
        (20, 600),
        (30, 30),
        (40, 900),
    ]
    operations = on(trace, "operations", 0)
    assert sorted((part.begin - zero, part.end - zero) for part in operations) == [
        (30, 30),
        (500, 700),
        (600, 800),
        (600, 800),
    ]
    assert {part.args["flags"] for part in operations} == {"asynchronous, shared a bucket"}
    assert not trace.counters  # of a group of one rank


def test_threads_and_messages_have_tracks_of_their_own(tmp_path: Path) -> None:
    file = RankFile(0, 2)
    file.wait(0, 0, 10, "loss", thread=0)
    file.wait(1, 5, 15, "loss", thread=2)
    file.message(2, 20, 30, "send to rank 1", 1)
    file.wait(2, 20, 30, "send to rank 1")
    _, trace = written(tmp_path, file)
    assert sorted((part.track, part.name, part.end - part.begin) for part in trace.slices) == [
        ("calls", "wait allreduce loss", 10),
        ("calls", "wait send to rank 1", 10),
        ("calls of thread 2", "wait allreduce loss", 10),
        ("messages", "send to rank 1", 10),
    ]


def test_names_of_any_letters_stay(tmp_path: Path) -> None:
    name = 'a "b" \\ \n \u2028 {%s} 層'
    file = RankFile(0, 1, host="h%st")
    file.operation(0, 1, 2, 3, name)
    _, trace = written(tmp_path, file)
    assert [(part.process, part.name) for part in trace.slices if part.track == "operations"] == [
        ("rank 0 (h%st)", f"allreduce {name}")
    ]


def test_a_job_without_operations_is_a_trace(tmp_path: Path) -> None:
    _, trace = written(tmp_path, RankFile(0, 1))
    assert trace.slices == []


def test_many_messages_at_once_are_those_made_one_by_one() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2**64, 50, np.uint64, endpoint=False) >> rng.integers(0, 64, 50, np.uint64)
    inner = [*protobuf.numbers(3, values), b"".join([protobuf.text(4, "x"), protobuf.number(5, 300)])]
    made = protobuf.messages(protobuf.message(1, [*inner, *protobuf.fixed(6, values / 3)]), len(values))
    found = [decoded(decoded(row.tobytes())[1][0]) for row in made]
    assert [message[3] for message in found] == [[value] for value in values.tolist()]
    assert {(message[4][0], message[5][0]) for message in found} == {(b"x", 300)}
    assert [np.frombuffer(message[6][0], "<f8")[0] for message in found] == (values / 3).tolist()
