"""Jobs never meet: what one user starts at the same moment on one host, by the same script, sums its own data only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from deadlines import HANG_S
from ranks import clean_environment

ROUNDS = 200
"""How often two jobs meet side by side; each time both start at once and call init() for the same time."""

SPAWN = """
import json, multiprocessing, os
from sys import argv

def work(rank, size, port, value, rounds, results):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    if port: os.environ["MASTER_PORT"] = port
    import ringreduce as rr
    sums = set()
    for _ in range(rounds):
        with rr.init() as world:
            sums.add(float(rr.allreduce(value * (world.rank + 1.0), op=rr.Sum)))
    results.put(sorted(sums))

if __name__ == "__main__":
    context = multiprocessing.get_context(argv[1])
    results = context.Queue()
    ranks = [context.Process(target=work, args=(r, 2, argv[2], float(argv[3]), int(argv[4]), results)) for r in (0, 1)]
    input()
    for rank in ranks: rank.start()
    print(json.dumps([results.get(timeout=90) for rank in ranks]))
    for rank in ranks: rank.join()
"""

ONE_RANK = """
import os, sys
import ringreduce as rr
value, rounds = float(sys.argv[1]), int(sys.argv[2])
rank, job = sys.argv[3:] or (0, None)
place = {"rank": int(rank), "size": 2} if job else {}
sums = set()
for _ in range(rounds):
    with rr.init(**place, job=job) as world:
        sums.add(float(rr.allreduce(value * (world.rank + 1), op=rr.Sum)))
os.write(1, f"{' '.join(map(str, sums))}\\n".encode())  # in one write: ranks share a pipe
"""


def start(command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    """In a session of its own, as behind a terminal, ssh or cron."""
    return subprocess.Popen(
        command,
        env=clean_environment() | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(processes: Sequence[subprocess.Popen[str]], say: str = "", status: int = 0) -> list[str]:
    """What each has printed, with all of them at work at once; fails unless they end with the status."""
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(say)
            process.stdin.flush()
        texts = [process.communicate(timeout=HANG_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [status] * len(processes), "\n".join(texts)
    return texts


@pytest.mark.parametrize("port", ["12355", ""])
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_two_scripts_that_spawn_ranks_with_one_port(method: str, port: str, tmp_path: Path) -> None:
    values = (10.0, 1000.0)
    script = tmp_path / "script.py"
    script.write_text(SPAWN)
    jobs = [start([sys.executable, str(script), method, port, str(v), str(ROUNDS)]) for v in values]
    for text, value in zip(ended(jobs, "go\n"), values, strict=True):
        assert json.loads(text) == [[3 * value]] * 2


RINGRUN = ["ringreduce.launch.ringrun", "-np", "2", sys.executable]
RENDEZVOUS = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "7"]
TORCHRUN = ["torch.distributed.run", "--nproc-per-node", "2", *RENDEZVOUS]


@pytest.mark.parametrize("launcher", [RINGRUN, TORCHRUN], ids=["ringrun", "torchrun"])
def test_two_launchers_at_once(launcher: list[str], tmp_path: Path) -> None:
    if "torch" in launcher[0]:
        pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(ONE_RANK)
    jobs = [
        start([sys.executable, "-m", *launcher, str(script), value, str(ROUNDS)], OMP_NUM_THREADS="1")
        for value in ("10", "1000")
    ]
    for text, total in zip(ended(jobs), (30.0, 3000.0), strict=True):
        assert [line for line in text.splitlines() if "W1" not in line] == [str(total)] * 2, text


@pytest.mark.parametrize(
    "outer",
    [
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.77.0"},
        {"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_JOBID": "77.0"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0", "PMIX_NAMESPACE": "7"},
    ],
    ids=["srun --mpi=pmix", "srun --mpi=pmi2", "mpirun"],
)
def test_torchrun_within_one_task_of_another_launcher(outer: dict[str, str], tmp_path: Path) -> None:
    """Its ranks are one job, and not each one of its own, though each has inherited that it is the only rank."""
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(ONE_RANK)
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    command = [sys.executable, "-m", *TORCHRUN, str(script), "10", "1"]
    (text,) = ended([start(command, OMP_NUM_THREADS="1", **step, **outer)])
    assert [line for line in text.splitlines() if "W1" not in line] == ["30.0"] * 2, text


@pytest.mark.parametrize("size", [1, 2])
def test_ranks_behind_a_shell_each(size: int) -> None:
    """Their parents differ; what has started the shells is the same. Two such jobs, each from a shell of its own."""
    script = """for r in 0 1; do RANK=$r WORLD_SIZE=2 sh -c '"$@"; true' - "$@" & done; wait"""
    jobs = [
        start(["sh", "-c", script, "-", sys.executable, "-c", ONE_RANK, str(10.0 * (job + 1)), str(ROUNDS)])
        for job in range(size)
    ]
    for job, text in enumerate(ended(jobs)):
        assert text.split() == [str(30.0 * (job + 1))] * 2


ONCE_LEFT = """
import os, time
while os.getppid() == int(os.environ["STARTER"]): time.sleep(0.01)
"""


@pytest.mark.parametrize("place", ["RANK=$r WORLD_SIZE=2", "HOROVOD_RANK=$r HOROVOD_SIZE=2"])
def test_ranks_whose_shell_has_ended(place: str) -> None:
    """The ranks of both jobs are children of the same process then, which has started none of them."""
    script = f"""for r in 0 1; do STARTER=$$ {place} "$@" & done"""
    jobs = [
        start(["sh", "-c", script, "-", sys.executable, "-c", ONCE_LEFT + ONE_RANK, value, str(ROUNDS)])
        for value in ("10", "1000")
    ]
    for text, total in zip(ended(jobs), (30.0, 3000.0), strict=True):
        assert text.split() == [str(total)] * 2


MEETS_AGAIN = """
import os, time
import ringreduce as rr
starter, rank = os.getppid(), 0
for number in range(2):
    while number == rank == 1 and os.getppid() == starter: time.sleep(0.01)
    with rr.init() as world:
        rank = world.rank
        total = float(rr.allreduce(rank + 1.0, op=rr.Sum))
    os.write(1, f"{total}\\n".encode())
