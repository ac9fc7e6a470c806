"""Where ranks.py gets its processes: forks of servers (rank_server.py) that have imported what the ranks import.

There are two servers of a kind, for ranks with even and with odd numbers: processes of one fork have the same addresses
and the same order of sets, which would hide what depends on either. A kind is what has been imported, and the
environment without what ringreduce reads when a rank starts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deadlines import HANG_S
from rank_server import write

SERVER = Path(__file__).with_name("rank_server.py")
EXAMPLES = [Path(__file__).resolve().parents[2] / folder for folder in ("examples", "examples/parallel")]

# Read when a rank starts or calls, so a server's own value does not matter.
READ_LATE = ("RINGREDUCE_", "HOROVOD_", "RR_", "FAKE_", "PYTEST_")
ALWAYS = ("numpy", "pytest", "ringreduce", "oracle")
USUALLY = ("ringreduce.api", "numpy.random")  # ringreduce imports its parts when they are used: 0.05 s a rank
NOTHING_MORE = "RR_TEST_NOTHING_IMPORTED"
"""In a rank's environment: the test is about how something is imported, so its server imports only what is above."""
IMPORTS = {
    "torch": ("torch", "torch._dynamo.config", "ringreduce.torch"),  # the first optimizer imports _dynamo, 1.2 s
    "tensorflow": ("tensorflow", "ringreduce.tensorflow"),
    "keras": ("keras", "ringreduce.keras"),
    "jax": ("jax", "ringreduce.jax"),
    "torch._inductor": ("torch._inductor.compile_fx", "torch._dynamo.backends.common"),  # 2 s
}
"""What a server imports first, by what the source of the test imports anywhere."""
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Of a server; a rank has the environment of its job. Where the system has such pages, a fork with torch takes 13 ms of
CPU time in place of 24: its page table has fewer entries to copy."""


class Process:
    """A rank, with the part of subprocess.Popen's interface that tests use."""

    def __init__(self, server: Server, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        """Readable once the rank has ended."""
        self._server = server
        self._status: int | None = None

    def poll(self) -> int | None:
        """Exit status, -N for signal N; None while the rank runs."""
        if self._status is None and select.select([self.pidfd], [], [], 0)[0]:
            answer = self._server.ask(f"status {self.pid}")
            self._status = os.waitstatus_to_exitcode(int(answer))
        return self._status

    def wait(self, timeout_s: float = HANG_S) -> int:
        """Exit status; subprocess.TimeoutExpired after timeout_s seconds."""
        if not select.select([self.pidfd], [], [], timeout_s)[0]:
            raise subprocess.TimeoutExpired(f"rank with pid {self.pid}", timeout_s)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, signum: int) -> None:
        """Nothing happens to a rank that has ended."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Of a rank that has ended. Idempotent."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pidfd = -1


class Server:
    """A process that forks ranks."""

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno()), *modules],
                env={**environ, **HUGE_PAGES},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._threads = 0

    def start(self, fds: Sequence[int]) -> Process:
        """Forks a rank with these descriptors; see rank_server.py."""
        self._wait_until_ready()
        socket.send_fds(self._orders, [b"start"], list(fds))
        return Process(self, int(self._answer()))

    def ask(self, order: str) -> str:
        self._orders.send(order.encode())
        return self._answer()

    def _wait_until_ready(self) -> None:
        if self._threads == 0:
            self._threads = int(self._answer())
            assert self._threads == 1, f"imports started {self._threads - 1} threads: {self._process.args}"

    def _answer(self) -> str:
        self._orders.settimeout(HANG_S)
        answer = self._orders.recv(64)
        assert answer, f"the server of ranks ended: {self._process.args}, status {self._process.poll()}"
        return answer.decode()


_servers: dict[Any, list[Server]] = {}


def start(rank: int, job: Mapping[str, Any], fds: Sequence[int], source: str) -> Process:
    """Starts a rank on job (work, environ). source: the text of the test, which says what is imported.

    fds: where the rank writes its result and its output, its events, and where it reads orders.
    """
    environ: dict[str, str] = job["environ"]
    early = {name: value for name, value in environ.items() if not name.startswith(READ_LATE)}
    modules = ALWAYS if NOTHING_MORE in environ else modules_of(source)
    kind = (modules, frozenset(early.items()))
    if kind not in _servers:
        _servers[kind] = [Server(modules, early) for _ in range(2)]
    # Without a rendezvous of their own, ranks meet by their common parent.
    server = _servers[kind][rank % 2 if "RINGREDUCE_RENDEZVOUS" in environ else 0]
    given = os.memfd_create("test job")
    try:
        place = {"folder": os.getcwd(), "cores": os.sched_getaffinity(0)}
        write(given, pickle.dumps({**job, **place}))
        return server.start([given, *fds])
    finally:
        os.close(given)


@functools.cache
def modules_of(source: str) -> tuple[str, ...]:
    """What a server for a test with this source imports."""
    pattern = r"^\s*(?:import|from) (?:ringreduce\.)?((\w+)(?:\.\w+)?)"
    imported = {name for names in re.findall(pattern, source, re.MULTILINE) for name in names}
    return (*ALWAYS, *USUALLY, *(name for top, names in IMPORTS.items() if top in imported for name in names))


@functools.cache
def source_of(path: str, *scripts: str) -> str:
    """The text of a test file, of scripts in EXAMPLES, and of what they import from their folders and from this one."""
    seen: dict[Path, str] = {}
    waiting = [Path(path), *(folder / script for script in scripts for folder in EXAMPLES)]
    while waiting:
        file = waiting.pop()
        if file in seen or not file.exists():
            continue
        seen[file] = file.read_text()
        names = re.findall(r"^\s*(?:from|import) (\w+)", seen[file], re.MULTILINE)
        waiting += [folder / f"{name}.py" for name in names for folder in (file.parent, SERVER.parent)]
    return "\n".join(seen.values())
