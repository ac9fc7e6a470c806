"""Which address of this host rank 0 listens at, where nobody has said one: an address that other hosts reach."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.tcp.interfaces import VARIABLES, Interfaces, interfaces

UNUSED = ("192.0.2.1", "2001:db8::1")
"""Addresses that belong to nobody (RFC 5737, RFC 3849): the way to them is the default route."""


def reachable_ip(names: Sequence[str], me: str) -> str:
    """The first address of this host among those that the names lead to, that packets to the names' hosts bear as
    their source, that the host's own name leads to, and that packets by the default route bear. Never a loopback or
    link-local one, nor that of all interfaces.

    Args:
        names: of this host, as others know it, or of hosts that are to reach it; they are tried in their order.
        me: how messages begin.

    Where the user has named interfaces (interfaces.py) only their addresses count, and the first of them is taken
    where nothing leads to one.

    Raises InvalidArgumentError when there is none.
    """
    chosen, allowed = _users_interfaces()
    if chosen.names and not allowed:
        raise _no_interface(chosen, me)
    tried = []
    for name, ip in _candidates(names):
        if _is_of_this_host(ip) and (ip in allowed or not allowed):
            return ip
        tried.append((name, ip))
    if allowed:
        return allowed[0]
    raise _no_address(tried, me)


def ip_of_name(name: str, me: str) -> str:
    """As reachable_ip([name]), where the ranks of other hosts look for this one at that name and are told no address.

    Interfaces that the user has named choose among the addresses that the name leads to. Where it leads to none that
    other hosts reach, as Debian's 127.0.1.1, they choose among the others that reachable_ip() tries.

    NCCL_SOCKET_IFNAME counts only where it leaves an address: it says where NCCL is to go.

    Raises InvalidArgumentError when there is no address, or another variable leaves none.
    """
    chosen, allowed = _users_interfaces()
    tried = [(name, ip) for ip in _addresses(name)]
    if not any(_is_of_this_host(ip) for _, ip in tried):
        tried = list(_candidates([name]))
    usable = [ip for _, ip in tried if _is_of_this_host(ip)]
    for ip in usable:
        if ip in allowed:
            return ip
    if chosen.named_by not in VARIABLES:
        if usable:
            return usable[0]
        raise _no_address(tried, me)
    if not allowed:
        raise _no_interface(chosen, me)
    raise InvalidArgumentError(
        f"{me}: {chosen.named_by} allows only {', '.join(allowed)} of this host, {os.uname().nodename}, and the other "
        f"ranks look for it at {name}, which leads to {', '.join(usable) or 'none of its addresses'}: set "
        "RINGREDUCE_ADDRESS=host:port on all ranks, with the address that they are to use"
    )


def interface_to(host: str, me: str) -> str:
    """The name of this host's interface by which another host reaches it. me and errors: as of reachable_ip()."""
    own = reachable_ip([host], me)
    name = next((name for name, ip in interfaces() if ip == own), None)
    if name is None:
        raise InvalidArgumentError(f"{me}: {own}, by which {host} is reached, is the address of no interface here")
    return name


def _users_interfaces() -> tuple[Interfaces, list[str]]:
    """The interfaces that the user has named, and their addresses here; none where any interface will do."""
    chosen = Interfaces.named("", os.environ)
    return chosen, [ip for name, ip in interfaces() if chosen.have(name)] if chosen.names else []


def _no_address(tried: Sequence[tuple[str, str]], me: str) -> InvalidArgumentError:
    """tried: as of _candidates()."""
    ways = ", ".join(f"{name} leads to {ip}" if ip else f"{name} to no address" for name, ip in tried)
    return InvalidArgumentError(
        f"{me}: no address was found at which other hosts reach this one, {os.uname().nodename}: {ways}, and there is "
        "no default route. Set RINGREDUCE_ADDRESS=host:port on all ranks, with one of this host's own addresses"
    )


def _no_interface(chosen: Interfaces, me: str) -> InvalidArgumentError:
    has = ", ".join(sorted({name for name, _ in interfaces()})) or "none"
    return InvalidArgumentError(
        f"{me}: {chosen.named_by} names no interface of this host, {os.uname().nodename}, that has an address: it has "
        f"{has}"
    )


def own_ips(name: str) -> list[str]:
    """The addresses of this host that a name leads to, and at which other hosts may reach it."""
    return sorted({ip for ip in _addresses(name) if _is_of_this_host(ip)})


def _candidates(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(how it was found, an address that may be this host's, or "")."""
    leads = [(name, ip) for name in dict.fromkeys(names) for ip in _addresses(name)]
    yield from leads
    for name, ip in leads:
        if ip and (source := _source(ip)):
            yield f"the way to {name}", source
    own = os.uname().nodename
    for ip in _addresses(own) if own not in names else ():
        yield own, ip
    for ip in UNUSED:
        if source := _source(ip):
            yield "the default route", source


def _addresses(name: str) -> list[str]:
    """What a name leads to; "" is no address."""
    try:
        return [str(address[0]) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):  # the latter where a part of the name has more than 63 characters
        return [""]


def _source(ip: str) -> str:
    """The address that packets to another bear as their source; "" where there is no route. Nothing is sent."""
    try:
        with socket.socket(_family(ip), socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect((ip, 9))
            return str(probe.getsockname()[0])
    except OSError:  # there is no such route, or no IPv6
        return ""


def _is_of_this_host(ip: str) -> bool:
    """Whether it is an address of an interface here that has a meaning elsewhere."""
    if not ip or ip.startswith(("127.", "169.254.")) or ip in ("0.0.0.0", "::", "::1") or "%" in ip:
        return False
    if ip.lower().startswith("fe80:"):
        return False
    return is_own(ip)


def is_own(ip: str) -> bool:
    """Whether it is an address, and of an interface here. Asks no name server.

    Where ip_nonlocal_bind is 1, bind() takes any address.
    """
    try:
        packed = _packed(ip)  # bind() would look a name up
        with socket.socket(_family(ip), socket.SOCK_STREAM) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return not _is_any_bound(ip) or _is_among_interfaces(packed) or _bears_itself(ip, packed)


def _is_any_bound(ip: str) -> bool:
    family = "ipv6" if ":" in ip else "ipv4"
    try:
        with open(f"/proc/sys/net/{family}/ip_nonlocal_bind") as file:
            return file.read().strip() != "0"
    except OSError:
        return False


def _is_among_interfaces(packed: bytes) -> bool:
    return any(_packed(ip) == packed for _, ip in interfaces())


def _bears_itself(ip: str, packed: bytes) -> bool:
    """Whether what this host sends to the address bears it as its source, or a loopback address. Of two addresses of
    one network the kernel may take the first for both."""
    source = _source(ip)
    return source.startswith("127.") or source == "::1" or (bool(source) and _packed(source) == packed)


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def _packed(ip: str) -> bytes:
    """The bytes of an address. Raises OSError where it is none."""
    return socket.inet_pton(_family(ip), ip.partition("%")[0])
