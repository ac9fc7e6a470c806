"""The network interfaces of this host, their addresses, and which of them the user wants."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLES = ("RINGREDUCE_NETWORK_INTERFACE", "HOROVOD_GLOO_IFACE")
SIOCGIFCONF = 0x8912  # of linux/sockios.h
IFREQ_NBYTES = 40
INTERFACES_MOST = 256
VIRTUAL = ("docker", "virbr", "veth", "br-", "cni", "flannel", "lxc", "tun", "tap")
"""How the names of interfaces begin that lead to no other host, as a rule. Their addresses are tried last."""


@dataclass(frozen=True)
class Interfaces:
    """By which interfaces of its host others may reach a rank 0. Without names: any."""

    named_by: str = ""
    """The option or variable that the user has set."""
    names: Sequence[str] = ()
    are_prefixes: bool = False
    are_excluded: bool = False

    def have(self, name: str) -> bool:
        """Whether an interface is one of them."""
        if not self.names:
            return True
        is_named = any(name.startswith(each) if self.are_prefixes else name == each for each in self.names)
        return is_named != self.are_excluded

    @classmethod
    def named(cls, option: str, environ: Mapping[str, str]) -> Interfaces:
        """By --network-interface, else RINGREDUCE_NETWORK_INTERFACE, else HOROVOD_GLOO_IFACE, else NCCL_SOCKET_IFNAME.

        NCCL's value begins with ^ to exclude interfaces, = for whole names, both, or neither: names are prefixes.
        """
        by = {"--network-interface": option} | {name: environ.get(name, "") for name in VARIABLES}
        for named_by, text in by.items():
            if text:
                return cls(named_by, text.split(","))
        text = environ.get("NCCL_SOCKET_IFNAME", "")
        are_excluded = text.startswith("^")
        rest = text.removeprefix("^")
        names = [name for name in rest.removeprefix("=").split(",") if name]
        return cls("NCCL_SOCKET_IFNAME", names, not rest.startswith("="), are_excluded)


def interfaces() -> list[tuple[str, str]]:
    """(interface, IP address) of this host, without loopback and link-local ones; virtual interfaces come last."""
    found = [*_ipv4(), *_ipv6()]
    usable = [(name, ip) for name, ip in found if not ip.startswith(("127.", "169.254.")) and ip != "::1"]
    return sorted(usable, key=lambda entry: entry[0].startswith(VIRTUAL))


def _ipv4() -> list[tuple[str, str]]:
    room = array.array("B", bytes(IFREQ_NBYTES * INTERFACES_MOST))
    where, nbytes = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, SIOCGIFCONF, struct.pack("iL", nbytes, where))
    entries = room.tobytes()[: struct.unpack("iL", answer)[0]]
    return [
        (
            os.fsdecode(entries[i : i + 16].split(b"\0")[0].partition(b":")[0]),
            socket.inet_ntoa(entries[i + 20 : i + 24]),
        )
        for i in range(0, len(entries), IFREQ_NBYTES)
    ]


def _ipv6() -> list[tuple[str, str]]:
    try:
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_bytes().splitlines()]
    except OSError:
        return []
    of_all_hosts = b"00"  # the scope
    return [
        (os.fsdecode(row[5]), socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0].decode())))
        for row in rows
        if row[3] == of_all_hosts
    ]
