"""The options by which other commands say on which hosts ringrun is to start their ranks, and how ssh gets there."""

from __future__ import annotations

import argparse

from ringreduce.launch.hosts import Host, named_hosts

PASSED_ON = ("--ssh-args", "--ssh-port", "--ssh-identity-file", "--network-interface")


def add_host_options(parser: argparse.ArgumentParser, purpose: str) -> None:
    """purpose: what -H is for, in the command's help."""
    add = parser.add_argument
    add("-H", "--hosts", metavar="HOSTS", help=purpose)
    add("--hostfile", metavar="FILE", help='the same from a file with lines "host slots=N"')
    add("--ssh-args", metavar="ARGS", help="as ringrun takes it, and so are the following")
    add("-p", "--ssh-port", metavar="PORT")
    add("-i", "--ssh-identity-file", metavar="FILE")
    add("--network-interface", "--network-interfaces", metavar="IF")


def host_list(args: argparse.Namespace) -> list[Host]:
    """The hosts of the options; none where there are none. Raises InvalidArgumentError."""
    return named_hosts(args.hosts, args.hostfile)


def hosts_text(hosts: list[Host]) -> str:
    """As -H takes them.

    >>> hosts_text([Host("a", 2), Host("fe80::1", 1)])
    'a:2,[fe80::1]:1'
    """
    return ",".join(
        f"[{host.name}]:{host.slots}" if ":" in host.name else f"{host.name}:{host.slots}" for host in hosts
    )


def ringrun_words(args: argparse.Namespace, hosts: list[Host]) -> list[str]:
    """ringrun's options for these hosts; none where there are none."""
    if not hosts:
        return []
    words = ["-H", hosts_text(hosts)]
    for option in PASSED_ON:
        value = getattr(args, option.strip("-").replace("-", "_"))
        words += [f"{option}={value}"] if value else []
    return words
