"""What a worker is told: one JSON file per job, written by job.py and read by worker.py."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ringreduce.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ringreduce.bench.train.modes.mode import Mode


@dataclass(frozen=True)
class Spec:
    """One job.

    Attributes:
        mode: "module:class" of the adapter, which the worker imports.
        framework: one of FRAMEWORKS.
        ranks: among how many the batch is shared; a job of one process computes all shares of the checked steps.
        batch_size: samples of the global batch; for resnet50 those of one rank.
        data: fashion-mnist | synthetic.
        optimizer: one of OPTIMIZERS, which has a factor for lr.
        seconds: of a window when steps_per_window is None.
        check_steps: deterministic steps before timing, whose losses are compared.
        warmup: untimed steps after those.
        windows, steps_per_window: how often and how long to time.
        shares: the CPUs of each process.
        folder: where the job's files are; results are written there.
        timeout_s: of the whole job.
    """

    mode: str
    framework: str
    model: str
    ranks: int
    batch_size: int
    data: str
    seed: int
    lr: float
    optimizer: str
    seconds: float
    check_steps: int
    warmup: int
    windows: int
    steps_per_window: int | None
    shares: list[list[int]]
    folder: str
    timeout_s: float

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Spec:
        """What write() wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def result_file(self, rank: int) -> Path:
        """Where a rank leaves its figures."""
        return Path(self.folder, f"rank-{rank}.json")


def name_of(mode: Mode) -> str:
    """How a worker finds the adapter."""
    return f"{type(mode).__module__}:{type(mode).__qualname__}"


def mode_of(name: str) -> Mode:
    """The adapter of that name. Raises InvalidArgumentError when it is no "module:class"."""
    module, colon, cls = name.partition(":")
    if not colon:
        raise InvalidArgumentError(f"ringreduce bench train: a mode is given as module:class, not {name!r}")
    mode: Mode = getattr(importlib.import_module(module), cls)()
    return mode
