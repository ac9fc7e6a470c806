"""The -H list and the host file: which hosts, and how many ranks fit on each."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from ringreduce.errors import InvalidArgumentError, UnavailableError


@dataclass(frozen=True)
class Host:
    """One entry: a name or an address, and how many ranks it takes."""

    name: str
    slots: int


def parse_hosts(text: str) -> list[Host]:
    """The hosts of "a:2,b:4"; a host without a number has one slot. Raises InvalidArgumentError.

    >>> parse_hosts("localhost:2")
    [Host(name='localhost', slots=2)]
    """
    hosts = []
    for entry in text.split(","):
        match = re.fullmatch(r"\s*(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::(\d+))?\s*", entry)
        if match is None or match[2] == "0":
            raise InvalidArgumentError(f"-H {text}: {entry!r} is not of the form host:slots")
        hosts.append(Host(match[1].strip("[]"), int(match[2] or 1)))
    return hosts


def read_hostfile(path: str) -> list[Host]:
    """The hosts of a file with lines "host slots=2" ("#" begins a comment; 1 slot if unsaid).

    Raises InvalidArgumentError naming file and line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidArgumentError(f"--hostfile {path}: {error.strerror}") from error
    hosts = []
    for number, line in enumerate(lines, start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = re.fullmatch(r"(\S+?)(?:\s+slots\s*=\s*(\d+)|:(\d+))?(?:\s+max[-_]slots\s*=\s*\d+)?", entry)
        slots = int(match[2] or match[3] or 1) if match else 0
        if match is None or slots == 0:
            raise InvalidArgumentError(f"{path}:{number}: {entry!r} is not of the form: host slots=N")
        hosts.append(Host(match[1], slots))
    if not hosts:
        raise InvalidArgumentError(f"--hostfile {path}: names no host")
    return hosts


def named_hosts(hosts: str | None, hostfile: str | None) -> list[Host]:
    """Those of a list or of a file; none where neither is given. Raises InvalidArgumentError."""
    if hosts is not None and hostfile is not None:
        raise InvalidArgumentError("a list of hosts (-H) and --hostfile say the same thing; give one of them")
    if hosts is not None:
        return parse_hosts(hosts)
    return read_hostfile(hostfile) if hostfile is not None else []


def is_this_host(name: str) -> bool:
    """True for this host's names and for loopback addresses. Asks no name server."""
    own = socket.gethostname()
    known = {"localhost", "::1", own, own.partition(".")[0]}
    return name in known or name.startswith("127.")


def local_slots(hosts: list[Host]) -> int:
    """The slots of this host. Raises UnavailableError when another host is named."""
    remote = [host.name for host in hosts if not is_this_host(host.name)]
    if remote:
        raise UnavailableError(
            f"ringrun itself starts ranks on this host only, {socket.gethostname()}, and not on {', '.join(remote)}: "
            "it cannot reach other hosts yet. --transport mpi has mpirun start them; docs/hosts.md says how "
            "torchrun and srun do it without MPI"
        )
    return sum(host.slots for host in hosts)
