"""ringreduce.run() on several hosts: a job of agents whose ranks make a call and send back what it returns."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.launch.call import Result
from ringreduce.launch.hosts import Host
from ringreduce.launch.launch import STDERR, STDOUT
from ringreduce.launch.options import GRACE_S
from ringreduce.launch.output import Lines, Taker
from ringreduce.launch.remote.job import Orders, RemoteJob
from ringreduce.launch.remote.launch import orders
from ringreduce.launch.remote.messages import RESULT


def call_orders(
    hosts: list[Host], python: str, call: bytes, variables: Mapping[str, str], words: Mapping[str, Any]
) -> Orders:
    """What the agents are told.

    Args:
        hosts: each with as many ranks as it has slots.
        python: the ranks' interpreter.
        call: of pickled().
        variables: for the ranks, beside those that go to other hosts anyway.
        words: run()'s ssh_args, ssh_port, ssh_identity_file, network_interface and network_interfaces, where given.

    Raises InvalidArgumentError.
    """
    interfaces = [words[name] for name in ("network_interface", "network_interfaces") if words.get(name)]
    port = words.get("ssh_port")
    if len(interfaces) > 1 or not isinstance(port, (int, type(None))):
        raise InvalidArgumentError(
            f"run(ssh_port={port!r}) is not a number"
            if len(interfaces) < 2
            else "network_interface and network_interfaces are two names of one argument; give one of them"
        )
    options = argparse.Namespace(
        transport=None,
        x=[],
        variables=dict(variables),
        command=[python],
        host_list=hosts,
        ranks=sum(host.slots for host in hosts),
        bind="core",
        ssh_args=words.get("ssh_args"),
        ssh_port=port,
        ssh_identity_file=words.get("ssh_identity_file"),
        network_interface=interfaces[0] if interfaces else None,
    )
    return orders(options, {**os.environ, **variables}, call)


class CallJob(RemoteJob):
    """The ranks, which read nothing."""

    def __init__(self, told: Orders, report: Callable[[str], None], verbose: bool) -> None:
        super().__init__(told, GRACE_S, report, verbose, lambda more: self.put_input(b"") if more else None)

    def start(self, lines: Sequence[tuple[Lines, Lines]], results: Sequence[Result], kept: bool) -> None:
        """Starts the agents, which start the ranks. The sinks are there already.

        Args:
            lines: take stdout and stderr, by rank.
            results: take the answers, by rank.
            kept: whether output is of use although nobody reads the sinks.

        Raises UnavailableError where ssh cannot be run.
        """
        takers: dict[tuple[int, int], Taker] = {}
        for rank, ((out, err), result) in enumerate(zip(lines, results, strict=True)):
            takers |= {(rank, STDOUT): out, (rank, STDERR): err, (rank, RESULT): result}
        try:
            self.begin(takers, self.sinks, kept)
        except OSError as error:
            raise UnavailableError(f"[run] cannot run {error.filename or 'ssh'!r}: {error.strerror}") from error
