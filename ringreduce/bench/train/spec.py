"""What a worker is told: one word of its command line, in JSON, written by job.py and read by worker.py."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass
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
        every: steps between two averagings, of the methods that average parameters.
        bind: core (each process on its share of its host's cores) | none.
        threads: of each rank; None: one for each core of its share.
        folder: empty, for modes whose processes are all on this host; the other hosts do not have it.
        mark: what the line begins with in which a process says its figures (results.py).
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
    every: int
    bind: str
    threads: int | None
    folder: str
    mark: str
    timeout_s: float

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Spec:
        """Of what text() has made."""
        return cls(**json.loads(text))


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
