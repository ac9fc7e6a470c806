"""`make gpu-check`: builds, runs every CUDA test, sanitizes the kernels and measures, on a machine with a GPU.

    PYTHON=python3 make gpu-check [ARGS="--only PART,..."]

--only: build, smoke, probe, kernels, tests, limits, allreduce, step, peers, more, sanitize
(docs/reference/benchmarks.md).

Everything is done by the python that runs this: no environment is made and nothing is fetched. That python needs
pybind11, cmake, ninja, setuptools, numpy, ml_dtypes, pytest with pytest-timeout, and torch; nvcc is on the PATH or in
/usr/local/cuda/bin. The parts run one after the other, what matters most first, each with a deadline of its own,
whatever became of those before, within 8 minutes together. What is left then is listed, and --only goes on with it,
adding to the day's record. Writes docs/results/DATE-GPU.json and .md (and, with all logs in one archive, into the
folder that $OUT names), leaves each part's output in build/gpu-check/, and prints a short table and last what failed.
Exit status 1 when a part failed or is missing, or a result was wrong, 2 where there is no GPU.

--rehearse runs all this where there is no GPU, on the tests' fake driver and with small sizes: what only a GPU can do
is skipped by name. It needs a build with RR_TESTS=ON, and writes into build/gpu-check/rehearsal.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cuda_devices
from gpus import record, shapes
from gpus.parts import Outcome, Part, run_all

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
TESTS = ROOT / "tests" / "python" / "gpu"
LOGS = ROOT / "build" / "gpu-check"
TOTAL_S = 465.0  # 8 minutes, less what killing and writing take
WORDS = ("build", "smoke", "probe", "kernels", "tests", "limits", "allreduce", "step", "peers", "more", "sanitize")
SANITIZER = "compute-sanitizer"
CUDA_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
MODULE = ROOT / "ringreduce" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
PROGRAM = ROOT / "build" / "cmake" / "tests" / "cuda" / "rr_gpu"
FAKE = ROOT / "build" / "cmake" / "libfakecuda.so"
# Another compiler's warnings are no reason to measure nothing. The program comes second: all else does without.
BUILD_ARGS = "-DRR_WERROR=OFF -DRR_TESTS=OFF -DRR_GPU_CHECK="
CORE_TESTS = ("test_cuda_kernels.py", "test_cuda_torch.py", "test_cuda_streams.py", "test_cuda_optimizer.py")
ALONE = "test_cuda_memory.py"
WORKERS = 3  # of pytest, where it has xdist: most of a test is starting ranks, but all ranks' contexts take turns
RANKS = (2, 4)
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # a machine without a network may not know its name
PATHS = ("ipc", "staged")
MOST_MIB = 1024
SMALL = ["--sizes", "8,100000", "--limit-s", "5"]  # of a rehearsal


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts, writes the record, prints the table. Returns the exit status."""
    args = _arguments(argv)
    folder = Path(args.results or (LOGS / "rehearsal" if args.rehearse else RESULTS))
    if args.rehearse:
        os.environ["RINGREDUCE_CUDA_LIBRARY"] = str(FAKE)
    found = cuda_devices.probe()
    if not found["names"]:
        print(f"gpu-check: no CUDA device: {found['reason']}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    LOGS.mkdir(parents=True, exist_ok=True)
    chosen = parts(args.only, len(found["names"]), args.rehearse)
    for part in chosen:
        if part.rows:
            Path(part.rows).unlink(missing_ok=True)
    outcomes = run_all(chosen, LOGS, args.seconds, _report)
    rows = [row for part in chosen if part.rows for row in record.read_rows(Path(part.rows), part.name)]
    rows = record.with_limits(rows)
    whole = record.make(facts(found), outcomes, rows)
    out = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    try:
        files = record.write(whole, folder, date.today(), out, add=len(args.only) < len(WORDS))
        if out is not None:
            with tarfile.open(out / "gpu-check-logs.tar.gz", "w:gz") as archive:
                archive.add(LOGS, "gpu-check")
        print("\n".join(f"wrote {file}" for file in files))
    finally:  # whatever becomes of the files
        print("\n" + record.table(outcomes, rows))
        print("\n".join(["", *record.failures(outcomes)]), flush=True)
    return status(outcomes, rows)


def status(outcomes: Sequence[Outcome], rows: Sequence[record.Row]) -> int:
    """0 when every part ended well and no result was wrong, else 1."""
    return int(any(one.status != 0 for one in outcomes) or any(row.get("wrong") for row in rows))


def parts(only: Sequence[str], gpus: int, rehearse: bool = False) -> list[Part]:
    """The parts that some of WORDS stand for, in order.

    Args:
        rehearse: for a machine without a GPU: small, and what the fake driver cannot do is marked to be skipped.
    """
    python = sys.executable
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH")]))
    here = {"PATH": CUDA_PATH, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    build = [python, str(ROOT / "setup.py"), "--quiet", "build_ext", "--inplace"]
    built = "a rehearsal uses the build that is there" if rehearse else ""
    found = {
        "build": [
            Part("build", build, 240, 100, {**here, "RR_CMAKE_ARGS": BUILD_ARGS + "OFF"}, skip=built),
            Part(
                "build rr_gpu",
                build,
                60,
                20,
                {**here, "RR_CMAKE_ARGS": BUILD_ARGS + "ON"},
                needs=str(MODULE),
                skip=built,
            ),
        ]
    }
    found["smoke"] = _smoke(here, rehearse)
    asks = [python, str(ROOT / "benchmarks" / "gpus" / "probes.py"), str(PROGRAM), "--out", _rows("probe")]
    found["probe"] = [Part("probe", asks, 70, 20, here, _rows("probe"), str(PROGRAM))]
    lists = [f"{name}={','.join(map(str, counts))}" for name, counts in shapes.lists().items()]
    check = [str(PROGRAM), "check", *(["few"] if rehearse else [])]
    bench = [str(PROGRAM), "bench", *(["1", "tiny=300,7"] if rehearse else [str(MOST_MIB), *lists])]
    found["kernels"] = [
        Part("kernels right", check, 40, 8, here, str(LOGS / "kernels-right.log"), str(PROGRAM)),
        Part("kernels", bench, 50, 10, here, str(LOGS / "kernels.log"), str(PROGRAM)),
    ]
    found["tests"], found["more"] = _tests(here, rehearse)
    no_gpu = "torch has no GPU in a rehearsal" if rehearse else ""
    found["limits"] = [_ranks("limits", 1, "limits", [], 30, here, no_gpu)]
    fake = ["--device", "fake", *SMALL] if rehearse else []
    found["allreduce"] = [
        _ranks(f"allreduce {n} {path}", n, "allreduce", fake, 28, {**here, "RINGREDUCE_GPU_PATH": path})
        for n in (RANKS[:1] if rehearse else RANKS)
        for path in (*PATHS, *(("nccl",) if gpus >= n else ()))
    ]
    cpu = ["--device", "cpu", *SMALL] if rehearse else []
    found["peers"] = [
        _ranks(f"{peer} {n}", n, "allreduce", ["--peer", peer, *cpu], 25, {**here, **LOOPBACK})
        for n in (RANKS[:1] if rehearse else RANKS)
        for peer in ("gloo", *(("nccl",) if gpus >= n else ()))  # NCCL refuses two ranks on one GPU
    ]
    step = ["--device", "cpu", "--model", "tiny"] if rehearse else []
    found["step"] = [_ranks(f"step {n}", n, "step", step, 28, here) for n in (1, *(RANKS[:1] if rehearse else RANKS))]
    found["sanitize"] = _sanitize(here, rehearse)
    # A rehearsal's machine may be slow, and is not to be paid for.
    slower = 4.0 if rehearse else 1.0
    return [
        replace(part, word=word, deadline_s=slower * part.deadline_s)
        for word in WORDS
        if word in only
        for part in found[word]
    ]


def _tests(here: dict[str, str], rehearse: bool) -> tuple[list[Part], list[Part]]:
    """What matters most, and the others."""
    files = [*TESTS.glob("test_cuda_*.py"), *TESTS.glob("test_*_on_fake_driver*.py")]
    files.sort()
    core = [str(file) for file in files if file.name in CORE_TESTS]
    alone = [str(file) for file in files if file.name == ALONE]
    more = [str(file) for file in files if file.name not in (*CORE_TESTS, ALONE)]
    pytest = [sys.executable, "-m", "pytest", "-v", "--tb=short", "--rootdir", str(ROOT)]
    several = ["-n", str(WORKERS)] if find_spec("xdist") and not rehearse else []
    env = {**here, "RR_TEST_HANG_S": "60"}  # what hangs is not to take all of the part's time
    if rehearse:  # these look for a real driver, find none, and skip by name
        env["RINGREDUCE_CUDA_LIBRARY"] = "libcuda.so.rehearsal"
    rest = "CPU tests, which the suite runs" if rehearse else ""

    def part(name: str, words: list[str], deadline_s: float, least_s: float, skip: str = "") -> Part:
        return Part(name, [*pytest, *words], deadline_s, least_s, env, "", str(MODULE), skip, interrupt=True)

    return [part("tests", [*several, *core], 170, 50)], [
        part("tests alone", alone, 50, 12),
        part("more tests", [*several, *more], 90, 20, rest),
    ]


def _sanitize(here: dict[str, str], rehearse: bool) -> list[Part]:
    sanitizer = shutil.which(SANITIZER, path=CUDA_PATH)
    skip = "" if sanitizer else f"no {SANITIZER} here"
    skip = "it needs a GPU" if rehearse else skip
    return [
        Part(
            tool,
            [sanitizer or SANITIZER, "--error-exitcode", "9", "--tool", tool, str(PROGRAM), "check", "few"],
            *(60, 12, here, "", str(PROGRAM), skip),
        )
        for tool in ("memcheck", "racecheck")
    ]


def _smoke(here: dict[str, str], rehearse: bool) -> list[Part]:
    """A first look, which tells where threads stand if it hangs: kernels loaded when first used, then all at once."""
    program = [str(ROOT / "benchmarks" / "gpus" / "smoke.py"), *(["--device", "cpu"] if rehearse else [])]
    command = [*_ringrun(2), sys.executable, *program]
    return [
        Part(
            f"smoke {path} {loading.lower()}",
            *(command, 60, 15, {**here, "RINGREDUCE_GPU_PATH": path, "CUDA_MODULE_LOADING": loading}),
            needs=str(MODULE),
        )
        for path, loading in (("ipc", "LAZY"), ("staged", "LAZY"), ("ipc", "EAGER"))
    ]


def _ringrun(ranks: int) -> list[str]:
    launch = "import sys; from ringreduce.launch.ringrun import main; sys.exit(main())"
    return [sys.executable, "-c", launch, "-np", str(ranks)]


def _rows(name: str) -> str:
    return str(LOGS / f"{name.replace(' ', '-')}.jsonl")


def _ranks(
    name: str, ranks: int, what: str, more: Sequence[str], deadline_s: float, env: dict[str, str], skip: str = ""
) -> Part:
    program = [sys.executable, str(ROOT / "benchmarks" / "gpus" / "ranks.py"), what, "--out", _rows(name), *more]
    command = [*_ringrun(ranks), "--no-tag-output", *program]
    return Part(name, command, deadline_s, 8.0, env, _rows(name), str(MODULE), skip)


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
        print("\n".join(f"    {line[:200]}" for line in outcome.output.splitlines()), flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parse = argparse.ArgumentParser(prog="gpu.py", description="Checks and measures ringreduce on a GPU.")
    parse.add_argument("--only", type=_words, default=WORDS, metavar="PART,...", help=f"some of {', '.join(WORDS)}")
    parse.add_argument("--seconds", type=float, default=TOTAL_S, help="for all parts together (default: %(default)g)")
    parse.add_argument("--results", metavar="FOLDER", help="where the record goes (default: docs/results)")
    parse.add_argument("--rehearse", action="store_true", help="on the fake driver of the tests, without a GPU")
    return parse.parse_args(argv)


def _words(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    if unknown := [word for word in words if word not in WORDS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(WORDS)}")
    return words


if __name__ == "__main__":
    sys.exit(main())
