"""ringrun and agents that die, hang, lie or come late, at every step: ringrun ends, says why, and believes no lie.

fake_agent.py stands for the agents, and a shell script for ssh. Hosts are named x and y.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import fake_agent
import pytest
from deadlines import HANG_S, SOON_S
from fake_agent import path_with_ssh
from ports import free_port
from processes import completed, ends
from ranks import clean_environment
from test_launch_output import (
    IS_LOST,
    ONCE_THE_RANK_HAS_ENDED,
    UNREAD,
    beginning_with,
    check_last_words,
    holding_little,
    listening_for_long,
)

from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.job.deadline import Deadline
from ringreduce.job.tcp.agents_secret import new_name
from ringreduce.job.tcp.rendezvous import read_secret
from ringreduce.launch.launch import AGAIN_S
from ringreduce.launch.python import run_module
from ringreduce.launch.remote import secret_file
from ringreduce.launch.run import run as run_call

RINGRUN = run_module("ringreduce.launch.ringrun")
Steps = Mapping[str, Sequence[Any]]
MORE = "(--start-timeout or RINGREDUCE_INIT_TIMEOUT allows more)"
Z = 'exec env --default-signal sh -c "$WORDS"'  # sshd gives what it starts no ignored signals
MISUNDERSTOOD = "its agent says what this version does not understand"


@contextmanager
def running(
    folder: Path,
    *arguments: str,
    x: Steps | None = None,
    y: Steps | None = None,
    hosts: str = "x:1,y:1",
    files: tuple[int, int] | None = None,
    out: int = subprocess.PIPE,
    base: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """ringrun on hosts x and y, whose agents do what they should but for these steps. Another, z, has a real agent.

    files: how many files may be open, by the soft and the hard limit.
    out: for what is written, and then also for errors.
    base: the environment, but for PATH.
    """
    for host, steps in (("x", x), ("y", y)):
        (folder / f"{host}.json").write_text(json.dumps(steps or {}))
    fake = f"exec {sys.executable} {fake_agent.__file__} {folder}"
    cases = f'*" x "*) {fake} x;; *" y "*) {fake} y;; *" z "*) {Z};;'
    environ = {**(base or clean_environment()), **path_with_ssh(folder, f'case "$*" in {cases} esac')}
    command = [*RINGRUN, "-H", hosts, *arguments]
    if files is not None:
        command = ["sh", "-c", 'ulimit -Sn {} && ulimit -Hn {} && exec "$@"'.format(*files), "sh", *command]
    err = subprocess.PIPE if out == subprocess.PIPE else out
    pipes = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
    with subprocess.Popen(command, env=environ, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], seconds: float = HANG_S) -> tuple[int, str, list[str]]:
    """Status, output, and lines of errors."""
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err.splitlines()


def wait_for(path: Path) -> None:
    deadline = Deadline(HANG_S)
    while not path.exists():
        assert not deadline.expired(), path
        time.sleep(0.01)


def run(folder: Path, *arguments: str, **steps: Any) -> tuple[int, str, list[str]]:
    with running(folder, *arguments, "true", **steps) as process:
        return ended(process)


def test_two_agents_that_do_what_they_should(tmp_path: Path) -> None:
    assert run(tmp_path) == (0, "", [])


def test_output_goes_where_it_belongs(tmp_path: Path) -> None:
    says = [
        ["OUTPUT", [0, 1, "one\ntw"]],
        ["OUTPUT", [0, 2, "err"]],
        ["OUTPUT", [0, 1, "o"]],
        ["OUTPUT_END", [0, 2, ""]],
    ]
    status, out, err = run(tmp_path, x={"START": ["STARTED", *says, "EXIT"]})
    assert (status, out, err) == (0, "one\ntwo\n", ["err"])


def called(folder: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, **steps: Steps) -> str:
    """What ringreduce.run() raises with these agents."""
    for host in "xy":
        (folder / f"{host}.json").write_text(json.dumps(steps.get(host, {})))
    fake = f"exec {sys.executable} {fake_agent.__file__} {folder}"
    path = path_with_ssh(folder, f'case "$*" in *" x "*) {fake} x;; *) {fake} y;; esac')["PATH"]
    monkeypatch.setenv("PATH", path)
    with pytest.raises(Error) as caught:
        run_call(len, ([],), hosts=hosts)
    return str(caught.value)


def test_a_failure_is_told_although_another_host_has_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = ["STARTED", ["EXIT", {"rank": 0, "status": 1, "milliseconds": 1}]]
    text = called(tmp_path, monkeypatch, "x:1,y:1", x={"START": fails}, y={"START": ["nothing"]})
    assert text == "[run] rank 0 of 2 exited with status 1 after 0.0 s, on host x"


def test_a_result_that_is_lost_with_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = called(tmp_path, monkeypatch, "y:1", y={"FINISH": ["end"]})
    assert text == "[run] the result of rank 0 on host y was lost: the connection to y has ended"


def test_an_agent_that_does_not_start_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_INIT_TIMEOUT", "1")
    text = called(tmp_path, monkeypatch, "x:1,y:1", y={"START": ["nothing"]})
    assert text == f"[run] the agents of y have not started their ranks within 1 s {MORE}"


def localhost(host: str) -> list[Any]:
    """READY of a host that calls itself localhost, as machines do that are made from one image."""
    return ["READY", fake_agent.right("READY", host, {})[0][1] | {"name": "localhost"}]


@pytest.mark.parametrize("names", ["their own", "one"])
def test_the_last_line_says_on_which_host_the_first_rank_failed(tmp_path: Path, names: str) -> None:
    says = ["STARTED", ["CAUSE", {"rank": 1, "text": "ValueError: out of luck"}]]
    ends = [["EXIT", {"rank": rank, "status": 1, "milliseconds": 1}] for rank in (0, 1)]
    steps = {"x": {"START": ["STARTED", ends[0]]}, "y": {"START": [*says, ends[1]]}}
    if names == "one":
        steps = {host: does | {"READY": [localhost(host)]} for host, does in steps.items()}
    status, _, err = run(tmp_path, **steps)
    assert status == 1
    assert err[-1] == "ringrun: the first uncaught exception was that of rank 1 on host y: ValueError: out of luck"


def test_a_host_is_not_taken_for_another_one_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = ({"READY": [localhost(host)]} for host in "xy")
    text = called(tmp_path, monkeypatch, "x:1,y:1", x=x, y=y | {"FINISH": ["end"]})
    assert text == "[run] rank 0 exited before the function returned (os._exit?), on host x"


@pytest.mark.parametrize("hosts", ["z:40", "localhost:40,y:1"])
def test_an_agent_opens_as_many_files_as_it_may(tmp_path: Path, hosts: str) -> None:
    program = ("sh", "-c", "ulimit -Sn; ulimit -Hn")
    with running(tmp_path, *program, hosts=hosts, files=(64, 1024)) as process:
        status, out, err = ended(process)
    assert (status, err) == (0, [])
    assert sorted(out.split()) == sorted(["64", "1024"] * 40)


@pytest.mark.parametrize("hosts", ["z:40", "localhost:40,y:1"])
def test_too_few_files_are_not_the_programs_fault(tmp_path: Path, hosts: str) -> None:
    with running(tmp_path, "true", hosts=hosts, files=(64, 64)) as process:
        status, _, err = ended(process)
    assert status == 126
    expected = (
        rf"ringrun: host {hosts.split(':')[0]}: no file descriptor is left for rank [12]\d: raise ulimit -n .*64.*"
    )
    assert re.fullmatch(expected, err[0]), err


def test_too_few_files_for_the_agents(tmp_path: Path) -> None:
    hosts = ",".join(f"x{number}" for number in range(40))
    with running(tmp_path, "true", hosts=hosts, files=(64, 64)) as process:
        status, _, err = ended(process)
    assert (status, err) == (
        126,
        ["ringrun: no file descriptor is left for the agents of 40 hosts: raise ulimit -n (now 64)"],
    )


# --- Lies -------------------------------------------------------------------------------------------------------------

READY = fake_agent.right("READY", "y", {})[0][1]
STARTED = {"rank": 1, "pid": 1, "cpus": None, "threads": "1"}
LIES = {
    "output of another host's rank": {"START": ["STARTED", ["OUTPUT", [0, 1, "lies\n"]]]},
    "output before the start": {"READY": ["READY", ["OUTPUT", [1, 1, "lies\n"]]]},
    "output of no stream": {"START": ["STARTED", ["OUTPUT", [1, 3, "lies\n"]]]},
    "another host's rank starts": {"START": [["STARTED", STARTED | {"rank": 0}]]},
    "a rank starts twice": {"START": ["STARTED", "STARTED"]},
    "another host's rank ends": {"START": ["STARTED", ["EXIT", {"rank": 0, "status": 0, "milliseconds": 1}]]},
    "an end that is none": {"START": ["STARTED", ["EXIT", {"rank": 1, "status": 1000, "milliseconds": 1}]]},
    "another host's rank's exception": {"START": ["STARTED", ["CAUSE", {"rank": 0, "text": "lies"}]]},
    "an address of rank 0": {"READY": ["READY", ["LISTENING", {"addresses": [["203.0.113.9", 1]], "refused": []}]]},
    "too few reasons": {"TRY": [["TRIED", {"reasons": []}]]},
    "reasons that nobody wants": {"READY": ["READY", ["TRIED", {"reasons": [""]}]]},
    "rank 0's input": {"START": ["STARTED", ["INPUT_TAKEN", {}]]},
    "a program that runs cannot": {"START": ["STARTED", ["CANNOT_RUN", {"text": "lies", "is_missing": True}]]},
    "the end of the job": {"START": ["STARTED", ["DONE", {}]]},
    "ready twice": {"READY": ["READY", "READY"]},
    "an order": {"READY": ["READY", ["SIGNAL", {"signal": 9}]]},
    "no JSON": {"READY": [["READY", "hello"]]},
    "JSON without end": {"READY": [["READY", "[" * 200_000]]},
    "no number": {"START": [["STARTED", STARTED | {"pid": "1"}]]},
    "infinity": {"START": ["STARTED", ["EXIT", '{"rank": 1, "status": Infinity, "milliseconds": 1}']]},
    "a list": {"READY": [["READY", []]]},
    "addresses that are none": {"READY": [["READY", READY | {"addresses": [["eth0", 7]]}]]},
    "a name without end": {"READY": [["READY", READY | {"name": "x" * 10_000}]]},
}


@pytest.mark.parametrize("lie", LIES)
def test_an_agent_is_not_believed(tmp_path: Path, lie: str) -> None:
    """And whatever it sends makes one clear line, not a traceback. The honest host's rank goes on until it is ended."""
    steps = {name: [*does, "nothing"] for name, does in LIES[lie].items()}
    status, out, err = run(tmp_path, "--grace", "0", x={"START": ["STARTED"], "SIGNAL": ["EXIT"]}, y=steps)
    assert (status, out) == (255, ""), err
    assert MISUNDERSTOOD in err[0], err
    assert err[0].startswith(("ringrun: host y: ", "ringrun: rank 1 on host y "))


