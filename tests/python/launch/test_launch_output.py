"""What the ranks write comes out whole, tagged or not, whoever reads it; rank 0 alone reads standard input."""

from __future__ import annotations

import fcntl
import math
import os
import pty
import re
import select
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from deadlines import HANG_S, SOON_S
from fake_agent import path_with_ssh
from processes import completed, ends
from ranks import clean_environment
from test_launch import RINGRUN, python, ringrun, running

from ringreduce.launch import output, supervise
from ringreduce.launch import ringrun as ringrun_module
from ringreduce.launch.events import handle
from ringreduce.launch.output import Sink, rank_lines
from ringreduce.launch.terminal import Keyboard


def beginning_with(code: str, folder: Path) -> dict[str, str]:
    """The environment of a ringrun, and of its agents, that run this first."""
    (folder / "sitecustomize.py").write_text(code)
    environ = clean_environment()
    return environ | {"PYTHONPATH": f"{folder}:{environ['PYTHONPATH']}"}


def listening_for_long(folder: Path) -> dict[str, str]:
    """The environment of a ringrun that listens without end, and its agents too, to what ended ranks have started."""
    code = "from ringreduce.launch import output\noutput.SILENCE_S = output.LAST_WORDS_S = 1000.0\n"
    return beginning_with(code, folder)


WRITE_IN_PIECES = """
    import os
    rank = os.environ["RINGREDUCE_RANK"].encode()
    for line in range(500):
        for piece in (rank * 3, b" says ", b"%d " % line, b"x" * (line % 50), b"\\n"):
            os.write(1, piece)
"""


@pytest.mark.parametrize("tag", ["--tag-output", "--no-tag-output"])
def test_lines_stay_whole_and_in_order(tag: str) -> None:
    done = ringrun("-np", "4", tag, *python(WRITE_IN_PIECES))
    assert done.returncode == 0
    heard: dict[str, list[int]] = {}
    for line in done.stdout.splitlines():
        prefix = r"\[(\d)\]<stdout>: " if tag == "--tag-output" else "()"
        match = re.fullmatch(prefix + r"(\d)\2\2 says (\d+) (x*)", line)
        assert match is not None, line
        assert match[1] in ("", match[2])
        assert len(match[4]) == int(match[3]) % 50
        heard.setdefault(match[2], []).append(int(match[3]))
    assert heard == {str(rank): list(range(500)) for rank in range(4)}


def test_two_streams_have_two_tags() -> None:
    done = ringrun("-np", "2", "--tag-output", "sh", "-c", "echo out; echo err >&2; printf unfinished")
    assert sorted(done.stdout.splitlines()) == sorted(
        f"[{r}]<stdout>: {w}" for r in (0, 1) for w in ("out", "unfinished")
    )
    assert sorted(done.stderr.splitlines()) == ["[0]<stderr>: err", "[1]<stderr>: err"]


def test_a_pipe_gets_the_bytes_as_they_are() -> None:
    code = "import os, sys; sys.stdout.buffer.write(bytes(range(256)) * 40000 + b'\\n')"
    command = [*RINGRUN, "-np", "1", *python(code)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, timeout=HANG_S, check=True)
    assert done.stdout == bytes(range(256)) * 40000 + b"\n"


def test_the_streams_keep_their_order_in_one_file() -> None:
    code = "import os\nfor i in range(200): os.write(1 + i % 2, b'%d\\n' % i)"
    command = [*RINGRUN, "-np", "1", *python(code)]
    done = subprocess.run(
        command, env=clean_environment(), stdout=-1, stderr=subprocess.STDOUT, timeout=HANG_S, check=True
    )
    evens = [int(line) for line in done.stdout.split() if int(line) % 2 == 0]
    assert evens == list(range(0, 200, 2))
    assert len(done.stdout.split()) == 200


