"""The examples of docs/user/clusters.md: each runs under a real mpirun, or is checked against what will read it."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import kubernetes_schemas
import mpis
import pytest
from example_runs import EXAMPLES, write_data
from ranks import clean_environment
from tcp_jobs import run_on_hosts, secret_file

from ringreduce.lab.lab import Lab
from ringreduce.lab.requirements import missing
from ringreduce.launch.command_line import options

ROOT = EXAMPLES.parent
KUBERNETES = EXAMPLES / "kubernetes"
SHORT = ("--model", "lenet", "--epochs", "1", "--steps", "2", "--batch-size", "8")


def test_the_page_names_every_example_and_its_commands_can_be_read() -> None:
    text = (ROOT / "docs" / "user" / "clusters.md").read_text()
    for name in (
        "mpi_hello.py",
        "mpirun_torch.sh",
        "slurm.sbatch",
        "kubernetes/mpijob.yaml",
        "kubernetes/trainjob.yaml",
        "kubernetes/job.yaml",
    ):
        assert (EXAMPLES / name).is_file()
        assert f"(../../examples/{name})" in text
    for command in re.findall(r"^ *ringrun (.+)$", text, re.MULTILINE):
        read = options.read(command.partition("#")[0].replace('"', "").split(), "ringrun")
        assert read.command[0] == "python", command


# --- mpirun -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["openmpi-4", "mpich-5"])
def test_hello(name: str) -> None:
    mpi = mpis.get(name)
    done = mpi.attempt(3, sys.executable, str(EXAMPLES / "mpi_hello.py"))
    assert done.returncode == 0, done.stdout
    lines = re.findall(r"rank (\d) of 3, local (\d) of 3 on \S+: 100003 sums are right", done.stdout)
    assert sorted(lines) == [(str(rank), str(rank)) for rank in range(3)]


@pytest.mark.parametrize(("name", "hosts"), [("openmpi-5", ""), ("mpich-4", "localhost:2")])
def test_the_script_for_mpirun(name: str, hosts: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    mpi = mpis.get(name)
    extra = {"MPIRUN": mpi.mpirun, "PYTHON": sys.executable, "HOSTS": hosts, "NP": "2"}
    extra["RINGREDUCE_DATA"] = str(write_data(tmp_path / "small"))
    file = tmp_path / "result.json"
    done = mpis.run([str(EXAMPLES / "mpirun_torch.sh"), *SHORT, "--json", str(file)], mpi.environment(extra))
    assert done.returncode == 0, done.stdout
    result = json.loads(file.read_text())
    assert (result["ranks"], result["threads_per_rank"], len(result["epoch"])) == (2, 1, 1)


# --- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", ["", "6"])
def test_the_script_for_sbatch_asks_srun_for_the_cores_of_a_task(cores: str, tmp_path: Path) -> None:
    """srun 22.05 and newer do not look at SLURM_CPUS_PER_TASK; where sbatch was told no number, it is not set."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "threads=$OMP_NUM_THREADS" "$@"\n')
    srun.chmod(0o755)
    extra = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "a", "PYTHON": "python3"}
    extra |= {"SLURM_CPUS_PER_TASK": cores} if cores else {}
    environ = clean_environment() | {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | extra
    done = mpis.run(["sh", str(EXAMPLES / "slurm.sbatch"), "--epochs", "3"], environ)
    assert done.returncode == 0, done.stdout
    told, *options = done.stdout.splitlines()[1:]
    at = options.index("python3")
    assert told == f"threads={cores or 1}"
    assert [option for option in options[:at] if "cpus" in option] == ([f"--cpus-per-task={cores}"] if cores else [])
    assert options[at + 1 :] == ["examples/torch_fashion_mnist.py", "--epochs", "3"]


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def documents(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    found = list(yaml.safe_load_all((KUBERNETES / name).read_text()))
    assert found
    return found


def check(document: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(kubernetes_schemas.KINDS[document["kind"]]).validate(document)


def test_manifests_are_what_their_operators_accept() -> None:
    for name, kinds in (
        ("mpijob.yaml", ["MPIJob"]),
        ("trainjob.yaml", ["TrainingRuntime", "TrainJob"]),
        ("job.yaml", ["Service", "Job"]),
    ):
        found = documents(name)
        assert [document["kind"] for document in found] == kinds
        for document in found:
            check(document)


def test_what_manifests_say_to_each_other(tmp_path: Path) -> None:
    (job,) = documents("mpijob.yaml")
    launcher, worker = (job["spec"]["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    assert (launcher["replicas"], worker["replicas"]) == (1, 2)
    (starts,) = launcher["template"]["spec"]["containers"]
    (runs,) = worker["template"]["spec"]["containers"]
    assert starts["image"] == runs["image"]
    assert int(runs["resources"]["limits"]["cpu"]) >= job["spec"]["slotsPerWorker"]

    runtime, train = documents("trainjob.yaml")
    reference = train["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    policy, trainer = runtime["spec"]["mlPolicy"], train["spec"]["trainer"]
    assert policy["mpi"]["numProcPerNode"] == trainer["numProcPerNode"] == job["spec"]["slotsPerWorker"]
    assert policy["numNodes"] == trainer["numNodes"] == worker["replicas"]
    jobs = {entry["name"]: entry for entry in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    step = jobs["launcher"]["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
    assert step == "trainer"
    assert jobs["launcher"]["dependsOn"] == [{"name": "node", "status": "Ready"}]

    host_file = tmp_path / "hostfile"
    host_file.write_text(
        "".join(f"ringreduce-mnist-worker-{pod}.ringreduce-mnist.default.svc slots=4\n" for pod in range(2))
    )
    for command, arguments in ((starts["command"], starts["args"]), (trainer["command"], trainer["args"])):
        assert command == ["ringrun"]
        assert "--hostfile=/etc/mpi/hostfile" in arguments
        read = options.read([word.replace("/etc/mpi/hostfile", str(host_file)) for word in arguments], "ringrun")
        assert (read.transport, read.ranks, read.bind, read.command[0]) == ("mpi", 8, "none", "python3")
        assert (EXAMPLES / Path(read.command[1]).name).is_file()


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_job_without_an_operator_trains() -> None:
    """What its pods run, on two hosts of the lab that have the pods' names; fewer ranks and steps."""
    pytest.importorskip("torch")
    service, job = documents("job.yaml")
    name, spec = job["metadata"]["name"], job["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (volume,) = spec["template"]["spec"]["volumes"]
    (mount,) = container["volumeMounts"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["metadata"]["name"] == spec["template"]["spec"]["subdomain"] == volume["secret"]["secretName"]
    assert (volume["name"], volume["secret"]["defaultMode"]) == (mount["name"], 0o400)
    env = {one["name"]: one["value"] for one in container["env"]}
    assert Path(env["RINGREDUCE_SECRET_FILE"]).parent == Path(mount["mountPath"])
    assert spec["completions"] == spec["parallelism"] == 2
    (script,) = container["args"]
    assert f"--nnodes {spec['completions']} " in script
    with Lab(2) as lab:
        for host in "ab":  # each has an /etc/hosts of its own
            line = f"10.77.0.1 {name}-0.{service['metadata']['name']}"
            assert lab.run(host, ["sh", "-c", f"echo {line} >> /etc/hosts"]).status == 0
        file = lab.folder / "result.json"
        script = script.replace("torchrun", f"{sys.executable} -m torch.distributed.run").replace(
            "proc-per-node 4", "proc-per-node 2"
        )
        script = script.replace("/opt/ringreduce/examples", str(EXAMPLES)) + f" {' '.join(SHORT)} --json {file}"
        env |= {
            "RINGREDUCE_SECRET_FILE": str(secret_file(lab.folder)),
            "RINGREDUCE_DATA": str(write_data(lab.folder / "small")),
        }
        pods = {
            host: ["env", f"JOB_COMPLETION_INDEX={index}", *container["command"], script]
            for index, host in enumerate("ab")
        }
        status, outputs = run_on_hosts(lab, pods, env)
        assert status == [0, 0], outputs
        assert json.loads(file.read_text())["ranks"] == 4


def set_at(document: Any, path: str, value: Any) -> None:
    *way, last = path.split(".")
    for name in way:
        document = document[int(name)] if isinstance(document, list) else document[name]
    document[last] = value


WRONG: list[tuple[str, int, str, Any]] = [
    ("mpijob.yaml", 0, "apiVersion", "kubeflow.org/v1"),
    ("mpijob.yaml", 0, "spec.slotsPerWorker", "4"),
    ("mpijob.yaml", 0, "spec.slotPerWorker", 4),
    ("mpijob.yaml", 0, "spec.mpiReplicaSpecs.Master", {}),
    ("mpijob.yaml", 0, "spec.runPolicy.cleanPodPolicy", "Sometimes"),
    ("mpijob.yaml", 0, "spec.mpiReplicaSpecs.Worker.template.spec.containers.0.args", "-De"),
    ("mpijob.yaml", 0, "spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.env.0.value", 1),
    ("mpijob.yaml", 0, "spec.mpiReplicaSpecs.Worker.template.spec.containers.0.resources.limits.memory", "8 GB"),
    ("trainjob.yaml", 1, "metadata.name", "Ringreduce_MNIST"),
    ("trainjob.yaml", 1, "spec.runtimeRef", {}),
    ("trainjob.yaml", 1, "spec.trainer.numProcPerNode", "auto"),
    ("trainjob.yaml", 0, "spec.mlPolicy.mpi.mpiImplementation", "Open MPI"),
    ("job.yaml", 0, "spec.clusterIP", "10.0.0.1"),
    ("job.yaml", 0, "spec.selector", {}),
    ("job.yaml", 1, "spec.completionMode", "Numbered"),
    ("job.yaml", 1, "spec.template.spec.restartPolicy", "Always"),
    ("job.yaml", 1, "spec.template.spec.volumes.0.secret.defaultMode", "0400"),
]


@pytest.mark.parametrize(("name", "number", "path", "value"), WRONG, ids=[f"{row[0]} {row[2]}" for row in WRONG])
def test_the_schemas_refuse_what_is_wrong(name: str, number: int, path: str, value: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = copy.deepcopy(documents(name)[number])
    set_at(document, path, value)
    with pytest.raises(jsonschema.ValidationError):
        check(document)
