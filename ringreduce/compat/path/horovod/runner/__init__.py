"""horovod.run(): a function on several ranks, with Horovod's arguments. The command is ringrun."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.launch.hosts import is_this_host, parse_hosts, read_hostfile
from ringreduce.launch.run import run as _run

__all__ = ["run"]

NO_EFFECT = {
    "verbose": "there is nothing to report",
    "use_gloo": "ringreduce has its own transports",
    "use_mpi": "for ranks by mpirun: ringrun --transport mpi",
    "disable_cache": "nothing about hosts is cached",
    "network_interface": "ranks of one host need no network",
    "network_interfaces": "ranks of one host need no network",
}
"""Arguments whose values change nothing, with the reason, for a warning."""


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    executable: str | None = None,
    np: int | None = None,
    **others: Any,
) -> list[Any]:
    """Calls func(*args, **kwargs) on num_proc ranks of this host; see ringreduce.run().

    Args:
        hosts, hostfile: "host:slots,..." or a file of them; this host alone.
        start_timeout: seconds for all ranks to meet in init(); default: RINGREDUCE_INIT_TIMEOUT.
        executable: this process's Python, sys.executable.
        np: the old name of num_proc.
        others: Horovod's other arguments. Those in NO_EFFECT are warned of; the others are an error.

    Returns:
        What each rank returned, by rank.

    Raises:
        UnavailableError: an argument asks for what ringreduce has not: another host, elastic training, ssh.
    """
    given = {name: value for name, value in others.items() if value is not None and value is not False}
    for name in given.keys() & NO_EFFECT.keys():
        warnings.warn(f"horovod.run: {name} has no effect: {NO_EFFECT[name]}", RuntimeWarning, stacklevel=2)
    if unknown := sorted(given.keys() - NO_EFFECT.keys()):
        raise UnavailableError(f"horovod.run: ringreduce.run() has no {', '.join(unknown)}: it runs ranks of this host")
    if executable not in (None, sys.executable):
        raise UnavailableError(f"horovod.run: executable={executable!r}: ranks run this Python, {sys.executable}")
    if hosts is not None and hostfile is not None:
        raise InvalidArgumentError("horovod.run: hosts and hostfile say the same thing; give one of them")
    listed = parse_hosts(hosts) if hosts is not None else read_hostfile(hostfile) if hostfile is not None else []
    if away := [host.name for host in listed if not is_this_host(host.name)]:
        raise UnavailableError(
            f"horovod.run: {', '.join(away)}: a function runs on ranks of this host; on several hosts run a script: "
            "ringrun --transport mpi -H host:slots,... python train.py"
        )
    env = {} if start_timeout is None else {"RINGREDUCE_INIT_TIMEOUT": str(start_timeout)}
    return _run(func, args, kwargs, np=num_proc if np is None else np, env=env)