def test_python_output_is_not_held_back() -> None:
    with running("-np", "1", sys.executable, "-c", "print('now'); input()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"


def test_output_goes_to_a_file_for_each_stream_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "output"
    script = "echo out $RINGREDUCE_RANK; echo err $RINGREDUCE_RANK >&2; printf unfinished"
    done = ringrun("-np", "11", "--tag-output", "--output-filename", str(folder), "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == [f"rank.{rank:02}" for rank in range(11)]
    for rank in range(11):
        assert (folder / f"rank.{rank:02}" / "stdout").read_text() == f"out {rank}\nunfinished"
        assert (folder / f"rank.{rank:02}" / "stderr").read_text() == f"err {rank}\n"
        assert f"[{rank}]<stdout>: out {rank}\n" in done.stdout
        assert f"[{rank}]<stderr>: err {rank}\n" in done.stderr


def test_a_folder_that_cannot_be_made_is_a_wrong_command_line() -> None:
    done = ringrun("-np", "2", "--output-filename", "/proc/none", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ringrun: --output-filename /proc/none: " in done.stderr


def test_a_file_that_cannot_be_written_on_is_told_once_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    script = "echo one; read line; echo $line"
    command = [*RINGRUN, "-np", "1", "--output-filename", str(tmp_path), "sh", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=clean_environment(), text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        out, err = process.communicate("two\n", timeout=HANG_S)
    assert (process.returncode, out) == (1, "two\n")
    assert err == f"ringrun: {tmp_path}/rank.0/stdout: No space left on device; the file ends here, the rank goes on\n"


def test_a_traceback_comes_before_the_word_about_its_rank() -> None:
    done = ringrun("-np", "2", "sh", "-c", "echo why >&2; exit 1")
    first = done.stderr.splitlines()
    assert first.index("why") < next(i for i, line in enumerate(first) if line.startswith("ringrun: rank"))


ONCE_THE_RANK_HAS_ENDED = "until ! [ -e /proc/$$ ] || grep -q zombie /proc/$$/status; do sleep 0.01; done"


def test_what_a_rank_has_started_may_finish_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of `exec > >(tee log)`."""
    monkeypatch.setattr(output, "SILENCE_S", HANG_S)
    monkeypatch.setattr(output, "LAST_WORDS_S", HANG_S)
    script = f"{{ {ONCE_THE_RANK_HAS_ENDED}; echo a; sleep 0.1; echo b; echo c >&2; }} &"
    assert ringrun_module.main(["-np", "2", "--no-tag-output", "sh", "-c", script]) == 0
    out, err = capfd.readouterr()
    assert sorted(out.split()) == ["a", "a", "b", "b"]
    assert err.split() == ["c", "c"]


def test_a_program_that_holds_an_ended_ranks_output_is_not_waited_for_long() -> None:
    for program in ("sleep 1000", "setsid yes"):
        with running("-np", "1", "sh", "-c", f"{program} & echo $! >&2; exit 0") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            pid = int(process.stderr.readline())
            while process.stdout.read(1 << 16):
                pass
            assert process.wait(SOON_S) == 0
        if program == "sleep 1000":
            os.kill(pid, signal.SIGKILL)
        assert ends(pid)


def test_after_a_failure_nobody_is_listened_to(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "SILENCE_S", 2 * HANG_S)
    monkeypatch.setattr(output, "LAST_WORDS_S", 2 * HANG_S)
    assert ringrun_module.main(["-np", "2", "sh", "-c", "sleep 1000 & [ $RINGREDUCE_RANK = 0 ]"]) == 1


def test_a_signal_ends_the_wait_for_last_words(tmp_path: Path) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*RINGRUN, "-v", "-np", "1", "sh", "-c", "sleep 1000 & echo $!; exit 0"]
    with subprocess.Popen(command, env=listening_for_long(tmp_path), text=True, **pipes) as process:
        try:
            assert process.stderr is not None
            while "exited with status 0" not in (line := process.stderr.readline()):
                assert line
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON_S) == 0
        finally:
            process.kill()
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGKILL)


def test_how_long_last_words_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    sources = [SimpleNamespace(fd=3, nbytes=0, is_paused=False), SimpleNamespace(fd=-1, nbytes=7, is_paused=True)]
    last_words = output.LastWords(sources)
    waited = []
    for clock[0], sources[0].nbytes in ((100.0, 0), (100.25, 0), (100.375, 5), (100.75, 6), (101.75, 7), (102.0, 8)):
        waited.append(last_words.wait_s())
    assert waited == [0.5, 0.25, 0.5, 0.5, 0.25, 0.0]
    sources[0].fd = -1
    clock[0] = 100.0
    assert last_words.wait_s() == 0.0


def test_words_that_a_slow_reader_keeps_waiting_are_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LAST_WORDS_NBYTES", 100, raising=False)
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    source = SimpleNamespace(fd=3, nbytes=50, is_paused=False)
    last_words = output.LastWords([source])
    waited = []
    for clock[0], source.is_paused, source.nbytes in (
        (100.25, True, 60),
        (200.25, True, 60),
        (300.25, False, 60),  # 0.25 s have passed, of 2 s
        (300.5, False, 60),
        (300.5, True, 149),
        (400.5, False, 149),
        (400.75, True, 150),  # which talks without end
        (401.0, True, 150),
        (402.0, True, 170),
    ):
        waited.append(last_words.wait_s())
    assert waited == [math.inf, math.inf, 0.5, 0.25, math.inf, 0.5, 0.5, 0.25, 0.0]


def test_a_source_says_whether_it_is_paused(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with selectors.PollSelector() as selector, ExitStack() as theirs:
        sink = Sink(writer, selector)
        copy = output.Copy(tmp_path / "stdout", print)
        source, _ = output.output_pipe(sink, output.Lines(sink, "", copy), theirs)
        seen = [source.is_paused]
        sink.put(b"x" * (output.QUEUE_NBYTES + 1))
        seen.append(source.is_paused)
        sink.flush()
        seen.append(source.is_paused)
        sink.put(b"x" * output.QUEUE_NBYTES)
        seen.append(source.is_paused)
        os.close(reader)
        sink.flush()
        seen.append(source.is_paused)  # it is read on, for the copy
        assert source.fd in selector.get_map()
        source.close()
        copy.close()
    os.close(writer)
    assert seen == [False, True, False, True, False]


UNREAD = f"yes | head -c {(1 << 16) + 2}"
"""Says more than a pipe holds."""


def holding_little(folder: Path) -> dict[str, str]:
    """The environment of a ringrun that does not listen to what ended ranks have started, unless its reader is slow.

    It reads no rank, and its agents read none, while it has something to write. So where nobody reads, it waits for the
    reader by the end of a rank that has said UNREAD.
    """
    code = """
from ringreduce.launch import output
from ringreduce.launch.remote import agent

output.SILENCE_S = 0.0
output.QUEUE_NBYTES = 0
agent.OUTPUT_NBYTES = 1
"""
    return beginning_with(code, folder)


def check_last_words(process: subprocess.Popen[str]) -> None:
    """Nothing was read until the program that says them, whose id is on stderr, has ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    assert ends(int(process.stderr.readline()))
    assert process.stdout.read().endswith("y\nlast\n")
    assert process.wait(SOON_S) == 0
    assert process.stderr.read() == ""


def test_last_words_are_not_lost_where_the_reader_is_slow(tmp_path: Path) -> None:
    script = f"{UNREAD}; {{ {ONCE_THE_RANK_HAS_ENDED}; sleep 0.5; echo last; }} & echo $! >&2"
    with running("-np", "1", "sh", "-c", script, env=holding_little(tmp_path)) as process:
        check_last_words(process)


def test_a_reader_that_goes_away_ends_the_ranks() -> None:
    with running("-np", "2", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "y\n"
        process.stdout.close()
        assert process.wait(SOON_S) == 128 + signal.SIGPIPE


def test_a_reader_that_goes_away_does_not_end_ranks_whose_output_goes_to_files(tmp_path: Path) -> None:
    script = "yes | head -c 3000000; read line; echo $line"
    command = [*RINGRUN, "-np", "1", "--output-filename", str(tmp_path), "sh", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=clean_environment(), text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "y\n"
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.write("end\n")
        process.stdin.close()
        assert process.wait(SOON_S) == 0
    assert (tmp_path / "rank.0" / "stdout").read_text() == "y\n" * 1500000 + "end\n"


def test_output_that_cannot_be_written() -> None:
    script = "trap '' PIPE; { echo said; } 2>/dev/null; echo $RINGREDUCE_RANK >&2; exit 0"
    command = shlex.join([*RINGRUN, "-np", "2", "sh", "-c", script])
    done = completed(["sh", "-c", f"exec {command} >/dev/full"])
    *others, last = sorted(done.stderr.splitlines())
    assert others == ["0", "1"]
    assert last == (
        "ringrun: cannot write to stdout: No space left on device; the rest of the ranks' output there is lost"
    )
    assert done.returncode == 1
    assert completed(["sh", "-c", f"exec {command} 2>/dev/full"]).returncode == 1
    assert completed(["sh", "-c", f"exec {command} | true"]).returncode == 0


def test_a_reader_that_does_not_read_holds_up_no_killing() -> None:
    script = "[ $RINGREDUCE_RANK = 0 ] && exec yes; read line; exit 9"
    with running("-np", "2", "--grace", "0.2", "sh", "-c", script) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert "rank 1" in process.stderr.readline()
        assert "sending SIGTERM" in process.stderr.readline()
        while process.stdout.read(1 << 16):
            pass
        assert process.wait(SOON_S) == 9


NBYTES_HELD = 500_000
"""Less than ringrun holds, and more than a pipe does."""


def read_but_for_what_is_held(process: subprocess.Popen[str], status: int) -> None:
    """Reads what a rank writes that ends with this status, until ringrun and the pipe hold the rest."""
    assert process.stdout is not None
    assert process.stderr is not None
    nbytes = 3_000_000 - NBYTES_HELD
    assert len(process.stdout.read(nbytes)) == nbytes
    while f"exited with status {status}" not in (line := process.stderr.readline()):
        assert line


def writing(status: int) -> list[str]:
    """What is read by read_but_for_what_is_held()."""
    return ["-v", "-np", "1", "sh", "-c", f"yes | head -c 3000000; exit {status}"]


IS_LOST = r"ringrun: stdout: the last (\d+) bytes of output are lost: they were not read in time\n"


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("word", ["INT", "TERM", "HUP"])
def test_a_signal_ends_a_ringrun_whose_ranks_have_ended_and_whose_output_nobody_reads(word: str, status: int) -> None:
    signum = signal.Signals["SIG" + word]
    with running(*writing(status)) as process:
        read_but_for_what_is_held(process, status)
        process.send_signal(signum)
        assert process.stderr is not None
        said, lost = (process.stderr.readline() for _ in range(2))
        assert process.wait(SOON_S) == (status or 128 + signum)
        assert process.stdout is not None
        rest = len(process.stdout.read())
    assert said == f"ringrun: SIG{word}: all ranks have ended; output that nobody reads for 0.5 s is given up\n"
    is_lost = re.fullmatch(IS_LOST, lost)
    assert is_lost, lost
    assert int(is_lost[1]) == NBYTES_HELD - rest


FOR_READERS = "from ringreduce.launch import job\njob.UNREAD_S = 1000.0\n"
"""ringrun has patience with them."""


@pytest.mark.parametrize("word", ["INT", "TERM", "HUP"])
def test_a_signal_gives_up_no_output_that_is_read(word: str, tmp_path: Path) -> None:
    """As of `systemctl stop`, at which ranks save, print and end before a slow ringrun learns of the signal."""
    with running(*writing(0), env=beginning_with(FOR_READERS, tmp_path)) as process:
        read_but_for_what_is_held(process, 0)
        process.send_signal(signal.Signals["SIG" + word])
        assert process.stderr is not None
        assert "all ranks have ended" in process.stderr.readline()
        assert process.stdout is not None
        assert len(process.stdout.read()) == NBYTES_HELD
        assert process.stderr.read() == ""
        assert process.wait(SOON_S) == 0


@pytest.mark.parametrize("again_s", [0.0, 1000.0])
def test_a_second_signal_gives_up_output_at_once(again_s: float, tmp_path: Path) -> None:
    code = f"{FOR_READERS}from ringreduce.launch import launch\nlaunch.AGAIN_S = {again_s}\n"
    with running(*writing(0), env=beginning_with(code, tmp_path)) as process:
        read_but_for_what_is_held(process, 0)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "all ranks have ended" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.readline()
        if again_s > 0:
            assert said.endswith(" not counted; a later one gives up the rest of the output\n")
            return
        assert said == "ringrun: SIGINT again: the rest of the output is given up\n"
        assert re.fullmatch(IS_LOST, process.stderr.readline())
        assert process.wait(SOON_S) == 128 + signal.SIGINT


def test_output_is_given_up_when_no_reader_has_taken_any_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    reader, writer = os.pipe()
    with supervise.Supervisor(0.1, print) as job:
        out, err = Sink(writer, job.selector), Sink(2, job.selector)
        job.sinks += [out, err]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        out.put(b"x" * 300_000)
        job.end_unless_read()
        due = []
        for clock[0] in (100.25, 100.5, 100.75):
            if clock[0] == 100.25:
                out.flush()  # the reader takes some
                job.end_unless_read()  # a signal that comes again gives it no more time
            when, then = job.timers["output"]
            due.append(when)
            if when <= clock[0]:
                del job.timers["output"]
                then()
        assert due == [100.5, 100.5, 100.75]
        assert "output" not in job.timers
        assert job.run(100.75)  # does not wait
        assert out.give_up() == 300_000 - len(os.read(reader, 1_000_000))
        assert out.empty()
    os.close(reader)
    os.close(writer)


UNREAD_TERMINAL = """
import os, pty, selectors, sys
from ringreduce.launch import output

if sys.argv[1] == "another user's":
    output.unblocked = lambda *_: -1
master, terminal = pty.openpty()
with selectors.PollSelector() as selector:
    sink = output.Sink(terminal, selector)
    sink.put(b"a line, and what follows\\tit\\n" * 5000)
    sink.flush_ready()
    print(sink.empty(), os.get_blocking(terminal))
    sink.close()
print(len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.parametrize("whose", ["this user's", "another user's"])
def test_a_terminal_that_nobody_reads_does_not_block_a_sink(whose: str) -> None:
    """Although its poll() says that something can be written, which is less than a sink has."""
    done = completed([sys.executable, "-c", UNREAD_TERMINAL, whose], input="")
    assert (done.stdout, done.stderr) == ("False True\n6\n", "")


def test_the_master_of_a_terminal_is_not_opened_again() -> None:
    master, terminal = pty.openpty()
    os.set_blocking(terminal, False)
    try:
        with selectors.PollSelector() as selector:
            sink = Sink(master, selector)
            sink.put(b"hello\n")
            sink.flush_ready()
            assert os.read(terminal, 100) == b"hello\n"
    finally:
        os.close(master)
        os.close(terminal)


def test_standard_input_is_rank_0s() -> None:
    done = ringrun("-np", "3", "--tag-output", "sh", "-c", "cat; echo end", stdin="one\ntwo\n")
    expected = ["[0]<stdout>: end", "[0]<stdout>: one", "[0]<stdout>: two", "[1]<stdout>: end", "[2]<stdout>: end"]
    assert sorted(done.stdout.splitlines()) == expected


def test_on_a_terminal_output_is_tagged_and_rank_0_hears_the_keyboard() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        script = "printf 'bar\\rbar2\\r'; read line; echo heard $line; read line || echo end of input"
        os.execve(RINGRUN[0], [*RINGRUN, "-np", "2", "sh", "-c", script], clean_environment())
    try:
        screen = _read_until(terminal, rb"\[0\]<stdout>: bar2\r")
        assert b"[0]<stdout>: bar\r" in screen
        os.write(terminal, b"hello\n")
        _read_until(terminal, rb"\[0\]<stdout>: heard hello\r\n")
        os.write(terminal, b"\x04")  # Ctrl-D
        _read_until(terminal, rb"\[0\]<stdout>: end of input\r\n")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


def test_a_question_of_rank_0_is_shown_before_the_answer_is_there() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        code = "import os\nif os.environ['RINGREDUCE_RANK'] == '0': print('hello', input('name? '))"
        os.execve(RINGRUN[0], [*RINGRUN, "-np", "2", *python(code)], clean_environment())
    try:
        _read_until(terminal, rb"\[0\]<stdout>: name\? $")
        os.write(terminal, b"bob\n")
        screen = _read_until(terminal, rb"hello bob\r\n")
        assert screen == b"bob\r\n[0]<stdout>: hello bob\r\n"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


SHELL = """
import os, signal, sys

told, *job = sys.argv[1:]
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.execv(job[0], job)
os.read(int(told), 1)
os.tcsetpgrp(0, pid)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""Starts a job in the background of its terminal, and brings it to the foreground when it is told to."""


def test_the_keyboard_is_rank_0s_once_a_running_job_comes_to_the_foreground() -> None:
    """Of which no SIGCONT tells, as the job was not stopped."""
    told, tell = os.pipe()
    os.set_inheritable(told, True)
    pid, terminal = pty.fork()
    if pid == 0:
        job = [*RINGRUN, "-np", "2", "sh", "-c", "echo ready; read line; echo heard $line"]
        os.execve(sys.executable, [sys.executable, "-c", SHELL, str(told), *job], clean_environment())
    os.close(told)
    try:
        _read_until(terminal, rb"\[0\]<stdout>: ready\r\n")
        os.write(tell, b"!")
        os.write(terminal, b"hello\n")
        _read_until(terminal, rb"\[0\]<stdout>: heard hello\r\n")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(tell)
        os.close(terminal)


def test_a_keyboard_that_goes_to_the_background_is_looked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    foreground = os.getpgrp()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: foreground)
    master, terminal = pty.openpty()
    reader, writer = os.pipe()
    looks: list[None] = []
    with selectors.PollSelector() as selector:
        keyboard = Keyboard(terminal, writer, selector, lambda: None, lambda: looks.append(None))
        os.write(master, b"for another program\n")
        foreground = 0
        assert handle(selector, HANG_S)
        assert len(looks) == 1
        keyboard.resume()
        assert len(looks) == 2
        assert os.read(terminal, 100) == b"for another program\n"
        os.write(master, b"hello\n")
        assert not handle(selector, 0)
        foreground = os.getpgrp()
        keyboard.resume()
        for _ in ("read", "write"):
            assert handle(selector, HANG_S)
        assert os.read(reader, 100) == b"hello\n"
        keyboard.close()
        keyboard.resume()
        assert len(looks) == 2
    for fd in (master, terminal, reader):
        os.close(fd)


THIEF = """
import os, pathlib, selectors

stolen = pathlib.Path(__file__).with_name("stolen")
select = selectors.PollSelector.select

def stealing(self, timeout=None):
    events = select(self, timeout)
    if not stolen.exists() and any(key.fd == 0 for key, _ in events):
        stolen.write_bytes(os.read(0, 100))
    return events

selectors.PollSelector.select = stealing
"""
"""Another program that reads what ringrun reads, and is faster once: between ringrun's poll() and its read."""


@contextmanager
def running_on(stdin: int, environ: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """ringrun with this input: where that is a terminal, in its foreground."""

    def take_terminal() -> None:
        if os.isatty(stdin):
            fcntl.ioctl(stdin, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*RINGRUN, *arguments],
        env=environ,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def socket_pair() -> tuple[int, int]:
    """Connected by TCP, of which splice() waits for what comes, although it is told not to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
    return writer.detach(), reader.detach()


ELSEWHERE = ["-H", "elsewhere:2"]


@pytest.mark.parametrize(
    ("pair", "hosts"),
    [
        (pty.openpty, []),
        (pty.openpty, ELSEWHERE),
        (lambda: os.pipe()[::-1], ELSEWHERE),
        (socket_pair, ELSEWHERE),
    ],
    ids=["terminal", "terminal-hosts", "pipe-hosts", "socket-hosts"],
)
def test_input_that_another_program_has_taken_first_is_not_waited_for(
    pair: Callable[[], tuple[int, int]], hosts: list[str], tmp_path: Path
) -> None:
    """As of `ringrun ... | less`: a key wakes both, and less is faster."""
    environ = beginning_with(THIEF, tmp_path) | path_with_ssh(tmp_path, 'exec env --default-signal sh -c "$WORDS"')
    script = f"""
        [ $RINGREDUCE_RANK = 0 ] || exit 0
        echo ready
        until [ -s {tmp_path}/stolen ]; do sleep 0.01; done
        echo goes on
        read line; echo heard $line
        exec sleep 1000
    """
    writer, stdin = pair()
    try:
        with running_on(stdin, environ, "-np", "2", *hosts, "sh", "-c", script) as process:
            assert process.stdout is not None
            output = process.stdout.fileno()
            _read_until(output, rb"ready\n")
            os.write(writer, b"for another program\n")
            _read_until(output, rb"goes on\n")
            os.write(writer, b"hello\n")
            _read_until(output, rb"heard hello\n")
            process.send_signal(signal.SIGINT)
            assert process.wait(HANG_S) == 128 + signal.SIGINT
    finally:
        os.close(writer)
        os.close(stdin)
    assert (tmp_path / "stolen").read_bytes() == b"for another program\n"


CLOSED = """
import os

names = {!r}
os_open = os.open

def closed_open(path, *arguments, **named):
    if path in names:
        raise PermissionError(13, "Permission denied", path)
    return os_open(path, *arguments, **named)

os.open = closed_open
"""
DEAF = (
    b"ringrun: rank 0 gets no input: this terminal can be opened neither as /proc/self/fd/0 nor as /dev/tty; give it "
    b"input by a pipe or a file\n"
)


@pytest.mark.parametrize(
    ("closed", "heard"),
    [(["/proc/self/fd/0"], b"heard hello\n"), (["/proc/self/fd/0", "/dev/tty"], DEAF + b"end of input\n")],
    ids=["after su", "without /dev/tty"],
)
def test_the_keyboard_of_another_users_terminal(closed: list[str], heard: bytes, tmp_path: Path) -> None:
    """Which may be opened as /dev/tty alone. Where there is none, ringrun cannot read without waiting."""
    environ = beginning_with(CLOSED.format(closed), tmp_path)
    script = "read line && echo heard $line || echo end of input"
    master, terminal = pty.openpty()
    os.write(master, b"hello\n")
    try:
        with running_on(terminal, environ, "-np", "1", "sh", "-c", script) as process:
            assert process.communicate(timeout=HANG_S)[0] == heard
    finally:
        os.close(master)
        os.close(terminal)


def test_a_password_is_asked_for_although_a_rank_has_no_terminal() -> None:
    """A rank in the background of ringrun's terminal would be stopped when it asks there."""
    pid, terminal = pty.fork()
    if pid == 0:
        code = """
            import getpass, os
            if os.environ["RINGREDUCE_RANK"] == "0":
                print("hello", getpass.getpass("word? "))
        """
        os.execve(RINGRUN[0], [*RINGRUN, "-np", "2", *python(code)], clean_environment())
    try:
        _read_until(terminal, rb"\[0\]<stderr>: word\? $")
        os.write(terminal, b"swordfish\n")
        _read_until(terminal, rb"hello swordfish\r\n")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


def test_the_rest_of_a_line_goes_on_with_its_beginning_unless_another_rank_has_written() -> None:
    with selectors.PollSelector() as selector, tempfile.TemporaryFile() as file:
        sink = Sink(file.fileno(), selector)
        (out, _), (other, _) = (rank_lines(rank, sink, sink, True, (None, None)) for rank in (0, 1))
        told: list[None] = []
        out.on_part = lambda: told.append(None)
        for taker, text in ((out, b"a\nb"), (None, b""), (out, b"c\nd"), (None, b""), (other, b"e\n"), (out, b"f\n")):
            if taker is None:
                out.pass_part()
            else:
                taker.feed(text)
        assert len(told) == 2
        out.feed(b"g")
        out.pass_part()
        out.pass_part()
        out.end()
        out.end()
        while not sink.empty():
            sink.flush()
        file.seek(0)
        said = ["[0]: a", "[0]: bc", "[0]: d", "[1]: e", "[0]: f", "[0]: g"]
        assert file.read().decode().replace("<stdout>", "").splitlines() == said


def test_ranks_save_their_work_when_the_terminal_goes_away(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        code = """
            import os, pathlib, signal, sys
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
            os.write(1, b"ready\\n")
            signal.sigwait([signal.SIGHUP])
            signal.sigtimedwait([signal.SIGTERM], 0.5)  # longer than ringrun needs to miss its terminal
            pathlib.Path(sys.argv[1], os.environ["RINGREDUCE_RANK"]).touch()
        """
        os.execve(RINGRUN[0], [*RINGRUN, "-np", "2", *python(code), str(tmp_path)], clean_environment())
    try:
        _read_until(terminal, rb"(?s)ready.*ready")
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def _read_until(terminal: int, pattern: bytes, timeout_s: float = HANG_S) -> bytes:
    deadline = time.monotonic() + timeout_s
    seen = b""
    while not re.search(pattern, seen):
        assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], seen
        seen += os.read(terminal, 4096)
    return seen


NO_HOROVOD = """
    try:
        raise ModuleNotFoundError("No module named 'horovod'")
    except ImportError:
        {}
"""


@pytest.mark.parametrize("tag", ["--tag-output", "--no-tag-output"])
def test_a_rank_that_finds_no_horovod_is_told_of_the_option(tag: str) -> None:
    for options, then, is_told in (
        ([], "raise", True),
        (["--as-horovod"], "raise", False),  # a Python that does not read PYTHONPATH
        ([], "raise SystemExit(1)", False),  # nobody has seen the exception
    ):
        done = ringrun("-np", "2", tag, *options, *python(NO_HOROVOD.format(then)))
        assert done.returncode == 1
        assert ("ringrun: `ringrun --as-horovod ...` runs" in done.stderr) == is_told, done.stderr
    written = "print(\"ModuleNotFoundError: No module named 'horovod'\", file=__import__('sys').stderr)"
    assert "--as-horovod" not in ringrun("-np", "2", tag, *python(written)).stderr
