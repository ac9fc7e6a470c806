"""A record file is read as far as it is whole; whatever else is in it is said, and never raises anything unexpected."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from timeline_files import RankFile, block, json_block

from ringreduce.errors import InvalidArgumentError
from ringreduce.timeline import blocks
from ringreduce.timeline.blocks import TEXT_MOST
from ringreduce.timeline.record_file import RECORD, read


def example() -> RankFile:
    """Rank 1 of 2 with a named and an unnamed operation, a wait and a message."""
    file = RankFile(1, 2, dropped=7)
    file.operation(0, 1000, 2000, 3000, "loss", nbytes=64)
    file.operation(5, 4000, None, 5000, kind="barrier", algorithm="", flags=2)
    file.wait(5, 4100, 5000, kind="barrier")
    file.message(6, 6000, 7000, "send to rank 0", 0)
    return file


def places(parts: list[bytes]) -> list[int]:
    """Every byte of the headers, the first and last of the bodies, and each seventh byte in between."""
    found, begin = set(range(0, sum(map(len, parts)), 7)), 0
    for part in parts:
        found |= {*range(begin, begin + blocks.HEADER.size + 1), begin + len(part) - 1}
        begin += len(part)
    return sorted(found)


def write(folder: Path, *parts: bytes) -> Path:
    path = folder / "rank-0001.rr"
    path.write_bytes(b"".join(parts))
    return path


def process(**changes: Any) -> bytes:
    return json_block(blocks.PROCESS, {**example().process(), **changes})


def test_reads_what_was_written(tmp_path: Path) -> None:
    written = example()
    found = read(written.write(tmp_path))
    assert (found.rank, found.size, found.host, found.pid, found.program) == (1, 2, "node0", 1001, "train.py")
    assert (found.dropped, found.has_ended, found.damage, found.unreadable) == (7, True, "", 0)
    assert [group.ranks for group in found.groups.values()] == [(0, 1)]
    assert {name: number for number, name in found.names.items()} == written.names
    assert found.records.tobytes() == written.array().tobytes()
    assert RECORD.itemsize == 64
    assert found.kinds[found.records["kind"][1]] == "barrier"


def test_records_of_many_blocks_follow_one_another(tmp_path: Path) -> None:
    file = example()
    first, *_ = parts = file.blocks()
    more = block(blocks.RECORDS, file.array()[:1].tobytes(), dropped=9)
    found = read(write(tmp_path, first, *parts[1:3], more, more))
    assert len(found.records) == 2
    assert (found.dropped, found.has_ended) == (9, False)


def test_what_was_lost_after_the_last_records_is_said_by_the_end(tmp_path: Path) -> None:
    body = b'{"reason": "stopped"}   '
    found = read(write(tmp_path, *example().blocks()[:-1], block(blocks.END, body, dropped=11)))
    assert (found.dropped, found.has_ended) == (11, True)


def test_a_file_cut_anywhere_keeps_its_whole_blocks(tmp_path: Path) -> None:
    parts = example().blocks()
    whole = b"".join(parts)
    ends = np.cumsum([len(part) for part in parts])
    for length in places(parts):
        path = write(tmp_path, whole[:length])
        if length < ends[0]:
            with pytest.raises(InvalidArgumentError, match="rank-0001"):
                read(path)
            continue
        found = read(path)
        assert len(found.groups) == (length >= ends[1])
        assert len(found.records) == (4 if length >= ends[3] else 0)
        assert not found.has_ended
        assert bool(found.damage) == (length not in ends), length


def test_one_wrong_bit_anywhere_is_found(tmp_path: Path) -> None:
    parts = example().blocks()
    whole = b"".join(parts)
    dropped = {  # not part of the sum; the four fields before it are checked
        at + byte for at in np.cumsum([0, *map(len, parts[:-1])]).tolist() for byte in range(24, 32)
    }
    for at in set(places(parts)) - dropped:
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path = write(tmp_path, bytes(changed))
        if at < len(parts[0]):
            with pytest.raises(InvalidArgumentError, match="not a timeline's record file"):
                read(path)
        else:
            assert read(path).damage.startswith("the block at byte "), at


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, "'other' version 1"),
        ({"version": 2}, "version 2"),
        ({"rank": 2}, "rank is 2"),
        ({"rank": True}, "rank is True"),
        ({"rank": "1"}, "rank is '1'"),
        ({"size": 2**70}, "size is"),
        ({"host": 5}, "host is 5"),
        ({"kinds": "allreduce"}, "kinds is"),
        ({"ops": [1]}, "ops is 1"),
        ({"monotonic_ns": -1}, "monotonic_ns is -1"),
        ({"realtime_ns": 1.5}, "realtime_ns is 1.5"),
    ],
)
def test_a_process_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read(write(tmp_path, process(**changes)))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (blocks.GROUP, {"index": 0, "id": 0, "context": "", "ranks": [1, 1]}),
        (blocks.GROUP, {"index": 0, "id": 0, "context": "", "ranks": [1, -1]}),
        (blocks.GROUP, {"index": 0, "id": 0, "context": "", "ranks": [1, "0"]}),
        (blocks.GROUP, {"index": 2**16, "id": 0, "context": "", "ranks": [0, 1]}),
        (blocks.GROUP, {"index": 0, "id": 0, "context": None, "ranks": [0, 1]}),
        (blocks.GROUP, {"index": 0, "id": 0, "context": ""}),
        (blocks.GROUP, [1]),
        (blocks.NAMES, {"-1": "loss"}),
        (blocks.NAMES, {"1": 2}),
        (blocks.PROCESS, {}),
        (9, {}),
    ],
)
def test_a_block_that_makes_no_sense_ends_the_reading(tmp_path: Path, kind: int, body: object) -> None:
    found = read(write(tmp_path, process(), json_block(kind, body), json_block(blocks.END, {"reason": "stopped"})))
    assert found.damage.startswith("the block at byte ")
    assert not found.has_ended


@pytest.mark.parametrize("ranks", [(0, 1, 2), (0,), (5, 1)])
def test_records_of_a_group_of_another_job_are_left_out_alone(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    file = example()
    other = file.group(ranks, context="init 2")
    file.operation(0, 8000, 8100, 8200, group=other)
    file.wait(0, 8000, 8200, group=other)
    file.operation(1, 9000, 9100, 9200)
    found = read(file.write(tmp_path))
    assert (found.damage, found.has_ended, found.unreadable, found.foreign) == ("", True, 0, 2)
    assert found.records.tobytes() == file.array()[[0, 1, 2, 3, 6]].tobytes()
    assert list(found.groups) == [0]


def test_a_text_has_a_bound(tmp_path: Path) -> None:
    found = read(
        write(tmp_path, process(host="h" * 10**6), json_block(blocks.NAMES, {"1": "n" * 10**6, "2": "n" * 244}))
    )
    assert found.names[1] == "n" * (TEXT_MOST - 3) + "..."
    assert found.names[2] == "n" * 244
    assert len(found.host) == TEXT_MOST


@pytest.mark.parametrize("body", [b"{" * 80, b"\xff" * 16, b"[" * 100_000, b"1" * 8000, b'{"1": 1e999999}  '])
def test_json_that_is_none_ends_the_reading(tmp_path: Path, body: bytes) -> None:
    padded = body + b" " * (-len(body) % 8)
    assert read(write(tmp_path, process(), block(blocks.NAMES, padded))).damage


def test_names_are_always_text_that_can_be_written(tmp_path: Path) -> None:
    names = {"1": "half \ud800 pair", "2": 'quote " and \\ and \u2028', "3": ""}
    found = read(write(tmp_path, process(), json_block(blocks.NAMES, names)))
    assert found.names[1].encode()
    assert found.names[2] == names["2"]


@pytest.mark.parametrize(
    "fields",
    [
        {"type": 4},
        {"group": 1},
        {"called_ns": -1},
        {"ended_ns": 0},
        {"ended_ns": 2**62},
        {"started_ns": 1},
        {"started_ns": 2**50},
        {"type": 3, "peer": 2, "started_ns": 0},
        {"type": 2, "peer": -1},
        {"type": 2, "peer": 2},
    ],
)
def test_records_that_make_no_sense_are_left_out(tmp_path: Path, fields: dict[str, int]) -> None:
    file = example()
    records = file.array()
    for name, value in fields.items():
        records[name][0] = value
    found = read(file.write(tmp_path, records))
    assert found.unreadable == 1
    assert found.records.tobytes() == records[1:].tobytes()
    assert not found.damage


def test_unknown_names_and_codes_stay(tmp_path: Path) -> None:
    file = example()
    records = file.array()
    records["name"], records["kind"], records["dtype"], records["op"], records["algorithm"] = 999, 250, 250, 250, 250
    assert len(read(file.write(tmp_path, records)).records) == 4


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0000.rr"
    os.mkfifo(path)
    with pytest.raises(InvalidArgumentError, match="no regular file"):
        read(path)
