"""Runs a command inside a host: python -m ringreduce.lab.enter PID COMMAND...

PID is the host's process 1. The command keeps the working directory where the host has it, ends with this process, and
gets the signals that this one gets; its exit status, or 128 + its signal, is this one's.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from ringreduce.lab import kernel

NOT_RUNNABLE, NOT_FOUND = 126, 127  # as a shell has them
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def main(pid: int, command: list[str]) -> int:
    folder = os.getcwd()
    kernel.enter(pid, kernel.HOST)
    os.chdir(folder if os.path.isdir(folder) else "/")
    # A shell at a terminal stays in its session; anything else must not share the fate of who waits for it.
    at_terminal = os.isatty(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        kernel.die_with_parent(signal.SIGKILL)
        if at_terminal:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpgid(0) or os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        else:
            os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE)

    def forward(signum: int, _: FrameType | None) -> None:
        os.kill(child, signum)

    for signum in FORWARDED:
        signal.signal(signum, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