"""


@pytest.mark.parametrize("place", ["RANK=$r WORLD_SIZE=2", "HOROVOD_RANK=$r HOROVOD_SIZE=2"])
def test_a_job_whose_shell_ends_meets_again(place: str) -> None:
    """Rank 0 calls init() before the shell ends, and rank 1 after that."""
    script = f"""for r in 0 1; do {place} "$@" & done; read go"""
    job = start(["sh", "-c", script, "-", sys.executable, "-c", MEETS_AGAIN], RINGREDUCE_INIT_TIMEOUT="30")
    assert job.stdout is not None
    said = [job.stdout.readline() for rank in range(2)]
    (text,) = ended([job], "go\n")
    assert [*said, *text.splitlines(keepends=True)] == ["3.0\n"] * 4


AGENT = """
import os, subprocess, sys
place = {"WORLD_SIZE": "2", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
ranks = [
    subprocess.Popen(sys.argv[1:], env=os.environ | place | {"RANK": str(rank)}, start_new_session=True)
    for rank in range(2)
]
sys.exit(max(rank.wait() for rank in ranks))
"""
"""Starts two ranks as torchrun does, with the same variables each time."""
ENDLESS = """
import os, sys
import ringreduce as rr
value = float(sys.argv[1])
for number in iter(int, 1):
    try:
        with rr.init() as world:
            total = float(rr.allreduce(value * (world.rank + 1), op=rr.Sum))
    except rr.Error:
        continue
    os.write(1, f"{total}\\n".encode())
"""


def test_torchrun_again_beside_ranks_that_it_has_left() -> None:
    """Agents die, their ranks live on for a while and call init() again and again; then torchrun is started anew."""
    agent = [sys.executable, "-c", AGENT, sys.executable, "-c"]
    left = [start([*agent, ENDLESS, value], RINGREDUCE_INIT_TIMEOUT="2") for value in ("10", "1000")]
    ranks: list[int] = []
    try:
        for predecessor in left:
            assert predecessor.stdout is not None
            predecessor.stdout.readline()
            ranks += children(predecessor.pid)
            predecessor.kill()
            predecessor.wait()
        (text,) = ended([start([*agent, ONE_RANK, "100000", str(ROUNDS)])])
    finally:
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
    assert len(ranks) == 4
    assert text.split() == ["300000.0"] * 2
    for predecessor, total in zip(left, ("30.0", "3000.0"), strict=True):
        assert set(predecessor.communicate(timeout=HANG_S)[0].split()) == {total}


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_processes_without_a_common_parent_meet_by_the_name_of_their_job() -> None:
    behind_a_shell = ["sh", "-c", '"$@"; true', "-", sys.executable, "-c", ONE_RANK]
    ranks = [
        start([*behind_a_shell, value, str(ROUNDS), str(rank), job])
        for value, job in (("1", "a"), ("5", "b"))
        for rank in (0, 1)
    ]
    assert [float(text) for text in ended(ranks)] == [3.0, 3.0, 15.0, 15.0]


def test_processes_without_a_common_parent_are_told_what_joins_them() -> None:
    alone = start(["sh", "-c", '"$@"; exit $?', "-", sys.executable, "-c", ONE_RANK, "1", "1"],
                  RANK="0", WORLD_SIZE="2", RINGREDUCE_INIT_TIMEOUT="0.2")  # fmt: skip
    text = ended([alone], status=1)[0]
    assert "rank 1 did not come" in text
    assert "if the ranks are on several hosts, they need RINGREDUCE_ADDRESS and RINGREDUCE_SECRET_FILE" in text
    assert "init(job=" in text
