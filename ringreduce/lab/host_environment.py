"""What a process on a host of the lab has of the process that runs the lab: where Python finds modules, and variables.

The variables are without those by which a launcher tells a rank its place: the lab may run within a job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ringreduce.launch.forwarded import PLACES

PACKAGE = Path(__file__).resolve().parents[2]
LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_", "HOROVOD_", "HYDI_")
LAUNCHER_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


def module_folders() -> list[Path]:
    """What sys.path has besides the interpreter's own folders, and where this package is."""
    own = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    given = [Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir()]
    added = [path for path in given if not any(path.is_relative_to(prefix) for prefix in own)]
    return list(dict.fromkeys([*added, PACKAGE]))


def run_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package, also where PYTHONPATH names an old build's, as in a benchmark."""
    code = f"import runpy, sys; sys.path.insert(0, {str(PACKAGE)!r}); runpy.run_module({name!r}, run_name='__main__')"
    return [sys.executable, "-c", code, *arguments]


def without_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """All variables but those of launchers."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(LAUNCHER_PREFIXES) and name not in LAUNCHER_NAMES | PLACES
    }


def variables(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process on a host, with some more variables."""
    path = os.pathsep.join(map(str, module_folders()))
    return without_launchers(os.environ) | {"PYTHONPATH": path} | dict(added or {})