def test_what_agents_say_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    text = "\x1b]0;title\x07\nringrun: all is well"
    status, out, err = run(tmp_path, y={"START": [["CANNOT_RUN", {"text": text, "is_missing": True}]]})
    assert (status, out) == (127, "")
    assert err == ["ringrun: host y:  ]0;title  ringrun: all is well"]


def test_an_exception_that_is_told_after_its_ranks_end(tmp_path: Path) -> None:
    cause = ["CAUSE", {"rank": 1, "text": "ValueError: late"}]
    says = ["STARTED", ["EXIT", {"rank": 1, "status": 0, "milliseconds": 1}], cause, ["OUTPUT", [1, 1, "child\n"]]]
    assert run(tmp_path, y={"START": says}) == (0, "child\n", [])


# --- Deaths and silence -----------------------------------------------------------------------------------------------

DEATHS = {
    "before it is ready": ({"READY": ["end"]}, "host y: its agent has ended"),
    "when it is ready": ({"READY": ["READY", "end"]}, "host y: its agent has ended"),
    "when it should look for rank 0": ({"TRY": ["end"]}, "host y: its agent has ended"),
    "before it starts ranks": ({"START": ["end"]}, "host y: its agent has ended"),
    "when ranks run": ({"START": ["STARTED", "end"]}, "rank 1 on host y .*was lost with its host"),
    "when its ranks have ended": ({"FINISH": ["end"]}, "host y: the end of its output may be missing"),
    "when another host's ranks have not begun": ({"START": ["STARTED", "end"]}, "rank 1 on host y .*was lost with"),
    "between the ends of ranks": (
        {"START": ["STARTED", "EXIT", "end"]},
        "host y: the end of its output may be missing",
    ),
}


