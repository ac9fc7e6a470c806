"""Real Slurm (munge, slurmctld, slurmd) on hosts of the lab: srun starts our ranks, by its own variables and by PMI."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import mpi_allreduce as allreduce
import pytest
from example_runs import write_data
from tcp_jobs import secret_file

from ringreduce.lab import mpi, requirements, slurm
from ringreduce.lab.lab import Lab, wait_until
from ringreduce.lab.slurm import Slurm

REASON = requirements.missing() or slurm.missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

ROOT = Path(__file__).resolve().parents[3]
SETTLE_S = 30.0
COUNT = 1 << 18
PMIS = {"none": "slurm", "pmix": "pmix", "pmi2": "mpich"}
"""srun --mpi=: by whose variables the ranks then know their place."""


@pytest.fixture(scope="module", name="cluster")
def two_nodes() -> Iterator[Slurm]:
    with Lab(hosts=2, rate="1gbit") as lab, Slurm(lab, slots=4) as cluster:
        yield cluster


@pytest.fixture(params=PMIS, name="pmi")
def each_pmi(request: pytest.FixtureRequest, cluster: Slurm) -> str:
    if request.param not in cluster.run(["srun", "--mpi=list"]).output.split():
        pytest.skip(f"this Slurm has no {request.param} plugin")
    return str(request.param)


WAITED = re.compile(r"srun: job \d+ (queued and waiting for|has been allocated) resources")
"""srun says so where the nodes are not free at once: the job before ends on them a moment after its srun has."""


def srun(
    cluster: Slurm, tasks: int, program: str, *options: str, env: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Status and output lines of a Python program on `tasks` ranks, by default on one node."""
    path = cluster.lab.folder / "program.py"
    path.write_text(program)
    place = options or ("-N", "1")
    command = ["srun", "-n", str(tasks), *place, "--export=ALL", sys.executable, path]
    done = cluster.run(command, env=env)
    return done.status, [line for line in done.output.splitlines() if not WAITED.fullmatch(line)]


SUM = """
import os
import numpy as np
import ringreduce
from ringreduce.job.environment import detect
try:
    source = detect(network=False).source
    with ringreduce.init() as world:
        y = ringreduce.allreduce(np.arange(4) * (world.rank + 1), op=ringreduce.Sum)
        os.write(1, f"rank {world.rank} of {world.size} by {source}: {y.tolist()}\\n".encode())
except ringreduce.UnavailableError as error:
    os.write(1, f"refused: {error}\\n".encode())
"""


def test_srun_starts_ranks(cluster: Slurm, pmi: str) -> None:
    status, lines = srun(cluster, 3, SUM, "-N", "1", f"--mpi={pmi}")
    wanted = [f"rank {rank} of 3 by {PMIS[pmi]}: [0, 6, 12, 18]" for rank in range(3)]
    assert (status, sorted(lines)) == (0, wanted), cluster.logs()


SPAN = """
import os
import numpy as np
import ringreduce
try:
    with ringreduce.init() as world:
        x = np.arange(COUNT, dtype=np.float32) % 89 * (world.rank + 1)
        y = ringreduce.allreduce(x, op=ringreduce.Sum)
        wanted = np.arange(COUNT, dtype=np.float32) % 89 * 10
        place = [world.local_rank, world.local_size, world.cross_rank, world.cross_size]
        os.write(1, f"rank {world.rank} of {world.size}: {np.array_equal(y, wanted)} {place}\\n".encode())
except ringreduce.Error as error:
    os.write(1, f"refused: {error}\\n".encode())
""".replace("COUNT", str(COUNT))
TWO_NODES = ("-N", "2", "--ntasks-per-node=2")


def launched(cluster: Slurm, name: str) -> dict[str, str]:
    """The environment in which mpi4py loads the MPI of that name."""
    pytest.importorskip("mpi4py")
    library, major = name.split()
    found = mpi.find(library, int(major))
    if found is None:
        pytest.skip(f"{name} is not installed")
    # Zeros from malloc(): what MPICH 5 tells Slurm has memory in it that nobody has written (docs/user/clusters.md).
    return mpi.settings(cluster.lab.ssh) | found.mpi4py_environ() | {"MALLOC_PERTURB_": "255"}


