"""Each launcher's variables give the right place; wrong ones give an error that names the variable."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from typing import Any

import numpy as np
import pytest
from processes import completed
from ranks import clean_environment

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job.environment import (
    Placement,
    detect,
    name_across_hosts,
    rendezvous_secret,
    spans_hosts,
    tell_torch,
)

RINGRUN = {
    "RINGREDUCE_RANK": "1",
    "RINGREDUCE_SIZE": "3",
    "RINGREDUCE_LOCAL_RANK": "1",
    "RINGREDUCE_LOCAL_SIZE": "3",
    "RINGREDUCE_CROSS_RANK": "0",
    "RINGREDUCE_CROSS_SIZE": "1",
    "RINGREDUCE_RENDEZVOUS": "ringrun-12-ab:00ff",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "2",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "1181941761",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "5",
}
SRUN_PMIX = SLURM | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.77.5"}
SRUN_PMI2 = SLURM | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_JOBID": "77.5"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
}
HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
}

with open(f"/proc/{os.getppid()}/stat") as stat:
    PARENT = f"{os.getppid()}.{stat.read().rpartition(')')[2].split()[19]}"

TORCHRUN_OF_8 = TORCHRUN | {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
PLACE_OF_8 = Placement(3, 8, 3, 8, 0, 1, "torchrun", f"torch-none-29500-1-{PARENT}")
TORCHRUN_OF_1 = TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
SRUN_OF_1 = SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}
ONE_TASK = {
    "mpirun (Open MPI)": OPEN_MPI
    | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"}
    | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
    "mpirun (MPICH)": HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
    "srun --mpi=pmix": SRUN_OF_1 | {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.77.5"},
    "srun --mpi=pmi2": SRUN_OF_1 | {"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_JOBID": "77.5"},
    "srun": SRUN_OF_1,
}
"""Whose ranks are one, which has started torchrun; all of torchrun's ranks have inherited these."""

PLACES = [
    ("nothing", {"HOME": "/"}, Placement(0, 1, 0, 1, 0, 1, "single", "")),
    ("ringrun", RINGRUN, Placement(1, 3, 1, 3, 0, 1, "ringrun", "ringrun-12-ab")),
    ("mpirun", OPEN_MPI, Placement(2, 4, 2, 4, 0, 1, "openmpi", "pmix-1181941761")),
    ("srun --mpi=pmix", SRUN_PMIX, Placement(3, 4, 3, 4, 0, 1, "pmix", "pmix-slurm.pmix.77.5")),
    ("srun --mpi=pmi2", SRUN_PMI2, Placement(3, 4, 3, 4, 0, 1, "mpich", "slurm-77.5")),
    ("torchrun", TORCHRUN, Placement(1, 2, 1, 2, 0, 1, "torchrun", f"torch-none-29500-1-{PARENT}")),
    ("srun", SLURM, Placement(3, 4, 3, 4, 0, 1, "slurm", "slurm-77.5")),
    ("horovodrun", HOROVODRUN, Placement(1, 2, 1, 2, 0, 1, "horovod", "horovod-4711")),
    ("ringrun within mpirun", OPEN_MPI | RINGRUN, Placement(1, 3, 1, 3, 0, 1, "ringrun", "ringrun-12-ab")),
    ("mpirun within srun", SLURM | OPEN_MPI, Placement(2, 4, 2, 4, 0, 1, "openmpi", "pmix-1181941761")),
    ("torchrun within srun", SLURM | TORCHRUN, Placement(1, 2, 1, 2, 0, 1, "torchrun", f"torch-none-29500-1-{PARENT}")),
    *(
        (f"torchrun within one task of {outer}", environ | TORCHRUN_OF_8, PLACE_OF_8)
        for outer, environ in ONE_TASK.items()
    ),
    ("one rank of torchrun's in each task", TORCHRUN | {"RANK": "2", "WORLD_SIZE": "4"} | OPEN_MPI,
     Placement(2, 4, 2, 4, 0, 1, "openmpi", "pmix-1181941761")),
    ("mpirun beside RANK and WORLD_SIZE", OPEN_MPI | {"RANK": "0", "WORLD_SIZE": "8"},
     Placement(2, 4, 2, 4, 0, 1, "openmpi", "pmix-1181941761")),
    ("RANK and WORLD_SIZE by what srun says", SLURM | {"RANK": "3", "WORLD_SIZE": "4"},
     Placement(3, 4, 3, 4, 0, 1, "slurm", "slurm-77.5")),
    ("mpirun (MPICH) within srun --mpi=pmix", SRUN_PMIX | HYDRA, Placement(1, 2, 1, 2, 0, 1, "mpich", "slurm-77.5")),
    ("horovod's names lose", HOROVODRUN | SLURM, Placement(3, 4, 3, 4, 0, 1, "slurm", "slurm-77.5")),
    ("an sbatch script outside srun", {k: SLURM[k] for k in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID")},
     Placement(0, 1, 0, 1, 0, 1, "single", "")),
    ("half of torchrun's common words", {"RANK": "3"}, Placement(0, 1, 0, 1, 0, 1, "single", "")),
    ("by hand, one of one", {"RINGREDUCE_RANK": "0", "RINGREDUCE_SIZE": "1", "RINGREDUCE_RENDEZVOUS": "a:b:00"},
     Placement(0, 1, 0, 1, 0, 1, "ringrun", "a:b")),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "place"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES])
