"""The process that has started this job's ranks, which names the job where a launcher does not. Any thread.

A name that was found stays, so that a job whose starter ends meets again under it. Ranks that init() comes to later
than that are told apart by their session and process group, as far as these are a job's and not a rank's: else all jobs
whose starters have ended would be one, since the same process has become the parent of all their ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

_found: dict[tuple[object, ...], str] = {}
"""By process, since a forked child has another starter, and by what was asked for."""


def of_this_process() -> str:
    """The parent's pid and start time (ticks since boot), which tells it from a later process of that pid."""

    def find() -> str:
        pid = os.getppid()
        return _name(pid, start_time(pid), [])

    return _kept(find, os.getpid())


def of_ranks(names: Sequence[str], environ: Mapping[str, str]) -> str:
    """As of_this_process(), through the shells and other wrappers that each rank may have of its own.

    A wrapper was started with all of this rank's variables; who starts ranks has not got them, or others.

    Args:
        names: of the variables that a rank has.
        environ: this rank's.
    """
    mine = {name: environ.get(name) for name in names}

    def find() -> str:
        wrappers: list[int] = []
        for pid, _, started in ancestors():
            name = _name(pid, started, wrappers)
            if _initial_environment(pid, names) != mine:
                break
            wrappers.append(pid)
        return name

    return _kept(find, os.getpid(), *mine.values())


def is_nearer(names: Sequence[str], others: Sequence[str], environ: Mapping[str, str]) -> bool | None:
    """Whether who gave this process the variables `names` is nearer to it than who gave it `others`.

    The nearer one was started with the others' variables and gave its own. None: /proc does not tell, as of a process
    of another user.
    """
    for pid, _, _ in ancestors():
        initial = _initial_environment(pid, [*names, *others])
        has_names = all(initial[name] == environ[name] for name in names)
        has_others = all(initial[name] == environ[name] for name in others)
        if not (has_names and has_others):
            return None if has_names == has_others else has_others
    return None


def ancestors() -> Iterator[tuple[int, str, int]]:
    """(pid, command name, start time) of the parent, its parent and so on; at least of the parent."""
    pid = os.getppid()
    for _ in range(16):  # no launch is wrapped deeper; bounds the walk should /proc change under it
        comm, parent, started = _process(pid)
        yield pid, comm, started
        if parent <= 1:
            return
        pid = parent


def start_time(pid: int) -> int:
    """When a process was started, in ticks since boot: tells it from a later one of that id. 0 where there is none."""
    return _process(pid)[2]


def _kept(find: Callable[[], str], *key: object) -> str:
    if key not in _found:
        _found[key] = find()
    return _found[key]


def _name(pid: int, started: int, wrappers: Collection[int]) -> str:
    return f"{pid}.{started}{_left_behind(pid, {os.getpid(), *wrappers})}"


def _left_behind(starter: int, own: Collection[int]) -> str:
    """What tells this rank's job from others whose starters have ended; "" where the starter is there.

    A rank is in its starter's session, or in one that it or its wrapper leads.

    Args:
        own: the rank's process and those of its wrappers.
    """
    session, group = os.getsid(0), os.getpgrp()
    try:
        if session in own or session == os.getsid(starter):
            return ""
    except OSError:  # it has ended just now
        return ""
    return f".{session}" if group in own else f".{session}.{group}"


def _initial_environment(pid: int, names: Sequence[str]) -> dict[str, str | None]:
    """Variables that a process was started with; none of one that is not this user's."""
    try:
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
            found = dict(line.partition("=")[::2] for line in file.read().split("\0"))
    except OSError:
        found = {}
    return {name: found.get(name) for name in names}


def _process(pid: int) -> tuple[str, int, int]:
    """(command name, parent's pid, start time) from /proc; ("", 0, 0) for a process outside this PID namespace."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return "", 0, 0
    comm = text[text.index("(") + 1 : text.rindex(")")]  # a command name may itself hold spaces and brackets
    fields = text[text.rindex(")") + 2 :].split()
    return comm, int(fields[1]), int(fields[19])
