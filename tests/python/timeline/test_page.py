"""The page of `ringreduce timeline report --html`: one file, whole without network or script, small, and harmless."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from timeline_files import KINDS, RankFile, steady_job, write_all

from ringreduce.errors import InvalidArgumentError
from ringreduce.timeline import page
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.found import Analysis, analyse
from ringreduce.timeline.drawing.picture import MOST_TITLES, picture, windows
from ringreduce.timeline.drawing.slices import MOVING, SLICE, WAITING, Window, lanes, merged
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import RECORD

US = 1000
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """What a browser would see; fails on elements that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]


def found_in(files: list[RankFile], folder: Path) -> Analysis:
    return analyse(Job.load(write_all(files, folder)))


def test_the_page_says_what_the_report_says(tmp_path: Path) -> None:
    job = Job.load(write_all(steady_job(4, 120, late_rank=2, late_ns=300 * US), tmp_path))
    page.write(analyse(job), tmp_path / "page.html")
    shown = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    items = shown.texts["li"]
    assert items == conclusions(analyse(job))
    assert items[0].startswith("Rank 2 makes the others wait")
    headings = [*shown.texts["h2"], *shown.texts["h3"]]
    for heading in ("Timeline", "Critical path", "119 steps", "Operations that were longest under way"):
        assert heading in headings
    assert any(heading.startswith("The slowest step: number ") for heading in headings)
    assert any(heading.startswith("A step of median length: number ") for heading in headings)
    assert "allreduce 'loss'" in shown.texts["td"]
    waits = [text for text in shown.texts["title"] if text.startswith("rank 0 waits ")]
    assert "rank 0 waits 300 us for rank 2 to call allreduce #0" in waits


def test_nothing_comes_from_elsewhere_and_only_our_script_runs(tmp_path: Path) -> None:
    """Names of operations, hosts and programs are a user's, or an attacker's."""
    evil = "</title><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&"
    files = steady_job(3, 20, names=(evil, "</style></script><svg onload=alert(3)>"), late_rank=1, late_ns=300 * US)
    for file in files:
        file.host = f"<b>{file.rank}"
    job = Job.load(write_all(files, tmp_path))
    job.warnings.append("<script>alert(4)</script>")
    page.write(analyse(job), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    shown = Page(text)
    tags = {tag for tag, _ in shown.elements}
    assert tags.isdisjoint({"img", "link", "iframe", "object", "b", "base", "form"})
    assert len(shown.texts["script"]) == len(shown.texts["style"]) == 1
    names = {name for _, attributes in shown.elements for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "href", "xlink:href", "action")}
    assert not re.search(r"https?:|//[a-z]|url\(|@import", text)
    policy = next(attributes["content"] or "" for tag, attributes in shown.elements if "http-equiv" in attributes)
    digest = b64encode(sha256(shown.texts["script"][0].encode()).digest()).decode()
    assert policy.split("; ") == ["default-src 'none'", "style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'"]
    assert any("<script>alert(1" in title for title in shown.texts["title"])  # told, as text


def test_the_page_suits_light_and_dark(tmp_path: Path) -> None:
    style = Page(page.html(found_in(steady_job(2, 3), tmp_path))).texts["style"][0]
    assert "prefers-color-scheme:dark" in style
    light, dark = style.split("prefers-color-scheme:dark")
    assert re.search(r"--paper:#fff;--ink:#1", light)
    assert re.search(r"--paper:#1\w+;--ink:#e", dark)
    used = set(re.findall(r"var\((--\w+)\)", style))
    assert used == set(re.findall(r"(--\w+):", light))


def test_a_short_timeline_is_shown_whole_and_a_long_one_in_its_middle(tmp_path: Path) -> None:
    short = found_in(steady_job(2, 3), tmp_path / "short")
    assert [(window.begin_ns, window.end_ns) for window in windows(short)] == [(0, short.job.span_ns)]
    files = [RankFile(rank, 2) for rank in range(2)]
    for file in files:
        for number in range(400):
            at = number * number * 10 * US  # no even steps
            file.operation(number, at, at + 10 * US, at + 100 * US, kind=KINDS[number % 5])
    long = found_in(files, tmp_path / "long")
    (window,) = windows(long)
    assert long.steps is None
    assert (window.begin_ns, window.end_ns) == (1 + 100 * 100 * 10 * US, 1 + (299 * 299 * 10 + 100) * US)


