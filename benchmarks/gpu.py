"""`make gpu-check`: builds, runs every CUDA test, sanitizes the kernels and measures, on a machine with a GPU.

    PYTHON=python3 make gpu-check [ARGS="--only build,tests,sanitize,kernels,limits,allreduce,peers,step"]

Everything is done by the python that runs this: no environment is made and nothing is fetched. That python needs
pybind11, cmake, ninja, setuptools, numpy, ml_dtypes, pytest with pytest-timeout, and torch; nvcc is on the PATH or in
/usr/local/cuda/bin. The parts run one after the other, each with a deadline of its own, whatever became of those
before, within 8 minutes together. Writes docs/results/DATE-GPU.json and .md (and copies into the folder that $OUT
names), leaves each part's output in build/gpu-check/, and prints a short table last. Exit status 1 when a part failed
or a result was wrong, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from datetime import date, datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cuda_devices
from gpus import record, shapes
from gpus.parts import Outcome, Part, run_all

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
LOGS = ROOT / "build" / "gpu-check"
TOTAL_S = 465.0  # 8 minutes, less what killing and writing take
WORDS = ("build", "tests", "sanitize", "kernels", "limits", "allreduce", "peers", "step")
SANITIZER = "compute-sanitizer"
CUDA_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
PROGRAM = ROOT / "build" / "cmake" / "tests" / "cuda" / "rr_gpu"
BUILD_ARGS = "-DRR_WERROR=ON -DRR_TESTS=OFF -DRR_GPU_CHECK=ON"
ALONE = "test_cuda_memory.py"
WORKERS = 4  # of pytest, where it has xdist: most of a test is starting ranks, which import torch
RANKS = (2, 4)
ROADS = ("ipc", "staged")
MOST_MIB = 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts, writes the record, prints the table. Returns the exit status."""
    args = _arguments(argv)
    found = cuda_devices.probe()
    if not found["names"]:
        print(f"gpu-check: no CUDA device: {found['reason']}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    LOGS.mkdir(parents=True, exist_ok=True)
    chosen = parts(args.only, len(found["names"]))
    for old in LOGS.glob("*.jsonl"):
        old.unlink()
    outcomes = run_all(chosen, LOGS, args.seconds, _report)
    rows = record.with_limits([row for part in chosen if part.rows for row in record.read_rows(Path(part.rows))])
    whole = record.make(facts(found), outcomes, rows)
    out = os.environ.get("OUT")
    files = record.write(whole, Path(args.results), date.today(), Path(out) if out else None)
    print("\n" + record.table(outcomes, rows))
    print("\n".join(f"wrote {file}" for file in files))
    return status(outcomes, rows)


def status(outcomes: Sequence[Outcome], rows: Sequence[record.Row]) -> int:
    """0 when every part ended well and no result was wrong, else 1."""
    return int(any(one.status != 0 for one in outcomes) or any(row.get("wrong") for row in rows))


def parts(only: Sequence[str], gpus: int) -> list[Part]:
    """The parts that some of WORDS stand for, in order."""
    python, tests = sys.executable, sorted(str(file) for file in (ROOT / "tests").glob("test_cuda_*.py"))
    alone = [file for file in tests if file.endswith(ALONE)]
    several = ["-n", str(WORKERS)] if find_spec("xdist") else []
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    here = {"PATH": CUDA_PATH, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    build = [python, str(ROOT / "setup.py"), "--quiet", "build_ext", "--inplace"]
    found = {"build": [Part("build", build, 200, 60, {**here, "RR_CMAKE_ARGS": BUILD_ARGS})]}
    pytest = [python, "-m", "pytest", "-q", "--rootdir", str(ROOT)]
    found["tests"] = [
        Part("tests", [*pytest, *several, *(file for file in tests if file not in alone)], 200, 90, here),
        Part("tests alone", [*pytest, *alone], 40, 15, here),
    ]
    sanitize = [SANITIZER, "--error-exitcode", "9", "--tool"]
    found["sanitize"] = [
        Part(tool, [*sanitize, tool, str(PROGRAM), "check", "few"], 60, 15, here) for tool in ("memcheck", "racecheck")
    ]
    lists = [f"{name}={','.join(map(str, counts))}" for name, counts in shapes.lists().items()]
    check = Part("kernels right", [str(PROGRAM), "check"], 30, 5, here, str(LOGS / "kernels-right.log"))
    bench = [str(PROGRAM), "bench", str(MOST_MIB), *lists]
    found["kernels"] = [check, Part("kernels", bench, 60, 20, here, str(LOGS / "kernels.log"))]
    found["limits"] = [_ranks("limits", 1, "limits", [], 30, here)]
    found["allreduce"] = [
        _ranks(f"allreduce {n} {road}", n, "allreduce", [], 30, {**here, "RINGREDUCE_CUDA_ROAD": road})
        for n in RANKS
        for road in (*ROADS, *(("nccl",) if gpus >= n else ()))
    ]
    found["peers"] = [
        _ranks(f"{peer} {n}", n, "allreduce", ["--peer", peer], 25, here)
        for n in RANKS
        for peer in ("gloo", *(("nccl",) if gpus >= n else ()))  # NCCL refuses two ranks on one GPU
    ]
    found["step"] = [_ranks(f"step {n}", n, "step", ["--graph"], 30, here) for n in (1, *RANKS)]
    return [part for word in WORDS if word in only for part in found[word]]


def _ranks(name: str, ranks: int, what: str, more: Sequence[str], deadline_s: float, env: dict[str, str]) -> Part:
    rows = str(LOGS / f"{name.replace(' ', '-')}.jsonl")
    program = [sys.executable, str(ROOT / "benchmarks" / "gpus" / "ranks.py"), what, "--out", rows, *more]
    launch = "import sys; from ringreduce.launch.ringrun import main; sys.exit(main())"
    command = [sys.executable, "-c", launch, "-np", str(ranks), "--no-tag-output", *program]
    return Part(name, command, deadline_s, 8.0, env, rows)


def facts(found: dict[str, Any]) -> dict[str, Any]:
    """What a figure cannot be read without."""
    versions = {}
    for package in ("torch", "cupy-cuda13x", "numpy", "pybind11"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "gpus": found["names"],
        "cuda": f"{found['cuda'] // 1000}.{found['cuda'] % 1000 // 10}",
        "torch": versions["torch"],
        "versions": versions,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "sanitizer": shutil.which(SANITIZER, path=CUDA_PATH) or "absent",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "make gpu-check",
    }


def _report(outcome: Outcome) -> None:
    print(f"{outcome.name}: {outcome.verdict}, {outcome.seconds:.1f} s", flush=True)
    if outcome.status != 0:
        print("\n".join(f"    {line}" for line in outcome.output.splitlines()), flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parse = argparse.ArgumentParser(prog="gpu.py", description="Checks and measures ringreduce on a GPU.")
    parse.add_argument("--only", type=_words, default=WORDS, metavar="PART,...", help=f"some of {', '.join(WORDS)}")
    parse.add_argument("--seconds", type=float, default=TOTAL_S, help="for all parts together (default: %(default)g)")
    parse.add_argument("--results", default=str(RESULTS), metavar="FOLDER", help="where the record goes")
    return parse.parse_args(argv)


def _words(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    if unknown := [word for word in words if word not in WORDS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(WORDS)}")
    return words


if __name__ == "__main__":
    sys.exit(main())
