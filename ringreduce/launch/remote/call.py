"""ringreduce.run() on several hosts: a job of agents whose ranks make a call and send back what it returns."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.launch.call import Result
from ringreduce.launch.command_line.hosts import Host
from ringreduce.launch.command_line.options import GRACE_S
from ringreduce.launch.launch import STDERR, STDOUT
from ringreduce.launch.output import Lines, Taker
from ringreduce.launch.remote.job import Orders, RemoteJob
from ringreduce.launch.remote.launch import orders, why_no_interface
from ringreduce.launch.remote.messages import RESULT
from ringreduce.launch.spawn import no_descriptor


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
    interfaces = [name for name in ("network_interface", "network_interfaces") if words.get(name)]
    if len(interfaces) > 1:
        raise InvalidArgumentError("network_interface and network_interfaces are two names of one argument; give one")
    for name, kind in (("ssh_args", str), ("ssh_identity_file", str), ("ssh_port", int)):
        if not isinstance(words.get(name), (kind, type(None))):
            raise InvalidArgumentError(f"run({name}={words[name]!r}): expected {kind.__name__}")
    options = argparse.Namespace(
        transport=None,
        x=[],
        variables=dict(variables),
        command=[python],
        host_list=hosts,
        ranks=sum(host.slots for host in hosts),
        bind="core",
        ssh_args=words.get("ssh_args"),
        ssh_port=words.get("ssh_port"),
        ssh_identity_file=words.get("ssh_identity_file"),
        network_interface=_names(interfaces[0], words[interfaces[0]]) if interfaces else None,
    )
    told = orders(options, {**os.environ, **variables}, call)
    if interfaces and (why := why_no_interface(told)):
        warnings.warn(f"run(): without effect here: {interfaces[0]} ({why})", RuntimeWarning, stacklevel=3)
    return told


def _names(argument: str, given: Any) -> str:
    """Interfaces as the command's option has them, from the same or from a list. Raises InvalidArgumentError."""
    names = given if isinstance(given, (list, tuple)) else [given]
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"run({argument}={given!r}): expected str, or a list of str")
    return ",".join(names)


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
            cannot = f"cannot run {error.filename or 'ssh'!r}: {error.strerror}"
            text = no_descriptor(error, f"the agents of {len(self._orders.hosts)} hosts") or cannot
            raise UnavailableError(f"[run] {text}") from error
