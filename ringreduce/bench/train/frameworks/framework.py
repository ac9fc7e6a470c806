"""The interface of one framework: what is there, and one process's model, optimizer and batches.

Framework is used by the command (which imports no framework) and once more by each worker, which gets a Learner.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import TYPE_CHECKING

from ringreduce.errors import UnavailableError

if TYPE_CHECKING:
    from ringreduce.bench.train.modes.mode import Team
    from ringreduce.bench.train.spec import Spec


class Learner:
    """The model and its optimizer in one process of a team."""

    nbytes = 0
    """Of all gradients."""
    threads = 0
    """That the framework computes with."""

    def count(self, parts: int) -> int:
        """Samples of a global batch of so many parts."""
        raise NotImplementedError

    def step(self, number: int, parts: int, mine: range) -> float:
        """One step on some parts of that global batch; returns their part of its loss.

        A part's loss is summed over its samples and divided by those of the global batch: parts of different sizes
        weigh by their samples. It is that of before the update.
        """
        raise NotImplementedError

    def loss(self, number: int, parts: int, mine: range) -> float:
        """The same loss, and no step."""
        raise NotImplementedError


class Framework:
    """One framework. Its packages are imported by prepare() and learner() only."""

    name = ""
    title = ""
    """As its makers write it."""
    packages: tuple[str, ...] = ()
    """What has to be importable; their versions belong to a figure."""
    install = ""
    """What pip brings them by."""
    models: tuple[str, ...] = ("lenet", "mlp")
    vs = "single,single-all"
    """The modes to compare with unless --vs says otherwise."""

    def need(self) -> None:
        """Raises UnavailableError, with what to install, when it is not there."""
        missing = [package for package in self.packages if importlib.util.find_spec(package) is None]
        if missing:
            what = f"{self.title} ({', '.join(missing)} cannot be imported)"
            raise UnavailableError(f"ringreduce bench train needs {what}: pip install {self.install}")

    def versions(self) -> dict[str, str]:
        """Version by package."""
        owners = metadata.packages_distributions()  # tensorflow's may be tensorflow-cpu
        return {package: metadata.version(owners[package][0]) for package in self.packages}

    def environ(self, threads: int) -> dict[str, str]:
        """In a worker, before prepare(): variables that the framework reads when imported. All is measured on CPUs."""
        return {}

    def prepare(self, threads: int) -> None:
        """In a worker bound to its CPUs, before the processes meet: what cannot be set later."""

    def learner(self, spec: Spec, team: Team, threads: int) -> Learner:
        """In a worker: what trains."""
        raise NotImplementedError