@pytest.mark.parametrize("when", DEATHS)
def test_an_agent_dies(tmp_path: Path, when: str) -> None:
    steps, words = DEATHS[when]
    first = {"START": ["nothing"]} if when == "when another host's ranks have not begun" else {"SIGNAL": ["EXIT"]}
    with running(tmp_path, "--grace", "0", "true", x=first, y=steps) as process:
        status, _, err = ended(process, SOON_S)
    assert status == 255, err
    assert any(re.search(words, line) for line in err), err


SILENCE = {
    "before it is ready": ({"READY": ["nothing"]}, f"no agent has answered from y within 1 s {MORE}"),
    "when it should look for rank 0": (
        {"TRY": ["nothing"]},
        f"the hosts have not agreed on an address within 1 s {MORE}",
    ),
    "when it should start ranks": (
        {"START": ["nothing"]},
        f"the agents of y have not started their ranks within 1 s {MORE}",
    ),
}


@pytest.mark.parametrize("when", SILENCE)
def test_an_agent_is_silent_at_the_start(tmp_path: Path, when: str) -> None:
    steps, words = SILENCE[when]
    status, _, err = run(tmp_path, "--start-timeout", "1", x={"START": ["STARTED"]}, y=steps)
    assert status == 255
    assert err == [f"ringrun: {words}"]


