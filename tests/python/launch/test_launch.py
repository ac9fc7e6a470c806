"""ringrun sees its ranks through: places, exit statuses, signals, the grace after a failure, and no one left behind."""

from __future__ import annotations

import errno
import os
import re
import resource
import select
import selectors
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S, SOON_S
from processes import completed, ends
from ranks import clean_environment

from ringreduce.doctor import environment
from ringreduce.errors import UnavailableError
from ringreduce.job import rendezvous
from ringreduce.job.tcp.agents_secret import new_name
from ringreduce.launch import job as job_module
from ringreduce.launch import processes as processes_module
from ringreduce.launch import ringrun as ringrun_module
from ringreduce.launch import supervise
from ringreduce.launch.binding import cores_of, cpu_shares, thread_share
from ringreduce.launch.exits import Exits
from ringreduce.launch.launch import AGAIN_S
from ringreduce.launch.spawn import Guardian, no_descriptor, signals_held, spawn

RINGRUN = [sys.executable, "-m", "ringreduce.launch.ringrun"]


def ringrun(*argv: str, env: dict[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = clean_environment() | (env or {})
    return completed([*RINGRUN, *argv], env=environ, input=stdin)


@contextmanager
def running(*argv: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """env: the whole environment."""
    environ = env or clean_environment()
    process = subprocess.Popen(
        [*RINGRUN, *argv], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return sorted(process.stdout.readline().strip() for _ in range(count))


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", textwrap.dedent(code)]


# --- a rank's surroundings --------------------------------------------------------------------------------------------


def test_x_sets_a_variable_of_the_ranks_of_this_host_too() -> None:
    words = ["-x", "MINE", "-x", "NEW=a=b", "-x", "RINGREDUCE_LOG_LEVEL=error", "--log-level", "debug", "-x", "NO_SUCH"]
    script = 'echo "$MINE $NEW $RINGREDUCE_LOG_LEVEL"'
    done = ringrun("-np", "2", *words, "sh", "-c", script, env={"MINE": "kept", "NEW": "old"})
    assert (done.returncode, done.stdout) == (0, "kept a=b debug\n" * 2), done.stderr
    assert done.stderr == "ringrun: without effect here: -x NO_SUCH (this variable is not set)\n"


def test_every_rank_is_told_its_place() -> None:
    done = ringrun("-np", "3", "sh", "-c", "env | tr '\\n' ' '; echo", env={"SLURM_PROCID": "7", "HOROVOD_RANK": "9"})
    assert done.returncode == 0, done.stderr
    ranks = [dict(word.partition("=")[::2] for word in line.split()) for line in done.stdout.splitlines()]
    ranks.sort(key=lambda environ: environ["RINGREDUCE_RANK"])
    for rank, environ in enumerate(ranks):
        for prefix in ("RINGREDUCE_", "HOROVOD_"):
            names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
            assert [int(environ[prefix + name]) for name in names] == [rank, 3, rank, 3, 0, 1]
    assert len(ranks) == 3
    assert len({environ["RINGREDUCE_RENDEZVOUS"] for environ in ranks}) == 1


def test_ranks_within_a_rank_of_several_hosts_have_none_of_the_outer_jobs_variables() -> None:
    outer = {"RINGREDUCE_ADDRESS": "192.0.2.1:7", "RINGREDUCE_SECRET_FILE": f"/dev/shm/{new_name()}"}
    show = ["sh", "-c", 'echo "$RINGREDUCE_ADDRESS $RINGREDUCE_SECRET_FILE"']
    assert ringrun("-np", "2", *show, env=outer).stdout == " \n" * 2
    users = outer | {"RINGREDUCE_SECRET_FILE": "/home/me/secret"}
    assert ringrun("-np", "1", *show, env=users).stdout == "192.0.2.1:7 /home/me/secret\n"


def test_ranks_within_a_rank_do_not_have_what_that_rank_told_torch() -> None:
    show = ["sh", "-c", 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE"']
    outer = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}
    told = outer | {"_RINGREDUCE_TORCH_PLACE": "0 4 0 4"}
    assert ringrun("-np", "2", *show, env=told).stdout == "   \n" * 2
    assert ringrun("-np", "1", *show, env=outer).stdout == "0 4 0 4\n"  # the user's


def test_each_job_has_a_secret_of_its_own() -> None:
    secrets = {ringrun("-np", "1", "printenv", "RINGREDUCE_RENDEZVOUS").stdout.strip() for _ in range(2)}
    assert len(secrets) == 2
    for secret in secrets:
        assert len(bytes.fromhex(secret.rpartition(":")[2])) == 32


def test_a_rank_has_a_group_of_its_own_and_no_stray_descriptor() -> None:
    code = "import os; os.setpgrp(); print(os.getpid() - os.getpgrp(), len(os.listdir('/proc/self/fd')))"
    done = ringrun("-np", "3", *python(code))
    assert done.stdout == "0 4\n" * 3, done.stderr  # 0, 1, 2 and the folder being read


def with_files(soft: int, hard: int, *argv: str) -> subprocess.CompletedProcess[str]:
    """ringrun where so many files may be open."""
    limit = ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh"]
    return completed([*limit, *RINGRUN, *argv], env=clean_environment())


def test_ringrun_opens_as_many_files_as_it_may_and_leaves_its_ranks_their_limit() -> None:
    done = with_files(64, 1024, "-np", "40", "sh", "-c", "ulimit -Sn; ulimit -Hn")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == sorted(["64", "1024"] * 40)


def test_too_few_files_are_not_the_programs_fault() -> None:
    done = with_files(64, 64, "-np", "40", "true")
    assert done.returncode == 126
    expected = r"ringrun: no file descriptor is left for rank [12]\d: raise ulimit -n \(now 64\)\n"
    assert re.fullmatch(expected, done.stderr), done.stderr


def test_the_limit_of_files_is_this_processs_again_when_ringrun_is_done(capfd: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
    try:
        own = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert ringrun_module.main(["-np", "1", "sh", "-c", "ulimit -Sn"]) == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == own
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert capfd.readouterr().out == f"{own[0]}\n"


def test_a_host_that_has_no_file_descriptor_left_says_so() -> None:
    text = no_descriptor(OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "rank 3")
    assert (
        text == "no file descriptor is left on this host for rank 3: raise its fs.file-max, or end what has many open"
    )
    assert no_descriptor(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), "rank 3") == ""


def test_options_that_become_variables() -> None:
    show = ["sh", "-c", "env | grep -E '^RINGREDUCE_(TRANSPORT|LOG|FUSION|CACHE_|INIT|STALL|TIMEOUT)' | sort"]
    done = ringrun("-np", "1", "--transport", "shm", "--fusion-threshold-mb", "2", "--start-timeout", "7.5", *show)
    assert done.stdout.split() == [
        "RINGREDUCE_FUSION_THRESHOLD=2097152",
        "RINGREDUCE_INIT_TIMEOUT=7.5",
        "RINGREDUCE_TRANSPORT=shm",
    ]
    assert ringrun("-np", "1", "--transport", "shm+tcp", *show).stdout == "RINGREDUCE_TRANSPORT=shm+tcp\n"
    assert ringrun("-np", "1", *show).stdout == ""
    # What is given on the command line counts more than the environment.
    environ = {"RINGREDUCE_LOG_LEVEL": "fatal", "RINGREDUCE_STALL_WARNING": "9"}
    assert ringrun("-np", "1", "--log-level", "DEBUG", "--no-stall-check", *show, env=environ).stdout.split() == [
        "RINGREDUCE_LOG_LEVEL=debug",
        "RINGREDUCE_STALL_WARNING=0",
    ]


def test_binding() -> None:
    show = python("import os; print(*sorted(os.sched_getaffinity(0)), '|', os.environ.get('OMP_NUM_THREADS'))")
    allowed = sorted(os.sched_getaffinity(0))
    done = ringrun("-np", "2", *show)
    bound = [line.split(" | ") for line in done.stdout.splitlines()]
    shares = [frozenset(map(int, cpus.split())) for cpus, _ in bound]
    assert sorted(shares, key=sorted) == sorted(cpu_shares(2), key=sorted)
    assert all(
        int(threads) == thread_share(cores_of(share), 2) for share, (_, threads) in zip(shares, bound, strict=True)
    )
    if len(allowed) > 1:
        assert not set(bound[0][0].split()) & set(bound[1][0].split())
    everywhere = " ".join(map(str, allowed)) + " | None\n"
    environ = {"OMP_NUM_THREADS": "5"}
    assert ringrun("-np", "2", "--bind", "none", *show).stdout == everywhere * 2
    assert ringrun("-np", "2", *show, env=environ).stdout.count("| 5\n") == 2


# --- the exit status --------------------------------------------------------------------------------------------------

STATUSES = [
    ("exit 0", 0, ""),
    ("[ $RINGREDUCE_RANK = 1 ] && exit 7; exit 0", 7, "rank 1 on host * (pid *) exited with status 7 after"),
    ("[ $RINGREDUCE_RANK = 2 ] && kill -KILL $$; true", 137, "rank 2 on host * was killed by signal 9 (SIGKILL"),
    ("[ $RINGREDUCE_RANK = 0 ] && kill -TERM $$; true", 143, "rank 0 on host * was killed by signal 15 (SIGTERM)"),
    ("[ $RINGREDUCE_RANK = 0 ] && kill -40 $$; true", 168, "rank 0 on host * was killed by signal 40"),
]


@pytest.mark.parametrize(("script", "status", "words"), STATUSES, ids=[str(row[1]) for row in STATUSES])
def test_exit_status(script: str, status: int, words: str) -> None:
    done = ringrun("-np", "3", "sh", "-c", script)
    assert done.returncode == status
    if not words:
        assert done.stderr == ""
    else:
        (line,) = done.stderr.splitlines()
        parts = words.split("*")
        assert all(part in line for part in parts), line
        assert line.startswith("ringrun: ")


def test_the_first_failure_in_time_counts(tmp_path: Path) -> None:
    # Rank 0 fails because rank 1 did: it waits for its exit, as a survivor does. Rank 1 fails once rank 2 is there:
    # ringrun starts the ranks one after the other, so it watches ranks 0 and 1 by then.
    code = """
        import os, select, sys
        rank, pipe, started = int(os.environ["RINGREDUCE_RANK"]), *sys.argv[1:]
        if rank == 2:
            os.write(os.open(started, os.O_WRONLY), b"!")
        if rank == 1:
            os.read(os.open(started, os.O_RDONLY), 1)
            os.write(os.open(pipe, os.O_WRONLY), str(os.getpid()).encode())
            os._exit(5)
        if rank == 0:
            select.select([os.pidfd_open(int(os.read(os.open(pipe, os.O_RDONLY), 20)))], [], [])
            os._exit(4)
    """
    pipes = [str(tmp_path / "pipe"), str(tmp_path / "started")]
    for pipe in pipes:
        os.mkfifo(pipe)
    for _ in range(5):
        done = ringrun("-np", "3", "-v", *python(code), *pipes)
        assert done.returncode == 5, done.stderr
        assert "rank 0 on host" in done.stderr  # --verbose reports the others as well


def test_a_launcher_that_is_held_up_sees_who_failed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rank 0 fails because rank 1 did, and both have ended before ringrun goes on after it has started rank 1.
    code = """
        import os, select, sys
        if os.environ["RINGREDUCE_RANK"] == "1":
            os.write(os.open(sys.argv[1], os.O_WRONLY), str(os.getpid()).encode())
            os._exit(5)
        select.select([os.pidfd_open(int(os.read(os.open(sys.argv[1], os.O_RDONLY), 20)))], [], [])
        os._exit(4)
    """
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    started: list[int] = []

    class HeldUp(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **kwargs: Any) -> None:
            super().__init__(command, **kwargs)
            if command[0] != sys.executable:  # the guardian's shell
                return
            started.append(self.pid)
            if len(started) == 2:
                for pid in reversed(started):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(subprocess, "Popen", HeldUp)
    assert ringrun_module.main(["-np", "2", *python(code), pipe]) == 5
    assert len(started) == 2


def test_a_process_that_could_not_say_that_it_is_there_is_watched_all_the_same() -> None:
    exits = Exits()
    with exits.expect() as expected, subprocess.Popen(["true"]) as process:
        pidfd = expected.taken(process.pid)
        assert select.select([exits], [], [], HANG_S)[0] == [exits]
        assert exits.ended() == [pidfd]
        assert exits.ended() == []
    os.close(pidfd)
    exits.close()


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSYS, "this kernel has no pidfd_open: it takes Linux 5.4 or newer"),
        (errno.EPERM, "a seccomp filter forbids pidfd_open: allow it, by a newer container runtime or a profile of"),
    ],
)
def test_a_kernel_that_has_no_pidfds_is_told_of_in_one_line(
    number: int, why: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert ringrun_module.main(["-np", "2", "true"]) == 126
    said = capfd.readouterr().err
    assert said.startswith(f"ringrun: cannot run 'true': the end of a rank could not be noticed, as {why}")
    assert said.count("\n") == 1
    (kernel,) = (finding for finding in environment.hardware() if finding.name == "kernel")
    assert kernel.status == "problem"
    assert why in kernel.hint
    with pytest.raises(UnavailableError, match=re.escape(why)):
        rendezvous._pidfd(1, os.getpid())


# --- after the first failure ------------------------------------------------------------------------------------------


def test_a_killed_rank_is_the_first_to_fail_whoever_ends_before(tmp_path: Path) -> None:
    """Its status is ringrun's, and its end the last line: not the exceptions of those who have lost it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nimport numpy as np\nimport ringreduce as rr\nrr.init()\nrr.allreduce(np.ones(10))\n"
        "if rr.rank() == 1:\n    os.kill(os.getpid(), 9)\nrr.allreduce(np.ones(10))\n"
    )
    done = ringrun("-np", "3", script)
    assert done.returncode == 137
    said = [line for line in done.stderr.splitlines() if line.startswith("ringrun: ")]
    expected = (
        "ringrun: the first to fail was rank 1 on host .*: it was killed by signal 9 .SIGKILL; out of memory.. after "
    )
    assert re.match(expected, said[-1]), said


def test_a_rank_that_has_lost_another_is_not_the_first_to_fail() -> None:
    """Though it is seen to end before the other, as it may be where they are on two hosts."""
    said: list[str] = []
    with supervise.Supervisor(10, said.append) as job:
        job.causes.texts[0] = "ringreduce.errors.PeerLostError: lost rank 1"
        for script in ("exit 1", "read line; kill -9 $$"):
            reader, writer = os.pipe()
            job.start(["sh", "-c", script], os.environ, None, reader, 1, 2)
            os.close(reader)
            if script == "exit 1":
                os.close(writer)
        while job.ranks[0].status is None:
            job.run(time.monotonic() + 0.01)
        os.close(writer)
        assert job.run(time.monotonic() + HANG_S)
        assert job.exit_status() == 128 + signal.SIGKILL
    assert said[0].startswith("rank 0 on host ")
    assert said[0].endswith("PeerLostError: lost rank 1; the others have 10 s to end")
    assert said[-1].startswith("the first to fail was rank 1 on host ")


def test_grace_then_sigterm_then_sigkill() -> None:
    code = """
        import os, signal, sys, time
        def say(what): os.write(1, f"{what} {time.monotonic()}\\n".encode())
        if os.environ["RINGREDUCE_RANK"] == "1":
            sys.stdin.read()
            say("failed")
            os._exit(5)
        signal.signal(signal.SIGTERM, lambda *_: say("terminated"))
        say("ready")
        while True: signal.pause()
    """
    with running("-np", "2", "--grace", "0.7", *python(code)) as process:
        assert process.stdout is not None
        assert process.wait(SOON_S) == 5
        end = time.monotonic()
        times = {word: float(moment) for word, moment in map(str.split, process.stdout)}
        assert process.stderr is not None
        report = process.stderr.read()
    assert 0.7 <= times["terminated"] - times["failed"] < 0.7 + SOON_S
    assert 0.7 + 1.5 <= end - times["failed"] < 0.7 + 1.5 + SOON_S
    assert "the others have 0.7 s" in report
    assert "rank 0 still running: sending SIGTERM" in report
    assert "rank 0 still running: sending SIGKILL" in report


@pytest.mark.parametrize("grace", ["3e6", "1e300", "inf"])
def test_a_grace_may_be_longer_than_poll_counts(grace: str, tmp_path: Path) -> None:
    script = f"[ $RINGREDUCE_RANK = 1 ] && exit 5; until [ -e {tmp_path}/go ]; do sleep 0.01; done"
    with running("-np", "2", "--grace", grace, "sh", "-c", script) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith(f"; the others have {float(grace):g} s to end\n")
        (tmp_path / "go").touch()
        assert process.wait(HANG_S) == 5
        assert process.stderr.read() == ""


def test_survivors_use_the_grace_to_report() -> None:
    script = "[ $RINGREDUCE_RANK = 1 ] && exit 9; sleep 0.5; echo lost rank 1 >&2; exit 1"
    done = ringrun("-np", "3", "sh", "-c", script)
    assert done.returncode == 9
    assert done.stderr.count("lost rank 1\n") == 2
    assert "SIGTERM" not in done.stderr


def test_a_ranks_children_do_not_survive_a_failure() -> None:
    script = "if [ $RINGREDUCE_RANK = 1 ]; then read line; exit 1; fi; sleep 1000 & echo $!; exit 0"
    with running("-np", "2", "sh", "-c", script) as process:
        (child,) = lines(process, 1)
        assert process.wait(SOON_S) == 1
        assert ends(int(child))


def test_ranks_die_with_ringrun() -> None:
    with running("-np", "3", "sh", "-c", "echo $$; exec sleep 1000") as process:
        pids = [int(line) for line in lines(process, 3)]
        process.kill()
        assert all(ends(pid) for pid in pids)


def test_a_stopped_rank_is_killed_too(tmp_path: Path) -> None:
    script = """
        [ $RINGREDUCE_RANK = 0 ] && { echo $$ > pid; mv pid stopping; kill -STOP $$; }
        until grep -q '^State:.*stopped' /proc/$(cat stopping)/status; do sleep 0.01; done 2>/dev/null
        exit 3
    """
    done = ringrun("-np", "2", "--grace", "0", "sh", "-c", f"cd {tmp_path}\n{script}")
    assert done.returncode == 3
    assert "rank 0 still running: sending SIGKILL" in done.stderr


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["INT", "TERM", "HUP", "USR1", "USR2"])
def test_a_signal_is_passed_on_to_every_rank(word: str) -> None:
    signum = signal.Signals["SIG" + word]
    script = f"trap 'echo caught; exit 0' {word}; echo ready; while :; do sleep 0.05; done"
    with running("-np", "3", "sh", "-c", script) as process:
        assert lines(process, 3) == ["ready"] * 3
        process.send_signal(signum)
        assert lines(process, 3) == ["caught"] * 3
        assert process.wait(SOON_S) == 0


def test_ranks_that_die_of_the_signal() -> None:
    with running("-np", "2", "sh", "-c", "echo ready; exec sleep 1000") as process:
        lines(process, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON_S) == 130


def test_signals_that_end_nothing_are_passed_on_each_time() -> None:
    code = """
        import signal
        signals = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        print("ready", flush=True)
        while (signum := signal.sigwait(signals)) != signal.SIGTERM:
            print(signum.name, flush=True)
    """
    with running("-np", "2", *python(code)) as process:
        assert lines(process, 2) == ["ready"] * 2
        for word in ("SIGUSR1", "SIGHUP", "SIGUSR2", "SIGUSR1", "SIGHUP"):
            process.send_signal(signal.Signals[word])
            assert lines(process, 2) == [word] * 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0


@pytest.mark.parametrize("word", ["INT", "TERM", "HUP", "USR1"])
def test_a_rank_that_saves_its_work_gets_no_second_signal(word: str) -> None:
    # Rank 1 dies of the signal, and rank 0 goes on for longer than --grace.
    code = """
        import os, signal, sys
        signum = signal.Signals["SIG" + sys.argv[1]]
        if os.environ["RINGREDUCE_RANK"] == "0":
            signals = {signum, signal.SIGTERM}
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)
            os.write(1, b"ready\\n")
            signal.sigwait(signals)
            sys.stdin.readline()
            second = signal.sigtimedwait(signals, 0.6)
            os.write(1, b"saved\\n" if second is None else b"interrupted\\n")
        else:
            signal.signal(signum, signal.SIG_DFL)
            os.write(1, b"ready\\n")
            signal.pause()
    """
    command = [*RINGRUN, "-np", "2", "--grace", "0.1", *python(code), word]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=clean_environment(), text=True, **pipes) as process:
        try:
            assert lines(process, 2) == ["ready"] * 2
            process.send_signal(signal.Signals["SIG" + word])
            assert process.stderr is not None
            assert process.stderr.readline() == f"ringrun: SIG{word}: passing it on to all ranks\n"
            assert "the others have 30 s to end" in process.stderr.readline()
            out, err = process.communicate("\n", timeout=HANG_S)
            assert (out, err) == ("saved\n", "")
            assert process.returncode == 128 + signal.Signals["SIG" + word]
        finally:
            process.kill()


def test_a_rank_that_does_not_end_after_the_users_signal_is_killed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "ASKED_GRACE_S", 0.3)
    said: list[str] = []
    heard, mouth = os.pipe()
    with supervise.Supervisor(0.1, said.append) as job:
        for script in ("trap '' TERM; echo; exec sleep 1000", "echo; exec sleep 1000"):
            job.start(["sh", "-c", script], os.environ, None, subprocess.DEVNULL, mouth, mouth)
        for _ in job.ranks:
            assert os.read(heard, 1) == b"\n"
        os.close(heard)
        os.close(mouth)
        job.pass_on(signal.SIGTERM)
        assert job.run(time.monotonic() + 20)
    assert [rank.status for rank in job.ranks] == [-signal.SIGKILL, -signal.SIGTERM]
    assert len(said) == 2
    assert "rank 1" in said[0]
    assert said[1] == "rank 0 still running: sending SIGKILL"


def test_a_second_signal_kills() -> None:
    with running("-np", "2", "sh", "-c", "trap '' INT; echo ready; while :; do sleep 0.05; done") as process:
        lines(process, 2)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline() == "ringrun: SIGINT: passing it on to all ranks\n"
        time.sleep(AGAIN_S)  # what is tested here is a signal that comes so much later
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON_S) == 137


SAVES = """
import signal, sys

def save(*_):
    print("caught", flush=True)
    sys.stdin.readline()
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_signals_that_come_together_leave_ranks_time_to_save_their_work() -> None:
    """As from `timeout`, and from a wrapper that ends its child at a Ctrl-C which the child has got too."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*RINGRUN, "-np", "1", sys.executable, "-c", SAVES]
    with subprocess.Popen(command, env=clean_environment(), text=True, **pipes) as process:
        try:
            assert lines(process, 1) == ["ready"]
            # A stopped process gets both at once. Of two that are equal it would get one.
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
                process.send_signal(signum)
            assert lines(process, 1) == ["caught"]
            assert process.stderr is not None
            said = [process.stderr.readline() for _ in range(2)]
            out, err = process.communicate("\n", timeout=HANG_S)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "saved\n", "")
    assert re.fullmatch("ringrun: SIG(TERM|INT): passing it on to all ranks\n", said[0])
    assert re.fullmatch("ringrun: SIG(TERM|INT) within 0.5 s of the first signal: not counted; .*\n", said[1])


def test_ranks_of_another_user_keep_no_signal_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `ringrun sudo ...`: they are told of once, left behind in the end, and not waited for."""
    monkeypatch.setattr(job_module, "ASKED_GRACE_S", 0.1)
    monkeypatch.setattr(job_module, "ABANDON_AFTER_S", 0.1)
    own, foreign = os.killpg, []

    def killpg(group: int, signum: int) -> None:
        if group in foreign:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        own(group, signum)

    monkeypatch.setattr(os, "killpg", killpg)
    said: list[str] = []
    reader, writer = os.pipe()
    try:
        with supervise.Supervisor(0.1, said.append) as job:
            for _ in range(2):
                job.start(["cat"], os.environ, None, reader, subprocess.DEVNULL, 2)
            left, other = job.ranks
            foreign.append(left.pid)
            job.pass_on(signal.SIGTERM)
            assert job.run(time.monotonic() + HANG_S)
            assert job.exit_status() == 128 + signal.SIGTERM
        assert left.status is None
        assert other.status == -signal.SIGTERM
    finally:
        own(left.pid, signal.SIGKILL)
        os.waitpid(left.pid, 0)
        os.close(reader)
        os.close(writer)
    once, ended, killing, behind = said
    assert once == f"rank 0 (process group {left.pid}) belongs to another user (sudo?) and cannot be signalled"
    assert ended.startswith("rank 1 on host ")
    assert killing == "rank 0 still running: sending SIGKILL"
    assert behind == "rank 0 cannot be killed (another user's); left behind"


def test_a_start_that_fails_does_not_wait_for_ranks_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def killpg(group: int, signum: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    reader, writer = os.pipe()
    streams = (reader, subprocess.DEVNULL, 2)
    with supervise.Supervisor(0.1, lambda _: None) as job:
        job.start(["cat"], os.environ, None, *streams)
        monkeypatch.setattr(os, "killpg", killpg)
    os.close(reader)
    os.close(writer)
    assert os.waitpid(job.ranks[0].pid, 0)[1] == 0


BEHIND_A_SHELL = "sleep 1000 & echo $!; wait; true"
"""Says the number of a process that the kernel does not kill with the rank's launcher."""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGQUIT])
def test_a_ringrun_that_is_killed_leaves_nothing_of_its_ranks(signum: signal.Signals) -> None:
    with running("-np", "2", "sh", "-c", BEHIND_A_SHELL) as process:
        left = [int(line) for line in lines(process, 2)]
        process.send_signal(signum)
        assert process.wait(SOON_S) == -signum
        assert [ends(pid) for pid in left] == [True] * 2


