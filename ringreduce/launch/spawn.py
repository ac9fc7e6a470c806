"""Starts one rank: its variables, its process group, its CPUs, and its death with its launcher's.

The kernel kills a rank whose launcher ends, but not what that rank has started: `sh -c "python train.py; true"` would
leave python running. A Guardian ends that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import secrets
import signal
import subprocess
import termios
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ringreduce.launch.binding import cores_of, thread_share
from ringreduce.launch.command_line.hosts import Place
from ringreduce.launch.terminal import TAKEN

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
GUARD = """
while read -r kind what; do
    case $kind in
    done) exit 0 ;;
    group) groups="$groups -$what" ;;
    file) set -- "$@" "$what" ;;
    esac
done
[ -z "$groups" ] || kill -9 $groups
[ $# = 0 ] || rm -f -- "$@"
"""
_prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: a forked child should do as little as it can


def new_rendezvous() -> str:
    """A fresh value for RINGREDUCE_RENDEZVOUS, one per job: address and 256-bit secret."""
    return f"ringrun-{os.getpid()}-{secrets.token_hex(8)}:{secrets.token_hex(32)}"


def rank_environment(
    base: Mapping[str, str], place: Place, rendezvous: str, cpus: Collection[int] | None
) -> dict[str, str]:
    """The variables of one rank, in our names and in Horovod's.

    OMP_NUM_THREADS becomes the rank's share of cores, less where a quota of CPU time allows less, and Python's output
    is not held back in blocks, unless the user has set these.
    """
    environ = dict(base)
    for prefix in ("RINGREDUCE_", "HOROVOD_"):
        environ |= {prefix + name.upper(): str(value) for name, value in place._asdict().items()}
    environ["RINGREDUCE_RENDEZVOUS"] = rendezvous
    environ.setdefault("PYTHONUNBUFFERED", "1")
    if cpus:
        environ.setdefault("OMP_NUM_THREADS", str(thread_share(cores_of(cpus), place.local_size)))
    return environ


_files_before: tuple[int, int] | None = None
"""RLIMIT_NOFILE as it was before many_files(), within it."""


@contextmanager
def many_files() -> Iterator[None]:
    """Within, this process may open as many files as its hard limit allows: a launcher has three for each rank.

    What it starts gets the limit back by files_as_before(): a program may take a high one for numbers to go through.
    """
    global _files_before
    outer, before = _files_before, resource.getrlimit(resource.RLIMIT_NOFILE)
    _files_before = outer or before
    with contextlib.suppress(OSError, ValueError):  # fs.nr_open has become less than the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        _files_before = outer
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def files_as_before() -> None:
    """For a new process that many_files() is not for. After it, no descriptor beyond the limit can be made."""
    if _files_before is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, _files_before)


def no_descriptor(error: OSError, what: str) -> str:
    """That there was no file descriptor for something that was to be started, and what to do; "" for another error."""
    if error.errno == errno.EMFILE:
        now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"no file descriptor is left for {what}: raise ulimit -n (now {now})"
    if error.errno == errno.ENFILE:
        return f"no file descriptor is left on this host for {what}: raise its fs.file-max, or end what has many open"
    return ""


def die_with_parent(signum: int = signal.SIGKILL) -> Callable[[], None]:
    """What a new process does first, to get a signal when the thread that has started it ends, or its process."""
    parent = os.getpid()

    def die() -> None:
        _prctl(PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # it died before prctl
            os._exit(1)

    return die


@contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Holds signals to be passed on while a process is forked; yields what the new one calls in a group of its own.

    Up to then the new process has its parent's handlers, and a terminal's signal goes to both: with a wakeup
    descriptor in common, the parent would count that signal twice.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # asked alone: the call that blocks may raise for a handler

    def release() -> None:
        signal.set_wakeup_fd(-1)
        for signum in TAKEN:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
        yield release
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Guardian:
    """A small process that kills process groups, and removes files, when this one ends without close(), as by SIGKILL.

    It sees the end of this process at a pipe, so no other process may inherit the pipe: not for a process in which
    other threads fork. To be made within signals_held(): the signals stay blocked there. Where there is no shell,
    nothing is guarded.
    """

    def __init__(self) -> None:
        reader, self._pipe = os.pipe2(os.O_CLOEXEC)
        self._shell: subprocess.Popen[bytes] | None = None
        nothing = subprocess.DEVNULL
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", GUARD], stdin=reader, stdout=nothing, stderr=nothing, env={}, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            self.close()
        finally:
            os.close(reader)

    def add(self, group: int) -> None:
        """One more to kill. As long as this process lives, the number has to stay that group's."""
        self._tell(f"group {group}\n")

    def add_file(self, path: str) -> None:
        """One more to remove, which need not be there yet."""
        if "\n" not in path:
            self._tell(f"file {path}\n")

    def close(self) -> None:
        """Ends the guardian, which kills and removes nothing. Idempotent."""
        self._tell("done\n")
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._shell is not None:
            self._shell.wait()

    def _tell(self, line: str) -> None:
        if self._pipe >= 0:
            with contextlib.suppress(BrokenPipeError):  # somebody has killed it
                os.write(self._pipe, os.fsencode(line))


def _give_up_terminal() -> None:
    """Of this process alone. With a session of its own it could not call setpgrp(), as scripts do."""
    with contextlib.suppress(OSError):  # there is none
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
        finally:
            os.close(terminal)


def spawn(
    command: Sequence[str],
    environ: Mapping[str, str],
    cpus: Collection[int] | None,
    stdin: int,
    stdout: int,
    stderr: int,
    pass_fds: Sequence[int] = (),
    first: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a command as the leader of a new process group; it is killed when this thread's process ends.

    It has no terminal: what asks a user there (getpass, ssh, git) asks its standard input instead, or fails. With
    ringrun's terminal it would be stopped, as its process group is in the background, and nobody would notice.

    Args:
        cpus: what it is bound to; None leaves it free.
        stdin, stdout, stderr: descriptors, or subprocess.DEVNULL; None is not offered, so that nothing is inherited
            by accident.
        first: what the new process does before it runs the command.

    Raises OSError when the command cannot be run.
    """
    die = die_with_parent()

    def prepare() -> None:
        os.setpgid(0, 0)
        _give_up_terminal()
        die()
        if cpus:
            os.sched_setaffinity(0, cpus)
        if first is not None:
            first()
        files_as_before()

    try:
        return subprocess.Popen(
            command, env=environ, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds, preexec_fn=prepare
        )
    except subprocess.SubprocessError as error:  # which step it was, and its errno, are not known
        steps = f"a process group, CPUs {sorted(cpus or ())}, what tells its end"
        raise OSError(errno.EPERM, f"a new process could not be prepared: {steps}") from error
