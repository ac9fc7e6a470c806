"""The views of `ringreduce top`: rates of made-up readings, the table, the terminal, the page, Prometheus' file."""

from __future__ import annotations

import fcntl
import http.client
import json
import math
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deadlines import HANG_S, SOON_S
from ranks import clean_environment, start_ranks
from watch_programs import waits_for_rank_1
from watch_readings import RANK, counted, figures, reading

from ringreduce.errors import InvalidArgumentError
from ringreduce.watch import prometheus, table, terminal
from ringreduce.watch.board import Board
from ringreduce.watch.figures import SILENT_S, WINDOW_S, JobFigures, LinkFigures
from ringreduce.watch.jobs import LinkReading, RankReading, Reading, Wait
from ringreduce.watch.processes import Process
from ringreduce.watch.web import MOST_CONNECTIONS, MOST_LINES, POINT_S, Recent


def test_rates_are_of_the_last_seconds() -> None:
    seen = figures(
        reading(10.0, counted(0, 0)),
        reading(11.0, counted(1000, 10**9, 0.9)),
        reading(11.0 + WINDOW_S, counted(1300, 10**9 + 600, 1.9, waited_s=0.5, late_s=3.0)),
    )
    (rank,) = seen.ranks
    assert rank.operations_per_s == 300 / WINDOW_S
    assert rank.bytes_per_s == 600 / WINDOW_S
    assert rank.bus_bytes_per_s == 900 / WINDOW_S
    assert rank.wire_bytes_per_s == 300 / WINDOW_S
    assert rank.cpu_share == pytest.approx(1.0 / WINDOW_S)
    assert rank.waited_share == 0.5 / WINDOW_S
    assert rank.late_share == 1.0  # never more, whatever two clocks say
    assert rank.counters["late_s"] == 3.0


def test_figures_of_a_rank_elsewhere_are_of_when_they_were_told() -> None:
    def told(at_s: float, age_s: float, operations: int) -> Reading:
        there = counted(operations, 0, rank=1, is_here=False, age_s=age_s, waited_s=operations / 1000)
        return reading(at_s, RANK, there)

    rank = figures(told(10.0, 0.5, 100), told(11.0, 0.5, 300), hosts=2).ranks[1]
    assert (rank.operations_per_s, rank.waited_share) == (200, pytest.approx(0.2))
    rank = figures(told(10.0, 0.5, 100), told(10.2, 0.7, 100), hosts=2).ranks[1]
    assert (rank.operations_per_s, rank.waited_share) == (None, None)  # no news
    rank = figures(told(10.0, 0.5, 100), told(10.2, 0.5, 140), hosts=2).ranks[1]
    assert rank.operations_per_s == pytest.approx(200)
    assert rank.waited_share is None  # too soon after the last news: perhaps nobody has looked between


def test_a_rank_elsewhere_is_late_for_its_own_host_or_for_this_one() -> None:
    """Neither counter has the other's waits in it, and each has a time of its own."""

    def late(at_s: float, age_s: float, told_s: float, seen_s: float, sampled_s: float) -> Reading:
        there = replace(RANK, rank=1, host=1, is_here=False, process=None, age_s=age_s, late_s=told_s)
        return reading(at_s, RANK, replace(there, seen_late_s=seen_s), sampled_s=sampled_s)

    # Its own host has waited for 10 s before: what this one waits now is not hidden behind that.
    seen = figures(late(10.0, 0.5, 10.0, 1.0, 8.0), late(12.0, 0.5, 10.0, 2.5, 10.0), hosts=2).ranks[1]
    assert seen.late_share == pytest.approx(0.75)
    assert (seen.counters["late_s"], seen.counters["seen_late_s"]) == (10.0, 2.5)
    seen = figures(late(10.0, 0.5, 10.0, 2.0, 8.0), late(12.0, 0.5, 11.0, 2.0, 10.0), hosts=2).ranks[1]
    assert seen.late_share == pytest.approx(0.5)
    # News are as old as ever, and this host has looked for 0.7 s more.
    seen = figures(late(10.0, 0.3, 0.0, 2.0, 8.0), late(10.7, 1.0, 0.0, 2.7, 8.7), hosts=2).ranks[1]
    assert seen.late_share == pytest.approx(1.0)


