"""Jobs whose ranks are connected by TCP: on one machine, each rank a host of its own, and on the lab's hosts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deadlines import HANG_S
from ports import free_port

from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import tcp_ranks


def secret_file(folder: Path, name: str = "secret", content: bytes = b"0123456789abcdef") -> Path:
    """A file that only its user can read."""
    path = folder / name
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def tcp_environment(folder: Path) -> dict[str, str]:
    """The variables of a job whose ranks are each a host of their own. folder: for its secret."""
    return {
        "RINGREDUCE_TRANSPORT": "tcp",
        "RINGREDUCE_ADDRESS": f"127.0.0.1:{free_port()}",
        "RINGREDUCE_SECRET_FILE": str(secret_file(folder)),
    }


def run_on_hosts(
    lab: Lab, commands: Mapping[str, Sequence[str | Path]], env: Mapping[str, str]
) -> tuple[list[int], list[str]]:
    """Runs a command on each host, all at the same time: their exit statuses and what they have said."""
    with ExitStack() as stack:
        running = []
        for host, command in commands.items():
            running.append(stack.enter_context(lab.start(host, command, env=env)))
            stack.callback(running[-1].kill)
        outputs = [process.communicate(timeout=HANG_S)[0] for process in running]
        return [process.returncode for process in running], outputs


def torchrun(
    lab: Lab,
    program: Sequence[str | Path],
    env: Mapping[str, str],
    hosts: str = "ab",
    rendezvous: Sequence[str] = (),
    options: Sequence[str] = (),
) -> tuple[list[int], list[str]]:
    """run_on_hosts() of torchrun with two ranks on each host. rendezvous: default: at the first host."""
    commands = {}
    for node, host in enumerate(hosts):
        words = ["--nnodes", str(len(hosts)), "--nproc-per-node", "2", *options]
        words += rendezvous or ("--node-rank", str(node), "--master-addr", hosts[0])
        commands[host] = [sys.executable, "-m", "torch.distributed.run", *words, *program]
    return run_on_hosts(lab, commands, {"OMP_NUM_THREADS": "1", **env})


TRAIN = """
import sys, time
import numpy as np
import ringreduce as rr
rr.init()
x = (np.arange(50_000) % 97 + rr.rank()).astype(np.float32)
wanted = ((np.arange(50_000) % 97) * rr.size() + sum(range(rr.size()))).astype(np.float32)
step = 0
try:
    while step < int(sys.argv[1]):
        for name in (None, "sum"):
            assert (rr.allreduce(x, op=rr.Sum, name=name) == wanted).all()
        assert rr.allgather(np.array([rr.rank()])).tolist() == list(range(rr.size()))
        step += 1
        if step == 5:
            print("ready", rr.local_rank(), rr.local_size(), rr.cross_rank(), rr.cross_size(), flush=True)
    rr.shutdown()
    print("done", flush=True)
except rr.PeerLostError as error:
    print(f"{time.time():.3f} {error}", flush=True)
"""
"""Steps of collectives whose results are known. A rank says that it is ready after five of them, how it has ended, and
when it lost another one."""


@contextmanager
def train_job(
    lab: Lab,
    steps: int,
    hosts: str = "abcd",
    per_host: int = 2,
    text: str = TRAIN,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """A program on some ranks of each host, by rank, at work."""
    program = lab.folder / "train.py"
    program.write_text(text)
    with tcp_ranks(lab, [sys.executable, program, str(steps)], hosts, per_host, env) as ranks:
        yield ranks


def first_lines(ranks: Sequence[subprocess.Popen[str]]) -> list[str]:
    """What each rank says first."""
    return [process.stdout.readline().strip() for process in ranks if process.stdout is not None]