def test_an_ordinary_end_leaves_what_ranks_have_started() -> None:
    """A daemon, say, of a rank that has succeeded."""
    done = ringrun("-np", "1", "sh", "-c", "sleep 1000 >&- 2>&- & echo $!")
    assert (done.returncode, done.stderr) == (0, "")
    os.kill(int(done.stdout), signal.SIGKILL)


def test_a_guardian_kills_nothing_once_it_is_closed() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as group:
        with signals_held():
            guardian = Guardian()
        guardian.add(group.pid)
        guardian.close()
        guardian.close()
        assert group.poll() is None
        group.kill()


TERMINAL_SIGNAL = """
import os, signal, sys

own, ringrun = os.setpgid, os.getpid()

def signalled(pid, group):
    if os.getpid() != ringrun:  # a rank to be: the terminal's signals go to it, too, until it has a group of its own
        os.kill(os.getpid(), signal.SIGUSR1)
    own(pid, group)

os.setpgid = signalled
from ringreduce.launch.ringrun import main

sys.exit(main(["-np", "2", "sh", "-c", "exit 0"]))
"""


def test_a_signal_to_a_rank_that_is_being_started_is_not_one_to_ringrun() -> None:
    done = completed([sys.executable, "-c", TERMINAL_SIGNAL], env=clean_environment())
    assert "passing it on" not in done.stderr
    assert "was killed by signal 10" in done.stderr  # it is the rank's own
    assert done.returncode == 128 + signal.SIGUSR1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_no_input_or_output(closed: str, tmp_path: Path) -> None:
    script = f"echo said; read line; echo $line > {tmp_path}/$RINGREDUCE_RANK"
    done = completed(
        ["sh", "-c", f"exec {shlex.join([*RINGRUN, '-np', '2', 'sh', '-c', script])} {closed}"], input="x\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "0").read_text() == ("\n" if "<" in closed else "x\n")
    assert (tmp_path / "1").read_text() == "\n"


def test_whoever_starts_it_may_ignore_the_end_of_children() -> None:
    rank = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(['sh', '-c', 'exit 3']))"]
    ignoring = ["sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"]
    done = completed([*ignoring, *RINGRUN, "-np", "2", *rank], env=clean_environment())
    assert done.returncode == 3, done.stderr
    assert "exited with status 3" in done.stderr


def test_a_process_that_cannot_be_bound() -> None:
    with pytest.raises(OSError, match=r"a new process could not be prepared: .* CPUs \[99999\]"):
        spawn(["true"], {}, [99999], subprocess.DEVNULL, subprocess.DEVNULL, subprocess.DEVNULL)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_an_interrupt_while_a_rank_is_started_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the rank, which close() kills, nor signals that stay blocked."""
    own = processes_module.spawn

    def interrupted(*arguments: Any) -> subprocess.Popen[bytes]:
        popen = own(*arguments)
        signal.raise_signal(signal.SIGINT)
        return popen

    monkeypatch.setattr(processes_module, "spawn", interrupted)
    with selectors.PollSelector() as selector:
        ranks = processes_module.Processes(selector, lambda _: None, print)
        streams = (subprocess.DEVNULL,) * 3
        with pytest.raises(KeyboardInterrupt):
            ranks.start(0, ["sleep", "1000"], {"PATH": os.environ["PATH"]}, None, *streams)
        (rank,) = ranks.alive()
        ranks.kill_groups()
        ranks.close()
    assert ends(rank.pid)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