def test_links_are_of_hosts_the_busiest_first() -> None:
    def sends(rank: int, nbytes: int, busy_s: float, host: int = 0) -> RankReading:
        links = (LinkReading(1 - host, nbytes, busy_s),)
        return replace(RANK, rank=rank, host=host, hostname=f"n{host}", is_here=host == 0, links=links)

    seen = figures(
        reading(10.0, sends(0, 0, 0.0), sends(1, 50, 0.1), sends(2, 0, 0.0, host=1)),
        reading(12.0, sends(0, 200, 0.2), sends(1, 250, 1.1), sends(2, 10, 1.8, host=1)),
        hosts=2,
    )
    assert seen.links == (LinkFigures(1, 0, 5.0, 0.9), LinkFigures(0, 1, 200.0, 0.5))
    assert table.lines(seen)[-2:] == ["link n1 -> n0: busy 90 %, 5 B/s", "link n0 -> n1: busy 50 %, 200 B/s"]
    text = prometheus.text([seen])
    assert 'ringreduce_link_busy_share{pid="4711",from_host="0",to_host="1"} 0.5\n' in text


def test_of_one_reading_there_are_no_rates_nor_where_nothing_was_sampled() -> None:
    (rank,) = figures(reading(10.0, counted(5, 5))).ranks
    assert (rank.operations_per_s, rank.cpu_share, rank.waited_share) == (None, None, None)
    (rank,) = figures(reading(10.0, RANK), reading(11.0, RANK, sampled_s=10.0)).ranks
    assert (rank.operations_per_s, rank.waited_share, rank.late_share) == (0.0, None, None)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"attendance": "left"}, "left"),
        ({"attendance": "removed"}, "removed"),
        ({"is_here": False, "hostname": ""}, "elsewhere"),
        ({"is_here": False, "process": None, "age_s": 0.9}, "computing"),
        ({"is_here": False, "process": None, "age_s": SILENT_S}, "elsewhere"),
        ({"is_here": False, "process": None, "age_s": 0.9, "wait": Wait("barrier", "", ())}, "waiting"),
        ({"attendance": "absent"}, "starting"),
        ({"process": None}, "dead"),
        ({"process": None, "pid": 0}, "unseen"),
        ({"process": None, "attendance": "left"}, "left"),
        ({"process": Process("T", 0.0, 0.0), "wait": Wait("allreduce", "", ())}, "stopped"),
        ({"has_joined": True, "wait": Wait("", "", ())}, "joined"),
        ({"wait": Wait("allreduce", "", ())}, "waiting"),
        ({"process": Process("R", 0.0, 0.0)}, "computing"),
        ({"process": Process("S", 0.6, 0.0)}, "computing"),
        ({"process": Process("S", 0.4, 0.0)}, "idle"),
    ],
)
def test_states(change: dict[str, Any], state: str) -> None:
    (rank,) = figures(reading(10.0, RANK), reading(11.0, replace(RANK, **change))).ranks
    assert rank.state == state


def test_the_table() -> None:
    ranks = (
        replace(RANK, wait=Wait("allreduce", "allreduce 'loss\x1b[2J' #12", tuple(range(1, 12)))),
        replace(RANK, rank=1, attendance="left", cause="the disk is full"),
        replace(RANK, rank=2, host=1, hostname="n\x1b2", is_here=False, process=None, age_s=0.5),
        replace(RANK, rank=3, host=2, hostname="", is_here=False, process=None, pid=0),
    )
    lines = table.lines(figures(reading(10.0, *ranks, late="rank 5 is late: ...", failure="lost rank 7"), hosts=2))
    waits = "waiting in allreduce 'loss?[2J' #12 for ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 others"
    unknown = "on another host, and nothing is heard of it here"
    assert lines == [
        "job 4711  python train.py  4 ranks  2 hosts  for 2:13:05",
        "RANK  HOST   PID  CPU  OPS/S  BUSBW  WAITS  LATE  STATE",
        f"   0    n1  4711    -      -      -      -     -  {waits}",
        "   1    n1  4711    -      -      -      -     -  left: the disk is full",
        "   2   n?2  4711    -      -      -      -     -  computing",
        f"   3     2     -    -      -      -      -     -  {unknown}",
        "rank 5 is late: ...",
        "failed: lost rank 7",
    ]
    ended = figures(reading(10.0, replace(RANK, process=None)))
    assert table.lines(ended)[-1] == "the job has ended"


def test_prometheus_text_is_whole_and_exact() -> None:
    text = prometheus.text([figures(reading(10.0, RANK), reading(11.0, counted(3, 2**53 + 1), failure="lost rank 1"))])
    samples: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = re.fullmatch(r'([a-z_]+)\{pid="4711"(,rank="0")?\} (\S+)', line)
            assert found, line
            assert math.isfinite(float(found[3]))
            samples[found[1]] = float(found[3])
    of_several_hosts = {"ringreduce_link_busy_share", "ringreduce_host_late_seconds_total"}
    assert samples.keys() == kinds.keys() - of_several_hosts
    assert 'ringreduce_moved_bytes_total{pid="4711",rank="0"} 9007199254740993\n' in text
    assert samples["ringreduce_operations_total"] == 3
    assert samples["ringreduce_up"] == 1
    elsewhere = replace(RANK, is_here=False, process=None, hostname="")
    assert "ringreduce_up{" not in prometheus.text([figures(reading(10.0, elsewhere))])  # nothing is known of it
    assert samples["ringreduce_failed"] == 1
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())


