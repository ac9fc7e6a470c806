"""What /proc says of processes: who holds the memory of a job, whether they live, how much of a core they use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ringreduce.errors import InvalidArgumentError

_PREFIXES = ("/memfd:ringreduce.world.", "/memfd:ringreduce.torch.")
"""How /proc calls the memory of a job's ranks: by its label, from basics.py and torch/distributed/group.py."""

_CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """A memory file, as fstat() tells it from others."""

    device: int
    inode: int


class Process(NamedTuple):
    """A process, as of one look at it."""

    state: str
    """As in /proc: R runs or could, S sleeps, D waits for a disk, T is stopped, Z has ended."""
    cpu_s: float
    """What all its threads have run, in seconds."""
    started_s: float
    """When, in seconds since the machine was started."""


def processes() -> Iterator[int]:
    """All that this user may look at; of root, everybody's."""
    user = os.geteuid()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                if user == 0 or os.stat(f"/proc/{name}").st_uid == user:
                    yield int(name)


def memories(pid: int) -> dict[Memory, str]:
    """The memory files of jobs that the process holds, each with a path at which it can be opened."""
    held: dict[Memory, str] = {}
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # it has ended
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            with suppress(OSError):
                if os.readlink(path).startswith(_PREFIXES):
                    info = os.stat(path)
                    held[Memory(info.st_dev, info.st_ino)] = path
    return held


@contextmanager
def opened(path: str, memory: Memory) -> Iterator[int]:
    """A descriptor of the memory file, for reading. The process may have put another file in its place meanwhile."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)  # that might be a FIFO, or a terminal
    try:
        info = os.fstat(fd)
        if (info.st_dev, info.st_ino) != memory:
            raise InvalidArgumentError(f"{path}: another file by now")
        yield fd
    finally:
        os.close(fd)


def _stat(pid: int) -> list[str]:
    """The fields behind the program's name, from 3 on in proc(5): state 3, ppid 4, utime 14, stime 15, starttime 22."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text[text.rindex(")") + 2 :].split()


def process(pid: int) -> Process | None:
    """The process now; None: there is none."""
    with suppress(OSError, ValueError, IndexError):
        fields = _stat(pid)
        cpu_s = (int(fields[11]) + int(fields[12])) * _CLOCK_TICK_S
        return Process(fields[0], cpu_s, int(fields[19]) * _CLOCK_TICK_S)
    return None


def inner_pid(pid: int) -> int:
    """The number of the process in its own pid namespace, as it sees itself; 0: it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def command(pid: int) -> str:
    """The command line of the process, the program without its folder; "": it has ended."""
    with suppress(OSError):
        program, *words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")).split("\0")
        return " ".join([os.path.basename(program), *words]).encode(errors="replace").decode()
    return ""


def ancestors(pid: int) -> Iterator[int]:
    """The process, its parent, its parent's parent and so on."""
    while pid > 0:
        yield pid
        try:
            pid = int(_stat(pid)[1])
        except (OSError, ValueError, IndexError):
            return


def uptime_s() -> float:
    """Seconds since the machine was started."""
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
