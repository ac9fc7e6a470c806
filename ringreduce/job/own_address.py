"""Which address of this host rank 0 listens at, where nobody has said one: an address that other hosts reach."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence

from ringreduce.errors import InvalidArgumentError

UNUSED = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that belong to nobody (RFC 5737, RFC 3849): the way to them is the default route. Nothing is sent."""


def reachable_ip(names: Sequence[str], me: str) -> str:
    """The first address of this host among those that the names lead to, that the host's own name leads to, and that
    packets by the default route bear as their source. Never a loopback or link-local one, nor that of all interfaces.

    Args:
        names: by which other hosts know this one; they are tried first, in their order.
        me: how messages begin.

    Raises InvalidArgumentError when there is none.
    """
    own = os.uname().nodename
    tried = []
    for name, ip in _candidates([*names, own]):
        if _is_of_this_host(ip):
            return ip
        tried.append(f"{name} leads to {ip}" if ip else f"{name} to no address")
    raise InvalidArgumentError(
        f"{me}: no address was found at which other hosts reach this one, {own}: {', '.join(tried)}, and there is no "
        "default route. Set RINGREDUCE_ADDRESS=host:port on all ranks, with one of this host's own addresses"
    )


def _candidates(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, address that it leads to, or "")."""
    for name in dict.fromkeys(names):
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            yield name, ""
            continue
        for *_, address in found:
            yield name, str(address[0])
    for family, ip in UNUSED:
        try:
            with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                probe.connect((ip, 9))
                yield "the default route", str(probe.getsockname()[0])
        except OSError:  # there is no such route, or no IPv6
            continue


def _is_of_this_host(ip: str) -> bool:
    """Whether it is an address of an interface here that has a meaning elsewhere."""
    if not ip or ip.startswith(("127.", "169.254.")) or ip in ("0.0.0.0", "::", "::1") or "%" in ip:
        return False
    if ip.lower().startswith("fe80:"):
        return False
    return is_own(ip)


def is_own(ip: str) -> bool:
    """Whether it is an address, and of an interface here. Asks no name server."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        socket.inet_pton(family, ip.partition("%")[0])  # bind() would look a name up
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True