def test_prometheus_has_the_ranks_of_this_host_alone_and_which_hosts_are_late() -> None:
    """Of rank 0's host: the exporter of each other host has the figures of the ranks there."""
    there = [replace(RANK, rank=rank, host=1, is_here=False, process=None, age_s=0.5) for rank in (1, 2)]
    silent = replace(RANK, rank=3, host=2, is_here=False, process=None, hostname="", seen_late_s=0.25)
    lowest = replace(there[0], late_s=4.0, seen_late_s=1.5)
    ranks = (replace(RANK, late_s=0.5), lowest, replace(there[1], late_s=0.75), silent)
    lines = prometheus.text([figures(reading(10.0, *ranks), hosts=3)]).splitlines()
    assert {found[1] for line in lines if (found := re.search(r'rank="(\d+)"', line))} == {"0"}
    assert 'ringreduce_late_seconds_total{pid="4711",rank="0"} 0.5' in lines
    assert [line for line in lines if line.startswith("ringreduce_host_late_seconds_total{")] == [
        'ringreduce_host_late_seconds_total{pid="4711",host="1"} 1.5'
    ]


@contextmanager
def job() -> Iterator[tuple[int, Callable[[], None]]]:
    """A job in which rank 0 waits for rank 1: a rank's process, and a function that lets it end."""
    with start_ranks(waits_for_rank_1, 2, args=("allreduce",)) as ranks:
        for rank in range(2):
            assert ranks.receive(rank) == "met"

        def end() -> None:
            ranks.send(1)
            ranks.wait()

        process = ranks.procs[0].pid
        assert process is not None
        yield process, end


def top(*options: str) -> list[str]:
    return [sys.executable, "-m", "ringreduce", "top", *options]


