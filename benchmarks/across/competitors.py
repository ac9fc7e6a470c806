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

import ringreduce
from ringreduce.bench.peers.cell import Absent
from ringreduce.errors import InvalidArgumentError
from ringreduce.lab.lab import Lab
from ringreduce.lab.mpi import Mpi
from ringreduce.lab.mpi import find as find_mpi
from ringreduce.lab.network import INTERFACE, address
from ringreduce.launch.mpi import installations

from .pattern import SHARE

HERE = Path(__file__).resolve().parent
MAJORS = (5, 4)  # of both MPIs, the one to take first
TCP: dict[str, dict[str, str]] = {"tcp": {}, "tcp encrypted": {"RINGREDUCE_ENCRYPT": "on"}}
"""Our own transport, by what --over calls it: the environment."""
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
    """None: the ranks are started one by one, and connected by TCP."""
    environ: dict[str, str] = field(default_factory=dict, hash=False)

    def commands(self, lab: Lab, each: int, port: int, control: Path) -> list[tuple[str, list[str], dict[str, str]]]:
        """(host, command, environment) of what has to be started for `each` ranks on every host."""
        program = [sys.executable, "-m", "across.worker", self.kind, str(control)]
        folders = [Path(ringreduce.__file__).resolve().parents[1], HERE.parent]
        path = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        if self.mpi is not None:
            command, environ = lab.mpirun_command(self.mpi, each, program, env={**path, **self.environ})
            return [(lab.hosts[0], command, environ)]
        if self.kind == "source":
            return [(lab.hosts[0], program, path), (lab.hosts[1], [*program[:-2], "sink", str(control)], path)]
        size = each * len(lab.hosts)
        chosen = {**path, "OMP_NUM_THREADS": "1", **self.environ}
        if self.kind == "ringreduce":
            secret = lab.folder / "secret"
            secret.touch(mode=0o600)
            secret.write_text("known to all ranks of the lab")
            chosen |= {"RINGREDUCE_ADDRESS": f"{address(0)}:{port}", "RINGREDUCE_SECRET_FILE": str(secret)}
            names = ("RINGREDUCE_RANK", "RINGREDUCE_SIZE")
        else:
            chosen |= {"MASTER_ADDR": address(0), "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": INTERFACE}
            names = ("RANK", "WORLD_SIZE")
        places = [dict(zip(names, (str(rank), str(size)), strict=True)) for rank in range(size)]
        return [(lab.hosts[rank // each], program, chosen | place) for rank, place in enumerate(places)]

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


def find(over: Sequence[str], wires: Sequence[str], vs: Sequence[str]) -> tuple[list[Competitor], list[Absent]]:
    """The competitors, ours first, and who is not here.

    Args:
        over: what connects ours: "tcp", "tcp encrypted", or an MPI such as "openmpi 5". The first one gives
            "ringreduce", the others "ringreduce over openmpi 5.0.11" and the like.
        wires: codecs, of ours over the first; "none" gives two competitors, of unnamed and of named calls.
        vs: peers; "openmpi" is the one in `over` where there is one.

    Raises InvalidArgumentError: a name that nobody has, or no such MPI to connect ours by.
    """
    mpis = [name for name in over if name not in TCP]
    found_mpis = {name: installed(name) for name in mpis}
    for name, found in found_mpis.items():
        if isinstance(found, Absent):
            raise InvalidArgumentError(f"network.py --over {name}: it is not here: {found.advice}")
    own = {mpi.library: mpi for mpi in found_mpis.values() if isinstance(mpi, Mpi)}
    competitors: list[Competitor] = []
    absent: list[Absent] = []
    for name in over:
        mpi = found_mpis.get(name)
        ours = Job("ringreduce", mpi, TCP.get(name, {})) if isinstance(mpi, Mpi | None) else None
        if ours is None:
            continue
        label = f" over {mpi.name if isinstance(mpi, Mpi) else name}" if name != over[0] else ""
        for wire in wires if not label else ["none"]:
            if wire not in SHARE:
                raise InvalidArgumentError(f"network.py --wire: no codec {wire!r}; there are {', '.join(SHARE)}")
            if wire == "none":
                competitors.append(Competitor(f"ringreduce{label}", ours, "unnamed"))
                competitors.append(Competitor(f"ringreduce named{label}", ours, "named"))
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


def _peer(name: str, own: dict[str, Mpi]) -> Competitor | Absent:
    if name == "gloo":
        try:
            return Competitor(f"gloo (torch {metadata.version('torch')})", Job("gloo"))
        except metadata.PackageNotFoundError:
            return Absent("gloo", "pip install torch")
    library, _, variant = name.partition(":")
    if variant and variant not in VARIANTS.get(library.partition(" ")[0], {}):
        known = ", ".join(f"{one}:{two}" for one, some in VARIANTS.items() for two in some)
        raise InvalidArgumentError(f"network.py --vs: no peer {name!r}; variants are {known}")
    found = own.get(library) or installed(library)
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
        "over": mpi or ("TCP" if competitor.is_ours else None),
        "call": competitor.how,
        "wire": competitor.wire,
        "environ": competitor.job.environ,
    }
