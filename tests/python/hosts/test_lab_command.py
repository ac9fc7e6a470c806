"""`ringreduce lab` as a shell's command: signals, the terminal, the working directory and the user's variables."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deadlines import SOON_S
from processes import completed
from ranks import clean_environment

from ringreduce.lab.lab import END_S, Lab
from ringreduce.lab.requirements import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

LAB = [str(Path(sys.executable).with_name("ringreduce")), "lab", "--hosts", "1", "--rate", "none"]
ROOT = Path(__file__).resolve().parents[3]
LAB_S = 3 * SOON_S
"""A lab is up by then, and has ended by then."""


@contextmanager
def lab_that_is_up(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """`ringreduce lab sh -c SCRIPT`, which has written "up"."""
    command = [*LAB, "sh", "-c", script]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, start_new_session=True) as lab:
        try:
            assert lab.stdout is not None
            assert lab.stdout.readline() == b"up\n"
            yield lab
        finally:
            lab.kill()


def test_sigterm_ends_the_command() -> None:
    with lab_that_is_up("echo up; exec sleep 1000") as lab:
        lab.terminate()
        assert lab.wait(LAB_S) == 128 + signal.SIGTERM


def test_a_second_sigterm_kills_a_command_that_does_not_end() -> None:
    with lab_that_is_up("trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done") as lab:
        lab.terminate()
        assert lab.stdout is not None
        assert lab.stdout.readline() == b"asked\n"
        again = time.monotonic()
        lab.terminate()
        assert lab.wait(LAB_S) == 128 + signal.SIGTERM
        assert time.monotonic() - again < END_S - 2


WHERE = """
import socket
import ringreduce as rr
with rr.init() as world:
    print(f"rank {world.rank} of {world.size} on {socket.gethostname()}\\n", end="", flush=True)
