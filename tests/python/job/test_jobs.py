"""Jobs never meet: what one user starts at the same moment on one host, by the same script, sums its own data only."""

from __future__ import annotations

import json
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
import ringreduce as rr, sys
job = sys.argv[3] if len(sys.argv) > 3 else None
place = {"rank": int(sys.argv[1]), "size": 2} if job else {}
with rr.init(**place, job=job) as world:
    total = float(rr.allreduce(float(sys.argv[2]) * (world.rank + 1), op=rr.Sum))
sys.stdout.write(f"{total}\\n")
"""


def start(command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=clean_environment() | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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


@pytest.mark.parametrize("size", [1, 2])
def test_ranks_behind_a_shell_each(size: int) -> None:
    """Their parents differ; what has started the shells is the same. Two such jobs, each from a shell of its own."""
    script = """for r in 0 1; do RANK=$r WORLD_SIZE=2 sh -c '"$@"; true' - "$@" & done; wait"""
    jobs = [
        start(["sh", "-c", script, "-", sys.executable, "-c", ONE_RANK, "0", str(10.0 * (job + 1))])
        for job in range(size)
    ]
    for job, text in enumerate(ended(jobs)):
        assert text.split() == [str(30.0 * (job + 1))] * 2


def test_processes_without_a_common_parent_meet_by_the_name_of_their_job() -> None:
    behind_a_shell = ["sh", "-c", '"$@"; true', "-", sys.executable, "-c", ONE_RANK]
    ranks = [
        start([*behind_a_shell, str(rank), value, job]) for value, job in (("1", "a"), ("5", "b")) for rank in (0, 1)
    ]
    assert [float(text) for text in ended(ranks)] == [3.0, 3.0, 15.0, 15.0]


def test_processes_without_a_common_parent_are_told_what_joins_them() -> None:
    alone = start(["sh", "-c", '"$@"; exit $?', "-", sys.executable, "-c", ONE_RANK, "0", "1"],
                  RANK="0", WORLD_SIZE="2", RINGREDUCE_INIT_TIMEOUT="0.2")  # fmt: skip
    text = ended([alone], status=1)[0]
    assert "rank 1 did not come" in text
    assert "init(job=" in text
