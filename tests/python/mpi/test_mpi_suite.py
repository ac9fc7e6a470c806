"""The collective suite with ranks that each real mpirun has started: 2, 3 and 4 of them, on one host by shared memory,
and each a host of its own, all data over MPI. The tests are those of the other files; mpirun_pool.py runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import mpirun_pool
import mpis
import pytest
from ranks import clean_environment

ROOT = Path(__file__).resolve().parents[3]
CORE = ROOT / "tests" / "python" / "core"
SUITE = ("test_collectives", "test_ops", "test_async", "test_process_sets")
SUITE_S = 300


# By shared memory the MPI only starts the ranks, as in test_mpirun.py, which is not long.
@pytest.mark.timeout(SUITE_S + 30)
@pytest.mark.parametrize(
    ("name", "transport"),
    [
        pytest.param("openmpi-5", "auto", marks=pytest.mark.long),
        pytest.param("mpich-4", "auto", marks=pytest.mark.long),
        *(pytest.param(name, "mpi", marks=() if name == "openmpi-4" else pytest.mark.long) for name in mpis.NAMES),
    ],
)
def test_collective_suite(name: str, transport: str, tmp_path: Path) -> None:
    mpis.get(name)
    report = tmp_path / "report.xml"
    files = [str(CORE / f"{module}.py") for module in SUITE]
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "mpirun_pool", f"--junitxml={report}", "--durations=8"]
    environ = clean_environment()
    with subprocess.Popen(
        [*pytest_, "--mpirun", name, "--transport", transport, *files],
        env=environ,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as inner:
        try:
            output, _ = inner.communicate(timeout=SUITE_S)
        except subprocess.TimeoutExpired:
            os.killpg(inner.pid, 15)
            output, _ = inner.communicate()
            pytest.fail(f"no end within {SUITE_S} s\n{output}")
    assert inner.returncode == 0, output
    print(output)
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    # Nothing was skipped but instructions that the processor lacks.
    skipped = [f"{case.get('name')}: {why.get('message')}" for case in cases for why in case]
    assert not [text for text in skipped if "this machine cannot run" not in text], output
    ran = {str(case.get("name")) for case in cases}
    wanted = {
        function
        for module in SUITE
        for function in re.findall(r"^def (test_\w+)", (CORE / f"{module}.py").read_text(), re.MULTILINE)
    }
    assert {name.partition("[")[0] for name in mpirun_pool.left_out(transport)} <= wanted
    assert {name.partition("[")[0] for name in ran} == wanted - set(mpirun_pool.left_out(transport)), output
    for size in mpirun_pool.SIZES:
        assert {f"test_every_dtype_op_and_count[{size}]", f"test_any_order[{size}]"} <= ran, output
