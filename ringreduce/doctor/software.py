"""What is installed: this package's parts, MPI, frameworks. None of it is imported here, nor initialised."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata

import ringreduce
from ringreduce import _core
from ringreduce.bench import machine
from ringreduce.common.needs import MINIMA, is_too_old
from ringreduce.doctor.finding import Finding
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job import environment
from ringreduce.launch.mpi.versions import ROOT_PERMITS, mpi_version
from ringreduce.launch.python import run_code

FRAMEWORKS = {
    "numpy": ("numpy",),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "keras": ("keras",),
    "jax": ("jax",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
}
"""Framework: the distributions that bring it, any one of them."""

MPI_TIMEOUT_S = 60.0  # MPI_Init of one process takes a second where nothing is wrong


def package() -> Iterator[Finding]:
    """ringreduce itself."""
    yield Finding("ringreduce", "version", ringreduce.__version__)
    yield Finding("ringreduce", "python", platform.python_version())
    yield Finding("ringreduce", "cpu kernels", f"{machine.isa()} (this machine has {', '.join(_core.isas())})")
    yield Finding("transports", "shm", "yes")
    yield Finding("transports", "mpi", f"between hosts, {'by' if installed_version('mpi4py') else 'needs'} mpi4py")
    yield _tcp()


def _tcp() -> Finding:
    """Whether ranks of several hosts can be connected by TCP."""
    with contextlib.suppress(UnavailableError):
        return Finding("transports", "tcp", f"between hosts, by {_core.libcrypto_name()}")
    hint = "OpenSSL's libcrypto.so.3 was not found: apt-get install libssl3, or conda install 'openssl>=3'"
    return Finding("transports", "tcp", "no job over several hosts by TCP", "note", hint)


def mpi() -> Iterator[Finding]:
    """Launchers on PATH and mpi4py."""
    seen: set[str] = set()
    for command in ("mpirun", "mpiexec"):
        path = shutil.which(command)
        if path is None:
            yield Finding("MPI", command, "not found")
            continue
        if os.path.realpath(path) in seen:
            yield Finding("MPI", command, f"the same ({path})")
            continue
        seen.add(os.path.realpath(path))
        version = mpi_version(path)
        needs = [name for name in ROOT_PERMITS if name not in os.environ]
        if "Open MPI" in version and os.geteuid() == 0 and needs:
            hint = "it refuses to run as root unless " + " and ".join(f"{name}=1" for name in needs)
            yield Finding("MPI", command, f"{version} ({path})", "note", hint)
        else:
            yield Finding("MPI", command, f"{version} ({path})")
    installed = installed_version("mpi4py")
    soname = "libmpi.so.12"
    if installed and ctypes.util.find_library("mpich") == "libmpich.so.12" and ctypes.util.find_library("mpi") is None:
        hint = f"mpi4py looks for {soname}: put a link {soname} -> libmpich.so.12 on LD_LIBRARY_PATH"
        yield Finding("MPI", "mpi4py", f"{installed}, but MPICH here is libmpich.so.12", "note", hint)
    else:
        yield Finding("MPI", "mpi4py", installed or "not installed")


def mpi_cuda() -> Iterator[Finding]:
    """Whether MPI is given pointers to GPU memory, asked of it in a process of its own, as MPI must be up to answer."""
    if installed_version("mpi4py") is None:
        return
    name = "takes CUDA pointers"
    try:
        launched = environment.launcher_size() is not None
    except InvalidArgumentError:  # half a launcher, of which environment.launcher() tells
        launched = True
    if launched:  # that process would pass for this rank
        yield Finding("MPI", name, "not asked under a launcher")
        return
    asked = "from ringreduce.job import mpi; path = mpi.cuda_path(); print('yes' if path[0] else 'no', path[1])"
    try:
        done = subprocess.run(run_code(asked), capture_output=True, text=True, timeout=MPI_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        yield Finding("MPI", name, f"no answer within {MPI_TIMEOUT_S:g} s", "note", "does MPI_Init hang here?")
        return
    said = done.stdout.strip().rpartition("\n")[2].partition(" ")
    if done.returncode == 0 and said[0] in ("yes", "no"):
        yield Finding("MPI", name, f"{said[0]} ({said[2]})")
    else:
        reason = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        yield Finding("MPI", name, f"not asked: {reason or f'exit status {done.returncode}'}", "note")


def frameworks() -> Iterator[Finding]:
    """Versions of the frameworks, from their metadata, and whether they are new enough."""
    for name, distributions in FRAMEWORKS.items():
        found = [(one, version) for one in distributions if (version := installed_version(one))]
        distribution, version = found[0] if found else ("", "")
        if is_too_old(name, version):
            least = MINIMA[name]
            hint = f"ringreduce needs {least} or newer: pip install -U '{distribution}>={least}'"
            yield Finding("frameworks", name, version, "problem", hint)
        else:
            yield Finding("frameworks", name, version or "not installed")


def installed_version(distribution: str) -> str | None:
    """A distribution's version, or None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
