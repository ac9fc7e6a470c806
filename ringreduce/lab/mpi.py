"""Each MPI that is installed here, and its command line for ranks on the lab's hosts.

What MPIs there are, and how mpi4py loads one, says ringreduce.launch.mpi.installations, as to the other tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ringreduce.lab.network import INTERFACE
from ringreduce.launch.mpi import installations
from ringreduce.launch.mpi.installations import Installation
from ringreduce.launch.mpi.versions import ROOT_PERMITS

CARRIED = ("PATH", "PYTHON", "MPI4PY", "LD_LIBRARY", "OMP_", "RINGREDUCE_", "HOROVOD_", "UCX_", "FI_", "RR_")
"""Open MPI takes to other hosts only what it is told to; MPICH takes everything. Prefixes of names."""


class Mpi(Installation):
    """One of them, with how it starts ranks on the lab's hosts."""

    @property
    def name(self) -> str:
        """Such as "openmpi 5.0.11"."""
        return f"{self.library} {self.version}"

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
    found = installations.get(library, major)
    return None if found is None else Mpi(**vars(found))
