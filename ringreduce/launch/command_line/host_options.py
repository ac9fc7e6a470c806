"""The options by which other commands say how ringrun is to start their ranks: on which hosts, and by which ssh."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ringreduce.errors import InvalidArgumentError
from ringreduce.launch.command_line.hosts import Host, host_text, is_this_host, named_hosts

PASSED_ON = ("--ssh-args", "--ssh-port", "--ssh-identity-file", "--network-interface")


class AlsoNames(argparse.Action):
    """An option that may be repeated, whose value is all its names with commas in between, as in Horovod."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


def add_host_options(parser: argparse.ArgumentParser, purpose: str) -> None:
    """purpose: what -H is for, in the command's help."""
    add = parser.add_argument
    add("-H", "--hosts", metavar="HOSTS", help=purpose)
    add("--hostfile", metavar="FILE", help='the same from a file with lines "host slots=N"')
    add("--ssh-args", metavar="ARGS", help="as ringrun takes it, and so are the following")
    add("-p", "--ssh-port", metavar="PORT")
    add("-i", "--ssh-identity-file", metavar="FILE")
    add("--network-interface", "--network-interfaces", metavar="IF", action=AlsoNames)


def add_launch_options(parser: argparse.ArgumentParser, purpose: str) -> None:
    """As add_host_options(), for commands whose ranks all run this command again; without --bind "bind" is None."""
    add_host_options(parser, purpose)
    parser.add_argument(
        "--bind", choices=["core", "none"], help="bind each rank to its share of the cores (default core)"
    )


def host_list(args: argparse.Namespace) -> list[Host]:
    """The hosts of the options; none where there are none. Raises InvalidArgumentError, as for ssh's options alone."""
    hosts = named_hosts(args.hosts, args.hostfile)
    if not hosts and (unused := _words(args)):
        raise InvalidArgumentError(f"{unused[0].partition('=')[0]} is for other hosts: say which by -H or --hostfile")
    return hosts


def hosts_and_ranks(args: argparse.Namespace, command: str) -> tuple[list[Host], int | None]:
    """The hosts, none where it is this one alone, and how many ranks -np and the hosts ask for; None: nobody says.

    Raises InvalidArgumentError, as host_list(), where -np and the hosts disagree, and as refuse_for_others(). command:
    for its text.
    """
    hosts = host_list(args)
    slots = sum(host.slots for host in hosts)
    if slots and args.ranks not in (None, slots):
        raise InvalidArgumentError(f"{command}: -np {args.ranks}, and the hosts have {slots} slots")
    if len(hosts) == 1 and is_this_host(hosts[0].name):
        refuse_for_others(args)
        hosts = []
    return hosts, slots or args.ranks


def refuse_for_others(args: argparse.Namespace) -> None:
    """Where this is the only host: raises InvalidArgumentError for an option that is for other ones."""
    if unused := _words(args):
        option = unused[0].partition("=")[0]
        raise InvalidArgumentError(f"{option} is for other hosts, and this is the only one: leave it out")


def without_launch_options(words: Sequence[str]) -> list[str]:
    """A command line without those options: ranks do not need them, nor have the file of --hostfile.

    words: what the command's own parser has taken, shortened options too.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_launch_options(parser, "")
    return parser.parse_known_args(list(words))[1]


def hosts_text(hosts: list[Host]) -> str:
    """As -H takes them.

    >>> hosts_text([Host("a", 2), Host("fe80::1", 1)])
    'a:2,[fe80::1]:1'
    """
    return ",".join(map(host_text, hosts))


def ringrun_words(args: argparse.Namespace, hosts: list[Host]) -> list[str]:
    """ringrun's options for these hosts; none where there are none."""
    return ["-H", hosts_text(hosts), *_words(args)] if hosts else []


def _words(args: argparse.Namespace) -> list[str]:
    values = {option: getattr(args, option.strip("-").replace("-", "_")) for option in PASSED_ON}
    return [f"{option}={value}" for option, value in values.items() if value]
