"""Which MPI a launcher (mpirun, mpiexec) belongs to, and what Open MPI's wants to see before it runs as root."""

from __future__ import annotations

import re
import subprocess

VERSION_TIMEOUT_S = 5.0
ROOT_PERMITS = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def mpi_version(launcher: str) -> str:
    """The name and version of the MPI that a launcher belongs to, such as "Open MPI 4.1.4" or "MPICH 4.0.2"."""
    try:
        done = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"of unknown version ({error})"
    text = done.stdout
    number = re.search(r"\d+\.\d+(\.\d+)?\w*", text)
    if "HYDRA" in text or "MPICH" in text:
        name = "MPICH"
    elif "Open MPI" in text or "OpenRTE" in text or "open-mpi" in text:
        name = "Open MPI"
    else:
        return text.partition("\n")[0] or "of unknown version"
    return f"{name} {number[0]}" if number else name
