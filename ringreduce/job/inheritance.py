"""A rank's mark in its environment, by which its children learn that the place they inherit is taken.

Children of spawn and forkserver, and other programs that a rank starts, have the launcher's variables too. They would
wait for ranks that never come, or, one of each rank, be a second job that nobody asked for.
"""

from __future__ import annotations

import os
import sys

from ringreduce.errors import NotInitializedError
from ringreduce.job import environment, starter

VARIABLE = "_RINGREDUCE_RANK_TAKEN"
"""Process id, its start time, and the place: "4711.86400 ringrun 1/2 ringrun-12-ab". Not one of the user's knobs."""

CHILD_PRIORITY = 100
"""Of the finalizers by which a child of multiprocessing leaves: before those that wait for the child's own children."""


def check(place: environment.Placement) -> None:
    """Raises NotInitializedError where a living process, not this one, has marked the place as its own."""
    process, _, name = os.environ.get(VARIABLE, "").partition(" ")
    pid, _, started = process.partition(".")
    if name != _name(place) or process == this_process() or started == "0":  # 0: /proc cannot be read
        return
    if str(starter.start_time(int(pid))) != started:
        return
    if place.job.startswith(environment.BY_PARENT) and not _is_child_of_multiprocessing():
        return  # the ranks of a job that this rank has started by hand, with numbers that are its own too
    raise NotInitializedError(
        f"this process is no rank: it has inherited the variables of rank {place.rank}/{place.size}, which is process "
        f"{pid} and still runs. multiprocessing runs the main script again in each child that it starts by spawn or "
        'forkserver, DataLoader workers too: put ringreduce.init() under `if __name__ == "__main__":`. A program that '
        f"is to be a rank needs variables of its own, as ringrun sets them; one that is to replace rank {place.rank} "
        "can do so after its shutdown()"
    )


def mark(place: environment.Placement) -> None:
    """Called when this process has become a rank."""
    os.environ[VARIABLE] = f"{this_process()} {_name(place)}"


def unmark() -> None:
    """Called when this process is no rank any more."""
    os.environ.pop(VARIABLE, None)


def _is_child_of_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def this_process() -> str:
    """What tells this process from all others of its host, also after it has executed another program."""
    return f"{os.getpid()}.{starter.start_time(os.getpid())}"


def _name(place: environment.Placement) -> str:
    """The place in words that are the same in a child, whose parent is another process."""
    job = "" if place.job.startswith(environment.BY_PARENT) else place.job
    return f"{place.source} {place.rank}/{place.size} {job}"
