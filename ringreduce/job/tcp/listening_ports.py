"""At which ports a rank listens for ranks of other hosts: any that is free, or those of RINGREDUCE_PORTS."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ringreduce.errors import InvalidArgumentError, UnavailableError

VARIABLE = "RINGREDUCE_PORTS"
ANY = range(1)
"""Port 0: the kernel chooses one."""

Made = TypeVar("Made")


def allowed_ports(text: str) -> range:
    """The ports of "FIRST-LAST" or "ONE"; ANY of "". Raises InvalidArgumentError.

    >>> allowed_ports("29400-29409")
    range(29400, 29410)
    """
    if not text:
        return ANY
    first, _, last = text.partition("-")
    last = last if "-" in text else first
    if not all(word.isascii() and word.isdecimal() and len(word) <= 5 for word in (first, last)):
        raise InvalidArgumentError(f"{VARIABLE}={text}: expected FIRST-LAST, two ports, as 29400-29499")
    ports = range(int(first), int(last) + 1)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise InvalidArgumentError(f"{VARIABLE}={text}: expected FIRST-LAST with 1 <= FIRST <= LAST <= 65535")
    return ports


def meeting_ports(ports: range) -> range:
    """Those of the allowed ports at which rank 0 of a Slurm step is awaited, and no rank listens for anything else."""
    return ports[: max(1, len(ports) // 4)]


def listening(ip: str, ports: Sequence[int], backlog: int) -> socket.socket:
    """A socket that listens at an address of this host. Raises UnavailableError where all ports are taken."""
    return first_free(ports, ip, lambda port: _listening(ip, port, backlog))


def addresses_of(host: str, port: int) -> list[tuple[int, int, int, Any]]:
    """(family, kind, protocol, address) for each address of a name, or for an address: where a rank may listen.

    None is of all interfaces or link-local: a name may have such ones beside the one that is meant, and resolvers put
    IPv6's link-local ones first. Raises socket.gaierror.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    usable = [
        (int(family), int(kind), protocol, address)
        for family, kind, protocol, _, address in found
        if address[0] not in ("0.0.0.0", "::") and not str(address[0]).lower().startswith("fe80:")
    ]
    return list(dict.fromkeys(usable))


def first_free(ports: Sequence[int], ip: str, make: Callable[[int], Made]) -> Made:
    """What make(port) returns for the first port for which it does not raise OSError with EADDRINUSE.

    Raises UnavailableError where all ports are taken, and what else make raises.
    """
    begin = os.getpid() % max(1, len(ports))  # so that ranks that begin together seldom try the same
    for port in (*ports[begin:], *ports[:begin]):
        try:
            return make(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or ports == ANY:
                raise
    raise UnavailableError(
        f"{VARIABLE}: all {len(ports)} ports are taken at {ip}: allow more. A host needs one for each of its ranks, "
        "rank 0 two more, and each group of torch.distributed as many again"
    )


def _listening(ip: str, port: int, backlog: int) -> socket.socket:
    """SO_REUSEADDR, without which a port stays closed for a minute after its last job, also takes a port at which the
    ringrun of another job is about to start its rank 0 (launch/remote/addresses.py): such jobs need ranges apart."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if port:  # an earlier job's connections do not keep the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, port))
        listener.listen(backlog)  # two sockets may be bound to one port while none of them listens
    except BaseException:
        listener.close()
        raise
    return listener
