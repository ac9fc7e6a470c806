"""What tests of `ringreduce bench train` share: quick settings, the JSON's schema, ranks without a start of Python, and
modes that misbehave.

Workers import this file to find those modes, so torch is imported by what is called only.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ringreduce.bench.train import job
from ringreduce.bench.train.cli import main
from ringreduce.bench.train.job import Outcome
from ringreduce.bench.train.modes.independent import Connected
from ringreduce.bench.train.modes.methods import LocalSgd
from ringreduce.bench.train.modes.mode import Mode, Team
from ringreduce.bench.train.spec import Spec, mode_of

if TYPE_CHECKING:
    from torch import nn

    from ringreduce.bench.train.options import Options

HERE = Path(__file__).resolve().parent
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

QUICK = ["--data", "synthetic", "--batch-size", "33", "--check-steps", "3", "--seconds", "0.05", "--rounds", "1"]
"""33: the shares of two ranks differ."""

SCHEMA = {
    "mode": str,
    "processes": int,
    "threads": (int, type(None)),
    "status": str,
    "samples_per_s": (float, type(None)),
    "to_single": (float, type(None)),
    "efficiency": (float, type(None)),
    "fraction_of_bound": (float, type(None)),
    "step_ms": (dict, type(None)),
    "peak_memory_MiB": (float, type(None)),
    "step_nbytes": (float, type(None)),
    "step_wire_nbytes": (float, type(None)),
    "rounds": list,
    "samples_per_s_per_process": (dict, type(None)),
    "loss": (float, type(None)),
    "loss_difference": (float, type(None)),
    "same_loss": (bool, type(None)),
}


def bench(folder: Path, *argv: str) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
    """(exit status, the JSON, its results by mode), the latter checked against the schema."""
    file = folder / "train.json"
    status = main([*QUICK, *argv, "--json", str(file)])
    document = json.loads(file.read_text())
    assert document.keys() == {"meta", "results", "absent"}
    for row in document["results"]:
        assert row.keys() == SCHEMA.keys()
        assert all(isinstance(row[key], kind) for key, kind in SCHEMA.items()), row
    return status, document, {row["mode"]: row for row in document["results"]}


@pytest.fixture(name="forked")
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are ranks that are there in milliseconds: no launcher, and no process that imports torch first."""
    from ranks import start_ranks  # workers import this file, and do not know of tests/support

    def run(mode: Mode, options: Options, data: str) -> Outcome:
        start = time.monotonic()
        spec = job.spec_of(mode, options, data, folder="")
        with start_ranks(measured, mode.processes(options.ranks), args=(spec.text(),)) as ranks:
            ends = ranks.wait()
        seconds = time.monotonic() - start
        if any(end.status != 0 for end in ends):
            return Outcome("failed", seconds, output="\n".join(map(str, ends)))
        return Outcome("ok", seconds, [end.value for end in ends])

    monkeypatch.setattr(job, "run", run)


def measured(text: str) -> dict[str, Any]:
    """A rank: what a worker of that Spec prints."""
    import torch

    from ringreduce.bench.train.worker import measure

    torch.set_num_threads(1)
    spec = Spec.read(text)
    mode = mode_of(spec.mode)
    team = mode.join(spec)
    figures = measure(spec, team, 1, mode.period(spec))
    team.leave()
    return figures


# --- modes that misbehave -------------------------------------------------------------------------------------------


class Here(Mode):
    """Found in this file by workers."""

    name = "ringreduce"

    def environ(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))}


class Unreduced(Connected):
    def wrap(self, model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        return model, optimizer


class Forgetful(Here):
    """ringreduce that forgets to reduce."""

    def join(self, spec: Spec) -> Team:
        import ringreduce

        world = ringreduce.init()
        return Unreduced(world.rank, world.size)


class Diverging(LocalSgd):
    """Local SGD whose averages are no numbers."""

    def environ(self) -> dict[str, str]:
        return Here().environ()

    def optimizer(self, hvd: Any, optimizer: Any, every: int) -> Any:
        def broken(parameters: Any) -> Any:
            import torch

            return torch.optim.SGD(parameters, lr=math.inf)

        return hvd.LocalSGD(optimizer, every, outer=broken)


class Hanging(Here):
    """Never gets anywhere, and does not listen."""

    def join(self, spec: Spec) -> Team:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Event().wait()
        raise AssertionError("it waits for ever")


class Failing(Here):
    def join(self, spec: Spec) -> Team:
        raise RuntimeError("no such luck")


class Silent(Here):
    def join(self, spec: Spec) -> Team:
        print("off I go", flush=True)
        os._exit(0)


class Missing(Here):
    def command(self, options: Options, worker: list[str]) -> list[str]:
        return ["no-such-launcher", *worker]
