"""Ranks on a lab's hosts that are connected by TCP and have no launcher."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ringreduce.lab.lab import Lab

PORT = 29400


@contextmanager
def tcp_ranks(
    lab: Lab,
    command: Sequence[str | Path],
    hosts: str | None = None,
    each: int = 2,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """Runs a command on `each` ranks of every one of these hosts; None = all. Gives the processes by rank.

    A rank's last argument is "rank-R", by which pid_of() finds it. Ranks that still run at the end are killed. Their
    secret is the file `secret` in the lab's folder, made here if there is none. env: more variables for each rank.
    """
    names = lab.hosts if hosts is None else tuple(hosts)
    secret = lab.folder / "secret"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_bytes(os.urandom(32))
    size = len(names) * each
    with ExitStack() as stack:
        ranks: list[subprocess.Popen[str]] = []
        for rank in range(size):
            place = {
                "RINGREDUCE_RANK": str(rank),
                "RINGREDUCE_SIZE": str(size),
                "RINGREDUCE_ADDRESS": f"{names[0]}:{PORT}",
                "RINGREDUCE_SECRET_FILE": str(secret),
                "RINGREDUCE_TRANSPORT": "auto",
                "OMP_NUM_THREADS": "1",
                **(env or {}),
            }
            ranks.append(stack.enter_context(lab.start(names[rank // each], [*command, f"rank-{rank}"], env=place)))
            stack.callback(ranks[-1].kill)
        yield ranks


def pid_of(lab: Lab, host: str, rank: int) -> int:
    """The process of a rank that tcp_ranks() has started on this host."""
    (pid,) = (pid for pid, line in lab.processes(host).items() if line.endswith(f"rank-{rank}"))
    return pid
