"""ringreduce.run(hosts=...) over the lab's hosts: what comes back, and what happens when something goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S, SOON_S

from ringreduce.lab.lab import Lab, wait_until
from ringreduce.lab.requirements import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

FUNCTIONS = """
import os, signal, time
import numpy as np
import ringreduce

def places(greeting):
    with ringreduce.init() as world:
        total = float(ringreduce.allreduce(np.full(3, world.rank), op=ringreduce.Sum)[0])
        print(greeting, world.rank, flush=True)
        return world.rank, world.size, os.uname().nodename, os.getcwd(), os.getenv("OF_THE_USER"), total

def much(nbytes):
    return bytes(range(256)) * (nbytes // 256)

def lengths(content):
    return len(content), content == much(len(content))

def fails(victim):
    ringreduce.init()
    if ringreduce.rank() == victim:
        raise LookupError(f"rank {victim} found nothing")
    ringreduce.barrier()

class DiesWhilePickled:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)

def is_killed():
    return DiesWhilePickled() if os.environ["RINGREDUCE_RANK"] == "1" else 1
"""
CALLS = """
import json, sys, time
import ringreduce
from functions import *
ssh, expression = sys.argv[1:]
try:
    found = ringreduce.run(*eval(expression), ssh_args=ssh, **json.loads(sys.stdin.read()))
    print("returned", json.dumps([lengths(one) if isinstance(one, bytes) else one for one in found]))
except ringreduce.Error as error:
    print("raised", json.dumps([type(error).__name__, str(error), repr(error.__cause__)]))
"""


@pytest.fixture(name="lab", scope="module")
def three_hosts() -> Iterator[Lab]:
    with Lab(3) as lab:
        (lab.folder / "functions.py").write_text(FUNCTIONS)
        (lab.folder / "calls.py").write_text(CALLS)
        yield lab


def call(lab: Lab, expression: str, **options: Any) -> tuple[str, Any, str]:
    """run() of an expression like "places, ('hello',)" from host a: "returned" or "raised", what, and the output."""
    said = lab.folder / "options.json"
    said.write_text(json.dumps(options))
    words = [sys.executable, lab.folder / "calls.py", f"-F {lab.ssh.parent / 'config'}", expression]
    line = " ".join(f"'{word}'" if index > 1 else str(word) for index, word in enumerate(words))
    done = lab.run("a", ["sh", "-c", f"cd {lab.folder} && exec {line} < {said}"], timeout_s=HANG_S)
    assert done.status == 0, done.output
    *output, last = done.output.splitlines()
    word, _, content = last.partition(" ")
    wait_until(lambda: not any(lab.processes(host) for host in lab.hosts), "nothing of the job is left", SOON_S)
    return word, json.loads(content), "\n".join(output)


def test_values_and_output_of_ranks_on_two_hosts(lab: Lab, tmp_path: Path) -> None:
    word, values, output = call(lab, 'places, ("hello",)', hosts="b:2,c:2", env={"OF_THE_USER": "yes"})
    folder = str(lab.folder)
    wanted = [[rank, 4, "bc"[rank // 2], folder, "yes", 6.0] for rank in range(4)]
    assert (word, values) == ("returned", wanted)
    assert sorted(output.splitlines()) == [f"hello {rank}" for rank in range(4)]


def test_this_host_is_one_of_them(lab: Lab) -> None:
    word, values, _ = call(lab, 'places, ("hello",)', hosts="a:1,b:3", np=2)
    assert (word, [value[2] for value in values]) == ("returned", ["a", "b"])


def test_what_is_larger_than_any_queue(lab: Lab) -> None:
    assert call(lab, "much, (20 << 20,)", hosts="b:2,c:1")[:2] == ("returned", [[20 << 20, True]] * 3)
    assert call(lab, "lengths, (much(20 << 20),)", hosts="b:2,c:1")[:2] == ("returned", [[20 << 20, True]] * 3)


def test_an_exception_comes_back(lab: Lab) -> None:
    word, (kind, text, cause), _ = call(lab, "fails, (1,)", hosts="b:1,c:1")
    assert (word, kind, cause) == ("raised", "Error", "LookupError('rank 1 found nothing')")
    assert text.startswith("[run] rank 1 of 2 exited with status 1 after ")
    assert ", on host c\n" in text
    assert "in fails\n" in text


def test_a_rank_that_is_killed_while_it_answers(lab: Lab) -> None:
    word, (kind, text, _), _ = call(lab, "is_killed, ()", hosts="b:1,c:1")
    assert (word, kind) == ("raised", "Error")
    assert text.startswith("[run] rank 1 of 2 was killed by signal 9 "), text


def test_a_host_that_there_is_not(lab: Lab) -> None:
    word, (kind, text, _), _ = call(lab, "places, (1,)", hosts="b:1,nobody:1")
    assert (word, kind) == ("raised", "UnavailableError")
    assert text.startswith("[run] host nobody: no such name: check -H")


def test_a_call_that_does_not_return(lab: Lab) -> None:
    for timeout_s in (3, 12, 48, 192):
        word, (kind, text, _), _ = call(lab, "time.sleep, (1000,)", hosts="b:1,c:1", timeout_s=timeout_s)
        assert (word, kind) == ("raised", "TimeoutError")
        if "had not started" not in text:  # this machine was not too slow for that
            break
    assert text == f"[run] ranks [0, 1] of 2 were still running after {timeout_s} s, and were killed, on b, c"


def test_time_that_ends_before_the_ranks_start(lab: Lab) -> None:
    word, (kind, text, _), _ = call(lab, "time.sleep, (1000,)", hosts="b:1,c:1", timeout_s=0.01)
    assert (word, kind) == ("raised", "TimeoutError")
    assert text == "[run] after 0.01 s the agents of b, c had not started their ranks"


def test_options_for_ssh(lab: Lab) -> None:
    word, (kind, text, _), _ = call(lab, "places, (1,)", hosts="b:1,c:1", ssh_port=1)
    assert (word, kind) == ("raised", "UnavailableError")
    assert "no ssh server listens there" in text
    word, (kind, text, _), _ = call(lab, "places, (1,)", hosts="b:1,c:1", network_interface="ib7")
    assert (word, kind) == ("raised", "UnavailableError")
    assert "host b: it has no network interface that --network-interface allows" in text
