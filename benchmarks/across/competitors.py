"""Who is timed: a competitor is one way to call one library, a job the processes that several competitors may share."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import Any

from lab.lab import TESTS, Lab
from lab.mpi import Mpi
from lab.mpi import find as find_mpi
from lab.network import INTERFACE, address

import ringreduce
from ringreduce.bench.peers.cell import Absent
from ringreduce.errors import InvalidArgumentError
from ringreduce.launch import installations

from .pattern import SHARE

HERE = Path(__file__).resolve().parent
MAJORS = (5, 4)  # of both MPIs, the one to take first
VARIANTS: dict[str, dict[str, dict[str, str]]] = {
    "openmpi": {
        "tuned": {"OMPI_MCA_coll_han_priority": "0"},
        "ring": {
            "OMPI_MCA_coll_han_priority": "0",
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
        },
    },
    "mpich": {
        "ring": {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"},
        "yield": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"},
        "heavy": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"},
    },
}
"""Library: settings that may suit it better than its own choice, to be asked for as openmpi:tuned. Open MPI 5 takes
its module han by default where hosts have several ranks."""


@dataclass(frozen=True)
class Job:
    """One program on all ranks, and how it is started."""

    kind: str
    """worker.py's."""
    mpi: Mpi | None = None
    environ: dict[str, str] = field(default_factory=dict, hash=False)

    def commands(self, lab: Lab, each: int, port: int, control: Path) -> list[tuple[str, list[str], dict[str, str]]]:
        """(host, command, environment) of what has to be started for `each` ranks on every host."""
        program = [sys.executable, "-m", "across.worker", self.kind, str(control)]
        folders = [Path(ringreduce.__file__).resolve().parents[1], TESTS, HERE.parent]
        path = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        if self.mpi is not None:
            command, environ = lab.mpirun_command(self.mpi, each, program, env={**path, **self.environ})
            return [(lab.hosts[0], command, environ)]
        if self.kind == "source":
            return [(lab.hosts[0], program, path), (lab.hosts[1], [*program[:-2], "sink", str(control)], path)]
        size = each * len(lab.hosts)
        meet = {"MASTER_ADDR": address(0), "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        chosen = {**path, **meet, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", **self.environ}
        return [(lab.hosts[rank // each], program, {**chosen, "RANK": str(rank)}) for rank in range(size)]

    def ranks(self, lab: Lab, each: int) -> int:
        """How many report."""
        return 2 if self.kind == "source" else each * len(lab.hosts)


LINK = Job("source")


@dataclass(frozen=True)
class Competitor:
    """One line of the table per size."""

    name: str
    job: Job
    how: str = ""
    wire: str = "none"

    @property
    def is_ours(self) -> bool:
        """ringreduce's own."""
        return self.job.kind == "ringreduce"


def find(mpi: str, wires: Sequence[str], vs: Sequence[str]) -> tuple[list[Competitor], list[Absent]]:
    """The competitors, ours first, and who is not here.

    Args:
        mpi: what links ours, such as "openmpi 5". vs "openmpi" is the same one where the library is the same.
        wires: codecs; "none" gives two competitors, of unnamed and of named calls.

    Raises InvalidArgumentError: a name that nobody has, or no such MPI to link ours by.
    """
    own = installed(mpi)
    if isinstance(own, Absent):
        raise InvalidArgumentError(f"network.py --mpi {mpi}: it is not here: {own.advice}")
    ours = Job("ringreduce", own)
    competitors: list[Competitor] = []
    absent: list[Absent] = []
    for wire in wires:
        if wire not in SHARE:
            raise InvalidArgumentError(f"network.py --wire: no codec {wire!r}; there are {', '.join(SHARE)}")
        if wire == "none":
            competitors += [Competitor("ringreduce", ours, "unnamed"), Competitor("ringreduce named", ours, "named")]
        elif "wire" in signature(ringreduce.allreduce_).parameters:
            competitors.append(Competitor(f"ringreduce {wire}", ours, wire, wire))
        else:
            absent.append(Absent(f"ringreduce {wire}", "this build's allreduce_() has no wire="))
    for name in vs:
        found = _peer(name, own)
        if isinstance(found, Absent):
            absent.append(found)
        else:
            competitors.append(found)
    return competitors, absent


def installed(name: str) -> Mpi | Absent:
    """The MPI of a name such as "openmpi 5", or of a library's newest version. Raises InvalidArgumentError."""
    library, _, major = name.partition(" ")
    if library not in installations.LIBRARIES or not (major.isdecimal() or not major):
        raise InvalidArgumentError(f"network.py: no MPI {name!r}; a name is openmpi or mpich, or openmpi 5")
    for version in [int(major)] if major else MAJORS:
        if (found := find_mpi(library, version)) is not None:
            return found
    return Absent(name, installations.advice(library))


def _peer(name: str, own: Mpi) -> Competitor | Absent:
    if name == "gloo":
        try:
            return Competitor(f"gloo (torch {metadata.version('torch')})", Job("gloo"))
        except metadata.PackageNotFoundError:
            return Absent("gloo", "pip install torch")
    library, _, variant = name.partition(":")
    if variant and variant not in VARIANTS.get(library.partition(" ")[0], {}):
        known = ", ".join(f"{one}:{two}" for one, some in VARIANTS.items() for two in some)
        raise InvalidArgumentError(f"network.py --vs: no peer {name!r}; variants are {known}")
    found = own if library == own.library else installed(library)
    if isinstance(found, Absent):
        return Absent(name, found.advice)
    settings = VARIANTS[found.library][variant] if variant else {}
    return Competitor(f"{found.name} {variant}".strip(), Job("mpi", found, settings))


def facts(competitor: Competitor) -> dict[str, Any]:
    """What the JSON says of a competitor."""
    mpi = competitor.job.mpi.name if competitor.job.mpi else None
    return {
        "competitor": competitor.name,
        "mpi": mpi,
        "call": competitor.how,
        "wire": competitor.wire,
        "environ": competitor.job.environ,
    }
