"""Ranks on all hosts of a lab, connected by TCP, that run a program."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from subprocess import Popen

from ringreduce.lab.lab import Lab

PORT = 29400


def start(lab: Lab, each: int, program: str, arguments: list[str], stack: ExitStack) -> list[Popen[str]]:
    """Starts the text of a program on `each` ranks of every host; by rank. They end with the stack.

    A rank's last argument is "rank-R", by which its process can be found.
    """
    file = lab.folder / "program.py"
    file.write_text(program)
    secret = lab.folder / "secret"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_bytes(os.urandom(32))
    ranks: list[Popen[str]] = []
    for rank in range(len(lab.hosts) * each):
        place = {
            "RINGREDUCE_RANK": str(rank),
            "RINGREDUCE_SIZE": str(len(lab.hosts) * each),
            "RINGREDUCE_ADDRESS": f"{lab.hosts[0]}:{PORT}",
            "RINGREDUCE_SECRET_FILE": str(secret),
            "RINGREDUCE_TRANSPORT": "tcp",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, file, *arguments, f"rank-{rank}"]
        ranks.append(stack.enter_context(lab.start(lab.hosts[rank // each], command, env=place)))
        stack.callback(ranks[-1].kill)
    return ranks
