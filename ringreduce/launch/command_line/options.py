"""The command line of ringrun."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.launch.command_line import horovodrun
from ringreduce.launch.command_line.forwarded import NAME, asked_for
from ringreduce.launch.command_line.host_options import AlsoNames
from ringreduce.launch.command_line.hosts import THIS_HOST, merged, named_hosts
from ringreduce.launch.python import run_script

MAX_RANKS = 4096
GRACE_S = 3.0

EPILOG = """\
Each rank finds its place in RINGREDUCE_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _CROSS_RANK and _CROSS_SIZE, and in the
same names with HOROVOD_. Rank 0 reads ringrun's standard input, the others read nothing. When a rank fails, the others
may take --grace seconds to raise and report, then get SIGTERM and 1.5 s later SIGKILL.

SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all ranks. When a rank then fails, the others have 30 s
(--grace, if that is longer) to save their work; ringrun sends no second signal before, and SIGKILL after that. A second
SIGINT or SIGTERM kills all ranks at once, if it comes 0.5 s after the first or later (one that comes sooner is the
first, delivered twice), and so does SIGQUIT, by which ringrun ends then.

When all ranks have succeeded, what they have started and left running (`exec > >(tee log)`) may finish what it says,
for 0.5 s after its latest word and 2 s in all. What it says later is lost. While ringrun takes nothing, as the reader
of its own output is slow, this time stands still, for the first 64 MiB.

With --transport mpi the mpirun of the MPI that mpi4py loads starts the ranks, with that MPI's words for these options;
-v shows them. Places come from mpirun's own variables; signals and the end of the job are mpirun's as well, and --grace
counts for MPICH alone.

exit status: that of the first rank to fail, 128 + N if signal N killed it; 2 for a wrong command line;
126 or 127 if the program cannot be run; 128 + N if all ranks have succeeded, and signal N has ended ringrun before all
of their output was read; 1 if all ranks have succeeded, but their output cannot be written, here or to
--output-filename (a full disk; a reader that has gone is none of this); mpirun's own with --transport mpi.

A program train.py runs under ringrun's own Python, as -m MODULE does.

examples: ringrun -np 2 python train.py --epochs 3
          ringrun -np 2 train.py --epochs 3
          ringrun -np 2 -m package.train --epochs 3
