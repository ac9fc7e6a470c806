"""The training example under ringrun and under each MPI's mpirun: the same accuracy, and is it as fast?

    python benchmarks/launchers.py --rounds 5                        # four minutes: ringrun, openmpi 5, mpich 5
    python benchmarks/launchers.py --rounds 1 openmpi-4 mpich-4      # others, by library and major version

Rounds are interleaved: each runs all launchers once, each on two ranks bound to a core with one thread, and the rate is
that of the second epoch. A ratio is the median of the rounds' own ratios to ringrun.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ringreduce.launch.mpi import installations

ROOT = Path(__file__).resolve().parents[1]
RANKS = 2
TRAINING = ["examples/torch_fashion_mnist.py", "--model", "lenet", "--epochs", "2", "--steps", "100"]
RINGRUN = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", str(RANKS)]


def command(launcher: str) -> tuple[list[str], dict[str, str]]:
    """The start of its command line, and its variables. Exits where it is missing."""
    if launcher == "ringrun":
        return RINGRUN, {}
    library, _, major = launcher.partition("-")
    found = installations.get(library, int(major))
    if found is None:
        sys.exit(f"{launcher} is not here: {installations.advice(library)}")
    return found.launch(RANKS, oversubscribed=False), found.mpi4py_environ()


def train(launcher: str, folder: Path) -> tuple[float, float]:
    """Samples/s of the second epoch, and the accuracy after it."""
    start, extra = command(launcher)
    file = folder / "result.json"
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
    subprocess.run(
        [*start, sys.executable, *TRAINING, "--json", str(file)],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    last = json.loads(file.read_text())["epoch"][-1]
    return last["samples_per_s"], last["test_accuracy"]


def main() -> int:
    """Status 1 if accuracies differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launchers", nargs="*", default=["openmpi-5", "mpich-5"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    launchers = ["ringrun", *options.launchers]
    rates: dict[str, list[float]] = {launcher: [] for launcher in launchers}
    accuracies = set()
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(options.rounds):
            for launcher in launchers[round_ % len(launchers) :] + launchers[: round_ % len(launchers)]:
                rate, accuracy = train(launcher, Path(folder))
                rates[launcher].append(rate)
                accuracies.add(accuracy)
                print(f"round {round_ + 1}: {launcher}: {rate:.0f} samples/s, accuracy {accuracy:.4f}", flush=True)
    for launcher, of_one in rates.items():
        ratios = [one / ringrun for one, ringrun in zip(of_one, rates["ringrun"], strict=True)]
        print(
            f"{launcher}: median {statistics.median(of_one):.0f} samples/s ({min(of_one):.0f} to {max(of_one):.0f}), "
            f"{statistics.median(ratios):.3f} of ringrun's"
        )
    print(f"accuracies: {sorted(accuracies)}")
    return len(accuracies) > 1


if __name__ == "__main__":
    sys.exit(main())
