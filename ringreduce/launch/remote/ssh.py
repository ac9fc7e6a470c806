"""ssh's command line for one host, and what its troubles mean."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ringreduce.launch.python import run_module

AGENT = "ringreduce.launch.remote"
OPTIONS = (
    *("-T", "-x"),
    *("-o", "BatchMode=yes"),  # nobody could answer a question
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=2"),  # a host that has vanished is noticed after 6 s
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ControlMaster=no"),  # a master that it leaves behind would ignore what link.py has it ignore
)
PYTHONS = ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE")
"""Variables without which the agent's Python may not start, or not find its packages; the ranks get them later."""
READ_IN_MANY_WAYS = frozenset("!\\\n\r")
"""What shells do not agree on within single quotes."""


@dataclass(frozen=True)
class Ssh:
    """How hosts are reached."""

    arguments: Sequence[str] = ()
    """Of the user's; ssh takes the first value that it gets for an option, so they come first."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the ranks. Those of PYTHONS are the agent's too: a login without a terminal loads no modules."""

    def command(self, host: str) -> list[str]:
        """Starts an agent there.

        sh, bash, zsh, csh and fish read the last word alike, where Python's path has neither "!" nor a backslash.
        """
        given = {name: self.variables[name] for name in PYTHONS if name in self.variables}
        settings = [f"{name}={value}" for name, value in given.items() if not READ_IN_MANY_WAYS & set(value)]
        words = [*(["env", *settings] if settings else []), *run_module(AGENT)]
        return ["ssh", *self.arguments, *OPTIONS, host, "exec " + shlex.join(words)]


def local_command() -> list[str]:
    """Starts an agent on this host."""
    return run_module(AGENT, "local")


class Trouble(NamedTuple):
    """What ssh, or the shell there, says; and what to do about it."""

    pattern: str
    cure: str


TROUBLES = (
    Trouble(
        r"(?i)error (while )?loading shared librar",
        cure="{python} does not find a shared library there: LD_LIBRARY_PATH goes along as it is here (`module load`, "
        "or -x LD_LIBRARY_PATH=FOLDER), and has to name folders that are on all hosts",
    ),
    Trouble(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        cure="the host has another key than ssh knows of it. If that is right (it was installed anew), forget the old "
        "one: ssh-keygen -R {name}",
    ),
    Trouble(
        r"Host key verification failed|No .* host key is known",
        cure="ssh does not know this host's key yet. Log in once and compare the key: ssh {host} true; or take it on "
        'trust: --ssh-args="-o StrictHostKeyChecking=accept-new"',
    ),
    Trouble(
        r"Permission denied|Too many authentication failures",
        cure="it does not let this user in without a password. Put a key there: ssh-copy-id {host}; another user: "
        "-H user@{name}; another key: -i FILE",
    ),
    Trouble(
        r"Could not resolve hostname|Name or service not known",
        cure="no such name: check -H, /etc/hosts or ~/.ssh/config",
    ),
    Trouble(r"Connection refused", cure="no ssh server listens there; at another port: -p PORT"),
    Trouble(
        r"timed out|No route to host|Network is unreachable", cure="it cannot be reached: is it up, does ssh pass?"
    ),
    Trouble(
        r"No module named '?ringreduce",
        cure="ringreduce is not installed there for {python}: pip install it on that host",
    ),
    Trouble(
        r"(?i){python}.*(not found|no such file)|(not found|no such file|unknown command).*{python}",
        cure="there is no {python} there: install Python and ringreduce at the same path on all hosts, or share the "
        "folder",
    ),
    Trouble(
        r"(?i)bad configuration option|unknown option|usage: ssh", cure="ssh does not take these options: --ssh-args"
    ),
)


def cure(host: str, said: str) -> str:
    """What to do about what ssh has said of a host; "" where that is not known."""
    python = run_module(AGENT)[0]
    for trouble in TROUBLES:
        if re.search(trouble.pattern.replace("{python}", re.escape(python)), said):
            return trouble.cure.format(host=host, name=host.rpartition("@")[2], python=python)
    return ""
