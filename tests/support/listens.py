"""At which ports a process listens."""

from __future__ import annotations

import os
from pathlib import Path

LISTEN = "0A"  # of enum tcp_state in Linux's net/tcp_states.h


def own_ports() -> list[int]:
    """Of this process, over IPv4 and IPv6; each once, sorted."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    sockets = {os.readlink(link) for link in links if link.is_symlink()}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)
