"""What `ringreduce top` costs the job that it watches, and how soon it shows something.

    .venv/bin/python benchmarks/top.py [--rounds 20] [--attaches 1000] [--json FILE]

A job of two ranks, each bound to a core of its own where there are two, runs one case after the other while `ringreduce
top --prometheus` looks at it four times a second, or is stopped (SIGSTOP), in turns; the figures are medians over the
rounds, and the spread is that of the ratios of neighbours:

    8 B              synchronous all-reduces from Python: us each
    1 MiB            likewise
    training step    2 ms of arithmetic and eight all-reduces of 256 KiB: us

Then another job sums while so many viewers attach, one after the other; its sums must be right.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PERIOD_S = 1.0  # of one half of a round: four looks


def cases() -> dict[str, Callable[[], object]]:
    """Of a rank: what is timed."""
    import ringreduce as hvd

    few, many = np.ones(2, np.float32), np.ones(1 << 18, np.float32)
    gradients = [np.ones(1 << 16, np.float32) for _ in range(8)]
    a = np.ones((160, 160))

    def step() -> None:
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            a @ a
        for handle in [hvd.allreduce_async(tensor, name=f"gradient {i}") for i, tensor in enumerate(gradients)]:
            hvd.synchronize(handle)

    return {
        "8 B": lambda: hvd.allreduce_(few, op=hvd.Sum),
        "1 MiB": lambda: hvd.allreduce_(many, op=hvd.Max),
        "training step": step,
    }


def rank_main(rounds: int) -> None:
    """Rank 0 stops and continues the viewer, whose PID it reads, and prints the figures as JSON."""
    import os

    import ringreduce as hvd

    hvd.init()
    is_first = hvd.rank() == 0
    if is_first:
        print(os.getpid(), flush=True)
    viewer = int(sys.stdin.readline()) if is_first else 0
    found: dict[str, dict[str, list[float]]] = {}
    for name, call in cases().items():
        call()
        count = 10
        seconds = 0.0
        while True:  # as many calls as take PERIOD_S, the same on both ranks
            seconds = timed(call, count)
            seconds = float(hvd.allreduce(np.array([seconds]), name="longest", op=hvd.Max)[0])
            if seconds > PERIOD_S / 10:
                break
            count *= 2
        count = max(1, int(count * PERIOD_S / seconds))
        times: dict[str, list[float]] = {"without": [], "with": []}
        for _ in range(rounds):
            for how, word in (("without", signal.SIGSTOP), ("with", signal.SIGCONT)):
                if is_first:
                    os.kill(viewer, word)
                hvd.barrier()
                times[how].append(timed(call, count) / count)
        found[name] = times
    if is_first:
        print(json.dumps(found), flush=True)


def timed(call: Callable[[], object], count: int) -> float:
    """Seconds of so many calls."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin


def sums_main() -> None:
    """A job that sums until its standard input ends, and says how many sums were right, and how many were wrong."""
    import select

    import ringreduce as hvd

    hvd.init()
    x = np.arange(5000, dtype=np.float64) * (hvd.rank() + 1)
    right = wrong = step = 0
    if hvd.rank() == 0:
        print("ready", flush=True)
    while True:
        is_over = hvd.rank() == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
        if hvd.allreduce(np.array([float(is_over)]), name="over", op=hvd.Max)[0]:
            break
        total = hvd.allreduce(x + step, name="x", op=hvd.Sum)
        is_right = np.array_equal(total, np.arange(5000) * 3.0 + 2 * step)
        right, wrong, step = right + is_right, wrong + (not is_right), step + 1
    if hvd.rank() == 0:
        print(json.dumps({"right": int(right), "wrong": int(wrong)}), flush=True)


def ringrun(*arguments: str) -> subprocess.Popen[str]:
    """A job of two ranks of this file."""
    command = [sys.executable, "-m", "ringreduce", "run", "-np", "2", __file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def cost(rounds: int) -> dict[str, dict[str, float | list[float]]]:
    """Of each case: us without and with a viewer, the ratio, and its middle half."""
    with tempfile.TemporaryDirectory() as folder, ringrun("--rank", str(rounds)) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        pid = int(job.stdout.readline())
        viewer = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ringreduce",
                "top",
                "--prometheus",
                f"{folder}/top.prom",
                "--interval",
                "0.25",
                str(pid),
            ]
        )
        try:
            job.stdin.write(f"{viewer.pid}\n")
            job.stdin.flush()
            found = json.loads(job.stdout.readline())
        finally:
            viewer.kill()
            viewer.wait()
    summary: dict[str, dict[str, float | list[float]]] = {}
    for name, times in found.items():
        ratios = [w / wo for w, wo in zip(times["with"], times["without"], strict=True)]
        quarters = statistics.quantiles(ratios, n=4)
        summary[name] = {
            "without_us": statistics.median(times["without"]) * 1e6,
            "with_us": statistics.median(times["with"]) * 1e6,
            "ratio": statistics.median(ratios),
            "half_of_ratios": [quarters[0], quarters[2]],
        }
    return summary


def attaching(attaches: int) -> dict[str, float]:
    """How long a viewer takes to its first figures, as a process and within one; and the sums of the watched job."""
    from ringreduce.watch.board import Board

    with ringrun("--sums") as job:
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdout.readline()
        within = []
        for _ in range(attaches):
            begin = time.perf_counter()
            figures = Board().look()
            within.append(time.perf_counter() - begin)
            assert figures
        whole = []
        for _ in range(10):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "ringreduce", "top", "--once", "--interval", "0.05"],
                stdout=subprocess.DEVNULL, check=True,
            )  # fmt: skip
            whole.append(time.perf_counter() - begin - 0.05)
        board = Board()
        used = time.process_time()
        for _ in range(100):
            board.look()
            time.sleep(0.25)
        used = time.process_time() - used
        job.stdin.write("over\n")
        job.stdin.flush()
        sums = json.loads(job.stdout.readline())
    return {
        "attaches": attaches,
        "attach_ms": statistics.median(within) * 1e3,
        "command_ms": statistics.median(whole) * 1e3,
        "cpu_share_at_4_hz": used / 25,
        **sums,
    }


def main() -> int:
    """Runs all, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--attaches", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sums", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options.rank)
        return 0
    if options.sums:
        sums_main()
        return 0
    costs, attached = cost(options.rounds), attaching(options.attaches)
    print(f"{'case':16} {'without':>10} {'with':>10} {'ratio':>7}  half of the ratios")
    for name, row in costs.items():
        low, high = row["half_of_ratios"]  # type: ignore[misc]
        print(
            f"{name:16} {row['without_us']:8.2f}us {row['with_us']:8.2f}us {row['ratio']:7.3f}  {low:.3f} to {high:.3f}"
        )
    for name, value in attached.items():
        print(f"{name:16} {value:g}")
    if options.json is not None:
        meta = {"date": time.strftime("%Y-%m-%d"), "machine": platform.machine(), "python": platform.python_version()}
        options.json.write_text(json.dumps({"meta": meta, "cost": costs, "attach": attached}, indent=1))
    return int(bool(attached["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
