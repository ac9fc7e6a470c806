"""What a process on a host of the lab has of the process that runs the lab: where Python finds modules, and variables.

The variables are without those by which a launcher tells a rank its place: the lab may run within a job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ringreduce.launch.command_line.forwarded import PLACES

PACKAGE = Path(__file__).resolve().parents[2]
PLACE_PREFIXES = (
    *("HOROVOD_GLOO_RENDEZVOUS_", "TORCHELASTIC_", "PMI_", "MPI_LOCAL", "HYDI_"),
    *("OMPI_COMM_WORLD_", "OMPI_WORLD_", "OMPI_MCA_ess", "OMPI_MCA_orte_ess_"),
)
"""Of the variables by which a launcher tells a rank its place and how to reach the launcher."""
PLACE_NAMES = PLACES | {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    "HOROVOD_HOSTNAME",
    *("OMPI_UNIVERSE_SIZE", "OMPI_APP_CTX_NUM_PROCS", "OMPI_NUM_APP_CTX", "OMPI_FIRST_RANKS", "OMPI_FILE_LOCATION"),
    *("OMPI_COMMAND", "OMPI_ARGV", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "OMPI_MCA_pmix"),
    *("OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_local_daemon_uri", "OMPI_MCA_orte_launch", "OMPI_MCA_orte_app_num"),
    *("OMPI_MCA_orte_num_nodes", "OMPI_MCA_orte_bound_at_launch", "OMPI_MCA_orte_jobfam_session_dir"),
    *("OMPI_MCA_orte_top_session_dir", "OMPI_MCA_orte_precondition_transports", "OMPI_MCA_shmem_RUNTIME_QUERY_hint"),
}
SLURM_MARKS = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID", "SLURM_PROCID"}
"""Where one of these is set, all of Slurm's variables are about that job; elsewhere the user has set them."""


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
    """All variables but those that a launcher sets for one job. The user's settings of a launcher stay."""
    in_slurm = not SLURM_MARKS.isdisjoint(environ)

    def is_place(name: str) -> bool:
        if name.startswith("PMIX_"):
            return not name.startswith("PMIX_MCA_")
        return name in PLACE_NAMES or name.startswith(PLACE_PREFIXES) or (in_slurm and name.startswith("SLURM"))

    return {name: value for name, value in environ.items() if not is_place(name)}


def variables(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process on a host, with some more variables."""
    path = os.pathsep.join(map(str, module_folders()))
    return without_launchers(os.environ) | {"PYTHONPATH": path} | dict(added or {})
