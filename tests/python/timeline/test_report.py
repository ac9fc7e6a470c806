"""`ringreduce timeline report`: operations and their bandwidth, the text, the JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from timeline_files import KINDS, US, RankFile, call, found_in, pair, steady_job, stepping, write_all

from ringreduce.timeline import report, wording
from ringreduce.timeline.analysis.found import analyse
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import GPU_MEMORY, SHARED_BUCKET
from ringreduce.timeline.report_json import as_json


def test_operations_are_counted_timed_and_have_a_bandwidth(tmp_path: Path) -> None:
    files = [RankFile(rank, 4) for rank in range(4)]
    for file in files:
        for number in range(3):
            at = number * 10_000
            call(file, number, at, at + 10, at + 1010, name="sum", nbytes=8_000_000)
            call(file, number, at + 2000, at + 2010, at + 3010, name="all", kind="allgather", nbytes=1_000_000)
            call(file, number, at + 4000, at + 4010, at + 4110, name="small", nbytes=1000)
            call(file, number, at + 5000, at + 5010, at + 5510, name="gpu", nbytes=8_000_000, flags=GPU_MEMORY)
            call(file, number, at + 6000, at + 6010, at + 6510, name="root", kind="broadcast", nbytes=2_000_000)
            for kind in ("gather", "scatter"):
                call(file, number, at + 8000, at + 8010, at + 9010, name=kind, kind=kind, nbytes=1_000_000)
            for name in ("x", "y"):
                call(file, number, at + 7000, at + 7010, at + 7510, name=name, nbytes=1_000_000, flags=SHARED_BUCKET)
    found = found_in(files, tmp_path)
    rows = {found.job.names[row.name]: row for row in found.table}
    assert rows["sum"].operations == 3
    assert rows["sum"].nbytes == 24_000_000
    assert (rows["sum"].time_ns, rows["sum"].p50_ns, rows["sum"].max_ns) == (3000 * US, 1000 * US, 1000 * US)
    assert found.job.kinds[rows["all"].kind] == "allgather"
    busbw = {name: row.busbw_GBps for name, row in rows.items()}
    assert busbw.pop("small") is None
    assert busbw.pop("gpu") is None
    assert rows["gpu"].on_gpu
    # 2 (N-1)/N; (N-1)/N of all parts; as it is; two that share a bucket go as one of the bytes of both
    of_parts = {"all": 3.0, "gather": 3.0, "scatter": 3.0}
    assert busbw == pytest.approx({"sum": 12.0, "root": 4.0, "x": 6.0, "y": 6.0, **of_parts})
    assert [found.job.names[row.name] for row in found.table][:2] == ["sum", "all"]


def test_the_text_fits_a_terminal_whatever_the_names(tmp_path: Path) -> None:
    names = [f"\x1b[31mlayer.{index}.{'very.long.name' * 10}\n" for index in range(40)]
    files = steady_job(40, 6, names=names, late_rank=33, late_ns=500 * US)
    for file in files:
        file.host = "node-with-a-name-that-is-long"
        file.has_ended = file.rank % 2 == 0
        file.dropped = file.rank
    text = report.text(analyse(Job.load(write_all(files, tmp_path))))
    lines = text.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100
    assert all(line.isprintable() for line in lines)
    begin = [line.startswith(("warning: ", "  ")) for line in lines[1:]].index(False) + 1
    assert 2 < begin < 20  # warnings come first, and not all of 40,
    assert "more; --json has them all" in lines[begin - 1]
    assert lines[begin + 1].startswith("Rank 33 makes the others wait")  # then what matters
    assert re.search(r"^ +33 node-wi\.\.\.s-long ", text, re.MULTILINE)  # the late one is among the 16 that are shown
    assert "and 24 more" in text


def test_json_is_documented_key_by_key(tmp_path: Path) -> None:
    job = Job.load(write_all(stepping([1000] * 9 + [1500]), tmp_path))
    document = as_json(analyse(job))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    documented = set(re.findall(r"\w+", as_json.__doc__ or ""))
    rows: list[Any] = [document]
    while rows:
        row = rows.pop()
        assert set(row) - {"format", "version"} <= documented
        rows += [value for value in row.values() if isinstance(value, dict)]
        rows += [item for value in row.values() if isinstance(value, list) for item in value if isinstance(item, dict)]


def test_json_has_the_figures_with_their_units(tmp_path: Path) -> None:
    document: dict[str, Any] = as_json(
        analyse(Job.load(write_all(steady_job(4, 10, late_rank=2, late_ns=400 * US), tmp_path)))
    )
    assert (document["ranks"], document["size"], document["hosts"], document["operations"]) == (4, 4, 1, 20)
    assert document["nbytes"] == 20 * 4096
    assert document["late_ranks"] == [2]
    late = document["per_rank"][2]
    assert late["others_waited_s"] == pytest.approx(20 * 400e-6)
    assert (late["last_in"], late["judged_operations"], late["operations"]) == (20, 20, 20)
    parts = ("computing_s", "waiting_s", "exposed_s", "message_s")
    for row in document["per_rank"]:
        assert sum(row[part] for part in parts) == pytest.approx(row["span_s"])
    assert sum(document[part.replace("_s", "_share")] for part in parts) == pytest.approx(1)
    assert {(row["kind"], row["name"]) for row in document["by_name"]} == {("allreduce", "loss"), ("allreduce", "")}
    path = document["critical_path"]
    assert path["computing_s"] + path["communication_s"] + path["message_s"] == pytest.approx(path["span_s"])
    assert document["steps"]["count"] == 9
    assert document["clock_error_s"] == 0


def test_a_timeline_without_operations_is_reported_as_such(tmp_path: Path) -> None:
    files = pair()
    found = found_in(files, tmp_path)
    assert "No operation was recorded." in report.text(found)
    assert json.loads(json.dumps(as_json(found)))["steps"] is None


def test_kinds_of_the_report_are_those_of_the_files() -> None:
    """The bandwidth of allgather and allreduce goes by the kinds' names."""
    assert {"allreduce", "allgather", "reducescatter", "alltoall"} <= set(KINDS)


def test_names_that_differ_at_either_end_differ_in_the_rows(tmp_path: Path) -> None:
    long = "model.encoder.layers." + "attention." * 8
    names = ["a." + long + "bias", "a." + long + "weight", "b." + long + "bias"]
    text = report.text(analyse(Job.load(write_all(steady_job(2, 2, names=names), tmp_path))))
    of_path, of_operation = r"^ +\S+ % +\S+ us (allreduce .*)$", r"  (allreduce .*)$"
    for row in (of_path, of_operation):
        shown = set(re.findall(row, text, re.MULTILINE))
        assert len(shown) == 3
        assert all(re.fullmatch(r"allreduce '[ab]\.mod.*\.\.\..*on\.(bias|weight)'", one) for one in shown), shown


@pytest.mark.parametrize("most", [3, 4, 8, 9, 20, 21])
def test_a_text_that_is_too_long_loses_its_middle(most: int) -> None:
    whole = "abcdefghijklmnopqrst"
    shown = wording.printable(whole, most)
    assert len(shown) == min(most, len(whole))
    head, _, tail = shown.partition("...")
    assert shown == whole if most >= len(whole) else whole.startswith(head) and whole.endswith(tail)
    assert abs(len(head) - len(tail)) <= 1 or most >= len(whole)
    assert wording.printable("\x1b" + "x" * 100 + "\n", 7) == "?x...x?"
