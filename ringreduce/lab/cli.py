"""A shell, or one command, on the first host of a lab: ringreduce lab --hosts 2 --rate 1gbit [COMMAND...].

There, `mpirun -H a:2,b:2` (MPICH: `-hosts`) reaches the other hosts as it is; --slurm SLOTS also starts Slurm.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from ringreduce.errors import InvalidArgumentError
from ringreduce.exit_on_signal import exit_on_signal
from ringreduce.lab import requirements, slurm
from ringreduce.lab.cables import Cables
from ringreduce.lab.lab import Lab, end
from ringreduce.lab.mpi import settings


def main(argv: Sequence[str]) -> int:
    """Returns the command's exit status; 2 where there can be no lab.

    If Ctrl-C at a terminal has ended the command, SIGINT ends this process group.
    """
    parser = argparse.ArgumentParser(
        prog="ringreduce lab",
        description="Runs a command on the first of several hosts that are made of this machine: namespaces, joined by "
        "links of a rate, with an OpenSSH daemon each. Needs root.",
    )
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="how many: a, b, c, ... (default 2)")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc spells it, or none (default 1gbit)")
    parser.add_argument("--delay", type=float, default=0, metavar="MS", help="of each link and direction (default 0)")
    parser.add_argument("--lost", type=float, default=0, metavar="PERCENT", help="packets that links lose (default 0)")
    parser.add_argument("--slurm", type=int, metavar="SLOTS", help="start Slurm, with this many per host")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run on host a (default: a shell)")
    options = parser.parse_args(argv)
    if options.slurm is not None and options.slurm < 1:
        parser.error("--slurm: must be at least 1")
    try:
        cables = Cables(options.delay / 1000, lost=options.lost / 100) if options.delay or options.lost else None
    except InvalidArgumentError as error:
        parser.error(f"--delay, --lost: {error}")
    if reason := requirements.missing(cables is not None) or (slurm.missing() if options.slurm else None):
        print(reason, file=sys.stderr)
        return 2
    with ExitStack() as stack:
        stack.enter_context(exit_on_signal())
        rate = None if options.rate == "none" else options.rate
        lab = stack.enter_context(Lab(options.hosts, rate, cables=cables))
        env = {**settings(lab.ssh), "LAB_SSH": str(lab.ssh), "LAB_FOLDER": str(lab.folder), "PS1": r"\u@\h:\w# "}
        if options.slurm:
            env |= stack.enter_context(slurm.Slurm(lab, options.slurm)).environ
        note = "$LAB_SSH HOST COMMAND reaches them; all see $LAB_FOLDER"
        print(f"# hosts {' '.join(lab.hosts)}; {note}", file=sys.stderr)
        before = lab.counters()
        command = options.command[options.command[:1] == ["--"] :] or [os.environ.get("SHELL", "/bin/sh")]
        with lab.start(lab.hosts[0], command, env=env, stdin=None, output=None) as process:
            try:
                status: int = process.wait()
            except BaseException:
                end(process)  # leaving the `with` block would wait until the command ends by itself
                raise
        print(f"# carried: {lab.counters() - before}", file=sys.stderr)
    if status == -signal.SIGINT:  # Ctrl-C, which the terminal has sent to the command's own process group only
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.killpg(0, signal.SIGINT)  # a script that has called this ends too, as with a command of this machine
    return status if status >= 0 else 128 - status
