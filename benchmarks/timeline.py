"""What a timeline costs a job, and how fast its records are read.

    .venv/bin/python benchmarks/timeline.py [--rounds 10] [--json FILE]

Jobs of two ranks without and with RINGREDUCE_TIMELINE take turns, round by round; the figures are medians over the
rounds, and the spread is that of the ratios:

    8 B, level c     all-reduces in a loop within the core (`ringreduce bench allreduce --sizes 8`): ns each
    8 B, named       synchronous calls of one name from Python: us each
    1 MiB, named     asynchronous calls of eight names, then eight synchronize(): us for the eight
    training step    a network of 670,000 parameters under ringreduce.torch's DistributedOptimizer: us a step. Here one
                     job turns its timeline on and off, ten times as often as there are rounds, for 100 steps each:
                     what it costs is less than two jobs differ

Then 8 files of 100,000 operations and as many waits are read and merged: operations of a rank a second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RANKS, OPERATIONS = 8, 100_000


# --- a rank -----------------------------------------------------------------------------------------------------------


def median_of(call: Callable[[], object], calls: int, batches: int = 20) -> float:
    """Seconds of a call, the median of so many batches of calls."""
    seconds = []
    for _ in range(batches):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        seconds.append((time.perf_counter() - begin) / calls)
    return statistics.median(seconds)


def small_and_large() -> dict[str, float]:
    """The cases that call from Python, in us."""
    import ringreduce as hvd

    few, many = np.ones(2, np.float32), [np.ones(1 << 18, np.float32) for _ in range(8)]

    def eight() -> None:
        for handle in [hvd.allreduce_async(tensor, name=f"gradient {i}") for i, tensor in enumerate(many)]:
            hvd.synchronize(handle)

    with hvd.init():
        named = median_of(lambda: hvd.allreduce(few, name="loss"), 2000)
        return {"8 B, named": 1e6 * named, "1 MiB, named": 1e6 * median_of(eight, 10)}


def training(rounds: int) -> list[tuple[float, float]]:
    """Of the step of a small network, in us: without and with a timeline, in turns.

    A window's mean, not its median: the timeline's thread holds up one step of many.
    """
    import torch

    import ringreduce.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.Linear(512, 10)]
    model = torch.nn.Sequential(*layers)
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    images, labels = torch.randn(64, 784), torch.randint(10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(images), labels))
        optimizer.step()

    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(10 * rounds):
            seconds = {}
            for is_on in (number % 2 == 0, number % 2 == 1):
                hvd.barrier()
                if is_on:
                    hvd.start_timeline(f"{folder}/{number}")
                median_of(step, 1)
                seconds[is_on] = median_of(step, 100, 1)
                if is_on:
                    hvd.stop_timeline()
            pairs.append((1e6 * seconds[False], 1e6 * seconds[True]))
        hvd.barrier()
    hvd.shutdown()
    return pairs


# --- the jobs ---------------------------------------------------------------------------------------------------------


def run_job(work: str, folder: str | None, rounds: int) -> Any:
    """What rank 0 of a job of two ranks has measured."""
    variables = {name: text for name, text in os.environ.items() if "TIMELINE" not in name}
    if folder is not None:
        variables["RINGREDUCE_TIMELINE"] = folder
    ringreduce = [sys.executable, "-m", "ringreduce"]
    if work == "c":
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [*ringreduce, "bench", "allreduce", "-np", "2", "--sizes", "8", "--level", "c"]
            subprocess.run(
                [*command, "--json", file.name], env=variables, check=True, stdout=subprocess.DEVNULL, cwd=ROOT
            )
            found = json.loads(Path(file.name).read_text())["results"][0]["time_us"]
        return {"8 B, level c": 1e3 * found["p50"]}
    command = [*ringreduce, "run", "-np", "2", sys.executable, __file__, "--work", work, "--rounds", str(rounds)]
    text = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return json.loads(text)


def compared(rounds: int) -> list[dict[str, float | str]]:
    """Each case without and with a timeline."""
    taken: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for work in ("c", "calls"):
                without, with_it = run_job(work, None, rounds), run_job(work, folder, rounds)
                for case, value in without.items():
                    taken.setdefault(case, []).append((value, with_it[case]))
    taken["training step"] = run_job("training", None, rounds)
    rows: list[dict[str, float | str]] = []
    for case, pairs in taken.items():
        ratios = sorted(after / before for before, after in pairs)
        before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
        quarter = len(ratios) // 4
        rows.append(
            {
                "case": case,
                "off": before,
                "on": after,
                "ratio": statistics.median(ratios),
                "low": ratios[quarter],
                "high": ratios[-1 - quarter],
            }
        )
    return rows


# --- reading ----------------------------------------------------------------------------------------------------------


def write_files(folder: Path) -> None:
    """Files of ranks that never were: steps of a hundred named operations, each waited for."""
    sys.path.insert(0, str(ROOT / "tests" / "python" / "timeline"))
    from timeline_files import RankFile

    from ringreduce.timeline.record_file import OPERATION, RECORD, WAIT

    names = [f"gradient {i}" for i in range(100)]
    for rank in range(RANKS):
        file = RankFile(rank, RANKS)
        numbers = np.array([file._name(name) for name in names], np.uint32)
        records = np.zeros(2 * OPERATIONS, RECORD)
        index = np.arange(OPERATIONS)
        called = 1_000_000_000 + 100_000 * index + 1000 * ((index + rank) % RANKS)
        for half, kind in ((records[::2], OPERATION), (records[1::2], WAIT)):
            half["type"], half["name"], half["number"] = kind, numbers[index % 100], index // 100
            half["group"], half["peer"], half["nbytes"] = 0, -1, 4096 if kind == OPERATION else 0
            half["called_ns"], half["ended_ns"] = called, called + 50_000
        records["started_ns"][::2] = called + 20_000
        file.write(folder, records)


def read_and_merged() -> dict[str, float]:
    """Operations of a rank a second: load() alone, and with each form of output."""
    from ringreduce.timeline.analysis.found import analyse
    from ringreduce.timeline.export import chrome, horovod, perfetto
    from ringreduce.timeline.job import Job

    def measured(finish: Callable[[Job], object]) -> float:
        seconds = []
        for _ in range(3):
            begin = time.perf_counter()
            finish(Job.load(folder))
            seconds.append(time.perf_counter() - begin)
        return RANKS * OPERATIONS / statistics.median(seconds)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        assert len(Job.load(folder).operations) == OPERATIONS
        return {
            "load": measured(lambda job: None),
            "load, report": measured(analyse),
            "load, .pftrace": measured(lambda job: perfetto.write(job, folder / "job.pftrace")),
            "load, .json": measured(lambda job: chrome.write(job, folder / "job.json")),
            "load, --horovod": measured(lambda job: horovod.write(job, folder / "horovod.json", mark_cycles=False)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", choices=("calls", "training"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        measured = small_and_large() if options.work == "calls" else training(options.rounds)
        if os.environ["RINGREDUCE_RANK"] == "0":
            print(json.dumps(measured))
        return
    rows, rates = compared(options.rounds), read_and_merged()
    print(f"{'case':<16}{'off':>10}{'on':>10}{'on - off':>10}{'ratio':>8}   of the ratios half lie within")
    for row in rows:
        difference = float(row["on"]) - float(row["off"])
        figures = f"{row['off']:10.1f}{row['on']:10.1f}{difference:10.1f}{row['ratio']:8.3f}"
        print(f"{row['case']:<16}{figures}   {row['low']:.3f} to {row['high']:.3f}")
    for case, rate in rates.items():
        print(f"{case:<16}{rate:12,.0f} operations a second")
    if options.json is not None:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"machine": machine, "cases": rows, "rates": rates}, indent=1) + "\n")


if __name__ == "__main__":
    main()