def test_a_signal_ends_a_job_whose_agent_is_silent(tmp_path: Path) -> None:
    with running(tmp_path, "true", y={"START": ["nothing"]}) as process:
        wait_for(tmp_path / "y.START")
        process.send_signal(signal.SIGINT)
        status, _, err = ended(process, SOON_S)
    assert status == 128 + signal.SIGINT
    assert err[-1] == "ringrun: the job ends before all of its ranks were started"


def test_a_failure_ends_a_job_whose_agent_is_silent(tmp_path: Path) -> None:
    fails = ["STARTED", ["EXIT", {"rank": 0, "status": 7, "milliseconds": 1}]]
    with running(tmp_path, "--grace", "0.1", "true", x={"START": fails}, y={"START": ["nothing"]}) as process:
        status, _, err = ended(process, SOON_S)
    assert status == 7
    assert err[0].startswith("ringrun: rank 0 on host x (pid 1) exited with status 7")


ALL_HAVE_ENDED = "all ranks have ended; output that nobody reads for 0.5 s is given up"


def test_two_signals_end_a_job_whose_agent_does_not_finish(tmp_path: Path) -> None:
    with running(tmp_path, "true", y={"FINISH": ["nothing"]}) as process:
        wait_for(tmp_path / "y.FINISH")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline() == f"ringrun: SIGINT: {ALL_HAVE_ENDED}\n"
        time.sleep(AGAIN_S)  # what is tested here is a signal that comes so much later
        process.send_signal(signal.SIGINT)
        status, _, err = ended(process, SOON_S)
    assert status == 255
    assert err[0] == "ringrun: SIGINT again: the rest of the output is given up"
    assert re.fullmatch(r"ringrun: the agents of (x, )?y do not end; the end of their ranks' output .*", err[-1])


def test_an_agent_that_does_not_finish_is_given_up_in_time(tmp_path: Path) -> None:
    status, _, err = run(tmp_path, y={"FINISH": ["nothing"]})
    assert status == 255
    assert err == ["ringrun: the agents of y do not end; the end of their ranks' output may be missing"]


# --- Output that nobody reads, and what is left behind ----------------------------------------------------------------


def test_two_signals_end_a_job_whose_output_nobody_reads(tmp_path: Path) -> None:
    program = ("sh", "-c", "yes & trap '' INT; echo > $0; yes", str(tmp_path / "runs"))
    with running(tmp_path, "--verbose", *program, hosts="z:1") as process:
        assert process.stderr is not None
        wait_for(tmp_path / "runs")
        while not (line := process.stderr.readline()).startswith("ringrun: rank 0: host "):  # it has heard of it
            assert line
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "ringrun: SIGINT: passing it on to all ranks\n"
        time.sleep(AGAIN_S)  # what is tested here is a signal that comes so much later
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "ringrun: SIGINT again: killing all ranks\n"
        assert process.wait(SOON_S) == 128 + signal.SIGKILL