@pytest.mark.parametrize(("name", "plugin"), [("openmpi 4", "pmix"), ("openmpi 5", "pmix"), ("mpich 5", "pmi2")])
def test_ranks_of_two_nodes_sum(cluster: Slurm, name: str, plugin: str) -> None:
    """MPICH 4.0.2 sums as well, but its MPI_Finalize may hang here (docs/user/clusters.md)."""
    if plugin not in cluster.run(["srun", "--mpi=list"]).output.split():
        pytest.skip(f"this Slurm has no {plugin} plugin")
    environ = launched(cluster, name)
    before = cluster.lab.counters()
    status, lines = srun(cluster, 4, SPAN, *TWO_NODES, f"--mpi={plugin}", env=environ)
    crossed = cluster.lab.counters() - before
    said = [line for line in lines if line.startswith(("rank", "refused"))]  # UCX may warn on stdout
    wanted = [f"rank {rank} of 4: True {[rank % 2, 2, rank // 2, 2]}" for rank in range(4)]
    assert (status, sorted(said)) == (0, wanted), cluster.logs()
    assert 4 * COUNT <= crossed.mean_sent <= 1.1 * 4 * COUNT + 200_000  # 2(h-1)/h of the bytes, h = 2


@pytest.fixture(name="secret")
def secret_of_all_nodes(cluster: Slurm) -> dict[str, str]:
    return {"RINGREDUCE_SECRET_FILE": str(secret_file(cluster.lab.folder))}


@pytest.mark.parametrize("address", ["", ":29400", "a:29400"])
def test_ranks_of_two_nodes_sum_without_mpi(cluster: Slurm, secret: dict[str, str], address: str) -> None:
    """Where rank 0 is, the others know from Slurm's variables."""
    env = secret | ({"RINGREDUCE_ADDRESS": address} if address else {})
    status, lines = srun(cluster, 4, SPAN, *TWO_NODES, "--mpi=none", env=env)
    wanted = [f"rank {rank} of 4: True {[rank % 2, 2, rank // 2, 2]}" for rank in range(4)]
    assert (status, sorted(line for line in lines if line.startswith("rank"))) == (0, wanted), cluster.logs()


@pytest.mark.parametrize(("name", "plugin"), [("openmpi 5", "pmix"), ("mpich 5", "pmi2")])
def test_mpi_tells_the_ranks_of_srun_where_rank_0_is(cluster: Slurm, name: str, plugin: str) -> None:
    if plugin not in cluster.run(["srun", "--mpi=list"]).output.split():
        pytest.skip(f"this Slurm has no {plugin} plugin")
    program = SPAN.replace("        os.write", "        from ringreduce import state\n        os.write")
    program = program.replace("{place}", "{place} {state.current.communicator}")
    env = launched(cluster, name) | {"RINGREDUCE_TRANSPORT": "shm+tcp"}
    status, lines = srun(cluster, 4, program, *TWO_NODES, f"--mpi={plugin}", env=env)
    wanted = [f"rank {rank} of 4: True {[rank % 2, 2, rank // 2, 2]} None" for rank in range(4)]
    assert (status, sorted(line for line in lines if line.startswith("rank"))) == (0, wanted), cluster.logs()


def test_rank_0_that_is_on_another_node_than_the_first(cluster: Slurm, secret: dict[str, str]) -> None:
    hosts = cluster.lab.folder / "hostfile"
    hosts.write_text("b\nb\na\na\n")
    env = secret | {"SLURM_HOSTFILE": str(hosts), "RINGREDUCE_INIT_TIMEOUT": "5"}
    _, lines = srun(cluster, 4, SPAN, "-N", "2", "--distribution=arbitrary", "--mpi=none", env=env)
    said = sorted(line for line in lines if line.startswith("refused"))
    assert len(said) == 4, lines
    assert "this rank is not on the first node of the step, a" in said[0], said
    assert "set RINGREDUCE_ADDRESS=host:port" in said[0], said
    assert all("no connection to rank 0 at a:" in line for line in said[1:]), said


def test_a_port_of_the_step_that_is_taken(cluster: Slurm, secret: dict[str, str]) -> None:
    env = secret | {"RINGREDUCE_ADDRESS": ":22", "RINGREDUCE_INIT_TIMEOUT": "5"}  # the ssh daemon of the lab
    _, lines = srun(cluster, 4, SPAN, *TWO_NODES, "--mpi=none", env=env)
    said = sorted(
        (line for line in lines if line.startswith("refused")), key=lambda line: "another process" not in line
    )
    assert len(said) == 4, lines
    assert "another process listens at 10.77.0.1:22 already: give RINGREDUCE_ADDRESS another port" in said[0], said
    # What the daemon says to a greeting of random bytes depends on them.
    answers = ("has not answered within 5 s: it is stopped, or another program", "is not this version of ringreduce")
    words = f"rank [123]/4: (what listens at a:22 ({'|'.join(answers)})|lost rank 0: it gathers the ranks at a:22)"
    assert all(re.search(words, line) for line in said[1:]), said


