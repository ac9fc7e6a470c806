"""Each MPI that is installed here, and its command line for ranks on the lab's hosts.

What MPIs there are is asked of ringreduce.launch.installations, as the bench and the tests on one host do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringreduce.doctor.software import ROOT_PERMITS
from ringreduce.launch import installations

from .network import INTERFACE

SONAMES = {"openmpi": ("libmpi.so.40",), "mpich": ("libmpi.so.12", "libmpich.so.12")}
"""The name that mpi4py asks for first, then others of the same library."""
CARRIED = ("PATH", "PYTHON", "MPI4PY", "LD_LIBRARY", "OMP_", "RINGREDUCE_", "HOROVOD_", "UCX_", "FI_", "RR_")
"""Open MPI takes to other hosts only what it is told to; MPICH takes everything. Prefixes of names."""


@dataclass(frozen=True)
class Mpi:
    """One installed MPI."""

    library: str
    """openmpi | mpich"""
    version: str
    mpirun: str

    @property
    def name(self) -> str:
        """Such as "openmpi 5.0.11"."""
        return f"{self.library} {self.version}"

    @property
    def major(self) -> int:
        """The version's first number."""
        return int(self.version.partition(".")[0])

    def environ(self, folder: Path) -> dict[str, str]:
        """What mpi4py's wheel needs to load this MPI.

        Debian's MPICH has a name that the wheel does not ask for; a link in this folder, which all hosts see, helps.
        """
        wanted, *others = SONAMES[self.library]
        prefix = Path(self.mpirun).resolve().parent.parent
        places = [prefix / "lib", *sorted(Path("/usr/lib").glob("*-linux-gnu"))]
        library = next(place / name for name in (wanted, *others) for place in places if (place / name).exists())
        if library.name != wanted:
            link = folder / wanted
            if not link.exists():
                link.symlink_to(library)
            library = link
        return {"MPI4PY_LIBMPI": str(library), "MPI4PY_MPIABI": self.library, "LD_LIBRARY_PATH": str(library.parent)}

    def command(self, hosts: Sequence[str], ranks_per_host: int, environ: Mapping[str, str]) -> list[str]:
        """mpirun's command line up to the program, to be run on the first host. Ranks fill one host after the other.

        All hosts share the same few cores, so ranks are not bound, and who waits gives way.
        """
        slots = ",".join(f"{host}:{ranks_per_host}" for host in hosts)
        count = str(ranks_per_host * len(hosts))
        if self.library == "mpich":
            return [self.mpirun, "-bind-to", "none", "-hosts", slots, "-np", count]
        crowded = ["--oversubscribe"] if self.major < 5 else ["--map-by", ":OVERSUBSCRIBE"]
        patient = ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        carried = [word for name in sorted(environ) if name.startswith(CARRIED) for word in ("-x", name)]
        return [self.mpirun, *crowded, *patient, *carried, "-H", slots, "-np", count]


def settings(ssh: Path) -> dict[str, str]:
    """What tells every MPI how to reach the lab's hosts, which interface to use, and that root is meant.

    Set for all of them at once: none reads the others' variables.
    """
    wire = {"btl_tcp_if_include": INTERFACE, "oob_tcp_if_include": INTERFACE, "pml": "ob1", "btl": "^openib,usnic,ofi"}
    openmpi = {"plm_rsh_agent": str(ssh), **wire}
    prrte = {"plm_ssh_agent": str(ssh), "prte_if_include": INTERFACE}  # the launcher of Open MPI 5
    hydra = {"LAUNCHER": "ssh", "LAUNCHER_EXEC": str(ssh), "IFACE": INTERFACE}
    # MPICH is built on one of two network libraries; shared memory stays in use within a host.
    network = {"UCX_TLS": "tcp,self,sm", "UCX_NET_DEVICES": INTERFACE, "FI_PROVIDER": "tcp", "FI_TCP_IFACE": INTERFACE}
    return {
        **{f"OMPI_MCA_{name}": value for name, value in openmpi.items()},
        **{f"PRTE_MCA_{name}": value for name, value in prrte.items()},
        **{f"HYDRA_{name}": value for name, value in hydra.items()},
        **network,
        **dict.fromkeys(ROOT_PERMITS, "1"),
    }


def find(library: str, major: int) -> Mpi | None:
    """The installed MPI of this library and major version, Debian's or a wheel's."""
    found = (Mpi(library, one.version, os.path.abspath(one.mpirun)) for one in installations.find(library))
    return next((mpi for mpi in found if mpi.major == major), None)
