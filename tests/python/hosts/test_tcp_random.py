"""Random programs on the lab's hosts, connected by TCP: every result is checked, and a killed rank is named by all."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from deadlines import HANG_S, SOON_S
from tcp_jobs import secret_file

from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import pid_of, tcp_ranks
from ringreduce.lab.requirements import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PROGRAM = Path(__file__).with_name("random_program.py")
PER_HOST = 2
SIZE = 8
ROUNDS = 30


@pytest.fixture(scope="module", name="lab")
def four_hosts() -> Iterator[Lab]:
    with Lab(hosts=4, rate="1gbit") as lab:
        secret_file(lab.folder, content=os.urandom(32))
        yield lab


def random_job(lab: Lab, seed: int, rounds: int) -> AbstractContextManager[list[subprocess.Popen[str]]]:
    """The program's ranks, by rank."""
    return tcp_ranks(lab, [sys.executable, PROGRAM, str(seed), str(rounds)], each=PER_HOST)


def one_program(lab: Lab, seed: int) -> None:
    with random_job(lab, seed, ROUNDS) as ranks:
        outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
    # On a busy machine a rank may be late, and a warning names it.
    lines = [[line for line in output.splitlines() if not line.startswith("ringreduce warning")] for output in outputs]
    assert lines == [["at work", "done"]] * SIZE, f"seed {seed}: {outputs}"


def one_kill(lab: Lab, seed: int) -> float:
    """Seconds until all others had noticed."""
    chance = random.Random(seed)
    victim = chance.randrange(SIZE)
    with random_job(lab, seed, 10**9) as ranks:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "at work\n", f"seed {seed}"
        time.sleep(chance.uniform(0, 0.3))  # nobody waits for anything here: any moment will do
        pid = pid_of(lab, "abcd"[victim // PER_HOST], victim)
        killed_s = time.time()
        os.kill(pid, signal.SIGKILL)
        noticed_s = 0.0
        for rank in set(range(SIZE)) - {victim}:
            output = ranks[rank].communicate(timeout=HANG_S)[0]
            assert re.search(rf"lost rank {victim}\b", output), f"seed {seed}, rank {rank}: {output}"
            noticed_s = max(noticed_s, float(output.split()[0]) - killed_s)
    return noticed_s


def seeds(count: int) -> list[int]:
    return [int.from_bytes(os.urandom(3), "big") for _ in range(count)]


def test_random_programs_over_tcp(lab: Lab) -> None:
    for seed in seeds(2):
        one_program(lab, seed)


def test_a_rank_is_killed_in_a_random_program(lab: Lab) -> None:
    (seed,) = seeds(1)
    assert one_kill(lab, seed) < SOON_S


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_hundred_random_programs_over_tcp_and_a_hundred_kills(lab: Lab) -> None:
    for seed in seeds(100):
        one_program(lab, seed)
    noticed_s = [one_kill(lab, seed) for seed in seeds(100)]
    print(f"noticed within {max(noticed_s):.3f} s, half of them within {sorted(noticed_s)[50]:.3f} s")
    assert sorted(noticed_s)[50] < 0.5
