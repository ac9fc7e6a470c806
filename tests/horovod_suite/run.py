"""Runs Horovod's own tests on two ranks of ringreduce under the name horovod: make test-horovod-suite HOROVOD=PATH.

    python tests/horovod_suite/run.py PATH [FILE ...] [--timeout SECONDS]

PATH is a checkout of github.com/horovod/horovod; nothing of it is copied here. excluded.txt names the tests that cannot
pass, each with the reason. A test passes when all ranks pass it. It has a deadline of its own; a test that runs past it
ends its file, and the tests behind it count as failed. Exit status 0: all tests outside the list have passed or been
skipped by Horovod's own conditions, and each test of the list exists.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RANKS = 2

FILES = {
    "test_torch.py": {},
    "test_adasum_pytorch.py": {},
    "test_process_sets_static.py": {},
    "test_process_sets_multi_comm.py": {},
    "test_tensorflow.py": {"TF_USE_LEGACY_KERAS": "1"},
    "test_adasum_tensorflow.py": {},
    "test_tensorflow_process_sets.py": {},
    "test_tensorflow_process_sets_dynamic.py": {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"},
    "test_tensorflow2_keras.py": {"TF_USE_LEGACY_KERAS": "1"},
    "test_tensorflow2_keras_process_sets.py": {"TF_USE_LEGACY_KERAS": "1"},
    "test_tensorflow_keras.py": {"TF_USE_LEGACY_KERAS": "1"},
}
"""Files of test/parallel, with the variables that each needs. Keras 2, which Horovod's tests are for, is tf_keras."""


class Outcome(NamedTuple):
    """How a test ended: on the first rank where it did not pass, if there is one."""

    kind: str  # passed, skipped, failed, excluded
    text: str


def excluded() -> dict[str, str]:
    """The list: FILE::TEST and the reason. A line that cannot be read is an error."""
    found = {}
    for line in (HERE / "excluded.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, reason = line.split(" ", 1)
            found[name] = reason.strip()
    return found


def run_file(path: Path, variables: dict[str, str], timeout_s: float) -> dict[str, Outcome]:
    """The outcomes of a file's tests, by FILE::TEST. One under the file's own name says that the run has failed."""
    with tempfile.TemporaryDirectory(prefix="ringreduce-horovod-") as folder:
        environ = os.environ | variables
        environ["RR_SUITE_RESULTS"] = folder
        environ["RR_SUITE_EXCLUDED"] = json.dumps(sorted(excluded()))
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), environ.get("PYTHONPATH")]))
        ringrun = [str(Path(sys.executable).with_name("ringrun")), "--as-horovod", "-np", str(RANKS)]
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
        limits = [
            "-c",
            os.devnull,
            "--rootdir",
            str(path.parent),
            f"--timeout={timeout_s:g}",
            "--timeout-method=thread",
        ]
        log = Path(folder, "log")
        with log.open("w") as output:
            command = [*ringrun, *pytest, *limits, str(path)]
            status = subprocess.run(command, env=environ, cwd=folder, stdout=output, stderr=output).returncode
        ranks = [outcomes_of(Path(folder, str(rank))) for rank in range(RANKS)]
        together = {name: worst([outcomes.get(name) for outcomes in ranks]) for name in sorted({*ranks[0], *ranks[1]})}
        if status != 0 and not any(outcome.kind == "failed" for outcome in together.values()):
            together[path.name] = Outcome(
                "failed", f"status {status}; the end of its output:\n{log.read_text()[-3000:]}"
            )
        return together


def outcomes_of(path: Path) -> dict[str, Outcome]:
    """What a rank has written down; a test's last line counts, but for a failure, which stays."""
    found: dict[str, Outcome] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        name, kind, text = json.loads(line)
        if found.get(name, Outcome("", "")).kind != "failed":
            found[name] = Outcome(kind, text)
    return found


def worst(outcomes: list[Outcome | None]) -> Outcome:
    """The outcome of a test on all ranks."""
    for rank, outcome in enumerate(outcomes):
        if outcome is None:
            return Outcome("failed", f"rank {rank} has not come to its end")
        if outcome.kind == "failed":
            return Outcome("failed", f"rank {rank}:\n{outcome.text}")
    kinds = [outcome for outcome in outcomes if outcome is not None]
    return next((outcome for outcome in kinds if outcome.kind != "passed"), kinds[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, metavar="PATH", help="a checkout of Horovod")
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of: {', '.join(FILES)} (default: all)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one test (default: 120)")
    options = parser.parse_args()
    folder = options.checkout / "test" / "parallel"
    if not folder.is_dir():
        parser.error(f"{options.checkout}: no checkout of Horovod, {folder} is missing")
    if unknown := set(options.files) - set(FILES):
        parser.error(f"not among the files: {', '.join(sorted(unknown))}")
    failures: list[str] = []
    left_out: set[str] = set()
    for file in options.files or FILES:
        begun = time.monotonic()
        outcomes = run_file(folder / file, FILES[file], options.timeout)
        counts = Counter(outcome.kind for outcome in outcomes.values())
        print(f"{file}: {', '.join(f'{n} {kind}' for kind, n in counts.items())} in {time.monotonic() - begun:.0f} s")
        reasons = Counter(outcome.text for outcome in outcomes.values() if outcome.kind == "skipped")
        for reason, number in reasons.items():
            print(f"  skipped {number}: {reason}")
        for name, outcome in outcomes.items():
            if outcome.kind == "failed":
                print(f"  FAILED {name}\n{outcome.text}")
                failures.append(name)
        left_out |= {name for name, outcome in outcomes.items() if outcome.kind == "excluded"}
        print(end="", flush=True)
    ran = {*(options.files or FILES)}
    listed = {name: reason for name, reason in excluded().items() if name.split("::")[0] in ran}
    for name, reason in listed.items():
        print(f"left out {name}: {reason}")
    if gone := sorted(listed.keys() - left_out):
        print(f"excluded.txt names tests that Horovod has not: {', '.join(gone)}")
    print(f"{len(failures)} failed")
    return 1 if failures or gone else 0


if __name__ == "__main__":
    sys.exit(main())