def test_place(environ: dict[str, str], place: Placement) -> None:
    assert detect(environ=environ, network=False) == place


def test_ranks_of_one_parent_meet_where_a_launcher_names_no_job() -> None:
    for environ in (
        HYDRA,
        {"RINGREDUCE_RANK": "1", "RINGREDUCE_SIZE": "2"},
        {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
    ):
        other = {name: "0" if name.endswith("RANK") else value for name, value in environ.items()}
        here, there = detect(environ=environ, network=False), detect(environ=other, network=False)
        assert (here.rank, there.rank, here.size) == (1, 0, 2)
        assert here.job == there.job
        assert here.job.startswith(f"parent-{os.getppid()}.")


def test_a_later_process_with_the_parents_pid_is_another_job() -> None:
    assert detect(environ=HYDRA, network=False).job == f"parent-{PARENT}"  # its start time too


def test_arguments_win() -> None:
    place = detect(2, 5, environ=RINGRUN, network=False)
    assert place == Placement(2, 5, 2, 5, 0, 1, "arguments", "ringrun-12-ab")
    assert detect(0, 2, environ=SLURM, network=False).job == "slurm-77.5"
    assert detect(0, 2, environ={}, network=False).job == detect(1, 2, environ={}, network=False).job != ""


def without(environ: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key != name}


def told(environ: dict[str, str], place: tuple[int, int, int, int]) -> dict[str, str]:
    """A rank's variables after init_process_group("ringreduce", init_method="ringreduce://")."""
    environ = dict(environ)
    tell_torch(*place, environ)
    return environ


@pytest.mark.parametrize(("environ", "place"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES])
def test_what_frameworks_of_torch_are_told_names_no_launcher(environ: dict[str, str], place: Placement) -> None:
    after = told(environ, (place.rank, place.size, place.local_rank, place.local_size))
    assert detect(environ=after, network=False) == place


def test_only_what_no_launcher_has_set_is_told() -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    outer = told(SLURM, (3, 4, 1, 2))
    assert [outer[name] for name in names] == ["3", "4", "1", "2"]
    assert told(TORCHRUN, (0, 9, 0, 9)) == TORCHRUN
    assert told({"RANK": "3"}, (0, 9, 0, 9)) == {"RANK": "3"}
    inner = told(outer, (0, 3, 0, 3))  # a job that a rank has started
    assert [inner[name] for name in names] == ["0", "3", "0", "3"]
    torchrun = outer | TORCHRUN
    assert told(torchrun, (0, 9, 0, 9)) == torchrun
    assert detect(environ=torchrun, network=False).source == "torchrun"
    by_hand = outer | {"RANK": "0", "WORLD_SIZE": "2"}
    assert detect(environ=by_hand, network=False).source == "torchrun"


BAD = [
    ("no number", RINGRUN | {"RINGREDUCE_RANK": "one"}, ["RINGREDUCE_RANK", "'one'"]),
    ("empty", RINGRUN | {"RINGREDUCE_SIZE": ""}, ["RINGREDUCE_SIZE"]),
    ("rank = size", RINGRUN | {"RINGREDUCE_RANK": "3"}, ["RINGREDUCE_RANK=3", "RINGREDUCE_SIZE=3"]),
    ("negative", OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "-1"}, ["OMPI_COMM_WORLD_RANK=-1"]),
    ("no ranks", HYDRA | {"PMI_SIZE": "0"}, ["PMI_SIZE=0"]),
    ("local", TORCHRUN | {"LOCAL_RANK": "2"}, ["LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"]),
    ("cross", RINGRUN | {"RINGREDUCE_CROSS_RANK": "x"}, ["RINGREDUCE_CROSS_RANK"]),
    ("no size", {"RINGREDUCE_RANK": "0"}, ["RINGREDUCE_SIZE is not set"]),
    ("no rank", {"RINGREDUCE_SIZE": "4"}, ["RINGREDUCE_SIZE=4", "RINGREDUCE_RANK is not set"]),
    ("no rank", {"HOROVOD_SIZE": "2"}, ["HOROVOD_SIZE=2", "HOROVOD_RANK is not set"]),
    ("no rank, no number", {"RINGREDUCE_SIZE": "four"}, ["RINGREDUCE_SIZE='four'"]),
    ("half a pair", without(RINGRUN, "RINGREDUCE_LOCAL_SIZE"), ["RINGREDUCE_LOCAL_RANK=1", "_LOCAL_SIZE is not set"]),
    ("half a pair", without(RINGRUN, "RINGREDUCE_CROSS_RANK"), ["RINGREDUCE_CROSS_SIZE=1", "_CROSS_RANK is not set"]),
    ("no size", {"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_SIZE is not set"]),
    ("no telling who is inner", TORCHRUN_OF_1 | OPEN_MPI, ["TORCHELASTIC_RUN_ID=", "OMPI_COMM_WORLD_RANK=2", "env -u"]),
    ("alone, or one of several", SRUN_OF_1 | HOROVODRUN, ["SLURM_PROCID=0", "HOROVOD_RANK=1 of horovod", "of 2 ranks"]),
    ("no size", {"PMIX_RANK": "0"}, ["PMIX_RANK=0", "PMI_SIZE", "SLURM_NTASKS"]),
    ("no secret", RINGRUN | {"RINGREDUCE_RENDEZVOUS": "name"}, ["RINGREDUCE_RENDEZVOUS"]),
    ("no hex", RINGRUN | {"RINGREDUCE_RENDEZVOUS": "name:xy"}, ["RINGREDUCE_RENDEZVOUS"]),
    ("no name", RINGRUN | {"RINGREDUCE_RENDEZVOUS": ":00"}, ["RINGREDUCE_RENDEZVOUS"]),
]


