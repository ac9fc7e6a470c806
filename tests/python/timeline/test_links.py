"""Links between hosts in a timeline: which one is slow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from timeline_files import US, RankFile, found_in, write_all

from ringreduce.timeline import page, report
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.found import analyse
from ringreduce.timeline.job import Job
from ringreduce.timeline.report_json import as_json

SECOND = 1_000_000_000


def ring_of_hosts(uses: Sequence[tuple[int, float]], seconds: int = 9) -> list[RankFile]:
    """Hosts that each send to the next one so many MB a second, busy so much of the time; one operation a second."""
    files = [RankFile(rank, len(uses), host=f"node{rank}") for rank in range(len(uses))]
    for second in range(seconds):
        begin = second * SECOND
        for file, (mbytes, share) in zip(files, uses, strict=True):
            file.operation(second, begin + US, begin + 2 * US, begin + 3 * US)
            peer = (file.rank + 1) % len(files)
            for quarter in range(4):
                at = begin + quarter * SECOND // 4
                file.link(at, at + SECOND // 4, peer, mbytes * 250_000, int(share * SECOND / 4))
    for file in files[1:]:
        for second in range(seconds):
            file.question(second * SECOND, second * SECOND + 5000, second * SECOND + 10_000, files[0])
    return files


def test_a_slow_link_is_named_with_what_it_carried(tmp_path: Path) -> None:
    found = found_in(ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)]), tmp_path)
    told = [sentence for sentence in conclusions(found) if "link" in sentence]
    (sentence,) = told
    assert sentence == (
        "The link from host node2 to host node3 is slow: it carried 31.1 MB/s while it was busy, 90 % of the time; "
        "the slowest other one 93.3 MB/s."
    )
    rows = as_json(found)["links"]
    assert isinstance(rows, list)
    assert [(row["from_rank"], row["to_rank"], row["is_slow"]) for row in rows] == [
        (2, 3, True),
        (1, 2, False),
        (0, 1, False),
        (3, 0, False),
    ]
    assert (rows[0]["from_host"], rows[0]["to_host"]) == ("node2", "node3")
    assert rows[0]["nbytes"] == 9 * 28_000_000
    assert rows[0]["busy_s"] == pytest.approx(8.1)
    assert rows[0]["busy_share"] == pytest.approx(0.9)
    assert rows[0]["busy_rate"] == pytest.approx(28e6 / 0.9)
    text = report.text(found)
    assert "252 MB   90 %    31.1 MB/s  node2 to node3, slow" in text
    page.write(found, tmp_path / "page.html")
    assert "<td>node2</td><td>node3</td><td>252 MB</td>" in (tmp_path / "page.html").read_text()


ALIKE = {
    "all are alike": [(28, 0.9)] * 4,
    "more than half are slow": [(28, 0.9), (28, 0.9), (28, 0.9), (28, 0.2)],
    "none is busy": [(28, 0.0)] * 4,
    "it is seldom busy": [(1, 0.09), (1, 0.01), (1, 0.01), (1, 0.01)],
    "it carries nothing to speak of": [(1, 0.9), (200, 0.3), (200, 0.3), (200, 0.3)],
    "it is not twice as slow": [(28, 0.5), (28, 0.3), (28, 0.3), (28, 0.3)],
    "two hosts": [(28, 0.9), (28, 0.8)],
}


@pytest.mark.parametrize("why", ALIKE)
def test_no_link_is_called_slow_where(why: str, tmp_path: Path) -> None:
    found = found_in(ring_of_hosts(ALIKE[why]), tmp_path)
    assert len(found.links) == len(ALIKE[why])
    assert not any(link.is_slow for link in found.links)
    assert not any("link" in sentence for sentence in conclusions(found))


def test_an_outage_makes_no_slow_link_and_neither_does_a_short_timeline(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25)] * 4)
    files[1].link(4 * SECOND, 6 * SECOND, 2, 1000, 2 * SECOND)
    assert not any(link.is_slow for link in found_in(files, tmp_path / "outage").links)
    short = ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)], seconds=2)
    assert not any(link.is_slow for link in found_in(short, tmp_path / "short").links)


def test_links_of_several_contexts_are_those_of_one_network(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)])
    other = files[2].group(range(4), 0, "another context")
    files[2].link(SECOND, 2 * SECOND, 3, 5_000_000, SECOND // 2, group=other)
    (link,) = [link for link in found_in(files, tmp_path).links if link.is_slow]
    assert link.nbytes == 9 * 28_000_000 + 5_000_000
    assert link.busy_s == pytest.approx(8.1)


def test_a_link_whose_other_host_left_no_file_is_named_by_its_rank(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)])
    found = found_in(files[:3], tmp_path)
    assert [link.to_host for link in found.links] == ["the host of rank 3", "node2", "node1"]


def test_contexts_whose_lowest_ranks_differ_share_a_link(tmp_path: Path) -> None:
    """A context of ranks 1 and 3, beside that of all: what both send from the first host to the second is one link."""
    files = [RankFile(rank, 4, host=f"node{rank // 2}") for rank in range(4)]
    few = {rank: files[rank].group([1, 3], 0, "another context") for rank in (1, 3)}
    for second in range(9):
        begin = second * SECOND
        for file in files:
            file.operation(second, begin + US, begin + 2 * US, begin + 3 * US)
        files[0].link(begin, begin + SECOND, 2, 125_000_000, SECOND)
        files[1].link(begin, begin + SECOND, 3, 12_500_000, SECOND, group=few[1])
        files[2].link(begin, begin + SECOND, 0, 100_000_000, SECOND // 4)
    found = found_in(files, tmp_path)
    assert [(link.from_rank, link.to_rank, link.nbytes) for link in found.links] == [
        (0, 2, 9 * 137_500_000),
        (2, 0, 9 * 100_000_000),
    ]
    assert found.links[0].busy_s == pytest.approx(9)


def test_hosts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)])
    for file in files:
        file.host = "localhost"
    written = write_all(files, tmp_path)
    for path in written.iterdir():  # as in containers: each has a clock of its own
        rank = int(path.stem[-4:])
        path.write_bytes(b"")
        one = files[rank]
        process = one.process
        one.process = lambda process=process, rank=rank: process() | {"boot": f"boot {rank}"}  # type: ignore[method-assign]
        one.write(written)
    (sentence,) = (text for text in conclusions(analyse(Job.load(written))) if "link" in text)
    assert "from host localhost (rank 2) to host localhost (rank 3) is slow" in sentence


def test_link_records_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25)] * 4)
    files[0].link(0, SECOND, 7, 5, 5)  # no such rank
    files[0].link(0, SECOND, 1, 5, 2**62)
    job = Job.load(write_all(files, tmp_path))
    files[0].link(0, SECOND, 1, 2**50, 5)
    files[0].link(0, SECOND, 1, 5, 3 * SECOND)  # busy longer than it was looked at
    job = Job.load(write_all(files, tmp_path))
    assert job.files[0].unreadable == 4
    assert analyse(job).links[0].nbytes == 9 * 28_000_000