"""


def parser(prog: str = "ringrun") -> argparse.ArgumentParser:
    """The options, with their help."""
    parse = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} -np N [-H HOST:SLOTS,...] [options] PROGRAM [ARGUMENT ...]",
        description="Runs a program on N ranks, of this host or of several.",
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
    add(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts and how many ranks each takes; other hosts than this one are reached by ssh",
    )
    add("--hostfile", "-hostfile", metavar="FILE", help='the same as lines "host slots=N"')
    add(
        "--transport",
        choices=("auto", "shm", "shm+tcp", "tcp", "mpi"),
        help="how ranks are linked; auto (the default) and shm+tcp: by shared memory within a host, by TCP between "
        "hosts; shm: by shared memory, and all on one host; tcp: by TCP, as if each rank were a host, to try or to "
        "compare; mpi: mpirun starts the ranks, and MPI connects the hosts",
    )
    add("--ssh-args", metavar="WORDS", help='more options for ssh: --ssh-args="-J gateway -o Compression=yes"')
    add("-p", "--ssh-port", type=int, metavar="PORT", help="the port of the hosts' ssh servers (22)")
    add("-i", "--ssh-identity-file", metavar="FILE", help="the key that ssh shows")
    add(
        "--network-interface",
        "--network-interfaces",
        action=AlsoNames,
        metavar="NAME,...",
        help="of the first host: by which the other hosts may reach it (default: any that they do reach); may be "
        "repeated",
    )
    add(
        "-x",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="takes one more variable to other hosts (docs/user/hosts.md has those that go there anyway), or sets one "
        "for all ranks",
    )
    add("--encrypt", action="store_true", help="sets RINGREDUCE_ENCRYPT=on: all that leaves a host by TCP is encrypted")
    add("--mpi-args", metavar="WORDS", help='more options for mpirun: --mpi-args="--mca btl tcp,self"')
    add(
        "--bind",
        choices=("core", "none"),
        default="core",
        help="core: rank i runs on its equal share of the allowed cores, and OMP_NUM_THREADS, if unset, is that share, "
        "or the share of a container's CPU quota if that is less",
    )
    add("--grace", type=float, default=GRACE_S, metavar="S", help="seconds between the first failure and SIGTERM (3.0)")
    add(
        "--tag-output",
        action=argparse.BooleanOptionalAction,
        help='begin each line with "[rank]<stdout>: " or "[rank]<stderr>: " (default: if stdout is a terminal)',
    )
    add(
        "--output-filename",
        metavar="DIR",
        help="also write each rank's output to DIR/rank.N/stdout and DIR/rank.N/stderr",
    )
    add(
        "--timeline",
        metavar="FOLDER",
        help="sets RINGREDUCE_TIMELINE: each rank writes there when its operations were called, started and ended, for "
        "`ringreduce timeline report FOLDER`",
    )
    add(
        "--as-horovod",
        action="store_true",
        help="`import horovod.torch` and all its modules find ringreduce, in the program and in its children (without "
        "this option: No module named 'horovod'); where Horovod is installed too: RINGREDUCE_AS_HOROVOD=force",
    )
    add("--verbose", "-v", action="store_true", help="report each rank's start, cores and end")
    add("--check-build", "-cb", action="store_true", help="show what this build has, as `ringreduce doctor`")
    add("--version", action="store_true", help="print the version")
    horovodrun.add_to(parse)
    add(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        help="run a Python module, with all that follows as its arguments",
    )
    add("command", nargs=argparse.REMAINDER, metavar="PROGRAM", help="any program, and its arguments")
    return parse


def read(argv: Sequence[str] | None, prog: str) -> argparse.Namespace:
    """The options, checked; `ranks`, `host_list` and `command` are there unless `check_build` or `version` is.

    Raises:
        SystemExit: argparse's own errors (status 2) and --help.
        InvalidArgumentError, UnavailableError: what argparse cannot check.
    """
    options = parser(prog).parse_args(argv)
    if options.check_build or options.version:
        return options
    if options.command[:1] == ["--"]:
        del options.command[0]
    if options.module:
        options.command = [sys.executable, "-m", *options.module]
    if not options.command:
        raise InvalidArgumentError(f"no program to run; for example: {prog} -np 2 python train.py")
    if options.mpi_args is not None and options.transport != "mpi":
        raise InvalidArgumentError("--mpi-args are for mpirun: give --transport mpi too")
    options.mpi_words = _mpi_words(options.mpi_args or "")
    if options.output_filename is not None and options.transport == "mpi":
        raise UnavailableError(
            "--output-filename: mpirun carries the output of --transport mpi. Give its own option by --mpi-args: "
            '"--output-filename DIR" (Open MPI 4), "--output dir=DIR" (Open MPI 5), "-outfile-pattern FILE.%r" (MPICH)'
        )
    if not options.grace >= 0:
        raise InvalidArgumentError(f"--grace {options.grace:g}: expected seconds, 0 or more")
    if options.timeline is not None:
        options.variables["RINGREDUCE_TIMELINE"] = options.timeline
    if options.encrypt and options.transport == "mpi":
        raise UnavailableError(
            "--encrypt: with --transport mpi MPI connects the hosts, and MPIs do not encrypt; leave --transport out, "
            "and TCP does"
        )
    if options.encrypt:
        options.variables["RINGREDUCE_ENCRYPT"] = "on"
    _check_ranks(options, prog)
    options.command = run_script(options.command)
    return options


def _mpi_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidArgumentError(f"--mpi-args {text}: {error}; quote it as for a shell") from None


def _check_ranks(options: argparse.Namespace, prog: str) -> None:
    options.host_list = hosts = named_hosts(options.hosts, options.hostfile)
    options.spans_hosts = False
    if options.transport != "mpi":
        options.host_list = hosts = merged(hosts)
        options.spans_hosts = any(host.name != THIS_HOST for host in hosts)
    if not options.spans_hosts:
        _name_unused(options)
        words = [word for word in options.x if "=" in word or word in os.environ or not NAME.fullmatch(word)]
        options.variables = asked_for(words, os.environ) | options.variables
        options.unused += [f"-x {word} (this variable is not set)" for word in options.x if word not in words]
    slots = sum(host.slots for host in hosts) if hosts else None
    if options.ranks is None:
        options.ranks = slots
    if options.ranks is None:
        misplaced = {"-np", "-n", "--num-proc"} & set(options.command)
        order = f"; options stand before the program: {prog} -np N {options.command[0]} ..." if misplaced else ""
        raise InvalidArgumentError(f"how many ranks? give -np N{order}")
    if not 1 <= options.ranks <= MAX_RANKS:
        raise InvalidArgumentError(f"-np {options.ranks}: expected 1 to {MAX_RANKS}")
    if slots is not None and options.ranks > slots:
        raise InvalidArgumentError(f"-np {options.ranks}: the hosts have {slots} slots")


def _name_unused(options: argparse.Namespace) -> None:
    why = "the ranks are on this host" if options.transport != "mpi" else "give mpirun's own option by --mpi-args"
    for flag, given in (
        ("--ssh-args", options.ssh_args),
        ("--ssh-port", options.ssh_port),
        ("--ssh-identity-file", options.ssh_identity_file),
        ("--network-interface", options.network_interface),
    ):
        if given:
            options.unused.append(f"{flag} ({why})")