def test_an_end_is_seen_though_nobody_reads_the_output(tmp_path: Path) -> None:
    program = "if [ $RINGREDUCE_RANK = 0 ]; then exec yes; fi; sleep 0.3; exit 5"
    with running(tmp_path, "--grace", "0.1", "sh", "-c", program, hosts="z:2") as process:
        assert process.stderr is not None
        assert "rank 1 " in process.stderr.readline()
        assert "SIGTERM" in process.stderr.readline()
        assert process.stdout is not None
        while process.stdout.read(1 << 16):
            pass
        assert process.wait(HANG_S) == 5


def test_ranks_learn_that_the_reader_of_their_output_had_gone_before_they_began(tmp_path: Path) -> None:
    """As with `ringrun -v ... 2>&1 | true`: what --verbose says before the ranks begin finds no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with running(tmp_path, "--verbose", "yes", hosts="z:2", out=writer) as process:
            assert process.wait(SOON_S) == 128 + signal.SIGPIPE
    finally:
        os.close(writer)


def test_nothing_of_the_ranks_is_left_when_the_job_cannot_begin(tmp_path: Path) -> None:
    """The local rank's child too, which the kernel does not kill with the agent."""
    child = tmp_path / "child"
    program = f"sleep 1000 & echo $! > {child}.new; mv {child}.new {child}; wait"
    steps = {"START": ["wait", ["CANNOT_RUN", {"text": "no", "is_missing": False}]]}
    with running(tmp_path, "sh", "-c", program, hosts="localhost:1,y:1", y=steps) as process:
        wait_for(child)
        (tmp_path / "y.go").touch()
        status, _, _ = ended(process)
    assert status == 126
    deadline = Deadline(SOON_S)
    while Path(f"/proc/{int(child.read_text())}").exists():
        assert not deadline.expired()
        time.sleep(0.01)


def test_a_job_that_cannot_begin_ends_though_its_ranks_print_without_end(tmp_path: Path) -> None:
    steps = {"START": ["wait", ["CANNOT_RUN", {"text": "no", "is_missing": False}]]}
    with running(tmp_path, "yes", hosts="z:1,y:1", y=steps) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "y\n"
        (tmp_path / "y.go").touch()
        while process.stdout.read(1 << 16):
            pass
        assert process.wait(HANG_S) == 126


def test_a_child_that_prints_on_is_not_waited_for(tmp_path: Path) -> None:
    """Its rank has ended: what is there then is passed on, and no more."""
    program = f"setsid yes & echo $! > {tmp_path}/child; exit 0"
    with running(tmp_path, "sh", "-c", program, hosts="z:1") as process:
        assert process.stdout is not None
        while process.stdout.read(1 << 16):
            pass
        assert process.wait(HANG_S) == 0
    deadline = Deadline(SOON_S)
    while Path(f"/proc/{int((tmp_path / 'child').read_text())}").exists():
        assert not deadline.expired()
        time.sleep(0.01)


def test_what_a_rank_has_started_may_finish_what_it_says(tmp_path: Path) -> None:
    program = f"{{ {ONCE_THE_RANK_HAS_ENDED}; echo a; sleep 0.1; echo b; }} &"
    with running(tmp_path, "sh", "-c", program, hosts="z:2", base=listening_for_long(tmp_path)) as process:
        status, out, err = ended(process)
    assert (status, sorted(out.split()), err) == (0, ["a", "a", "b", "b"], [])


def test_last_words_are_not_lost_where_the_reader_is_slow(tmp_path: Path) -> None:
    program = f"{UNREAD}; {{ {ONCE_THE_RANK_HAS_ENDED}; sleep 0.5; echo last; }} & echo $! >&2"
    with running(tmp_path, "sh", "-c", program, hosts="z:1", base=holding_little(tmp_path)) as process:
        check_last_words(process)


def test_an_agent_that_waits_for_a_slow_reader_is_not_given_up(tmp_path: Path) -> None:
    says = ["STARTED", ["OUTPUT", [1, 1, "y\n" * (1 << 20)]], "EXIT"]
    environ = beginning_with("from ringreduce.launch.remote import job\njob.FINISH_S = 0.0\n", tmp_path)
    y = {"START": says, "FINISH": ["wait", "DONE", "end"]}
    with running(tmp_path, "true", hosts="y:2", y=y, base=environ) as process:
        wait_for(tmp_path / "y.FINISH")
        (tmp_path / "y.go").touch()
        wait_for(tmp_path / "y.end")
        status, out, err = ended(process)
    assert (status, len(out), err) == (0, 2 << 20, [])


