"""Ports: a free one of the loopback interface, and those at which a process listens."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

LISTEN = "0A"  # of enum tcp_state in Linux's net/tcp_states.h


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def own_ports() -> list[int]:
    """Those at which this process listens."""
    return listening_ports(os.getpid())


def listening_ports(pid: int) -> list[int]:
    """Those at which a process of this machine listens, over IPv4 and IPv6; each once, sorted."""
    folder = Path(f"/proc/{pid}")
    sockets = set()
    for fd in (folder / "fd").iterdir():
        with contextlib.suppress(OSError):  # it has been closed since
            sockets.add(os.readlink(fd))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in (folder / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)