"""


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "ringrun"])
def test_the_documented_line_of_a_launcher(launcher: str, tmp_path: Path) -> None:
    if launcher == "mpirun.openmpi":
        pytest.importorskip("mpi4py")
        if shutil.which(launcher) is None:
            pytest.skip("mpirun.openmpi is not installed (apt-get install openmpi-bin)")
    (tmp_path / "train.py").write_text(WHERE)
    line = re.search(rf"root@a# ({re.escape(launcher)} (?:.*\\\n)*.*)\n", (ROOT / "docs/user/clusters.md").read_text())
    assert line
    environ = clean_environment()
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])  # as `activate` does
    command = [*LAB[:2], "--hosts", "2", "sh", "-c", line[1]]
    done = completed(command, env=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = sorted(line for line in done.stdout.splitlines() if "rank" in line)
    assert [rank[rank.index("rank") :] for rank in ranks] == [
        f"rank {rank} of 4 on {'ab'[rank // 2]}" for rank in range(4)
    ]


def test_ssh_reaches_hosts_where_roots_password_is_locked(tmp_path: Path) -> None:
    """As `passwd --lock root` and many images leave it: sshd without PAM refuses such an account."""
    locked = re.sub("^root:[^:]*", "root:!", Path("/etc/shadow").read_text(), flags=re.MULTILINE)
    (tmp_path / "shadow").touch(0o600)
    (tmp_path / "shadow").write_text(locked)
    inside = "stat -c %a /etc/shadow && $LAB_SSH a hostname"
    script = f"mount --bind {tmp_path}/shadow /etc/shadow && {shlex.join([*LAB, 'sh', '-c', inside])}"
    done = completed(["unshare", "--mount", "sh", "-c", script], env=clean_environment())
    assert done.stdout == "600\na\n", done.stderr


# --- the working directory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parent", ["/tmp", "/var/tmp", "/dev/shm", "/run"])
def test_the_working_directory_is_on_the_hosts(parent: str) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        Path(folder, "given").write_text("some words\n")
        done = completed([*LAB, "sh", "-c", "pwd; cat given; echo others > made"], env=clean_environment(), cwd=folder)
        assert done.stdout == f"{folder}\nsome words\n", done.stderr
        assert done.returncode == 0, done.stderr
        assert Path(folder, "made").read_text() == "others\n"


def test_a_folder_of_which_each_host_has_its_own_stays_the_hosts() -> None:
    done = completed([*LAB, "sh", "-c", "pwd; ls -d ringreduce-lab-*"], env=clean_environment(), cwd="/tmp")
    first, *folders = done.stdout.split()
    assert first == "/tmp", done.stderr
    assert len(folders) == 1, done.stderr


def test_a_working_directory_that_a_host_lacks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lab(hosts=1, rate=None) as lab:
        monkeypatch.chdir(tmp_path)
        done = lab.run("a", ["pwd"])
        assert done.status == 126
        assert re.fullmatch(rf"ringreduce lab: the host has no working directory {tmp_path}: .*\n", done.output)


def test_a_removed_working_directory_is_an_error(tmp_path: Path) -> None:
    removed = shlex.join(["rmdir", str(tmp_path / "gone")])
    (tmp_path / "gone").mkdir()
    done = completed(["sh", "-c", f"{removed}; {shlex.join(LAB)} true"], env=clean_environment(), cwd=tmp_path / "gone")
    assert done.returncode == 2, done.stderr
    assert done.stderr == "ringreduce lab: the working directory has been removed\n"


# --- at a terminal ----------------------------------------------------------------------------------------------------


@contextmanager
def on_terminal(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command leads the session of a new terminal: its process, and the terminal's other end."""
    ours, theirs = pty.openpty()
    environ = clean_environment() | {"TERM": "dumb"}
    leader = subprocess.Popen(["setsid", "--ctty", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    try:
        yield leader, ours
    finally:
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            with suppress(ProcessLookupError):
                if os.getsid(pid) == leader.pid:
                    os.kill(pid, signal.SIGKILL)
        leader.wait()
        os.close(ours)
        os.close(theirs)


def read_until(terminal: int, part: str, text: str = "") -> str:
    """What the terminal shows until `part` comes."""
    deadline = time.monotonic() + LAB_S
    while part not in text:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, text
        text += os.read(terminal, 65536).decode(errors="replace")
    return text


def test_a_lab_in_the_background_leaves_the_terminal_to_the_shell() -> None:
    with on_terminal(["bash", "--norc", "--noprofile", "-i"]) as (shell, terminal):
        lab = shlex.join([*LAB, "sh", "-c", "echo up-$((40 + 2)); read line; echo read-$?; exec sleep 1000"])
        os.write(terminal, f"{lab} &\n".encode())
        text = read_until(terminal, "up-42")
        assert os.tcgetpgrp(terminal) == shell.pid
        read_until(terminal, "read-1", text)  # the end of its input, not what is typed for the shell
        os.write(terminal, b"echo shell-$((40 + 3))\n")
        read_until(terminal, "shell-43")
        os.write(terminal, b"kill %1; wait %1; echo ended-$?\n")
        read_until(terminal, f"ended-{128 + signal.SIGTERM}")


def test_a_script_has_the_terminal_again_after_its_lab() -> None:
    lab = shlex.join([*LAB, "sh", "-c", "read line; echo $line-in-the-lab"])
    with on_terminal(["bash", "-c", f"{lab}; read -p 'name? ' name; echo $name-in-the-script"]) as (script, terminal):
        os.write(terminal, b"one\n")
        text = read_until(terminal, "name? ")
        assert "one-in-the-lab" in text
        os.write(terminal, b"two\n")
        read_until(terminal, "two-in-the-script")
        assert script.wait(LAB_S) == 0


def test_ctrl_c_ends_the_script_that_has_called_the_lab() -> None:
    lab = shlex.join([*LAB, "sh", "-c", "echo up-$((40 + 2)); exec sleep 1000"])
    with on_terminal(["bash", "-c", f"{lab}; echo the script goes on"]) as (script, terminal):
        text = read_until(terminal, "up-42")
        os.write(terminal, b"\x03")
        assert "the script goes on" not in read_until(terminal, "carried: ", text)
        assert script.wait(LAB_S) == -signal.SIGINT


def test_ctrl_z_stops_the_lab_until_the_shell_lets_it_go_on() -> None:
    with on_terminal(["bash", "--norc", "--noprofile", "-i"]) as (shell, terminal):
        lab = shlex.join([*LAB, "sh", "-c", "echo up-$((40 + 2)); read line; echo read-$line"])
        os.write(terminal, f"{lab}\n".encode())
        text = read_until(terminal, "up-42")
        os.write(terminal, b"\x1a")
        read_until(terminal, "Stopped", text)
        assert os.tcgetpgrp(terminal) == shell.pid
        os.write(terminal, b"echo shell-$((40 + 3)); bg; wait %1; echo waited-$?\n")
        text = read_until(terminal, "shell-43")
        read_until(terminal, f"waited-{128 + signal.SIGTSTP}", text)  # it wants to read, and is in the background
        os.write(terminal, b"echo shell-$((40 + 4)); fg\n")
        text = read_until(terminal, "shell-44")
        read_until(terminal, "ringreduce lab", text)  # the line of the job, which the shell shows
        os.write(terminal, b"words\n")
        text = read_until(terminal, "read-words")
        read_until(terminal, "carried: ", text)
        os.write(terminal, b"echo shell-$((40 + 5))\n")
        read_until(terminal, "shell-45")


def test_a_lab_that_no_shell_can_let_go_on_does_not_stop() -> None:
    with on_terminal([*LAB, "sh", "-c", "echo up-$((40 + 2)); read line; echo read-$line"]) as (lab, terminal):
        text = read_until(terminal, "up-42")
        os.write(terminal, b"\x1awords\n")
        read_until(terminal, "read-words", text)
        assert lab.wait(LAB_S) == 0


CONNECT = """
import socket, time
began_s = time.monotonic()
socket.create_connection(("b", 22)).close()
print("took", time.monotonic() - began_s)
"""


@pytest.mark.skipif(missing(cables=True) is not None, reason=str(missing(cables=True)))
def test_links_that_delay() -> None:
    """A connection takes a packet there and one back, each through two cables."""
    command = [*LAB[:2], "--hosts", "2", "--delay", "20", sys.executable, "-c", CONNECT]
    done = completed(command, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout.split("took ")[1].split()[0]) >= 4 * 0.02


@pytest.mark.parametrize("words", [["--lost", "101"], ["--delay", "-1"], ["--delay", "nan"], ["--delay", "inf"]])
def test_links_that_cannot_be(words: list[str]) -> None:
    done = completed([*LAB, *words, "true"], env=clean_environment())
    assert done.returncode == 2
    assert "--delay, --lost: a " in done.stderr
