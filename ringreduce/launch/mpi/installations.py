"""The MPIs of this machine: the distribution's, the wheels', and whatever mpirun is on PATH. How each starts ranks, and
the environment in which mpi4py loads just that one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache as cache_result
from importlib import metadata
from pathlib import Path

from ringreduce.launch.mpi.versions import ROOT_PERMITS, mpi_version
from ringreduce.launch.storage import cache

LIBRARIES = {"openmpi": "Open MPI", "mpich": "MPICH"}
PACKAGES = {"openmpi": "openmpi-bin libopenmpi-dev", "mpich": "mpich libmpich-dev"}  # Debian's
SONAMES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}  # what mpi4py's wheel asks for
DEBIAN_MPICH = "libmpich.so.12"  # the same library by another name
PIP_TIMEOUT_S = 300


@dataclass(frozen=True)
class Installation:
    """One MPI: openmpi or mpich, its version, its launcher, and its compiler wrapper if there is one."""

    library: str
    version: str
    mpirun: str
    mpicc: str | None

    @property
    def major(self) -> int:
        """The version's first number."""
        return int(self.version.partition(".")[0])

    def launch(
        self,
        ranks: int,
        *,
        oversubscribed: bool,
        hosts: Sequence[tuple[str, int]] = (),
        is_bound: bool = True,
        on_hwthreads: bool = False,
    ) -> list[str]:
        """The start of a command line.

        Args:
            oversubscribed: more ranks than cores, which are then not bound and give way.
            hosts: names, each with its number of ranks, which mpirun reaches by ssh; none: this one.
            is_bound: where they are not oversubscribed, ranks are bound.
            on_hwthreads: more ranks than cores, and no more than hardware threads. Open MPI has a slot for each core
                otherwise, and refuses more.
        """
        is_bound = is_bound and not oversubscribed
        where = ",".join(f"[{name}]:{count}" if ":" in name else f"{name}:{count}" for name, count in hosts)
        if self.library == "mpich":
            words = ["-hosts", where] if hosts else []
            return [self.mpirun, *words, "-bind-to", "core" if is_bound else "none", "-np", str(ranks)]
        words = ["-H", where] if hosts else []
        if not oversubscribed:
            words += ["--use-hwthread-cpus"] if on_hwthreads else []
            unit = ("hwthread" if on_hwthreads else "core") if is_bound else "none"
            return [self.mpirun, *words, "--bind-to", unit, "-np", str(ranks)]
        patient = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return [self.mpirun, *words, *patient, "-np", str(ranks)]

    def environ(self) -> dict[str, str]:
        """Open MPI refuses root unless told twice."""
        if self.library != "openmpi" or os.geteuid() != 0:
            return {}
        return dict.fromkeys(ROOT_PERMITS, "1")

    def libmpi(self) -> Path | None:
        """The shared library, under the name that mpi4py's wheel asks for; None when it is not found."""
        prefix = Path(self.mpirun).resolve().parent.parent
        folders = [prefix / "lib", *sorted((prefix / "lib").glob("*-linux-gnu"))]
        for folder in folders:
            if (path := folder / SONAMES[self.library]).exists():
                return path
        for folder in folders if self.library == "mpich" else ():
            if (path := folder / DEBIAN_MPICH).exists():
                return _link(path, cache("mpi") / f"mpich-{self.version}" / SONAMES["mpich"])
        return None

    def mpi4py_environ(self) -> dict[str, str]:
        """environ(), and what makes mpi4py load this MPI whatever else is here. libmpi() is not None."""
        path = self.libmpi()
        assert path is not None
        chosen = {"MPI4PY_LIBMPI": str(path), "MPI4PY_MPIABI": self.library, "LD_LIBRARY_PATH": str(path.parent)}
        return {**self.environ(), **chosen}


@cache_result
def find(library: str) -> tuple[Installation, ...]:
    """Every MPI of this library (a key of LIBRARIES) whose launcher is here, one for each version. Looked for once."""
    found: dict[str, Installation] = {}
    for mpirun, mpicc in _candidates(library):
        launcher = shutil.which(mpirun)
        if launcher is None:
            continue
        vendor, _, version = mpi_version(launcher).rpartition(" ")
        if vendor == LIBRARIES[library] and version not in found:
            found[version] = Installation(library, version, launcher, shutil.which(mpicc))
    return tuple(found.values())


def get(library: str, major: int) -> Installation | None:
    """The MPI of that library and major version that mpi4py can load, the distribution's before a wheel's."""
    return next((one for one in find(library) if one.major == major and one.libmpi() is not None), None)


def advice(library: str) -> str:
    """How to get one."""
    return f"pip install {library}, or apt-get install {PACKAGES[library]}"


def _candidates(library: str) -> Iterator[tuple[str, str]]:
    """(mpirun, mpicc), as names or paths."""
    yield f"mpirun.{library}", f"mpicc.{library}"
    if (wheel := _wheel(library)) is not None:
        yield str(wheel / "bin" / "mpirun"), str(wheel / "bin" / "mpicc")
    yield "mpirun", "mpicc"


def _wheel(library: str) -> Path | None:
    """The prefix of the installed wheel.

    The wheels of Open MPI and MPICH share the names mpicc, mpirun and mpi.h, and in one environment the later one has
    overwritten the earlier: then each gets a copy in a folder of its own, once.
    """
    try:
        version = metadata.version(library)
        other = {"openmpi": "mpich", "mpich": "openmpi"}[library]
        shares = any(True for _ in metadata.distributions(name=other))
    except metadata.PackageNotFoundError:
        return None
    if not shares:
        return Path(sys.prefix)
    folder = cache("bench") / f"{library}-{version}"
    if not (folder / "bin" / "mpirun").exists():
        print(f"# {library} {version}: the other MPI's wheel overwrote it; a copy goes to {folder}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
        command = [*pip, "--prefix", str(folder), f"{library}=={version}"]
        try:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=PIP_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"# {library} {version}: no copy: {error}", file=sys.stderr)
    return folder


def _link(target: Path, link: Path) -> Path:
    """link, pointing to target; processes may make it at the same time."""
    if not link.is_symlink() or link.readlink() != target:
        link.parent.mkdir(parents=True, exist_ok=True)
        draft = link.with_name(f"{link.name}.{os.getpid()}")
        draft.symlink_to(target)
        draft.rename(link)
    return link
