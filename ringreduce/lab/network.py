"""The wires: a bridge, one cable per host, each end shaped; and what the cables have carried.

Addresses are 10.77.0.1, 10.77.0.2, ... in the order of the hosts; a host's end of its cable is eth0, the switch's end
is port-NAME. Both ends send through a token bucket (tc tbf), so a link carries its rate in each direction.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringreduce.errors import UnavailableError

INTERFACE = "eth0"
PREFIX = 24
BURST = "128kb"  # two of the 64 KiB packets that TCP hands over whole: a smaller bucket would cut each into frames
LATENCY = "50ms"  # how long a packet may wait in a port; room for what a few senders to one host have in flight
TOOL_TIMEOUT_S = 20


@dataclass(frozen=True)
class Bytes:
    """What one host's cable carried. Headers count once for each piece of up to 64 KiB that TCP hands over."""

    sent: int
    received: int


@dataclass(frozen=True)
class Counters:
    """Bytes by host since the lab began, or between two moments: later - earlier."""

    hosts: Mapping[str, Bytes]

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(
            {
                name: Bytes(now.sent - earlier.hosts[name].sent, now.received - earlier.hosts[name].received)
                for name, now in self.hosts.items()
            }
        )

    def __str__(self) -> str:
        return ", ".join(
            f"{name}: {b.sent / 1e6:.3f} MB out, {b.received / 1e6:.3f} MB in" for name, b in self.hosts.items()
        )

    @property
    def mean_sent(self) -> float:
        """Per host. An all-reduce of S bytes over h hosts sends at least 2(h-1)/h * S, whatever the algorithm."""
        return sum(host.sent for host in self.hosts.values()) / len(self.hosts)


def address(index: int) -> str:
    """Of the host with this index, from 0."""
    return f"10.77.0.{index + 1}"


def port(name: str) -> str:
    """The switch's end of a host's cable."""
    return f"port-{name}"


def connect(switch: int, hosts: Mapping[str, int], rate: str | None, has_cables: bool) -> None:
    """Plugs every host into the switch.

    Args:
        switch, hosts: the PIDs of processes in their network namespaces.
        rate: as tc spells it, such as "1gbit"; None = as fast as memory.
        has_cables: the cables are there (cables.py) and need no devices.

    Raises UnavailableError with the tool's own text.
    """
    wires = ["link add bridge0 type bridge stp_state 0 forward_delay 0", "link set bridge0 up"]
    for name, pid in hosts.items():
        if not has_cables:
            wires.append(f"link add {port(name)} type veth peer name {INTERFACE} netns {pid}")
        wires.append(f"link set {port(name)} master bridge0 up")
    batch(switch, "ip", wires)
    shape(switch, [port(name) for name in hosts], rate)
    for index, pid in enumerate(hosts.values()):
        own = [f"addr add {address(index)}/{PREFIX} dev {INTERFACE}", f"link set {INTERFACE} up"]
        batch(pid, "ip", ["link set lo up", *own])
        shape(pid, [INTERFACE], rate)


def shape(pid: int, interfaces: Sequence[str], rate: str | None) -> None:
    """Limits what these interfaces send."""
    if rate is not None:
        bucket = f"tbf rate {rate} burst {BURST} latency {LATENCY}"
        batch(pid, "tc", [f"qdisc replace dev {interface} root {bucket}" for interface in interfaces])


def filter_arrivals(pid: int, match: str, verdict: str) -> None:
    """A packet filter in front of a host: what matches is counted and gets the verdict, both as nft spells them.

    end_filter() ends it.
    """
    lines = ["add table inet lab", "add chain inet lab input { type filter hook input priority 0; }"]
    lines.append(f"add rule inet lab input iifname {INTERFACE} {match} counter {verdict}")
    batch(pid, "nft", lines)


def filtered(pid: int) -> int:
    """Packets that the filter has counted."""
    found = re.search(r"counter packets (\d+)", tool_in(pid, ["nft", "list", "table", "inet", "lab"]))
    assert found is not None
    return int(found[1])


def end_filter(pid: int) -> None:
    """Ends filter_arrivals()."""
    tool_in(pid, ["nft", "delete", "table", "inet", "lab"])


def batch(pid: int, tool: str, lines: Sequence[str]) -> None:
    """Runs commands of `ip`, `tc` or `nft` in the network namespace of a process; the first error ends it."""
    tool_in(pid, [tool, "-f" if tool == "nft" else "-batch", "-"], "".join(f"{line}\n" for line in lines))


def tool_in(pid: int, command: Sequence[str], text: str = "") -> str:
    """What a tool prints in the network namespace of a process. Raises UnavailableError."""
    entered = ["nsenter", f"--net=/proc/{pid}/ns/net", *command]
    done = subprocess.run(entered, input=text, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        raise UnavailableError(f"{' '.join(command)} in the lab failed: {said}\n{text}")
    return done.stdout


def counters(switch: int, hosts: Sequence[str]) -> Counters:
    """What has gone through the switch's ports. A port receives what its host sends."""
    carried = {}
    for line in Path(f"/proc/{switch}/net/dev").read_text().splitlines()[2:]:
        device, _, numbers = line.partition(":")
        fields = [int(number) for number in numbers.split()]
        carried[device.strip()] = Bytes(sent=fields[0], received=fields[8])
    return Counters({name: carried[port(name)] for name in hosts})


def listens(pid: int, port: int) -> bool:
    """Whether somebody accepts connections to this TCP port in the network namespace of a process."""
    rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return any(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A" for row in rows)
