"""ringrun over several hosts: from the command line to the job, and rank 0's standard input."""

from __future__ import annotations

import argparse
import os
import selectors
import shlex
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.tcp.interfaces import Interfaces
from ringreduce.job.tcp.job import host_and_port, init_timeout_s
from ringreduce.job.tcp.listening_ports import VARIABLE, allowed_ports
from ringreduce.launch.command_line.forwarded import PLACES, asked_for, is_forwarded, without_places
from ringreduce.launch.command_line.hosts import filled
from ringreduce.launch.launch import STDERR, STDIN, STDOUT, Launch
from ringreduce.launch.output import Lines
from ringreduce.launch.remote.job import Orders, RemoteJob
from ringreduce.launch.remote.ssh import Ssh

INPUT_NBYTES = 1 << 16


def orders(options: argparse.Namespace, environ: Mapping[str, str], call: bytes | None = None) -> Orders:
    """What the agents are told. call: of ringreduce.run(). Raises InvalidArgumentError."""
    if options.transport == "shm":
        raise InvalidArgumentError("--transport shm: ranks on several hosts share no memory; leave the option out")
    variables = {name: value for name, value in without_places(environ).items() if is_forwarded(name)}
    variables |= asked_for(options.x, environ) | options.variables
    if options.transport:
        variables["RINGREDUCE_TRANSPORT"] = options.transport
    return Orders(
        command=options.command,
        folder=_folder(environ),
        variables=variables,
        hosts=filled(options.host_list, options.ranks),
        bind=options.bind == "core",
        ssh=Ssh(_ssh_arguments(options), variables),
        start_s=init_timeout_s(variables),
        interfaces=Interfaces.named(options.network_interface or "", variables),
        address=host_and_port(variables.get("RINGREDUCE_ADDRESS", "")),
        ports=allowed_ports(variables.get(VARIABLE, "")),
        call=call,
    )


def _folder(environ: Mapping[str, str]) -> str:
    """Where ringrun runs, by the name that the user's shell has for it: links may lead elsewhere on other hosts."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise InvalidArgumentError("the folder in which ringrun runs does not exist any more") from None
    named = environ.get("PWD", "")
    return named if os.path.isabs(named) and os.path.realpath(named) == os.path.realpath(folder) else folder


def _ssh_arguments(options: argparse.Namespace) -> list[str]:
    try:
        arguments = shlex.split(options.ssh_args or "")
    except ValueError as error:
        raise InvalidArgumentError(f"--ssh-args {options.ssh_args}: {error}") from None
    if options.ssh_port is not None:
        if not 0 < options.ssh_port < 65536:
            raise InvalidArgumentError(f"--ssh-port {options.ssh_port}: expected 1 to 65535")
        arguments += ["-p", str(options.ssh_port)]
    return [*arguments, "-i", options.ssh_identity_file] if options.ssh_identity_file else arguments


def why_no_interface(told: Orders) -> str:
    """Why it does not matter which interfaces rank 0's host may be reached by; "" where it does."""
    if len(told.hosts) == 1:
        return "all ranks are on one host"
    return "RINGREDUCE_ADDRESS says the address" if told.address[0] else ""


class RemoteLaunch(Launch[RemoteJob]):
    """One run of ringrun over several hosts. Raises InvalidArgumentError."""

    def __init__(self, options: argparse.Namespace, prog: str) -> None:
        self._orders = told = orders(options, os.environ)
        super().__init__(
            options,
            prog,
            lambda report: RemoteJob(told, options.grace, report, options.verbose, self._on_input_wanted),
        )
        self._files = ExitStack()
        self._input = STDIN
        self._read_input: Callable[[], bytes] = bytes

    def run(self) -> int:
        """Starts the ranks and waits for the last to end. Returns the exit status."""
        with self._files:
            return super().run()

    def start(self, lines: list[tuple[Lines, Lines]]) -> None:
        """Starts the agents, which start the ranks."""
        self._input = self.stdin(self._files)
        self._read_input = self._how_to_read()
        by_stream = {(rank, stream): pair[stream - 1] for rank, pair in enumerate(lines) for stream in (STDOUT, STDERR)}
        self._tell_unused()
        self.job.begin(by_stream, (self.out, self.err), kept=self.options.output_filename is not None)

    def what_is_next(self) -> str:
        """What start() was about to start, in words."""
        return f"the agents of {len(self._orders.hosts)} hosts"

    def _tell_unused(self) -> None:
        told = self._orders
        if self.options.network_interface and (why := why_no_interface(told)):
            self.report(f"without effect here: --network-interface ({why})")
        left = sorted(name for name in os.environ if name not in told.variables and name not in PLACES)
        if self.options.verbose:
            self.report(f"variables that stay on this host (-x takes one along): {', '.join(left)}")

    def _on_input_wanted(self, more: bool) -> None:
        if not more:
            if self.keyboard is not None:
                self.keyboard.close()
        else:
            self.job.selector.register(self._input, selectors.EVENT_READ, self._on_input)

    def _how_to_read(self) -> Callable[[], bytes]:
        """What reads a piece of the input, and raises BlockingIOError where another program has been faster.

        Nobody else may see O_NONBLOCK at what it shares with ringrun, and a pipe that another user has made cannot be
        opened again (`... | sudo -u me ringrun ...`), so each read says by itself that it does not wait. That of a file
        or a device cannot, and does not.
        """
        mode = os.fstat(self._input).st_mode
        if stat.S_ISSOCK(mode):
            own = self._files.enter_context(socket.socket(fileno=os.dup(self._input)))
            return partial(own.recv, INPUT_NBYTES, socket.MSG_DONTWAIT)
        if not stat.S_ISFIFO(mode):
            return partial(os.read, self._input, INPUT_NBYTES)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        for fd in (reader, writer):
            self._files.callback(os.close, fd)

        def read_pipe() -> bytes:
            nbytes = os.splice(self._input, writer, INPUT_NBYTES, flags=os.SPLICE_F_NONBLOCK)
            return os.read(reader, nbytes) if nbytes else b""

        return read_pipe

    def _on_input(self) -> None:
        try:
            data = self._read_input()
        except BlockingIOError:
            return
        except OSError:  # a terminal that has hung up
            data = b""
        self.job.selector.unregister(self._input)
        self.job.put_input(data)