def test_nodes_without_a_secret_are_refused_in_words(cluster: Slurm) -> None:
    _, lines = srun(cluster, 4, SPAN, *TWO_NODES, "--mpi=none", env={"RINGREDUCE_TRANSPORT": "shm+tcp"})
    said = [line for line in lines if line.startswith("refused")]
    assert len(said) == 4, lines
    words = "refused: slurm started this job on several hosts.*set RINGREDUCE_SECRET_FILE"
    assert all(re.match(words, line) for line in said), said


def test_nodes_without_mpi_are_refused_in_words(cluster: Slurm) -> None:
    environ = launched(cluster, "openmpi 5")
    _, lines = srun(cluster, 4, SPAN, *TWO_NODES, "--mpi=none", env=environ)
    said = [line for line in lines if line.startswith("refused")]
    assert len(said) == 4, lines
    assert all("Start with srun --mpi=pmix (or pmi2; `srun --mpi=list`)" in line for line in said), said
    assert all("Without MPI: RINGREDUCE_SECRET_FILE connects the hosts by TCP" in line for line in said), said
    _, lines = srun(cluster, 4, SPAN, *TWO_NODES, env={"RINGREDUCE_TRANSPORT": "shm"})
    said = [line for line in lines if line.startswith("refused")]
    assert len(said) == 4, lines
    assert all(re.search(r"rank \d/4: slurm started this job on 2 hosts", line) for line in said), said


TRAIN = """
import os
import torch
import ringreduce.torch as hvd
from ringreduce.job.environment import detect

torch.set_num_threads(1)
COUNT, STEPS = 48, 12


def make():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5)).double()


def train(model, optimizer, mine):
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x = torch.rand(COUNT, 20, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 5, (COUNT,), generator=generator)
        optimizer.zero_grad()
        total = torch.nn.functional.cross_entropy(model(x[mine]), labels[mine], reduction="sum")
        (total / COUNT).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


hvd.init()
alone = make()
wanted = train(alone, sgd(alone), slice(None))
moved = (wanted - torch.cat([parameter.detach().flatten() for parameter in make().parameters()])).norm()
model = make()
if hvd.rank():
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Sum)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
ours = train(model, optimizer, slice(hvd.rank(), None, hvd.size()))
everybodys = hvd.allgather(ours.unsqueeze(0))
same = all(torch.equal(row, everybodys[0]) for row in everybodys)
close = bool((ours - wanted).norm() <= 1e-12 * wanted.norm()) and bool(moved > 0.1)
source = detect(network=True).source
place = f"rank {hvd.rank()} of {hvd.size()} ({hvd.local_rank()} of {hvd.local_size()} here) by {source}"
os.write(1, f"{place}: same on {len(everybodys)} {same}, as one process {close}\\n".encode())
hvd.shutdown()
"""


@pytest.mark.long  # test_srun_trains_on_two_nodes runs this program, test_srun_starts_ranks places ranks by Slurm
def test_srun_trains(cluster: Slurm) -> None:
    pytest.importorskip("torch")
    status, lines = srun(cluster, 2, TRAIN, "-N", "1")
    wanted = [f"rank {rank} of 2 ({rank} of 2 here) by slurm: same on 2 True, as one process True" for rank in range(2)]
    assert (status, sorted(lines)) == (0, wanted), cluster.logs()


def test_srun_trains_on_two_nodes(cluster: Slurm) -> None:
    pytest.importorskip("torch")
    status, lines = srun(cluster, 4, TRAIN, *TWO_NODES, "--mpi=pmix", env=launched(cluster, "openmpi 5"))
    wanted = [
        f"rank {rank} of 4 ({rank % 2} of 2 here) by pmix: same on 4 True, as one process True" for rank in range(4)
    ]
    assert (status, sorted(lines)) == (0, wanted), cluster.logs()


LOOP = """
import sys
from pathlib import Path
import numpy as np
import ringreduce
with ringreduce.init() as world:
    x = np.ones(1 << 16)
    ringreduce.allreduce(x)
    Path(sys.argv[1], str(world.rank)).touch()
    while True:
        ringreduce.allreduce(x)
"""


PROCESS_GROUP = """
import os
import torch
import torch.distributed as dist
import ringreduce.torch
dist.init_process_group("ringreduce", init_method="ringreduce://")
rank, size = dist.get_rank(), dist.get_world_size()
across = [dist.new_group([first, first + 2]) for first in range(2)][rank % 2]
total = torch.full((3,), 10.0**rank)
dist.all_reduce(total, group=across)
dist.all_reduce(total)
os.write(1, f"rank {rank} of {size}: {total.tolist()}\\n".encode())
dist.destroy_process_group()
"""


