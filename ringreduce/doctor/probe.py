"""One rank of `ringreduce doctor -H`: says what its host has, and measures the ways to other hosts, one at a time.

Rank 0 of the probe tells who calls whom, over connections that it has accepted from all. What a rank finds it prints,
one JSON object a line: {"rank", "facts"}, {"pairs": [...]} of rank 0, {"rank", "problem"}.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ringreduce import _core, config
from ringreduce.bench.pair import DIAL_S, PAIR_S, STEP_S, Answerer, accepted, called, measured, pairs, reason
from ringreduce.errors import Error
from ringreduce.job import environment
from ringreduce.job.deadline import Deadline
from ringreduce.job.tcp.interfaces import interfaces
from ringreduce.job.tcp.own_address import own_ips
from ringreduce.job.tcp.rendezvous import (
    LENGTH,
    Met,
    TcpMeeting,
    address_text,
    exactly,
    meet,
    parse_address,
    read_secret,
)

MEET_S = 20.0
CONTROL_S = 2.0
CALL_S = PAIR_S + DIAL_S + STEP_S
SMALL_SEGMENT_NBYTES = 500
"""Of the meeting, so that it succeeds where full packets are lost."""
NEWS_NBYTES_MOST = 1 << 16
SYSCTLS = (
    *("net/core/rmem_max", "net/core/wmem_max", "net/core/somaxconn", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"),
    *("net/ipv4/tcp_congestion_control", "net/ipv4/tcp_slow_start_after_idle"),
)


def main() -> int:
    """Returns 0: what is wrong is printed, and ringrun ends no other rank because of it."""
    place = environment.detect(network=True)
    _say({"rank": place.rank, "facts": facts()})
    if place.size == 1:
        return 0
    try:
        with ExitStack() as stack:
            met = _met(place.rank, place.size)
            stack.callback(met.listener.close)
            if place.rank == 0:
                _say({"pairs": _lead(met)})
            else:
                _follow(place.rank, met, stack)
    except (Error, OSError) as error:
        _say({"rank": place.rank, "problem": str(error) or type(error).__name__})
    return 0


def facts() -> dict[str, Any]:
    """What matters of this host to a job over the network."""
    name = os.uname().nodename
    return {
        "name": name,
        "kernel": os.uname().release,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "ringreduce": _core.__version__,
        "interfaces": [[each, ip, *_link(each)] for each, ip in interfaces()],
        "own_name": own_ips(name),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "sysctl": {path: _text(Path("/proc/sys", path)) for path in SYSCTLS},
    }


def _met(rank: int, size: int) -> Met:
    host, port = parse_address(config.value("RINGREDUCE_ADDRESS").value, "RINGREDUCE_ADDRESS=")
    secret = read_secret(config.value("RINGREDUCE_SECRET_FILE").value)
    meeting = TcpMeeting(host, port, secret, rank, size, 0, "doctor", segment_nbytes=SMALL_SEGMENT_NBYTES)
    return meet(meeting, Deadline(MEET_S))


def _lead(met: Met) -> list[dict[str, Any]]:
    """Rank 0's part: the measurements of all pairs. What is wrong with one of them leaves the others alone."""
    controls = _controls(met)
    found = []
    for caller, answerer in pairs(len(met.addresses)):
        missing = [rank for rank in (caller, answerer) if rank != 0 and rank not in controls]
        result: dict[str, Any]
        if missing:
            where = address_text(*met.addresses[0])
            result = {"problem": f"has not come to {where}, the first host's port", "missing": missing[0]}
        elif caller == 0:
            result = measured(met.addresses[answerer], met.key)
        else:
            try:
                controls[caller].settimeout(CALL_S)
                _send(controls[caller], {"call": answerer})
                result = _hear(controls[caller])
            except (OSError, EOFError, ValueError) as error:
                result = {"problem": f"the caller has gone: {reason(error)}"}
                controls.pop(caller).close()
        found.append(result | {"caller": caller, "answerer": answerer, "ip": met.addresses[answerer][0]})
    for connection in controls.values():
        with connection, suppress(OSError):
            _send(connection, {"call": 0})
    return found


def _controls(met: Met) -> dict[int, socket.socket]:
    """The connections of the other ranks, of those that come in time."""
    controls: dict[int, socket.socket] = {}
    deadline = Deadline(MEET_S)
    while len(controls) < len(met.addresses) - 1 and not deadline.expired():
        met.listener.settimeout(deadline.wait_s())
        connection = None
        try:
            connection, _ = met.listener.accept()
            accepted(connection, met.key)
            connection.settimeout(CONTROL_S)
            controls[int(_hear(connection)["rank"])] = connection
        except (OSError, EOFError, ValueError, LookupError):  # nobody, or a stranger
            if connection is not None:
                connection.close()
    return controls


def _follow(rank: int, met: Met, stack: ExitStack) -> None:
    """Another rank's part: it answers, and calls whom it is told to call, until that is rank 0."""
    answerer = Answerer(met.listener, met.key)
    stack.callback(answerer.close)
    try:
        control = stack.enter_context(called(met.addresses[0], met.key))
    except (OSError, EOFError) as error:
        where = address_text(*met.addresses[0])
        _say(
            {"rank": rank, "problem": f"it does not reach rank 0's port at {where}: {reason(error)}", "filtered": True}
        )
        return
    with suppress(OSError, EOFError, ValueError, LookupError):  # rank 0 has gone: what ringrun says of that is enough
        _send(control, {"rank": rank})
        control.settimeout(MEET_S + CALL_S * len(pairs(len(met.addresses))))
        while other := int(_hear(control)["call"]):
            _send(control, measured(met.addresses[other], met.key))


def _send(connection: socket.socket, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    connection.sendall(LENGTH.pack(len(body)) + body)


def _hear(connection: socket.socket) -> dict[str, Any]:
    (nbytes,) = LENGTH.unpack(exactly(LENGTH.size, connection.recv))
    if nbytes > NEWS_NBYTES_MOST:
        raise EOFError("a message of another version")
    found = json.loads(exactly(nbytes, connection.recv))
    if not isinstance(found, dict):
        raise ValueError("a message of another version")
    return found


def _link(interface: str) -> tuple[int, int]:
    """The MTU in bytes and the speed in Mbit/s; 0 where the interface does not say."""
    folder = Path("/sys/class/net", interface)
    mtu, speed = (_text(folder / name) for name in ("mtu", "speed"))
    return int(mtu or 0), max(0, int(speed or 0))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _say(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    sys.exit(main())
