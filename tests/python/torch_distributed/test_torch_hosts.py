"""The torch.distributed backend over the lab's hosts: what test_distributed*.py ask of one host, and every launcher."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import HANG_S
from tcp_jobs import secret_file, torchrun

from ringreduce.lab.lab import Lab
from ringreduce.lab.mpi import find
from ringreduce.lab.ranks import tcp_ranks
from ringreduce.lab.requirements import missing
from ringreduce.launch.python import run_module

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TESTS = Path(__file__).resolve().parents[2]
CALL = f"""
import sys
sys.path[:0] = {[str(TESTS / "python" / "torch_distributed"), str(TESTS / "support")]}
module, function, *arguments = sys.argv[1:-1]
getattr(__import__(module), function)(*arguments)
"""


@pytest.fixture(scope="module", name="lab")
def three_hosts() -> Iterator[Lab]:
    with Lab(hosts=3) as lab:
        secret_file(lab.folder)
        yield lab


def call(lab: Lab, hosts: str, per_host: int, module: str, function: str, *arguments: str) -> None:
    """A function of a test's module on each rank, which is told its place by RINGREDUCE_RANK and RINGREDUCE_SIZE."""
    path = lab.folder / "call.py"
    path.write_text(CALL)
    with tcp_ranks(lab, [sys.executable, path, module, function, *arguments], hosts, per_host) as ranks:
        outputs = [rank.communicate(timeout=HANG_S)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(outputs)


def folder(lab: Lab, name: str) -> str:
    path = lab.folder / name
    path.mkdir()
    return str(path)


def test_every_collective(lab: Lab) -> None:
    call(lab, "abc", 1, "test_distributed", "use_everything", folder(lab, "everything"))


def test_training_agrees_with_one_process(lab: Lab) -> None:
    call(lab, "ab", 2, "test_distributed_training", "train_with_all", folder(lab, "training"))


# --- launchers --------------------------------------------------------------------------------------------------------

GROUPS = """
import os, sys
import torch
import torch.distributed as dist
import ringreduce.torch
method = {"init_method": sys.argv[1]} if len(sys.argv) > 1 else {}
dist.init_process_group("ringreduce", **method)
rank, size = dist.get_rank(), dist.get_world_size()
first = torch.full((3,), rank + 1.0)
dist.all_reduce(first)
if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and os.environ.get("RR_FAILS_ONCE"):
    if rank == size - 1:
        raise SystemExit("once")
    while True:
        dist.barrier()
members = [sorted({number % size, (number + 1 + number // size % (size - 1)) % size}) for number in range(20)]
groups = [dist.new_group(ranks) for ranks in members]
mine = [(ranks, group) for ranks, group in zip(members, groups) if rank in ranks]
tensors = [torch.arange(50_000.0) + rank + 1000 * number for number in range(len(mine))]
works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, (_, group) in zip(tensors, mine)]
for work in reversed(works):
    work.wait()
for number, (tensor, (ranks, group)) in enumerate(zip(tensors, mine)):
    theirs = [[rank, number]] * len(ranks)
    dist.all_gather_object(theirs, [rank, number], group=group)
    assert [who for who, _ in theirs] == ranks, theirs
    expected = sum(torch.arange(50_000.0) + who + 1000 * which for who, which in theirs)
    assert torch.equal(tensor, expected), (rank, ranks)
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank, "text": "x" * (rank * 40_000)})
assert [one["rank"] for one in objects] == list(range(size))
if "RINGREDUCE_PORTS" in os.environ:
    sys.path.append(os.environ["RR_SUPPORT"])
    from ports import own_ports
    low, high = map(int, os.environ["RINGREDUCE_PORTS"].split("-"))
    assert len(own_ports()) > 2, own_ports()  # of hvd's job, of the world and of each group on both hosts
    assert all(low <= port <= high for port in own_ports()), own_ports()
told = [os.uname().nodename] if rank == 0 else [None]
dist.broadcast_object_list(told, 0)
os.write(1, f"rank {rank}/{size} {first.tolist()} {len(mine)} groups, told by {told[0]}\\n".encode())
dist.destroy_process_group()
"""


def program(lab: Lab) -> Path:
    path = lab.folder / "groups.py"
    path.write_text(GROUPS)
    return path


def said(output: str) -> list[str]:
    """The ranks' lines, in order."""
    return sorted(line for line in output.splitlines() if line.startswith("rank "))


ALL = [f"rank {rank}/4 [10.0, 10.0, 10.0] 10 groups, told by a" for rank in range(4)]
ENV = {"OMP_NUM_THREADS": "1"}


def test_torchrun_that_starts_its_ranks_again(lab: Lab) -> None:
    env = {"RINGREDUCE_SECRET_FILE": str(lab.folder / "secret"), "RR_FAILS_ONCE": "1"}
    status, outputs = torchrun(lab, [program(lab)], env, options=["--max-restarts", "1"])
    assert (status, said("".join(outputs))) == ([0, 0], ALL), outputs


def test_torchrun_without_a_secret(lab: Lab) -> None:
    _, outputs = torchrun(lab, [program(lab)], {})
    output = "".join(outputs)
    words = "on several hosts (rank 0 on a, rank 1 on a, rank 2 on b, rank 3 on b). Rank 0: hosts are connected by TCP"
    told = [line for line in output.splitlines() if words in line and "set RINGREDUCE_SECRET_FILE" in line]
    # Two ranks of a host may write into each other's tracebacks, which begin with the error's class.
    ranks = {found[1] for line in told if (found := re.search(r"\[rendezvous\] rank (\d)/4: ", line))}
    assert (ranks, "UnavailableError" in output) == (set("0123"), True), output


def test_ringrun_over_hosts(lab: Lab) -> None:
    """All sockets listen at ports that the user has allowed."""
    ringrun = [*run_module("ringreduce.launch.ringrun"), f"--ssh-args=-F {lab.ssh.parent / 'config'}", "-H", "a:2,b:2"]
    env = ENV | {"RINGREDUCE_PORTS": "29600-29659", "RR_SUPPORT": str(TESTS / "support")}
    done = lab.run("a", [*ringrun, "-x", "RR_SUPPORT", sys.executable, program(lab), "ringreduce://"], env=env)
    assert (done.status, said(done.output)) == (0, ALL), done.output


@pytest.mark.parametrize("transport", ["auto", "shm+tcp"])
def test_mpirun_needs_no_secret_file(lab: Lab, transport: str) -> None:
    """With auto MPI connects the job itself, and tells the secret of torch's groups."""
    pytest.importorskip("mpi4py")
    mpi = find("mpich", 5)
    if mpi is None:
        pytest.skip("MPICH 5 is not installed")
    env = ENV | {"RINGREDUCE_TRANSPORT": transport}
    command = [sys.executable, program(lab), "ringreduce://"]
    done = lab.mpirun(mpi, 2, command, env=env, hosts=["a", "b"], timeout_s=HANG_S)
    assert (done.status, said(done.output)) == (0, ALL), done.output


@pytest.mark.long  # likewise: test_distributed_frameworks.py, on one host
@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_frameworks_with_two_nodes(lab: Lab, framework: str) -> None:
    pytest.importorskip(framework)
    call(lab, "ab", 1, "test_distributed_frameworks", "train_on_nodes", framework, folder(lab, framework), "a")
