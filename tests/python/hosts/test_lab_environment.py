"""What a lab needs of the machine, and what its hosts have of it: settings but no place in a job, and root."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ringreduce.lab import kernel, requirements
from ringreduce.lab.host_environment import variables, without_launchers
from ringreduce.lab.keeper import with_root_unlocked

SETTINGS = {
    "HOROVOD_FUSION_THRESHOLD": "1048576",
    "HOROVOD_GLOO_IFACE": "eth1",
    "HOROVOD_TIMELINE": "/tmp/timeline.json",
    "OMPI_MCA_btl_tcp_links": "2",
    "OMPI_MCA_orte_base_help_aggregate": "0",
    "PMIX_MCA_gds": "hash",
    "HYDRA_DEBUG": "1",
    "RINGREDUCE_LOG_LEVEL": "info",
    "SLURM_TIME_FORMAT": "relative",
    "TORCH_LOGS": "dynamo",
}
PLACES = {
    "ringrun": ["RINGREDUCE_RANK", "RINGREDUCE_LOCAL_SIZE", "RINGREDUCE_RENDEZVOUS"],
    "Horovod": [
        *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"),
        *("HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ],
    "Open MPI 4": [
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_UNIVERSE_SIZE", "OMPI_APP_CTX_NUM_PROCS"),
        *("OMPI_COMMAND", "OMPI_FIRST_RANKS", "OMPI_FILE_LOCATION", "OMPI_NUM_APP_CTX", "OMPI_MCA_initial_wdir"),
        *("OMPI_MCA_ess", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_ess_base_vpid", "OMPI_MCA_pmix"),
        *("OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_local_daemon_uri", "OMPI_MCA_orte_launch", "OMPI_MCA_orte_app_num"),
        *("OMPI_MCA_orte_ess_num_procs", "OMPI_MCA_orte_ess_node_rank", "OMPI_MCA_orte_num_nodes"),
        *("OMPI_MCA_orte_jobfam_session_dir", "OMPI_MCA_orte_top_session_dir", "OMPI_MCA_orte_bound_at_launch"),
        *("OMPI_MCA_orte_precondition_transports", "OMPI_MCA_shmem_RUNTIME_QUERY_hint"),
    ],
    "Open MPI 5": [
        *("OMPI_WORLD_SIZE", "OMPI_WORLD_LOCAL_SIZE", "OMPI_MCA_num_procs", "PMIX_RANK", "PMIX_NAMESPACE"),
        *("PMIX_SERVER_URI41", "PMIX_HOSTNAME"),
    ],
    "MPICH": ["PMI_RANK", "PMI_SIZE", "PMI_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDI_CONTROL_FD"],
    "torchrun": ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"],
    "srun": ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODELIST", "SLURMD_NODENAME"],
}


def test_a_host_has_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    assert variables({"MORE": "words"}).items() >= (SETTINGS | {"MORE": "words"}).items()


@pytest.mark.parametrize("launcher", PLACES)
def test_a_host_has_no_place_in_a_job(launcher: str) -> None:
    kept = {name: value for name, value in SETTINGS.items() if launcher != "srun" or not name.startswith("SLURM_")}
    assert without_launchers(SETTINGS | dict.fromkeys(PLACES[launcher], "1")) == kept


@pytest.mark.parametrize("field", ["!", "!$6$salt$hash", "", "*"])
def test_a_host_has_a_root_whom_sshd_lets_in(field: str) -> None:
    others = "daemon:*:20000:0:99999:7:::\nrooted:!:20000:0:99999:7:::\n"
    assert with_root_unlocked(f"root:{field}:20000:0:99999:7::1:\n{others}") == f"root:*:::::::\n{others}"


@pytest.fixture(name="as_root_with_tools")
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As far as missing() asks, this process is root, has all tools and can enter namespaces; `unshare` succeeds."""
    for tool in requirements.TOOLS:
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(kernel, "enter", lambda pid, flags: None)
    monkeypatch.setattr(requirements, "UID_MAP", tmp_path / "uid_map")
    return tmp_path


def missing() -> str | None:
    return requirements.missing.__wrapped__()


def test_a_kernel_without_user_namespaces_may_have_a_lab(as_root_with_tools: Path) -> None:
    assert missing() is None
    (as_root_with_tools / "uid_map").write_text("0 100000 65536\n")
    assert "not a user namespace's" in str(missing())


def test_a_trial_that_does_not_end_is_a_reason(as_root_with_tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (as_root_with_tools / "unshare").write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(requirements, "TRIAL_TIMEOUT_S", 0.1)
    assert "took longer than 0.1 s" in str(missing())


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_a_kernel_that_cannot_enter_a_process_is_too_old(
    as_root_with_tools: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def enter(pid: int, flags: int) -> None:
        raise OSError(code, f"setns to process {pid}: {os.strerror(code)}")

    monkeypatch.setattr(kernel, "enter", enter)
    assert "needs Linux 5.8" in str(missing())