def test_a_signal_ends_a_ringrun_whose_agent_waits_for_a_reader(tmp_path: Path) -> None:
    program = f"{UNREAD}; sleep 1000 & echo $! >&2"
    with running(tmp_path, "-v", "sh", "-c", program, hosts="z:1", base=holding_little(tmp_path)) as process:
        assert process.stderr is not None
        while not (line := process.stderr.readline()).strip().isdigit():
            assert line
        while "exited with status 0" not in (end := process.stderr.readline()):
            assert end
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline() == f"ringrun: SIGTERM: {ALL_HAVE_ENDED}\n"
        assert re.fullmatch(IS_LOST, process.stderr.readline())
        assert process.wait(SOON_S) == 128 + signal.SIGTERM
    os.kill(int(line), signal.SIGKILL)


def test_ssh_s_words_are_not_lost_in_those_of_the_login_shell(tmp_path: Path) -> None:
    ssh = path_with_ssh(tmp_path, f"seq 30\necho 'exec: {sys.executable}: not found' >&2; exit 127")
    environ = clean_environment() | ssh
    done = completed([*RINGRUN, "-H", "z:1", "true"], env=environ)
    assert f"there is no {sys.executable} there" in done.stderr
    assert done.stderr.endswith(f"ssh said: exec: {sys.executable}: not found\n")


def test_what_ssh_writes_without_end_takes_no_memory(tmp_path: Path) -> None:
    environ = clean_environment() | path_with_ssh(tmp_path, "head -c 100000000 /dev/zero >&2; exit 3")
    words = ["sh", "-c", 'ulimit -v 400000; exec "$@"', "sh", *RINGRUN, "-H", "z:1", "true"]
    done = completed(words, env=environ)
    assert done.returncode == 255
    assert done.stderr.startswith("ringrun: host z: its agent has ended")


@pytest.mark.parametrize("victim", ["ringrun", "agent"])
@pytest.mark.parametrize("word", ["KILL", "TERM", "QUIT", "HUP", "INT"])
def test_what_ranks_have_started_ends_with_ringrun_and_with_their_agent(tmp_path: Path, victim: str, word: str) -> None:
    signum = signal.Signals["SIG" + word]
    script = "sleep 1000 & echo $PPID $!; wait"
    with running(tmp_path, "sh", "-c", script, hosts="z:1") as process:
        assert process.stdout is not None
        agent, child = map(int, process.stdout.readline().split())
        os.kill(process.pid if victim == "ringrun" else agent, signum)
        status, _, said = ended(process)
    assert ends(child)
    if victim == "ringrun":
        assert status == (-signum if word in ("KILL", "QUIT") else 128 + signum)
    else:
        assert status == 255
        assert said[-1].startswith("ringrun: rank 0 on host")
        assert "was lost with its host: the connection to z has ended" in said[-1]


SAVES = """
import signal, sys
signum = signal.Signals["SIG" + sys.argv[1]]
signal.pthread_sigmask(signal.SIG_BLOCK, [signum])
print("ready", flush=True)
signal.sigwait([signum])
print("saved", flush=True)
"""


@pytest.mark.parametrize("word", ["INT", "TERM", "USR1", "USR2"])
def test_a_signal_to_all_processes_of_this_host_leaves_ranks_time_to_save_their_work(tmp_path: Path, word: str) -> None:
    """As of systemctl and scancel: it ends neither the agent of this host nor ssh, for which another agent stands."""
    words = (sys.executable, "-c", SAVES, word)
    steps = {"START": ["STARTED"], "SIGNAL": ["EXIT"]}
    with running(tmp_path, *words, hosts="localhost:1,y:1", y=steps) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_for(tmp_path / "y.START")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        for pid in (*map(int, children), process.pid):
            os.kill(pid, signal.Signals["SIG" + word])
        status, out, err = ended(process)
    assert (status, out, err) == (0, "saved\n", [f"ringrun: SIG{word}: passing it on to all ranks"])


# --- The secret's file ------------------------------------------------------------------------------------------------


@contextmanager
def rank_with_a_secret(folder: Path, script: str) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    """A job whose rank 0 has a real agent: ringrun, the secret's file, the agent. The rank goes on by the script."""
    words = ("-x", f"RINGREDUCE_ADDRESS=127.0.0.1:{free_port()}", "--grace", "0")
    says = f"echo $PPID $RINGREDUCE_SECRET_FILE; {script}"
    with running(folder, *words, "sh", "-c", says, hosts="z:1,x:1") as process:
        assert process.stdout is not None
        agent, path = process.stdout.readline().split()
        yield process, Path(path), int(agent)


