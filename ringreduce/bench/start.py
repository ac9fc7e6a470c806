"""Commands that start ranks of their own: not where they are ranks themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ringreduce.bench import terminal
from ringreduce.bench.options import DEFAULT_BIND, DEFAULT_RANKS
from ringreduce.errors import InvalidArgumentError
from ringreduce.job import environment
from ringreduce.launch import ringrun
from ringreduce.launch.command_line.host_options import without_launch_options
from ringreduce.launch.command_line.hosts import Host
from ringreduce.launch.python import run_module


def started(
    module: str, argv: Sequence[str], ranks: int | None, hosts: Sequence[Host], launch: Sequence[str], bind: str | None
) -> int | None:
    """The exit status of start(), where this process is no rank of a job; None where it is one.

    The one rank of a job is none where several ranks, or hosts, are asked for: a shell of `srun --pty bash` is such a
    rank.

    Raises InvalidArgumentError where it is one of another job than ranks and hosts say, and where bind is not None, for
    then its launcher has bound it.
    """
    place = environment.detect(network=True)
    if place.source == "single" or (place.size == 1 and (hosts or (ranks or 1) > 1)):
        # One rank here is this process: all cores are its share.
        return start(module, argv, ranks or DEFAULT_RANKS, launch, bind) if ranks != 1 or hosts else None
    inside = f"inside a job of {place.size} ranks ({place.source})"
    if hosts:
        raise InvalidArgumentError(f"-H {inside}")
    if ranks not in (None, place.size):
        raise InvalidArgumentError(f"-np {ranks} {inside}")
    if bind is not None:
        raise InvalidArgumentError(f"--bind {bind} {inside}: leave it out, the launcher binds its ranks")
    return None


def refuse_within_job(command: str) -> None:
    """For a command that starts one job after the other, which every rank of a job would do.

    Raises InvalidArgumentError where this process is one of several ranks of a job.
    """
    place = environment.detect(network=True)
    if place.size > 1:
        raise InvalidArgumentError(
            f"{command} starts jobs of its own: call it outside of this job of {place.size} ranks ({place.source}), "
            "with -np"
        )


def start(module: str, argv: Sequence[str], ranks: int, launch: Sequence[str], bind: str | None) -> int:
    """The module of this package with these arguments, and -np, on so many ranks. Returns the exit status.

    Args:
        argv: as the user has given them: without_launch_options() are handed on.
        launch: ringrun's options besides.
        bind: "core", "none", or None, which is DEFAULT_BIND.
    """
    if terminal.coloured(sys.stdout):
        os.environ["FORCE_COLOR"] = "1"  # what a rank prints comes here through a pipe
    words = ["-np", str(ranks), *launch, "--bind", bind or DEFAULT_BIND, "--no-tag-output"]
    return ringrun.main([*words, *run_module(module, *without_launch_options(argv), "-np", str(ranks))])
