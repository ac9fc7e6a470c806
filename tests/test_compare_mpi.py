"""benchmarks/compare_mpi.py: ratios and verdicts are what they claim to be, and it runs with an MPI that is here."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def row(lane: str, library: str, nbytes: int, turn: int, p50: float) -> dict[str, Any]:
    return {"lane": lane, "library": library, "nbytes": nbytes, "round": turn, "time_us": {"p50": p50, "p99": 2 * p50}}


def test_ratios_are_taken_within_a_round_and_the_best_mpi_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import targets

    size = 2 << 20
    rows = []
    for turn, (ours, first, second) in enumerate([(10, 40, 35), (20, 60, 120), (10, 20, 50)]):
        rows += [row("registered", "ringreduce", size, turn, ours), row("private", "ringreduce", size, turn, 2 * ours)]
        rows += [row("openmpi 5", "openmpi", size, turn, first), row("mpich 5", "mpich", size, turn, second)]
    found = targets.ratios(rows)
    medians = {(ratio["ours"], ratio["peer"]): ratio["median"] for ratio in found}
    assert medians == {
        ("registered", "openmpi 5"): 3.0,
        ("registered", "mpich 5"): 5.0,
        ("private", "openmpi 5"): 1.5,
        ("private", "mpich 5"): 2.5,
    }
    assert targets.best(found, "registered", size, ("openmpi", "mpich"))["peer"] == "openmpi 5"
    assert targets.best(found, "registered", size, ("mpich",))["median"] == 5.0
    judged = targets.judge(rows, found)
    assert [judgement.reached for judgement in judged] == [True, True]
    assert "3.00x" in targets.table(rows, found)


@pytest.mark.skipif(not (shutil.which("mpicc") and shutil.which("mpirun")), reason="no mpicc and mpirun on PATH")
def test_the_comparison_runs_with_the_mpi_that_is_here(tmp_path: Path) -> None:
    file = tmp_path / "compared.json"
    argv = ["--rounds", "1", "--sizes", "64", "--no-small", "--json", str(file)]
    command = [sys.executable, str(BENCHMARKS / "compare_mpi.py"), *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(file.read_text())
    assert {result["library"] for result in document["results"]} > {"ringreduce"}
    assert all(result["wrong"] == 0 for result in document["results"])
    assert len({frozenset(result) for result in document["results"]}) == 1, "ours and theirs have the same fields"
    assert document["ratios"]
