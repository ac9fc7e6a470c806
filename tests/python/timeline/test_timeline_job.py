"""Operations are matched over the ranks by group, name and number; what is missing or contradicts itself is said."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from timeline_files import EPOCH_NS, RankFile, block, json_block, steady_job, write_all

from ringreduce.errors import InvalidArgumentError
from ringreduce.timeline import blocks, job_warnings, matching, tables
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import CLOCK, FAILED, OTHER_NAME, RECORD

MS = 1_000_000


def operation(job: Job, index: int) -> dict[str, Any]:
    """One operation by column, its name and group as what they mean."""
    row = job.operations[index]
    found = {name: row[name].item() for name in row.dtype.names}
    return {**found, "name": job.names[row["name"]], "group": job.groups[row["group"]].ranks}


def rows(job: Job, index: int) -> np.ndarray:
    """The rows of one operation."""
    first, count = job.operations["first_row"][index], job.operations["rows"][index]
    return job.rows[first : first + count]


def load(folder: Path, *files: RankFile) -> Job:
    return Job.load(write_all(files, folder))


def test_a_file_of_an_earlier_run_is_left_out(tmp_path: Path) -> None:
    old, new = RankFile(1, 2), RankFile(0, 2, wall_error_ns=5_000_000_000)
    for file in (old, new):
        file.operation(0, 10, 20, 30)
    job = Job.load(write_all([new, old], tmp_path))
    assert [file.rank for file in job.files] == [0]
    assert any("rank-0001.rr ended before another rank's file began" in warning for warning in job.warnings)
    assert not any("left no file here" in warning for warning in job.warnings)


def of_hosts_whose_wall_clocks_differ(asks: bool) -> list[RankFile]:
    """Three hosts, each 5 s behind the one before; each has asked the one before, and rank 3 runs beside rank 2."""
    hosts = [(f"h{rank}", rank * 10**12, -5_000_000_000 * rank) for rank in range(3)]
    files = [RankFile(rank, 4, *host[:2], wall_error_ns=host[2]) for rank, host in enumerate([*hosts, hosts[2]])]
    for file in files:
        file.operation(0, MS, MS + 10, MS + 20)
    for file, before in zip(files[1:3], files, strict=False):
        for at in (2 * MS, 3 * MS) if asks else ():
            file.question(at, at + 10, at + 20, before)
            before.operation(at, at, at + 10, at + 4 * MS, "later")
    return files


def test_hosts_that_asked_each_other_are_one_run_whatever_their_wall_clocks_say(tmp_path: Path) -> None:
    job = load(tmp_path, *of_hosts_whose_wall_clocks_differ(asks=True))
    assert [file.rank for file in job.files] == [0, 1, 2, 3]
    assert job.warnings == []
    assert [clock.source for clock in job.clocks.values()] == ["reference", "pings", "pings", "pings"]


def test_hosts_that_did_not_ask_go_by_their_wall_clocks(tmp_path: Path) -> None:
    job = load(tmp_path, *of_hosts_whose_wall_clocks_differ(asks=False))
    assert [file.rank for file in job.files] == [0]


def test_a_file_of_an_earlier_run_that_asked_then_is_left_out(tmp_path: Path) -> None:
    files = of_hosts_whose_wall_clocks_differ(asks=True)
    new = RankFile(0, 4, *(files[0].host, files[0].clock_ns + 10**10), wall_error_ns=10**10)
    new.operation(0, MS, MS + 10, MS + 20)
    job = load(tmp_path, new, *files[1:])
    assert [file.rank for file in job.files] == [0]
    assert len(job.warnings) == 3


def test_a_steady_job_is_matched_completely(tmp_path: Path) -> None:
    job = load(tmp_path, *steady_job(4, 3, names=("loss", "", ""), late_rank=2, late_ns=300_000))
    assert job.warnings == []
    assert len(job.operations) == 9
    assert len(job.rows) == 36
    assert [operation(job, index)["name"] for index in range(4)] == ["loss", "", "", "loss"]
    assert [operation(job, index)["number"] for index in range(9)] == [0, 0, 1, 1, 2, 3, 2, 4, 5]
    start = job.operations["first_called_ns"][0]
    for index in range(9):
        found = operation(job, index)
        assert (found["rows"], found["expected"], found["last_rank"]) == (4, 4, 2)
        assert found["first_called_ns"] - start == index * MS
        assert found["complete_ns"] - start == index * MS + 300_000
        assert found["ended_ns"] - start == index * MS + 510_000
        mine = rows(job, index)
        assert mine["rank"].tolist() == [0, 1, 2, 3]
        assert (mine["operation"] == index).all()
        assert (mine["called_ns"] - start - index * MS).tolist() == [0, 0, 300_000, 0]
        assert (mine["started_ns"] - start - index * MS == 310_000).all()
    assert job.span_ns == job.operations["ended_ns"][-1]
    assert job.base_realtime_ns == EPOCH_NS + 100_000 - start


def test_each_operation_has_its_ranks_waits(tmp_path: Path) -> None:
    files = steady_job(3, 2)
    files[1].wait(9, 5 * MS, 6 * MS, "send to rank 2")
    files[1].message(9, 5 * MS, 6 * MS, "send to rank 2", 2, nbytes=77, thread=3)
    files[2].wait(0, 6 * MS, 7 * MS, "loss", kind="broadcast")  # of no operation: another kind
    job = load(tmp_path, *files)
    assert len(job.waits) == 14
    for rank in range(3):
        mine = job.waits[(job.waits["rank"] == rank) & (job.waits["operation"] >= 0)]
        assert mine["operation"].tolist() == [0, 1, 2, 3]
        assert (mine["begin_ns"] == job.rows["called_ns"][job.rows["rank"] == rank]).all()
    others = job.waits[job.waits["operation"] < 0]
    assert [job.names[name] for name in others["name"]] == ["send to rank 2", "loss"]
    (sent,) = job.messages
    assert (sent["rank"], sent["thread"], sent["nbytes"], sent["peer"]) == (1, 3, 77, 2)
    assert job.names[sent["name"]] == "send to rank 2"


def test_one_name_in_two_groups_is_two_operations(tmp_path: Path) -> None:
    files = [RankFile(rank, 4) for rank in range(4)]
    for file in files:
        # Each rank numbers its groups in an order of its own.
        pair = (0, 1) if file.rank < 2 else (2, 3)
        groups = [file.group(pair, 5), file.group(range(4), 9, "data")]
        for at, group in enumerate([*groups, 0]):
            file.operation(0, at * MS, at * MS + 10, at * MS + 20, "grad", group=group)
    job = load(tmp_path, *files)
    assert [(operation(job, index)["group"], operation(job, index)["rows"]) for index in range(4)] == [
        ((0, 1), 2),
        ((2, 3), 2),
        ((0, 1, 2, 3), 4),
        ((0, 1, 2, 3), 4),
    ]
    assert [(group.id, group.context) for group in job.groups] == [(0, ""), (5, ""), (9, "data"), (5, "")]
    assert [group.index for group in job.groups] == [0, 1, 2, 3]


def test_what_a_rank_did_not_reach_stays(tmp_path: Path) -> None:
    files = steady_job(3, 2, names=("loss",))
    del files[1].records[2:]  # killed after the first
    files[1].has_ended = False
    job = load(tmp_path, *files)
    assert job.operations["rows"].tolist() == [3, 2]
    assert job.operations["expected"].tolist() == [3, 3]
    assert rows(job, 1)["rank"].tolist() == [0, 2]
    assert job.warnings == ["rank 1 did not end the timeline: killed, or still running."]


def test_ranks_without_a_file_are_named(tmp_path: Path) -> None:
    files = steady_job(8, 1)
    job = load(tmp_path, *files[:2], files[6])
    assert job.operations["rows"].tolist() == [3, 3]
    assert job.warnings[0].startswith("ranks 2-5, 7 of 8 left no file")


def test_the_larger_payload_and_the_lowest_of_several_last_ranks_count(tmp_path: Path) -> None:
    files = [RankFile(rank, 3) for rank in range(3)]
    for file, called, nbytes in zip(files, (5, 9, 9), (10, 30, 20), strict=True):
        file.operation(0, called, 10, 20, kind="allgather", nbytes=nbytes)
    found = operation(load(tmp_path, *files), 0)
    assert (found["last_rank"], found["nbytes"]) == (1, 30)


def test_an_operation_that_never_began_keeps_a_start_of_zero(tmp_path: Path) -> None:
    files = [RankFile(rank, 2, host=f"h{rank}", clock_ns=rank * 10**12) for rank in range(2)]
    for file in files:
        file.operation(0, MS, None, 2 * MS, flags=FAILED)
        file.operation(1, 3 * MS, 3 * MS, 4 * MS)
    files[1].question(0, 1000, 2000, files[0])
    job = load(tmp_path, *files)
    assert job.rows["started_ns"][:2].tolist() == [0, 0]
    assert (job.rows["started_ns"][2:] > 0).all()


def test_hosts_are_put_on_one_clock(tmp_path: Path) -> None:
    files = steady_job(2, 3, late_rank=1, late_ns=400_000)
    files[1].host, files[1].clock_ns = "node1", 77_000_000_000
    files[1].records = []
    for step in range(6):
        at = step * MS + 100_000
        files[1].operation(step // 2, at + 400_000, at + 410_000, at + 610_000, "loss" if step % 2 == 0 else "")
        files[1].question(at, at + 10_000, at + 20_000, files[0])
        files[0].question(at, at + 10_000, at + 20_000, files[1])
    job = load(tmp_path, *files)
    assert job.warnings == []
    width = job.clocks[1].half_width_ns
    assert 0 < width < 150_000
    late = job.operations["complete_ns"] - job.operations["first_called_ns"]
    assert (np.abs(late - 400_000) <= width).all()
    assert (job.operations["last_rank"] == 1).all()
    for file in job.files:
        asked = file.records[file.records["type"] == CLOCK]
        assert len(asked) == 6
        assert (asked["called_ns"] <= asked["started_ns"] + width).all()
        assert (asked["started_ns"] <= asked["ended_ns"] + width).all()


def test_rows_that_contradict_each_other_are_counted(tmp_path: Path) -> None:
    files = steady_job(2, 5, names=("loss",))
    files[1].records = []
    for step in range(1, 6):  # one step late: its first call is matched with the other rank's second
        at = step * MS + 100_000
        files[1].operation(step - 1, at, at + 10_000, at + 210_000, "loss")
    job = load(tmp_path, *files)
    assert len(job.warnings) == 1
    assert job.warnings[0].startswith("5 of 5 operations ended on a rank before another rank called them")


def test_a_failed_operation_may_end_before_another_rank_calls(tmp_path: Path) -> None:
    files = [RankFile(rank, 2) for rank in range(2)]
    for file in files:
        at = file.rank * MS
        file.operation(0, at, None, at + 10, flags=FAILED)
    assert load(tmp_path, *files).warnings == []


@pytest.mark.parametrize("widths", [(0, 0), (0, -1), (0, 10 * MS)])
def test_a_contradiction_needs_clocks_that_are_known(tmp_path: Path, widths: tuple[int, int]) -> None:
    files = [RankFile(rank, 2) for rank in range(2)]
    files[0].operation(0, 0, 10, 20)
    files[1].operation(0, 5000, 5010, 5020)
    job = load(tmp_path, *files)
    clocks = {rank: dataclasses.replace(job.clocks[rank], half_width_ns=width) for rank, width in enumerate(widths)}
    found = matching.match(job.files, tables.Tables.of(job.files))
    assert job_warnings.contradictions(clocks, found) == (widths[1] == 0)


def test_names_and_codes_without_a_meaning_are_question_marks(tmp_path: Path) -> None:
    file = RankFile(0, 1)
    file.operation(0, 1, 2, 3, "loss")
    records = file.array()
    records["name"], records["kind"], records["algorithm"] = 4000, 77, 77
    file.write(tmp_path, records)
    job = Job.load(tmp_path)
    found = operation(job, 0)
    assert found["name"] == job.kinds[found["kind"]] == job.algorithms[77] == "?"
    assert job.algorithms[255] == ""
    assert job.warnings == ["1 record without a name that the file defines: shown as '?'."]


def test_a_rank_is_in_an_operation_once(tmp_path: Path) -> None:
    files = steady_job(2, 2)
    files[0].records.append(files[0].records[0])
    job = load(tmp_path, *files)
    assert job.operations["rows"].tolist() == [2, 2, 2, 2]
    assert job.warnings == ["1 record left out: a rank is in an operation once."]


def test_later_calls_of_names_beyond_those_that_are_kept_are_said_to_be_left_out(tmp_path: Path) -> None:
    """The recorder counts no calls of theirs: all have one number, which follows from the name."""
    files = [RankFile(rank, 2) for rank in range(2)]
    for file in files:
        file.names["(more names than are kept)"] = OTHER_NAME
        file.operation(0, 1000, 2000, 3000, "loss")
        for call in range(1, 4):
            at = 10_000 * call
            file.operation(2**63 + 5, at, at + 1000, at + 2000, "(more names than are kept)")
        file.operation(2**63 + 6, 50_000, 51_000, 52_000, "(more names than are kept)")
    files[0].records.append(files[0].records[0])
    job = load(tmp_path, *files)
    assert job.operations["rows"].tolist() == [2, 2, 2]
    assert job.warnings == [
        "1 record left out: a rank is in an operation once.",
        "4 records left out: beyond 65,536 names a rank does not count calls: of each such name the first is shown.",
    ]


def test_numbers_of_64_bits_are_matched(tmp_path: Path) -> None:
    files = [RankFile(rank, 2) for rank in range(2)]
    for file in files:
        for number in (2**64 - 1, 2**63, 5):
            file.operation(number, number % 1000, 2000, 3000, "loss")
    job = load(tmp_path, *files)
    assert job.operations["rows"].tolist() == [2, 2, 2]
    assert sorted(job.operations["number"].tolist()) == [5, 2**63, 2**64 - 1]


def test_ranks_that_recorded_nothing_are_a_job(tmp_path: Path) -> None:
    job = load(tmp_path, *[RankFile(rank, 2) for rank in range(2)])
    assert (len(job.operations), len(job.rows), job.span_ns) == (0, 0, 0)


def test_files_of_another_job_and_other_files_are_left_out(tmp_path: Path) -> None:
    files = steady_job(2, 1)
    files[0].write(tmp_path)
    files[1].write(tmp_path)
    RankFile(7, 8).write(tmp_path)
    (tmp_path / "rank-0009.rr").write_bytes(b"nonsense")
    (tmp_path / "rank-0000 (copy).rr").write_bytes((tmp_path / "rank-0000.rr").read_bytes())
    (tmp_path / "notes.txt").write_text("not a record file")
    job = Job.load(tmp_path)
    assert [file.rank for file in job.files] == [0, 1]
    assert len(job.warnings) == 3
    assert "of rank 0, as rank-0000 (copy).rr is" in job.warnings[0]
    assert "of a job of 8 ranks, not 2" in job.warnings[1]
    assert "not a timeline's record file" in job.warnings[2]


def test_damage_and_losses_are_said(tmp_path: Path) -> None:
    files = steady_job(2, 1)
    files[0].dropped = 12
    parts = files[0].blocks()
    write_all(files, tmp_path)
    (tmp_path / "rank-0000.rr").write_bytes(b"".join(parts)[:-1])
    warnings = Job.load(tmp_path).warnings
    assert "rank-0000.rr is damaged: the block at byte" in warnings[0]
    assert warnings[1] == "rank 0 did not end the timeline: killed, or still running."
    assert warnings[2].startswith("rank 0 lost 12 records")


@pytest.mark.parametrize("content", [None, b"", b"x" * 100])
def test_a_folder_without_records_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "rank-0000.rr").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=str(tmp_path)):
        Job.load(tmp_path)


def test_no_content_of_a_record_stops_the_loading(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for turn in range(20):
        for file in steady_job(3, 2):
            file.host = f"node{file.rank * (turn % 2)}"
            records = np.frombuffer(rng.bytes(64 * 50), RECORD).copy()
            records["type"] %= 5
            records["group"] %= 2
            records["peer"] %= 4
            if turn > 10:
                records["called_ns"] = rng.integers(0, 2**60, 50)
                records["ended_ns"] = rng.integers(0, 2**60, 50)
                records["started_ns"] *= rng.integers(0, 2, 50)
            head = json_block(blocks.PROCESS, file.process()) + file.blocks()[1]
            (tmp_path / f"rank-{file.rank:04d}.rr").write_bytes(head + block(blocks.RECORDS, records.tobytes()))
        job = Job.load(tmp_path)
        assert (job.operations["rows"] <= job.operations["expected"]).all()
        assert (job.rows["called_ns"] <= job.rows["ended_ns"]).all()
        assert (np.diff(job.operations["complete_ns"]) >= 0).all()
