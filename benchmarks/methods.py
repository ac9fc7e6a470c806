"""Loss against time over a slow link: gradients in each step, whole and compressed, beside local SGD and DiLoCo.

    sudo .venv/bin/python benchmarks/methods.py [--hosts 2] [--rate 100mbit] [--epochs 2] [--every 50]
        [--methods synchronous,fp16,int8,powersgd,averaging,diloco] [--json FILE] [--picture FILE]

Each method trains examples/torch_local_sgd.py's LeNet on Fashion-MNIST by a job of its own, one rank on each host. The
hosts are those of tests/lab: namespaces on one machine, joined by links that tc shapes; the ranks share its cores. Each
line of the table has the seconds of all steps, images of all ranks a second, the bytes that leave a host in a step, and
the test accuracy at the end. Exit status 2 where there is no lab.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from lab import requirements
from lab.lab import Lab
from tcp_jobs import lab_job, secret_file

ROOT = Path(__file__).resolve().parents[1]
METHODS = "synchronous,fp16,int8,powersgd,averaging,diloco"
BATCH_SIZE = 64
DEADLINE_S = 1800.0


def measured(options: argparse.Namespace, method: str) -> dict[str, Any]:
    """What the example writes of one job, with the seconds of its steps."""
    names = "abcdefgh"[: options.hosts]
    with Lab(options.hosts, rate=options.rate) as lab:
        secret_file(lab.folder)
        output = lab.folder / "result.json"
        program = [sys.executable, ROOT / "examples" / "torch_local_sgd.py", "--method", method]
        settings = ["--every", options.every, "--epochs", options.epochs, "--batch-size", BATCH_SIZE, "--json", output]
        # lab_job() puts an argument behind the command, which the shell takes.
        command = ["sh", "-c", "exec " + " ".join(map(str, (*program, *settings))), "rank"]
        with lab_job(lab, command, names, 1, {"RINGREDUCE_TRANSPORT": "tcp"}) as ranks:
            said = [rank.communicate(timeout=DEADLINE_S)[0] for rank in ranks]
            if any(rank.returncode for rank in ranks):
                sys.exit(f"{method} has failed:\n" + "\n".join(said))
        result: dict[str, Any] = json.loads(output.read_text())
    return result | {"seconds": result["curve"][-1][0]}


def line(result: dict[str, Any]) -> str:
    rate = result["steps"] * BATCH_SIZE / result["seconds"]
    return (
        f"{result['method']:<14}{result['seconds']:>8.1f}{rate:>12.0f}"
        f"{result['wire_nbytes'] / result['steps'] / 1e3:>12.1f}{result['accuracy']:>12.4f}"
    )


def draw(path: Path, results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    from matplotlib.figure import Figure  # it draws PNG by Agg, without a display

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for result in results:
        seconds, losses = zip(*smoothed(result["curve"]), strict=True)
        axes.plot(seconds, losses, label=f"{result['method']}: {result['accuracy']:.3f} in {result['seconds']:.0f} s")
    axes.set(xlabel="seconds of training", ylabel="training loss", yscale="log")
    axes.set_title(f"LeNet, Fashion-MNIST, {options.hosts} hosts of one rank, links of {options.rate}")
    axes.legend(title="test accuracy at the end")
    figure.savefig(path, dpi=120)


def smoothed(curve: list[list[float]], width: int = 8) -> list[tuple[float, float]]:
    """Each entry's time, and the mean loss of the last `width` entries."""
    losses = [loss for _, loss in curve]
    return [
        (seconds, sum(losses[max(0, at + 1 - width) : at + 1]) / min(width, at + 1))
        for at, (seconds, _) in enumerate(curve)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="100mbit", help="of each link, as tc spells it (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    options = parser.parse_args()
    if reason := requirements.missing():
        print(f"methods.py: {reason}", file=sys.stderr)
        return 2
    print(f"{'method':<14}{'s':>8}{'images/s':>12}{'kB a step':>12}{'accuracy':>12}", flush=True)
    results = []
    for method in options.methods.split(","):
        results.append(measured(options, method))
        print(line(results[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"hosts": options.hosts, "rate": options.rate, "results": results}) + "\n")
    if options.picture:
        draw(options.picture, results, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