@contextmanager
def on_terminal(process: int) -> Iterator[tuple[subprocess.Popen[bytes], int, Callable[[], bool]]]:
    """The command on a terminal of 120 columns: its process, the terminal's other end, whether its settings are as
    before."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    before = termios.tcgetattr(theirs)
    running = subprocess.Popen(top(str(process)), stdin=theirs, stdout=theirs, stderr=theirs, env=clean_environment())
    try:
        yield running, ours, lambda: termios.tcgetattr(theirs) == before
    finally:
        running.kill()
        running.wait()
        os.close(ours)
        os.close(theirs)


def test_on_a_terminal_until_q_is_pressed() -> None:
    with job() as (process, _), on_terminal(process) as (running, ours, is_as_before):
        text = read_until(ours, "waiting in allreduce 'loss' #1 for rank 1")
        assert text.count("\x1b[?1049h") == 1
        os.write(ours, b"\x1b[A")  # an arrow is not escape
        assert read_until(ours, "\x1b[J")
        assert running.poll() is None
        assert "\x1b[H" in text
        assert not is_as_before()
        os.write(ours, b"q")
        assert read_until(ours, "\x1b[?1049l")
        assert running.wait(SOON_S) == 0
        assert is_as_before()


@pytest.mark.parametrize("keys", ["\x1b", "qq", "\x03\x03", "\x1b[Aq"])
def test_keys_that_end_it_also_where_several_are_read_at_once(keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Board] = []
    pressed = iter(["", "x", "\x1b[A\x1bOQ\x1b[[B\x1bx", keys])  # F2 has a Q
    monkeypatch.setattr(terminal, "_draw", drawn.append)
    monkeypatch.setattr(terminal, "_keys", lambda: nullcontext(lambda _: next(pressed)))
    board = cast(Board, SimpleNamespace())
    assert terminal.show(board, 0.05) == 0
    assert drawn == [board] * 4


def test_a_small_terminal_has_the_sentences_and_the_latest_ranks() -> None:
    wait = Wait("allreduce", "allreduce 'gradients.bucket.0' #12", (30,))
    late = "rank 30 is late: " + "the others waited for it, " * 5 + "it was on CPU"

    def seen(size: int) -> JobFigures:
        ranks = [replace(RANK, rank=rank, wait=None if rank == 30 else wait) for rank in range(size)]
        after = [replace(rank, late_s=2.0) if rank.rank == 30 else rank for rank in ranks]
        return figures(reading(10.0, *ranks), reading(12.0, *after, late=late))

    one = terminal.screen([seen(2)], [], 24, 80)
    assert max(map(len, one)) <= 80
    assert " ".join(" ".join(one).split()).count("waiting in allreduce 'gradients.bucket.0' #12 for rank 30") == 2
    assert late in " ".join(" ".join(one).split())
    many = terminal.screen([seen(64)], [], 24, 80)
    assert len(many) == 24
    assert any(line.startswith("  30  4711 ") for line in many)
    left = re.search(r"and (\d+) more ranks, for which the others waited less", "\n".join(many))
    assert left
    assert int(left[1]) + sum("4711 " in line for line in many[4:]) == 64
    assert late in " ".join(" ".join(many).split())
    two = terminal.screen([seen(64), seen(2)], ["process 1: another version"], 24, 80)
    assert 22 <= len(two) <= 24
    assert " ".join(" ".join(two).split()).count(late) == 2
    assert two[-1] == "process 1: another version"
    for lines in range(1, 80):
        for columns in (1, 40, 200):
            text = terminal.screen([seen(64)], [], lines, columns)
            assert len(text) <= lines
            assert "PID of one job" not in "".join(text)  # there is but one
    assert terminal.screen([seen(64), seen(2)], [], 6, 80)[-1].endswith(" more lines: give the PID of one job")
    assert terminal.screen([], ["process 1: another version"], 24, 80)[2:] == ["process 1: another version"]
    assert terminal.screen([], [], 24, 80)[2:] == ["no job of yours runs on this host"]


def test_a_terminal_is_put_back_when_the_process_is_told_to_end() -> None:
    with job() as (process, _), on_terminal(process) as (running, ours, is_as_before):
        read_until(ours, "waiting in")
        running.terminate()
        read_until(ours, "\x1b[?1049l")
        assert running.wait(SOON_S) == 128 + signal.SIGTERM
        assert is_as_before()


def read_until(terminal: int, part: str) -> str:
    deadline = time.monotonic() + SOON_S
    text = ""
    while part not in text:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, text
        text += os.read(terminal, 65536).decode(errors="replace")
    return text


def test_prometheus_file_is_written_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "ringreduce.prom"
    with job() as (process, _):
        running = subprocess.Popen(
            top("--prometheus", str(path), "--interval", "0.05", str(process)), env=clean_environment()
        )
        try:
            seen: set[int] = set()
            deadline = time.monotonic() + SOON_S
            while len(seen) < 3:
                assert time.monotonic() < deadline
                if path.exists():
                    seen.add(path.stat().st_ino)
                    assert 'ringreduce_up{pid="' in path.read_text()
        finally:
            running.terminate()
            running.wait()
        assert list(tmp_path.iterdir()) == []  # old figures would be read for new ones


def test_nohup_keeps_it_running(tmp_path: Path) -> None:
    path = tmp_path / "ringreduce.prom"
    command = top("--prometheus", str(path), "--interval", "0.05")
    silent = subprocess.DEVNULL
    running = subprocess.Popen(["nohup", *command], env=clean_environment(), stdin=silent, stdout=silent)
    try:
        deadline = time.monotonic() + SOON_S
        while not path.exists():
            assert time.monotonic() < deadline
        running.send_signal(signal.SIGHUP)
        seen = {path.stat().st_mtime_ns}
        while len(seen) < 4:
            assert running.poll() is None
            assert time.monotonic() < deadline
            with suppress(FileNotFoundError):
                seen.add(path.stat().st_mtime_ns)
    finally:
        running.terminate()
    assert running.wait(SOON_S) == 128 + signal.SIGTERM


def test_prometheus_removes_nothing_but_the_regular_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    board = cast(Board, SimpleNamespace(look=list))
    pipe, file, link = (tmp_path / name for name in ("pipe", "file", "link"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, link):
            with pytest.raises(KeyboardInterrupt):
                prometheus.write_again_and_again(board, path, 1.0)
        assert os.read(reader, 1 << 16).decode() == prometheus.text([])
    finally:
        os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
    with pytest.raises(InvalidArgumentError, match="cannot be written"):  # not that a folder cannot be removed
        prometheus.write_again_and_again(board, tmp_path, 1.0)


@contextmanager
def web(process: int, *options: str) -> Iterator[tuple[str, int, str]]:
    """The page: its address, port and secret."""
    running = subprocess.Popen(
        top("--web", *options, "--", str(process)), stdout=subprocess.PIPE, text=True, env=clean_environment()
    )
    try:
        assert running.stdout is not None
        address = running.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{20,})/", address)
        assert found
        yield address, int(found[1]), found[2]
    finally:
        running.terminate()
        running.wait()


def get(port: int, path: str, host: str = "", method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON_S)
    try:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def test_the_page_is_served_to_who_has_its_address() -> None:
    with job() as (process, _), web(process) as (_, port, secret):
        status, body, headers = get(port, f"/{secret}/")
        assert status == 200
        assert b"<title>ringreduce top</title>" in body
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
        assert get(port, f"/{secret}/", f"localhost:{port}")[0] == 200
        status, body, _ = get(port, f"/{secret}/figures?since=0")
        shown = json.loads(body)
        assert shown["jobs"][0]["ranks"][0]["state"] == "waiting"
        point = shown["points"][-1]["jobs"][str(shown["jobs"][0]["pid"])]
        assert sorted(point["ranks"]) == [0, 1]
        assert len(point["waited_share"]) == 2
        last = shown["points"][-1]["at_s"]
        later = json.loads(get(port, f"/{secret}/figures?since={last!r}")[1])["points"]
        assert all(point["at_s"] > last for point in later)
        for path in ("/", "/figures", f"/{secret}", f"/{secret}/../page", "/" + "x" * len(secret) + "/"):
            assert get(port, path)[0] == 404, path
        assert get(port, f"/{secret}/figures?since=x")[0] == 200
        for host in (f"example.org:{port}", "example.org", f"127.0.0.1.example.org:{port}"):
            assert get(port, f"/{secret}/", host)[0] == 403
        for host in ("localhost:9000", "127.0.0.1"):  # at the other end of a tunnel; port 80
            assert get(port, f"/{secret}/", host)[0] == 200
        assert get(port, f"/{secret}/", method="POST")[0] == 501
        listening = Path("/proc/net/tcp").read_text(encoding="ascii")
        assert f" 0100007F:{port:04X} " in listening
        assert f" 00000000:{port:04X} " not in listening


def test_connections_of_others_neither_end_the_server_nor_its_words() -> None:
    with job() as (process, _), web(process) as (_, port, secret):
        strangers = [socket.create_connection(("127.0.0.1", port), SOON_S) for _ in range(MOST_CONNECTIONS)]
        try:
            assert get(port, f"/{secret}/")[0] == 200  # in the place of the first of them
            assert strangers[0].recv(1) == b""
        finally:
            for stranger in strangers:
                stranger.close()
        assert get(port, f"/{secret}/")[0] == 200


def test_a_chart_has_a_bound() -> None:
    recent = Recent()
    seen = figures(*[reading(10.0, *(replace(RANK, rank=rank) for rank in range(256)))])
    begin_s = time.time()
    for _ in range(50):
        recent.add([seen], [])
    points = recent.since(0.0)["points"]
    assert 1 <= len(points) <= (time.time() - begin_s) / POINT_S + 1
    assert all(len(point["jobs"]["4711"]["ranks"]) == MOST_LINES for point in points)


def test_a_chart_goes_on_when_the_wall_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    recent, seen = Recent(), figures(reading(10.0, RANK))
    moments = iter((100.0, 100.0 + POINT_S, 100.0 + 2 * POINT_S))
    wall = iter((5000.0, 1000.0, 9000.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(time, "time", lambda: next(wall))
    for _ in range(3):
        recent.add([seen], [])
    assert [point["at_s"] for point in recent.since(100.0)["points"]] == [100.0 + POINT_S, 100.0 + 2 * POINT_S]


def test_a_port_that_is_taken_is_an_error() -> None:
    with job() as (process, _), socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            top("--web", port, "--", str(process)),
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=SOON_S,
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def test_the_page_in_a_real_browser(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no chromium: `make optional` installs it")
    with job() as (process, _), web(process, "--interval", "0.1") as (address, port, secret):
        deadline = time.monotonic() + SOON_S
        while len(json.loads(get(port, f"/{secret}/figures?since=0")[1])["points"]) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
             "--virtual-time-budget=3000", "--dump-dom", address],
            env=clean_environment(), capture_output=True, text=True, timeout=HANG_S,
        )  # fmt: skip
    page = done.stdout
    assert f"job {process}" in page, done.stderr
    assert re.search(r"waiting in allreduce 'loss' #1 for rank 1", page)
    lines = re.findall(r'<polyline stroke="(#\w{6})" points="([^"]*)"', page)
    assert len({colour for colour, _ in lines}) == 2
    assert all(len(points.split()) >= 3 for _, points in lines)  # the first look has no rates
