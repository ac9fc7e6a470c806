"""The -H list and the host file: which hosts, and how many ranks fit on each."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.tcp.own_address import is_own

THIS_HOST = "localhost"
NAME = r"((?:[^\s:@\[\]]+@)?(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\s:@\[\]]+))"
"""A host's name or address, an IPv6 address in brackets, perhaps behind user@; as a group of a regular expression."""


@dataclass(frozen=True)
class Host:
    """One entry: a name or an address, and how many ranks it takes."""

    name: str
    slots: int


class Place(NamedTuple):
    """Where one rank is in its job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    """Its host's number among the hosts that have a rank with this local_rank."""
    cross_size: int
    """How many hosts these are."""


def place_on_one_host(rank: int, size: int) -> Place:
    """Where a rank is in a job of one host."""
    return Place(rank, size, rank, size, 0, 1)


def places_on_hosts(counts: Sequence[int]) -> list[list[Place]]:
    """The places of all ranks, by host, which take so many ranks each, one host after the other.

    >>> [place.cross_rank for place in places_on_hosts([1, 2])[1]]
    [1, 0]
    """
    size = sum(counts)
    places: list[list[Place]] = []
    rank = 0
    for host, count in enumerate(counts):
        places.append([])
        for local in range(count):
            having = [other for other, ranks in enumerate(counts) if ranks > local]
            places[-1].append(Place(rank, size, local, count, having.index(host), len(having)))
            rank += 1
    return places


def host_text(host: Host) -> str:
    """As -H takes it: an IPv6 address in brackets, behind its user.

    >>> host_text(Host("me@fe80::1", 2))
    'me@[fe80::1]:2'
    """
    user, at, name = host.name.rpartition("@")
    return f"{user}{at}[{name}]:{host.slots}" if ":" in name else f"{host.name}:{host.slots}"


def parse_hosts(text: str) -> list[Host]:
    """The hosts of "a:2,b:4"; a host without a number has one slot. Raises InvalidArgumentError.

    >>> parse_hosts("localhost:2")
    [Host(name='localhost', slots=2)]
    """
    hosts = []
    for entry in text.split(","):
        match = re.fullmatch(rf"\s*{NAME}(?::(\d+))?\s*", entry)
        if match is None or match[2] == "0" or match[1].startswith("-"):
            raise InvalidArgumentError(f"-H {text}: {entry!r} is not of the form host:slots")
        hosts.append(Host(_without_brackets(match[1]), int(match[2] or 1)))
    return hosts


def _without_brackets(name: str) -> str:
    return re.sub(r"[\[\]]", "", name)


def read_hostfile(path: str) -> list[Host]:
    """The hosts of a file with lines "host slots=2" ("#" begins a comment; 1 slot if unsaid).

    Raises InvalidArgumentError naming file and line.
    """
    try:
        # A comment may be of any encoding.
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InvalidArgumentError(f"--hostfile {path}: {error.strerror}") from error
    hosts = []
    for number, line in enumerate(lines, start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = re.fullmatch(rf"{NAME}(?:\s+slots\s*=\s*(\d+)|:(\d+))?(?:\s+max[-_]slots\s*=\s*\d+)?", entry)
        slots = int(match[2] or match[3] or 1) if match else 0
        if match is None or slots == 0 or match[1].startswith("-"):
            raise InvalidArgumentError(f"{path}:{number}: {entry!r} is not of the form: host slots=N")
        hosts.append(Host(_without_brackets(match[1]), slots))
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
    """True for this host's names and addresses, and for loopback addresses. Asks no name server."""
    own = socket.gethostname()
    known = {"localhost", "::1", own, own.partition(".")[0]}
    return name in known or name.startswith("127.") or is_own(name)


def merged(hosts: Sequence[Host]) -> list[Host]:
    """Each host once, where it is named first, with all its slots; this one is THIS_HOST."""
    slots: dict[str, int] = {}
    for host in hosts:
        name = THIS_HOST if is_this_host(host.name) else host.name
        slots[name] = slots.get(name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]


def filled(hosts: list[Host], ranks: int) -> list[Host]:
    """The hosts that get ranks, each with the number that it gets: one host after the other is filled.

    >>> filled([Host("a", 2), Host("b", 2), Host("c", 2)], 3)
    [Host(name='a', slots=2), Host(name='b', slots=1)]
    """
    taken: list[Host] = []
    for host in hosts:
        count = min(host.slots, ranks - sum(other.slots for other in taken))
        if count > 0:
            taken.append(Host(host.name, count))
    return taken