def test_the_last_caller_and_the_critical_path_are_drawn_in_its_row(tmp_path: Path) -> None:
    found = found_in(steady_job(3, 10, late_rank=1, late_ns=300 * US), tmp_path)
    (window,) = windows(found)
    drawn = Page(picture(found, window))
    rows = [float(str(rect["y"])) for rect in drawn.of_class("computing")]
    assert len(rows) == 3
    marks = [str(mark["d"]) for mark in drawn.of_class("last")]
    assert len(marks) == 20
    assert {float(mark.split()[1].split("v")[0]) for mark in marks} == {rows[1]}
    (path,) = drawn.of_class("path")
    heights = {float(corner.split()[1]) for corner in str(path["d"])[1:].split(" L")}
    assert {rows[1] < height < rows[2] for height in heights} == {True, False}
    waits = drawn.of_class(WAITING)
    assert {float(str(rect["y"])) for rect in waits} == {rows[0], rows[2]}
    width = 1000 * 300 * US / (window.end_ns - window.begin_ns)
    assert [float(str(rect["width"])) for rect in waits] == pytest.approx([width] * 40, abs=0.01)


def test_a_last_caller_that_is_not_sure_is_not_marked(tmp_path: Path) -> None:
    files = steady_job(2, 10, late_rank=1, late_ns=300 * US)
    files[1].host = "node1"  # whose clock was never compared
    found = found_in(files, tmp_path)
    drawn = Page(picture(found, windows(found)[0]))
    assert drawn.of_class(WAITING)
    assert not drawn.of_class("last")
    assert not drawn.of_class("path")


def test_short_slices_become_one_for_each_cell() -> None:
    generator = np.random.default_rng(1)
    slices = np.zeros(5000, SLICE)
    slices["begin_ns"] = np.arange(5000) * 20
    slices["end_ns"] = slices["begin_ns"] + generator.integers(1, 15, 5000)
    slices["end_ns"][7] = slices["begin_ns"][7] + 5000
    slices["count"] = 1
    found = merged(slices, Window("", 0, 100_000), 100)
    lengths = found["end_ns"] - found["begin_ns"]
    assert len(found) <= 101
    assert lengths.sum() == (slices["end_ns"] - slices["begin_ns"]).sum()
    assert found["count"].sum() == 5000
    assert (lengths >= 5000).sum() == 1
    assert (np.diff(found["begin_ns"]) >= 0).all()
    assert merged(slices, Window("", 0, 100_000), 1 << 20).tolist() == slices.tolist()
    assert not len(merged(slices[:0], Window("", 0, 100), 10))


def test_operations_of_a_bucket_are_one_slice(tmp_path: Path) -> None:
    files = [RankFile(rank, 2) for rank in range(2)]
    for file in files:
        for name in "abc":
            file.operation(0, 10 * US, 20 * US, 90 * US, name)
    found = found_in(files, tmp_path)
    (window,) = windows(found)
    moving = [lane for lane in lanes(found, window, 1000) if lane.sort == MOVING]
    assert [lane.slices["count"].tolist() for lane in moving] == [[3], [3]]
    assert any(title.endswith(", and 2 more") for title in Page(picture(found, window)).texts["title"])


def test_a_page_of_256_ranks_is_below_4_MB(tmp_path: Path) -> None:
    """With more to see in a step than a page can hold."""
    ranks, steps, names = 256, 6, 80
    at = 10**9 + np.arange(steps * names) * 10 * US
    for rank in range(ranks):
        file = RankFile(rank, ranks)
        numbers = [file._name(f"layer.{index}.with.a.rather.long.name.weight") for index in range(names)]
        records = np.zeros(2 * len(at), RECORD)
        calls, waits = records[: len(at)], records[len(at) :]
        records["name"] = np.tile(numbers, 2 * steps)
        records["number"] = np.tile(np.repeat(np.arange(steps), names), 2)
        records["peer"], waits["type"], calls["nbytes"] = -1, 1, 1 << 22
        calls["called_ns"] = waits["called_ns"] = at + (7 * rank) % 1009
        calls["started_ns"] = at + 2 * US
        calls["ended_ns"] = waits["ended_ns"] = at + 7 * US
        file.write(tmp_path, records)
    found = analyse(Job.load(tmp_path))
    text = page.html(found)
    assert len(text.encode()) < 4_000_000
    shown = Page(text)
    assert len(shown.of_class("computing")) >= 2 * ranks
    assert len(shown.of_class("line")) >= ranks  # for what is too short to say what it is
    named = [title for title in shown.texts["title"] if re.match(r"rank \d+( waits|: | stands)", title)]
    assert MOST_TITLES < len(named) <= 2 * MOST_TITLES


def test_a_page_without_operations_and_of_one_rank(tmp_path: Path) -> None:
    empty = Page(page.html(found_in([RankFile(0, 1)], tmp_path / "empty")))
    assert empty.texts["li"] == ["No operation was recorded."]
    alone = RankFile(0, 1)
    alone.operation(0, 5, 5, 5)
    shown = Page(page.html(found_in([alone], tmp_path / "alone")))
    assert "Timeline" in shown.texts["h2"]


def test_a_page_that_cannot_be_written_is_an_error_with_its_file(tmp_path: Path) -> None:
    job = Job.load(write_all(steady_job(2, 3), tmp_path))
    with pytest.raises(InvalidArgumentError, match=r"no/page\.html: cannot be written: there is no folder"):
        page.write(analyse(job), tmp_path / "no" / "page.html")