def wait_until_gone(path: Path) -> None:
    deadline = Deadline(HANG_S)
    while path.exists():
        assert not deadline.expired(), path
        time.sleep(0.01)


def test_only_its_user_reads_the_secret_and_its_file_ends_with_the_job(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    script = f"until [ -e {shlex.quote(str(go_on))} ]; do sleep 0.05; done; exit 1"
    with rank_with_a_secret(tmp_path, script) as (process, path, _):
        facts = path.stat()
        assert stat.S_IMODE(facts.st_mode) == 0o600
        assert facts.st_uid == os.geteuid()
        assert re.fullmatch("[0-9a-f]{64}", path.read_text())
        go_on.touch()
        assert ended(process)[0] == 1
    wait_until_gone(path)


@pytest.mark.parametrize("victim", ["ringrun", "agent"])
@pytest.mark.parametrize("word", ["KILL", "TERM", "QUIT"])
def test_the_secrets_file_ends_with_ringrun_and_with_its_agent(tmp_path: Path, victim: str, word: str) -> None:
    with rank_with_a_secret(tmp_path, "exec sleep 1000") as (process, path, agent):
        assert path.exists()
        os.kill(process.pid if victim == "ringrun" else agent, signal.Signals["SIG" + word])
        ended(process)
    wait_until_gone(path)


OTHERS = {
    "a user namespace": ["unshare", "--user", "--map-root-user"],
    "a PID namespace": ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"],
}


@pytest.mark.parametrize("inside", OTHERS)
def test_a_rank_in_a_container_reads_the_secret(tmp_path: Path, inside: str) -> None:
    """As of `apptainer exec` and rootless podman."""
    if not shutil.which("unshare") or completed([*OTHERS[inside], "true"]).returncode:
        pytest.skip(f"there can be no {inside.removeprefix('a ')} here")
    script = f'{shlex.join(OTHERS[inside])} cat "$RINGREDUCE_SECRET_FILE"'
    with rank_with_a_secret(tmp_path, script) as (process, _, _):
        assert process.stdout is not None
        out = process.stdout.read()  # communicate() would not have what came together with the first line
        _, _, err = ended(process)
    assert re.fullmatch("[0-9a-f]{64}", out.strip()), err


def test_a_file_of_an_agent_that_a_container_does_not_have_is_said_to_be_one() -> None:
    path = f"/dev/shm/{new_name()}"
    with pytest.raises(InvalidArgumentError) as caught:
        read_secret(path)
    text = str(caught.value)
    assert text.startswith(f"the job's secret file cannot be read: [Errno 2] No such file or directory: '{path}'; ")
    assert "a container that has not this host's /dev/shm" in text
    assert "RINGREDUCE_SECRET_FILE" in text
    assert "make one with" not in text


def test_a_secret_where_there_is_no_room_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded: list[str] = []
    monkeypatch.setattr(secret_file, "MEMORY", str(tmp_path / "missing"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = secret_file.SecretFile("5ec2e7", guarded.append)
    assert guarded[1:] == [made.path]
    assert [file.read_text() for file in tmp_path.iterdir()] == ["5ec2e7"]
    made.remove()
    made.remove()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        secret_file.SecretFile("5ec2e7", guarded.append)


def test_a_secret_needs_no_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_file, "MEMORY", str(tmp_path))
    monkeypatch.setattr(tempfile, "gettempdir", mock.Mock(side_effect=FileNotFoundError("No usable folder")))
    made = secret_file.SecretFile("5ec2e7", lambda _: None)
    assert Path(made.path).read_text() == "5ec2e7"
    made.remove()


def test_an_agents_secret_is_read_once(tmp_path: Path) -> None:
    """Its file may be removed when its user logs out. A user's own file is read each time: it may be another one."""
    for name, is_kept in ((new_name(), True), ("secret", False)):
        path = tmp_path / name
        path.write_text("5ec2e7" * 8)
        path.chmod(0o600)
        key = read_secret(path)
        path.unlink()
        if is_kept:
            assert read_secret(path) == key
        else:
            with pytest.raises(InvalidArgumentError):
                read_secret(path)