@pytest.mark.parametrize(("environ", "words"), [row[1:] for row in BAD], ids=[f"{row[0]}: {row[2][0]}" for row in BAD])
def test_a_bad_value_is_an_error_that_names_the_variable(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        detect(environ=environ, network=False)
    for word in words:
        assert word in str(caught.value)


def test_half_a_pair_of_another_launchers_is_left_out() -> None:
    place = detect(environ=without(HOROVODRUN, "HOROVOD_LOCAL_SIZE"), network=False)
    assert (place.local_rank, place.local_size) == (1, 2)
    place = detect(environ={"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, network=False)
    assert (place.local_rank, place.local_size) == (1, 2)


@pytest.mark.parametrize(
    ("rank", "size"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0), ("0", "2"), (0.0, 2.0), (0, "2")]
)
def test_bad_arguments(rank: Any, size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="rank"):
        detect(rank, size, environ={}, network=False)


def test_numpys_integers_are_ranks() -> None:
    place = detect(np.int64(1), np.int32(2), environ={}, network=False)
    assert (type(place.rank), type(place.size), place.rank, place.size) == (int, int, 1, 2)


@pytest.mark.parametrize("job", ["", 7])
def test_bad_names_of_jobs(job: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"init\\(job={job!r}\\): the name of a job is a string that"):
        detect(0, 2, environ={}, network=False, job=job)


def test_jobs_within_a_rank_of_ringruns_have_names_of_their_own() -> None:
    one, other = (detect(0, 2, environ=RINGRUN, network=False, job=job) for job in ("one", "other"))
    assert (one.job, other.job) == ("ringrun-12-ab-named-one", "ringrun-12-ab-named-other")
    for without_effect in ("one", ""):
        assert detect(environ=RINGRUN, network=False, job=without_effect).job == "ringrun-12-ab"


SEVERAL_HOSTS = [
    ("openmpi", OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}),
    ("pmix", SRUN_PMIX | {"SLURM_STEP_NUM_NODES": "2"}),
    ("mpich", HYDRA | {"MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}),
    ("mpich", SRUN_PMI2 | {"SLURM_STEP_NUM_NODES": "2"}),
    ("torchrun", TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}),
    ("slurm", SLURM | {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"}),
    ("horovod", HOROVODRUN | {"HOROVOD_LOCAL_SIZE": "1", "HOROVOD_LOCAL_RANK": "0"}),
    ("ringrun", RINGRUN | {"RINGREDUCE_CROSS_SIZE": "3", "RINGREDUCE_LOCAL_SIZE": "1", "RINGREDUCE_LOCAL_RANK": "0"}),
]


@pytest.mark.parametrize(("source", "environ"), SEVERAL_HOSTS, ids=[row[0] for row in SEVERAL_HOSTS])
def test_several_hosts_are_refused_in_words(source: str, environ: dict[str, str]) -> None:
    with pytest.raises(UnavailableError, match=rf"{source} started this job on .*hosts.*RINGREDUCE_TRANSPORT"):
        detect(environ=environ, network=False)
    assert spans_hosts(detect(environ=environ, network=True))


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        (OPEN_MPI, "PMIX_NAMESPACE"),
        (SRUN_PMIX, "PMIX_NAMESPACE"),
        (SRUN_PMI2, "PMI_JOBID"),
        (SLURM, "SLURM_STEP_ID"),
        (TORCHRUN, "TORCHELASTIC_RUN_ID"),
        (TORCHRUN, "MASTER_PORT"),
    ],
    ids=["openmpi", "srun --mpi=pmix", "srun --mpi=pmi2", "srun", "torchrun", "torchrun without an id"],
)
def test_jobs_of_one_launcher_have_other_names_on_all_hosts(environ: dict[str, str], name: str) -> None:
    """Ranks of two jobs with one address and one secret file would meet: the sums would be of both."""

    def named(environ: dict[str, str]) -> str:
        return name_across_hosts(detect(environ=environ, network=False).source, None, environ)

    assert named(environ) != named(environ | {name: "another"})


def test_the_secret_is_never_in_a_message() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        rendezvous_secret({"RINGREDUCE_RENDEZVOUS": "name:c0ffee-not-hex"})
    assert "c0ffee" not in str(caught.value)
    assert rendezvous_secret({}) is None
    assert rendezvous_secret({"RINGREDUCE_RENDEZVOUS": "name:c0ffee"}) == ("name", b"\xc0\xff\xee")


PRINT_PLACE = """
import os
from ringreduce.job.environment import detect
p = detect(network=False)
os.write(1, f"{p.rank} {p.size} {p.local_size} {p.source} {p.job}\\n".encode())
"""


@pytest.mark.parametrize("outer", [{}, TORCHRUN_OF_1], ids=["alone", "within a rank of torchrun's"])
@pytest.mark.parametrize(
    ("command", "source", "job"),
    [
        (["mpirun.openmpi", "--oversubscribe", "-np", "3"], "openmpi", "pmix-"),
        (["mpirun.mpich", "-np", "3"], "mpich", "hydra-"),
        (["mpirun.mpich", "-np", "3", "sh", "-c", 'nice "$@"; exit', "sh"], "mpich", "hydra-"),
    ],
    ids=["openmpi", "mpich", "mpich behind shells"],
)
def test_real_launchers(command: list[str], source: str, job: str, outer: dict[str, str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    environ = clean_environment() | outer
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = completed([*command, sys.executable, "-c", PRINT_PLACE], env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = sorted(line.split() for line in done.stdout.splitlines())
    assert [row[:4] for row in rows] == [[str(rank), "3", "3", source] for rank in range(3)]
    assert len({row[4] for row in rows}) == 1
    assert rows[0][4].startswith(job)


OF_RINGRUN = {"RINGREDUCE_RANK": "0", "RINGREDUCE_SIZE": "2"}
WHAT_IS_WITHIN = {
    "torchrun in a rank of ringrun's": (OF_RINGRUN, "TORCHELASTIC_RUN_ID=none RANK=1 WORLD_SIZE=4", "torchrun"),
    "mpirun in a rank of ringrun's": (OF_RINGRUN, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4", "openmpi"),
    "a wrapper's words": (OF_RINGRUN, "RANK=0 WORLD_SIZE=2", ""),
    "ringrun in a rank of torchrun's": (TORCHRUN_OF_1, "RINGREDUCE_RANK=1 RINGREDUCE_SIZE=2", ""),
}


@pytest.mark.parametrize("case", WHAT_IS_WITHIN)
def test_a_launcher_within_a_rank_of_ringruns_is_not_overlooked(case: str) -> None:
    outer, inner, blamed = WHAT_IS_WITHIN[case]
    script = f"{inner} {shlex.join([sys.executable, '-c', PRINT_PLACE])}; exit $?"
    done = completed(["sh", "-c", script], env=clean_environment() | outer)
    if blamed:
        assert done.returncode == 1
        assert re.search(f"RINGREDUCE_RANK=0 of ringrun and .* of {blamed}, which a rank", done.stderr), done.stderr
    else:
        assert done.stdout.split()[1:4] == ["2", "2", "ringrun"], done.stderr


OF_HOROVODRUN = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
OF_TORCH = {"RANK": "1", "WORLD_SIZE": "2"}
FROM_ONE_TASK = {
    "horovodrun from a shell of srun's": (SRUN_OF_1, OF_HOROVODRUN, ["1", "2", "horovod"]),
    "spawn() from a step of srun's": (SRUN_OF_1, OF_TORCH, ["1", "2", "torchrun"]),
    "spawn() from a step of srun --mpi=pmix": (ONE_TASK["srun --mpi=pmix"], OF_TORCH, ["1", "2", "torchrun"]),
    "spawn() from mpirun -np 1": (ONE_TASK["mpirun (MPICH)"], OF_TORCH, ["1", "2", "torchrun"]),
    "one task of srun's from a rank of horovodrun's": (OF_HOROVODRUN, SRUN_OF_1, ["0", "1", "slurm"]),
}


@pytest.mark.parametrize("case", FROM_ONE_TASK)
def test_ranks_that_the_only_task_of_a_launcher_has_started_are_not_alone(case: str) -> None:
    outer, inner, place = FROM_ONE_TASK[case]
    settings = " ".join(f"{name}={value}" for name, value in inner.items())
    script = f"{settings} {shlex.join([sys.executable, '-c', PRINT_PLACE])}; exit $?"
    done = completed(["sh", "-c", script], env=clean_environment() | outer)
    rank, size, _, source, _ = done.stdout.split()
    assert [rank, size, source] == place, done.stderr
