"""ringrun --transport mpi: the same command line, run by the mpirun of the MPI that mpi4py loads.

ringrun becomes that mpirun (exec), so signals, standard input and the exit status are its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringreduce.errors import UnavailableError
from ringreduce.launch.binding import cores_of, thread_share
from ringreduce.launch.command_line.forwarded import is_forwarded, without_places
from ringreduce.launch.command_line.hosts import Host, host_text, is_this_host
from ringreduce.launch.mpi import loaded
from ringreduce.launch.mpi.versions import ROOT_PERMITS

# Hydra kills every rank the moment it sees one die of a signal, before any can say whom it has lost. So it is told of
# the death later, by a shell that has waited for the rank; the others have until then to raise and report.
PATIENT_SHELL = '"$@"; status=$?; [ $status -lt 128 ] || sleep {grace:g}; exit $status'


def run(options: argparse.Namespace, prog: str) -> int:
    """Replaces this process by mpirun; returns only when that is impossible.

    Raises UnavailableError: no mpirun that fits, or one that refuses to run as root.
    """
    environ = environment(options, os.environ)
    found = loaded.find(_interpreter(options.command, environ), environ)
    if found.vendor == "MPICH":  # gives ranks pipes, which Python fills before it passes them on; Open MPI a terminal
        environ.setdefault("PYTHONUNBUFFERED", "1")
    check_root(found, environ, options.mpi_words)
    argv = command(found, options, environ, cores())
    if options.verbose:
        sys.stderr.write(f"{prog}: mpi4py loads {found.library} ({found.file})\n{prog}: running {shlex.join(argv)}\n")
    sys.stderr.flush()
    os.execve(argv[0], argv, environ)


def environment(options: argparse.Namespace, base: Mapping[str, str]) -> dict[str, str]:
    """mpirun's variables, which the ranks inherit."""
    environ = without_places(base)
    environ.pop("TORCHELASTIC_RUN_ID", None)  # where a rank of torchrun's starts ringrun: these ranks are mpirun's
    environ.update(options.variables)
    environ["RINGREDUCE_TRANSPORT"] = "auto"  # "mpi" would have ranks of one host talk by MPI too
    if share := cores_each(options, cores()):
        environ.setdefault("OMP_NUM_THREADS", str(thread_share(share, ranks_of_a_host(options))))
    return environ


def command(found: loaded.Mpi, options: argparse.Namespace, environ: Mapping[str, str], cores: int) -> list[str]:
    """The whole command line, in the words of this MPI."""
    build = _open_mpi if found.vendor == "Open MPI" else _mpich
    tagged = sys.stdout.isatty() if options.tag_output is None else options.tag_output
    head = [found.mpirun, "-np", str(options.ranks)]
    return [*head, *build(found, options, environ, cores_each(options, cores), tagged)]


def check_root(found: loaded.Mpi, environ: Mapping[str, str], extra: Sequence[str]) -> None:
    """Raises UnavailableError where Open MPI would refuse, with the remedy and what it means."""
    missing = [name for name in ROOT_PERMITS if environ.get(name) != "1"]
    if found.vendor != "Open MPI" or os.geteuid() != 0 or not missing or "--allow-run-as-root" in extra:
        return
    raise UnavailableError(
        f"{found.library}'s mpirun does not run as root. Within a container, where root is confined, allow it: "
        f"{' '.join(f'{name}=1' for name in ROOT_PERMITS)}. Anywhere else run as another user: a mistake of one rank, "
        "or of mpirun itself, could then damage the whole machine, and on every host"
    )


def cores() -> int:
    """The cores that this process may use."""
    return cores_of(os.sched_getaffinity(0))


def cores_each(options: argparse.Namespace, cores: int) -> int:
    """How many cores each rank is bound to, taking every host to be like this one; 0: not bound."""
    return 0 if options.bind == "none" else cores // ranks_of_a_host(options)


def ranks_of_a_host(options: argparse.Namespace) -> int:
    """How many ranks the fullest host has."""
    slots: dict[str, int] = {}
    for host in options.host_list or [Host("localhost", options.ranks)]:
        name = "" if is_this_host(host.name) else host.name
        slots[name] = slots.get(name, 0) + host.slots
    return int(min(options.ranks, max(slots.values())))


def _open_mpi(
    found: loaded.Mpi,
    options: argparse.Namespace,
    environ: Mapping[str, str],
    share: int,
    tagged: bool,
) -> list[str]:
    words = _hosts(options, "-H")
    oversubscribed = options.bind == "core" and share == 0
    words += ["--map-by", "slot:OVERSUBSCRIBE" if oversubscribed else f"slot:PE={share}" if share > 1 else "slot"]
    words += ["--bind-to", "core" if share else "none"]
    if tagged:
        words += ["--output", "tag"] if found.major >= 5 else ["--tag-output"]
    for name in sorted(environ):  # over ssh nothing is inherited
        if is_forwarded(name) or name in options.variables:  # the user's -x among them
            words += ["-x", name]
    return [*words, *options.mpi_words, *options.command]


def _mpich(
    found: loaded.Mpi,
    options: argparse.Namespace,
    environ: Mapping[str, str],
    share: int,
    tagged: bool,
) -> list[str]:
    words = _hosts(options, "-hosts")
    words += ["-bind-to", f"core:{share}" if share > 1 else "core" if share else "none"]
    words += ["-prepend-rank"] * tagged + ["-genvall"]  # the default, but a configuration may have changed it
    return [*words, *options.mpi_words, "sh", "-c", PATIENT_SHELL.format(grace=options.grace), "sh", *options.command]


def _hosts(options: argparse.Namespace, option: str) -> list[str]:
    if not options.host_list:
        return []
    return [option, ",".join(map(host_text, options.host_list))]


def _interpreter(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The Python that the ranks will run, where the command says so, else this one."""
    named = command[0] if Path(command[0]).name.startswith("python") else None
    return shutil.which(named, path=environ.get("PATH")) or sys.executable if named else sys.executable
