"""The command line of ringrun."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.launch.hosts import local_slots, parse_hosts, read_hostfile

MAX_RANKS = 4096
GRACE_S = 3.0

EPILOG = """\
Each rank finds its place in RINGREDUCE_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _CROSS_RANK and _CROSS_SIZE, and in the
same names with HOROVOD_. Rank 0 reads ringrun's standard input, the others read nothing. SIGINT and SIGTERM are passed
on to all ranks; a second one kills them. When a rank fails, the others may take --grace seconds to raise and report,
then get SIGTERM and 1.5 s later SIGKILL.

exit status: that of the first rank to fail, 128 + N if signal N killed it; 2 for a wrong command line;
126 or 127 if the program cannot be run.

example: ringrun -np 2 python train.py --epochs 3
"""


def parser(prog: str = "ringrun") -> argparse.ArgumentParser:
    """The options, with their help."""
    parse = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} -np N [options] PROGRAM [ARGUMENT ...]",
        description="Runs a program on N ranks of this host.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parse.add_argument
    add(
        "-np",
        "-n",
        "--num-proc",
        dest="ranks",
        type=int,
        metavar="N",
        help="number of ranks (default: the slots of -H)",
    )
    add("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts and how many ranks each takes; today this host only")
    add("--hostfile", "-hostfile", metavar="FILE", help='the same as lines "host slots=N"')
    add(
        "--transport",
        choices=("auto", "shm", "tcp", "mpi"),
        help="how ranks are linked; shm (shared memory) is auto's choice today, tcp and mpi do not exist yet",
    )
    add(
        "--bind",
        choices=("core", "none"),
        default="core",
        help="core: rank i runs on its equal share of the allowed cores, and OMP_NUM_THREADS is that share if unset",
    )
    add("--grace", type=float, default=GRACE_S, metavar="S", help="seconds between the first failure and SIGTERM (3.0)")
    add(
        "--tag-output",
        action=argparse.BooleanOptionalAction,
        help='begin each line with "[rank]<stdout>: " or "[rank]<stderr>: " (default: if stdout is a terminal)',
    )
    add(
        "--timeline",
        metavar="FILE",
        help="exported as RINGREDUCE_TIMELINE; the timeline itself does not exist yet, so nothing is written",
    )
    add("--verbose", "-v", action="store_true", help="report each rank's start, cores and end")
    add("--check-build", "-cb", action="store_true", help="show what this build has, as `ringreduce doctor`")
    add("command", nargs=argparse.REMAINDER, metavar="PROGRAM", help="any program, and its arguments")
    return parse


def read(argv: Sequence[str] | None, prog: str) -> argparse.Namespace:
    """The options, checked; `ranks` and `command` are there unless `check_build` is.

    Raises:
        SystemExit: argparse's own errors (status 2) and --help.
        InvalidArgumentError, UnavailableError: what argparse cannot check.
    """
    options = parser(prog).parse_args(argv)
    if options.check_build:
        return options
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        raise InvalidArgumentError(f"no program to run; for example: {prog} -np 2 python train.py")
    if options.transport in ("tcp", "mpi"):
        raise UnavailableError(
            f"--transport {options.transport} does not exist yet; today ranks of one host are linked by shared memory "
            "(--transport shm, the default)"
        )
    if not options.grace >= 0:
        raise InvalidArgumentError(f"--grace {options.grace:g}: expected seconds, 0 or more")
    _check_ranks(options)
    return options


def _check_ranks(options: argparse.Namespace) -> None:
    if options.hosts is not None and options.hostfile is not None:
        raise InvalidArgumentError("-H and --hostfile say the same thing; give one of them")
    slots = None
    if options.hosts is not None:
        slots = local_slots(parse_hosts(options.hosts))
    elif options.hostfile is not None:
        slots = local_slots(read_hostfile(options.hostfile))
    if options.ranks is None:
        options.ranks = slots
    if options.ranks is None:
        raise InvalidArgumentError("how many ranks? give -np N")
    if not 1 <= options.ranks <= MAX_RANKS:
        raise InvalidArgumentError(f"-np {options.ranks}: expected 1 to {MAX_RANKS}")
    if slots is not None and options.ranks > slots:
        raise InvalidArgumentError(f"-np {options.ranks}: the hosts have {slots} slots")
