"""Runs a command inside a host: python -m ringreduce.lab.enter PID COMMAND...

PID is the host's process 1. The command keeps the working directory, ends with this process, and gets the signals that
this one gets; its exit status, or 128 + its signal, is this one's. If the command has the terminal and ends by SIGINT,
this process ends by SIGINT; if it stops, as by Ctrl-Z, this process group stops too, until a shell lets it go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

from ringreduce.lab import kernel
from ringreduce.lab.keeper import OWN

NOT_RUNNABLE, NOT_FOUND = 126, 127  # as a shell has them
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def main(pid: int, command: list[str]) -> int:
    folder = os.getcwd()
    kernel.enter(pid, kernel.HOST)
    try:
        os.chdir(folder)
    except OSError as error:
        own = "hosts have files of their own in " + ", ".join(OWN)
        reason = f"{error.strerror}; {own}, besides what Lab(shared=...) names"
        print(f"ringreduce lab: the host has no working directory {folder}: {reason}", file=sys.stderr, flush=True)
        return NOT_RUNNABLE
    foreground = foreground_group()
    # A command in the terminal's foreground stays in this session and gets the terminal, until it ends. Any other must
    # not share the fate of who waits for it.
    takes_terminal = foreground == os.getpgrp()
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        kernel.die_with_parent(signal.SIGKILL)
        if takes_terminal:
            os.setpgid(0, 0)
            set_foreground(os.getpgid(0) or os.getpid())
        else:
            os.setsid()
            if foreground is not None:  # else it would read what is typed for the foreground, which SIGTTIN prevents
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a new program would go on so
            signal.signal(signum, signal.SIG_DFL)
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
    has_terminal = takes_terminal
    while os.WIFSTOPPED(end := os.waitpid(child, os.WUNTRACED if takes_terminal else 0)[1]):
        has_terminal = stop_too(child, has_terminal)
    status = os.waitstatus_to_exitcode(end)
    if takes_terminal:
        # Where the parent has gone, a shell has noticed that its command is gone, and has the terminal.
        if has_terminal and os.getppid() == parent:
            set_foreground(os.getpgrp())
        if status == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    return status if status >= 0 else 128 - status


def stop_too(child: int, has_terminal: bool) -> bool:
    """Stops this process group, as the command's has stopped, and lets the command go on when this group does.

    A group that no shell could let go on does not stop: the kernel ignores SIGTSTP there. Nor does one that a shell has
    brought to the foreground while it ran, which the command learns only as it reads.

    Args:
        child: the command's process group.
        has_terminal: whether the command was in the foreground.

    Returns:
        Whether it is now.
    """
    own = os.getpgrp()
    if has_terminal:
        set_foreground(own)
    if has_terminal or foreground_group() != own:
        os.killpg(0, signal.SIGTSTP)
    has_terminal = foreground_group() == own
    if has_terminal:
        set_foreground(child)
    os.killpg(child, signal.SIGCONT)
    return has_terminal


def foreground_group() -> int | None:
    """The process group in the foreground of standard input, or None if that is not this session's terminal."""
    try:
        return os.tcgetpgrp(0)
    except OSError:
        return None


def set_foreground(group: int) -> None:
    """Puts a process group of this session into the terminal's foreground, also from the background."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the terminal has gone
        os.tcsetpgrp(0, group)
    signal.signal(signal.SIGTTOU, before)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
