"""The interface of one way to train: how its processes start, and what they do to the gradients.

The command uses Mode (no framework there), and so does each worker, which calls join() and gets a Team. What a team
does to the gradients is torch's wrap(); the other frameworks (frameworks/) ask for api(), before_step() and strategy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringreduce.job import environment
from ringreduce.launch.binding import cpu_shares
from ringreduce.launch.python import run_module

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


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

    def slowest(self, seconds: float) -> float:
        """The largest value of all processes; none returns before all have called."""
        return seconds

    def leave(self) -> None:
        """Ends communication."""


class Mode:
    """One way to train. The default starts ranks under ringrun, each bound to its share of the cores."""

    name = ""
    is_reduced = True
    """Whether its loss must be that of one process; if not, only the first step's is compared."""

    frameworks: tuple[str, ...] = ("torch", "tensorflow", "keras", "jax")
    """Those that it exists for."""

    def absent(self, framework: str = "torch") -> str | None:
        """Why it cannot be measured here and what helps; None if it can."""
        return None if framework in self.frameworks else f"it is there for {' and '.join(self.frameworks)} only"

    def shares(self, ranks: int) -> list[list[int]]:
        """The CPUs of each process that it starts; a process has as many threads as cores (thread_share())."""
        return [sorted(share) for share in cpu_shares(ranks)]

    def command(self, processes: int, worker: list[str]) -> list[str]:
        """What starts so many workers."""
        return run_module("ringreduce.launch.ringrun", "-np", str(processes), "--no-tag-output", *worker)

    def environ(self) -> dict[str, str]:
        """Variables to set for all processes, beside OMP_NUM_THREADS."""
        return {}

    def rank(self) -> int:
        """In a worker, before anything else: which one it is."""
        return environment.detect().rank

    def join(self, folder: Path, timeout_s: float) -> Team:
        """In a worker: meets the others.

        Args:
            folder: empty but for this job's own files, the same for all of its processes.
            timeout_s: how long to wait for them.
        """
        raise NotImplementedError
