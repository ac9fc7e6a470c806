"""Jobs whose ranks are connected by TCP: on one machine, each rank a host of its own, and on the lab's hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.lab import Lab
from ports import free_port


def secret_file(folder: Path, name: str = "secret", content: bytes = b"0123456789abcdef") -> Path:
    """A file that only its user can read."""
    path = folder / name
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def tcp_environment(folder: Path) -> dict[str, str]:
    """The variables of a job whose ranks are each a host of their own. folder: for its secret."""
    return {
        "RINGREDUCE_TRANSPORT": "tcp",
        "RINGREDUCE_ADDRESS": f"127.0.0.1:{free_port()}",
        "RINGREDUCE_SECRET_FILE": str(secret_file(folder)),
    }


@contextmanager
def lab_job(
    lab: Lab,
    command: Sequence[str | Path],
    hosts: str = "abcd",
    per_host: int = 2,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """A command on some ranks of each host, by rank; its last argument is "rank-R". The lab's folder has the secret."""
    size = len(hosts) * per_host
    with ExitStack() as stack:
        ranks = []
        for rank in range(size):
            place = {
                "RINGREDUCE_RANK": str(rank),
                "RINGREDUCE_SIZE": str(size),
                "RINGREDUCE_ADDRESS": f"{hosts[0]}:29400",
                "RINGREDUCE_SECRET_FILE": str(lab.folder / "secret"),
                "OMP_NUM_THREADS": "1",
                **(env or {}),
            }
            ranks.append(stack.enter_context(lab.start(hosts[rank // per_host], [*command, f"rank-{rank}"], env=place)))
            stack.callback(ranks[-1].kill)
        yield ranks


def pid_of(lab: Lab, host: str, rank: int) -> int:
    """Of a rank of a lab_job() that runs on this host."""
    (pid,) = (pid for pid, line in lab.processes(host).items() if line.endswith(f"rank-{rank}"))
    return pid
