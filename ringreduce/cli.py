"""The umbrella command: ringreduce run, bench, tune, ..., each loaded only when it is called."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from ringreduce.errors import Error

USAGE = """\
usage: ringreduce COMMAND [options]

  run       run a program on N ranks, of this host or of several by -H (the same as ringrun)
  bench     measure collectives and check their results
  tune      measure what the machine takes for all-reduces, and write the best sizes to a plan file
  doctor    show what this build and this machine have, and test it
  timeline  show when each rank called and waited, from the records of RINGREDUCE_TIMELINE
  top       watch running jobs: what each rank does, and who waits for whom
  lab       run a command on several hosts made of this machine, joined by links of a rate (root)

  --version  print the version
  --help     this text; `ringreduce COMMAND --help` for a command's own
"""
USAGE_STATUS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 141 where the reader of its output has gone, as `| head` does.

    Not so `run`, `tune` and `bench` without --vs: there the ranks print, and their exit status counts.
    """
    try:
        try:
            return _run_command(list(sys.argv[1:] if argv is None else argv))
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it at its end
        return 128 + signal.SIGPIPE  # of a program that does not ignore the signal, in a shell


def _run_command(given: list[str]) -> int:
    if given[:1] in (["--help"], ["-h"], ["help"]):
        sys.stdout.write(USAGE)
        return 0
    if given[:1] in (["--version"], ["-V"]):
        import ringreduce

        sys.stdout.write(f"ringreduce {ringreduce.__version__}\n")
        return 0
    command = _COMMANDS.get(given[0]) if given else None
    if command is None:
        sys.stderr.write(USAGE if not given else f"ringreduce: no command {given[0]!r}\n{USAGE}")
        return USAGE_STATUS
    try:
        return command(given[1:])
    except Error as error:
        sys.stderr.write(f"ringreduce {given[0]}: {error}\n")
        return USAGE_STATUS


def _run(argv: Sequence[str]) -> int:
    from ringreduce.launch import ringrun

    return ringrun.main(argv, "ringreduce run")


def _bench(argv: Sequence[str]) -> int:
    from ringreduce.bench import cli

    return cli.main(argv)


def _tune(argv: Sequence[str]) -> int:
    from ringreduce.tuning import cli

    return cli.main(argv)


def _doctor(argv: Sequence[str]) -> int:
    from ringreduce import doctor

    return doctor.main(argv)


def _timeline(argv: Sequence[str]) -> int:
    from ringreduce.timeline import cli

    return cli.main(argv)


def _top(argv: Sequence[str]) -> int:
    from ringreduce.watch import cli

    return cli.main(argv)


def _lab(argv: Sequence[str]) -> int:
    from ringreduce.lab import cli

    return cli.main(argv)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "bench": _bench,
    "tune": _tune,
    "doctor": _doctor,
    "timeline": _timeline,
    "top": _top,
    "lab": _lab,
}
