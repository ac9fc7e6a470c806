"""The interface of one way to train: how its processes start, and what they do to the gradients.

The command uses Mode (no framework there), and so does each worker, which calls join() and gets a Team. What a team
does to the gradients is torch's wrap(); the other frameworks (frameworks/) ask for api(), before_step() and strategy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringreduce.job import environment
from ringreduce.launch.binding import cores_of, cpu_shares, thread_share
from ringreduce.launch.python import run_module

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ringreduce.bench.train.options import Options
    from ringreduce.bench.train.spec import Spec
    from ringreduce.job.environment import Placement


@dataclass(frozen=True)
class Sent:
    """Bytes that a process has handed over to collectives, and that it has written to the network for them."""

    nbytes: int
    wire_nbytes: int


class Team:
    """The processes of one job, as one of them sees them. This one is alone."""

    loss_factor = 1.0
    """What a share's loss is multiplied by before backward(): the size where gradients are averaged, not summed."""
    strategy: Any = None
    """tf.distribute's, which makes the variables and runs the steps, where there is one."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """What to call forward and step() on, so that every process gets the sum of all gradients."""
        return model, optimizer

    def api(self, framework: str) -> Any:
        """Not for torch: the module with Horovod's names that sums the gradients; None where nobody does, or another.

        Its DistributedGradientTape, DistributedOptimizer or distributed() is what is used.
        """
        return None

    def before_step(self) -> None:
        """Not for torch: called before each step is computed."""

    def sent(self) -> Sent | None:
        """What this process has sent so far; None where nobody counts."""
        return None

    def slowest(self, seconds: float) -> float:
        """The largest value of all processes; none returns before all have called."""
        return seconds

    def leave(self) -> None:
        """Ends communication."""


class Mode:
    """One way to train. The default starts ranks under ringrun, on one host or on several."""

    name = ""
    is_reduced = True
    """Whether its loss must be that of one process; if not, only the first step's is compared."""

    frameworks: tuple[str, ...] = ("torch", "tensorflow", "keras", "jax")
    """Those that it exists for."""
    one_host = ""
    """Why it is measured on one host only; "" where it is not."""

    def absent(self, framework: str = "torch") -> str | None:
        """Why it cannot be measured here and what helps; None if it can."""
        return None if framework in self.frameworks else f"it is there for {' and '.join(self.frameworks)} only"

    def processes(self, ranks: int) -> int:
        """How many it starts where a job has so many ranks."""
        return ranks

    def command(self, options: Options, worker: list[str]) -> list[str]:
        """What starts the workers."""
        ringrun = run_module("ringreduce.launch.ringrun", "-np", str(options.ranks), *options.ringrun)
        return [*options.inside, *ringrun, "--bind", options.bind, "--no-tag-output", *worker]

    def environ(self) -> dict[str, str]:
        """Variables to set for all processes, before they start."""
        return {}

    def place(self) -> Placement:
        """In a worker, before anything else: which one it is."""
        return environment.detect(network=True)

    def cpus(self, place: Placement, spec: Spec) -> list[int]:
        """In a worker: the CPUs of its host that are its own.

        Unless the spec has bind "none" it is then bound to them. Here ringrun has done that.
        """
        if spec.bind == "core":
            return sorted(os.sched_getaffinity(0))
        return sorted(cpu_shares(place.local_size)[place.local_rank])

    def threads(self, cpus: list[int], place: Placement, spec: Spec) -> int:
        """In a worker: with how many it computes; as many as its CPUs make cores, unless the user has said a number."""
        return spec.threads or thread_share(cores_of(cpus), place.local_size)

    def period(self, spec: Spec) -> int:
        """In how many steps everything happens once that belongs to training."""
        return 1

    def join(self, spec: Spec) -> Team:
        """In a worker: meets the others."""
        raise NotImplementedError
