"""Runs torch's own tests of torch.distributed with the backend ringreduce, and counts: make test-torch-suite.

    python tests/torch_suite/run.py [PATTERN...] [--tcp] [--timeout SECONDS]

tests.txt lists the tests that need no GPU, each with the backend's name that torch gates it by, and the reason of each
that is left out. A PATTERN (a part of a name) chooses some. Every test has a deadline of its own, by which torch's test
case kills its ranks and says where they hang; each piece of PIECE tests has another, should that fail. It takes about
six seconds a test, of which most is starting three ranks. Exit status 0: every test that is not left out has passed.

--tcp: each rank is a host of its own to the others, so that all of it goes over TCP.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
TORCH = "2.13"
PIECE = 12  # tests a process: each spawns its ranks, and importing torch's tests takes seconds


class Test(NamedTuple):
    """One line of tests.txt."""

    gate: str
    name: str
    excluded: str  # the reason, or ""


def read() -> list[Test]:
    """The list. A line that cannot be read is an error."""
    tests = []
    for line in (HERE / "tests.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            words, _, reason = line.partition(" excluded: ")
            gate, name = words.split()
            tests.append(Test(gate, name, reason))
    return tests


def over_tcp(folder: Path) -> dict[str, str]:
    """Variables with which ranks have no shared memory. folder: for the secret that they need."""
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_bytes(os.urandom(32))
    return {"RINGREDUCE_TRANSPORT": "tcp", "RINGREDUCE_SECRET_FILE": str(secret)}


def run_piece(gate: str, names: list[str], timeout_s: float, is_over_tcp: bool) -> dict[str, dict[str, Any]]:
    """The outcome of each test; "failed" for one that left no word."""
    with tempfile.TemporaryDirectory(prefix="ringreduce-suite-") as folder:
        results, log = Path(folder, "results"), Path(folder, "log")
        environ = os.environ | {
            "RR_SUITE_GATE": gate,
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": f"{timeout_s:.0f}",
            "TEMP_DIR": folder,
            "WORLD_SIZE": "3",
            "OMP_NUM_THREADS": "1",
        }
        environ |= over_tcp(Path(folder)) if is_over_tcp else {}
        with log.open("w") as output:
            command = [sys.executable, str(HERE / "suite.py"), gate, str(results), *names]
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=output, start_new_session=True)
            try:
                process.wait(timeout_s * (len(names) + 1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
        lines = results.read_text().splitlines() if results.exists() else []
        outcomes = {one["name"]: one for one in map(json.loads, lines)}
        lost = {"outcome": "failed", "text": f"no outcome; the end of its output:\n{log.read_text()[-3000:]}"}
        return {name: outcomes.get(name, lost) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--tcp", action="store_true", help="connect the ranks by TCP")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one test (default: 120)")
    options = parser.parse_args()
    import torch

    if not torch.__version__.startswith(TORCH + "."):
        print(f"the list is for torch {TORCH}; in {torch.__version__} names may have changed", file=sys.stderr)
    listed = read()
    chosen = [t for t in listed if not options.patterns or any(pattern in t.name for pattern in options.patterns)]
    begun, failed, counts = time.monotonic(), [], {"passed": 0, "skipped": 0, "failed": 0}
    for gate in ("gloo", "mpi"):
        names = [test.name for test in chosen if test.gate == gate and not test.excluded]
        for start in range(0, len(names), PIECE):
            for name, result in run_piece(gate, names[start : start + PIECE], options.timeout, options.tcp).items():
                counts[result["outcome"]] += 1
                reason = f": {result['text']}" if result["outcome"] == "skipped" else ""
                print(f"{result['outcome']:8s} {name}{reason}", flush=True)
                if result["outcome"] == "failed":
                    failed.append((name, result["text"]))
    for name, text in failed:
        print(f"\n=== {name}\n{text}")
    left_out = [test for test in chosen if test.excluded]
    for test in left_out:
        print(f"left out {test.name}: {test.excluded}")
    print(
        f"{counts['passed']} of {len(chosen)} passed, {counts['failed']} failed, {counts['skipped']} skipped, "
        f"{len(left_out)} left out; torch {torch.__version__}, {time.monotonic() - begun:.0f} s"
    )
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
