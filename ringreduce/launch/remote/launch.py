"""ringrun over several hosts: from the command line to the job, and rank 0's standard input."""

from __future__ import annotations

import argparse
import os
import selectors
import shlex
from collections.abc import Mapping
from contextlib import ExitStack

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.tcp_job import host_and_port
from ringreduce.launch.forwarded import is_forwarded, without_places
from ringreduce.launch.hosts import Host
from ringreduce.launch.launch import STDERR, STDOUT, Launch
from ringreduce.launch.output import Lines
from ringreduce.launch.remote.job import Orders, RemoteJob
from ringreduce.launch.remote.ssh import Ssh

START_S = 60.0
INPUT_NBYTES = 1 << 16
INTERFACES = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
"""Variables that name interfaces, as --network-interface does."""


def orders(options: argparse.Namespace, environ: Mapping[str, str]) -> Orders:
    """What the agents are told. Raises InvalidArgumentError."""
    if options.transport == "shm":
        raise InvalidArgumentError("--transport shm: ranks on several hosts share no memory; leave the option out")
    variables = {name: value for name, value in without_places(environ).items() if is_forwarded(name)}
    variables |= _asked_for(options.x, environ) | options.variables
    if options.transport:
        variables["RINGREDUCE_TRANSPORT"] = options.transport
    arguments = [*shlex.split(options.ssh_args or "")]
    arguments += ["-p", str(options.ssh_port)] if options.ssh_port else []
    arguments += ["-i", options.ssh_identity_file] if options.ssh_identity_file else []
    named = options.network_interface or next((environ[name] for name in INTERFACES if environ.get(name)), "")
    start_s = variables.get("RINGREDUCE_INIT_TIMEOUT", "") or START_S
    try:
        until_s = float(start_s)
    except ValueError:
        raise InvalidArgumentError(f"RINGREDUCE_INIT_TIMEOUT={start_s} is not a number of seconds") from None
    return Orders(
        command=options.command,
        folder=os.getcwd(),
        variables=variables,
        hosts=filled(options.host_list, options.ranks),
        bind=options.bind == "core",
        ssh=Ssh(arguments),
        start_s=until_s,
        interfaces=[name for name in named.split(",") if name],
        address=host_and_port(environ.get("RINGREDUCE_ADDRESS", "")),
    )


def filled(hosts: list[Host], ranks: int) -> list[Host]:
    """The hosts that get ranks, each with the number that it gets: one host after the other is filled.

    >>> filled([Host("a", 2), Host("b", 2), Host("c", 2)], 3)
    [Host(name='a', slots=2), Host(name='b', slots=1)]
    """
    taken: list[Host] = []
    for host in hosts:
        count = min(host.slots, ranks - sum(other.slots for other in taken))
        if count > 0:
            taken.append(Host(host.name, count))
    return taken


def _asked_for(words: list[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of -x."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name not in environ:
            raise InvalidArgumentError(f"-x {name}: this variable is not set; -x {name}=VALUE sets it")
        found[name] = value if equals else environ[name]
    return found


class RemoteLaunch(Launch[RemoteJob]):
    """One run of ringrun over several hosts. Raises InvalidArgumentError."""

    def __init__(self, options: argparse.Namespace, prog: str) -> None:
        told = orders(options, os.environ)
        super().__init__(
            options,
            prog,
            lambda report: RemoteJob(told, options.grace, report, options.verbose, self._on_input_wanted),
        )
        self._files = ExitStack()
        self._input: int | None = None

    def run(self) -> int:
        """Starts the ranks and waits for the last to end. Returns the exit status."""
        with self._files:
            return super().run()

    def start(self, lines: list[tuple[Lines, Lines]]) -> None:
        """Starts the agents, which start the ranks."""
        self._input = self.stdin(self._files)
        by_stream = {(rank, stream): pair[stream - 1] for rank, pair in enumerate(lines) for stream in (STDOUT, STDERR)}
        self.job.begin(by_stream, (self.out, self.err), kept=self.options.output_filename is not None)

    def _on_input_wanted(self, more: bool) -> None:
        if not more:
            if self.keyboard is not None:
                self.keyboard.close()
        elif self._input is None:
            self.job.put_input(b"")
        else:
            self.job.selector.register(self._input, selectors.EVENT_READ, self._on_input)

    def _on_input(self) -> None:
        assert self._input is not None
        try:
            data = os.read(self._input, INPUT_NBYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal that has hung up
            data = b""
        self.job.selector.unregister(self._input)
        self.job.put_input(data)
