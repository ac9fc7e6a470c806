"""Horovod, where somebody got it to build."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

from ringreduce.bench.train.modes.mode import Mode, Team
from ringreduce.launch.binding import cpu_shares

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ringreduce.bench.train.options import Options
    from ringreduce.bench.train.spec import Spec
    from ringreduce.job.environment import Placement

IMPORT_TIMEOUT_S = 60.0
ADVICE = (
    "its last release, 0.28.1, does not compile against torch >= 2.1 (it stops with '#error C++17 or later compatible "
    "compiler is required'): pip install horovod needs an older torch, or a patched source"
)
NOT_KERAS_3 = (
    "its last release, 0.28.1, fails with TensorFlow >= 2.16 and Keras 3 ('Variable' object has no attribute 'ref'): "
    "there is an adapter for horovod.torch only"
)


class Workers(Team):
    """The same calls as ringreduce's, by Horovod."""

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """See Team."""
        import horovod.torch as hvd  # type: ignore[import-not-found, import-untyped, unused-ignore]

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)

    def slowest(self, seconds: float) -> float:
        """See Team."""
        import horovod.torch as hvd
        import torch

        return float(hvd.allgather(torch.tensor([seconds], dtype=torch.float64)).max())

    def leave(self) -> None:
        """See Team."""
        import horovod.torch as hvd

        hvd.shutdown()


class Horovod(Mode):
    """Under horovodrun; workers bind themselves."""

    name = "horovod"
    one_host = "Horovod is measured on one host here"

    def absent(self, framework: str = "torch") -> str | None:
        """See Mode. Imported in a process of its own: a broken build may end the process that imports it."""
        if framework == "jax":
            return "Horovod has nothing for JAX"
        if framework != "torch":
            return NOT_KERAS_3
        if importlib.util.find_spec("horovod") is None:
            return f"not installed; {ADVICE}"
        command = [sys.executable, "-c", "import horovod.torch"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"importing horovod.torch took more than {IMPORT_TIMEOUT_S:g} s"
        if done.returncode == 0:
            return None
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return f"importing horovod.torch failed ({last[0]}); {ADVICE}"

    def command(self, options: Options, worker: list[str]) -> list[str]:
        """See Mode."""
        return [sys.executable, "-m", "horovod.runner.launch", "-np", str(options.ranks), *worker]

    def cpus(self, place: Placement, spec: Spec) -> list[int]:
        """See Mode: horovodrun binds nobody."""
        return sorted(cpu_shares(place.local_size)[place.local_rank])

    def join(self, spec: Spec) -> Team:
        """See Mode."""
        import horovod.torch as hvd

        hvd.init()
        return Workers(hvd.rank(), hvd.size())