def test_groups_of_torch_on_two_nodes(cluster: Slurm, secret: dict[str, str]) -> None:
    pytest.importorskip("torch")
    env = secret | {"RINGREDUCE_PORTS": "29500-29563", "OMP_NUM_THREADS": "1"}
    status, lines = srun(cluster, 4, PROCESS_GROUP, *TWO_NODES, "--mpi=none", env=env)
    wanted = [f"rank {rank} of 4: [2222.0, 2222.0, 2222.0]" for rank in range(4)]
    assert (status, sorted(line for line in lines if line.startswith("rank"))) == (0, wanted), cluster.logs()


def test_a_killed_task_is_named_by_the_others(cluster: Slurm) -> None:
    lab = cluster.lab
    ready, path = lab.folder / "ready", lab.folder / "loop.py"
    ready.mkdir()
    path.write_text(LOOP)
    step = ["srun", "-n", "4", "-N", "1", "--kill-on-bad-exit=0", sys.executable, str(path), str(ready)]
    loop = " ".join(step[-3:])

    def tasks() -> dict[int, str]:
        running = [pid for pid, line in lab.processes("a").items() if line == loop]
        return {
            pid: re.findall(r"\0SLURM_PROCID=(\d+)", Path(f"/proc/{pid}/environ").read_text())[0] for pid in running
        }

    with lab.start("a", step, env=cluster.environ) as job:
        try:
            wait_until(lambda: len(list(ready.iterdir())) == 4 or job.poll() is not None, "ranks met", SETTLE_S)
            victim = next(pid for pid, rank in tasks().items() if rank == "2")
            os.kill(victim, signal.SIGKILL)
            output, _ = job.communicate(timeout=SETTLE_S)
        finally:
            job.kill()
    assert job.returncode != 0, output
    told = re.findall(r"PeerLostError: .*", output)
    assert len(told) == 3, output
    assert all("rank 2" in line for line in told), output
    wait_until(lambda: not tasks(), "no task is left", SETTLE_S)


def test_sbatch_runs_the_example(cluster: Slurm) -> None:
    pytest.importorskip("torch")
    folder = cluster.lab.folder
    result, log = folder / "result.json", folder / "job.log"
    options = ["--epochs", "2", "--batch-size", "32", "--model", "lenet", "--json", str(result)]
    here = ["--parsable", f"--chdir={ROOT}", f"--output={log}", "--ntasks=2"]  # these win over the script's
    env = {"RINGREDUCE_DATA": str(write_data(folder / "data")), "PYTHON": sys.executable}
    submitted = cluster.run(["sbatch", *here, str(ROOT / "examples" / "slurm.sbatch"), *options], env=env)
    assert submitted.status == 0, submitted.output

    # sbatch --wait does the same, but looks after 2, 10, 42, ... seconds only.
    def state() -> str:
        return cluster.run(["scontrol", "show", "job", submitted.output.strip()]).output

    wait_until(lambda: not re.search(r"JobState=(PENDING|RUNNING|COMPLETING)", state()), "the job has ended", 100)
    assert re.search(r"JobState=COMPLETED .*ExitCode=0:0", state(), re.DOTALL), state() + log.read_text()
    assert re.search(r"^job \d+: 2 ranks on [ab]$", log.read_text(), re.MULTILINE), log.read_text()
    found = json.loads(result.read_text())
    assert found["ranks"] == 2
    assert found["epoch"][-1]["loss"] < found["epoch"][0]["loss"]


def test_mpi_across_nodes_by_pmix(cluster: Slurm) -> None:
    """Without ringreduce: what srun --mpi=pmix needs to span nodes works here."""
    pytest.importorskip("mpi4py")
    if "pmix" not in cluster.run(["srun", "--mpi=list"]).output.split():
        pytest.skip("this Slurm has no pmix plugin")
    debians = mpi.find("openmpi", 4)
    if debians is None:
        pytest.skip("Open MPI 4 is not installed (apt-get install openmpi-bin libopenmpi-dev)")
    lab = cluster.lab
    env = mpi.settings(lab.ssh) | debians.mpi4py_environ()
    before = lab.counters()
    command = [
        "srun",
        "--mpi=pmix",
        "-N",
        "2",
        "-n",
        "4",
        "--ntasks-per-node=2",
        sys.executable,
        "-m",
        "mpi_allreduce",
        str(COUNT),
    ]
    done = cluster.run(command, env=env)
    assert done.status == 0, done.output + cluster.logs()
    wanted = [(rank, 4, "ab"[rank // 2], 10 * allreduce.expected_sum(COUNT)) for rank in range(4)]
    assert [(r.rank, r.size, r.host, r.weighed_sum) for r in allreduce.read(done.output)] == wanted, done.output
    assert (lab.counters() - before).mean_sent >= 2 * (2 - 1) / 2 * 4 * COUNT
