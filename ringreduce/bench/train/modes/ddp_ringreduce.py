"""torch's DistributedDataParallel over the process group of ringreduce.torch, on the settings of ddp-gloo."""

from __future__ import annotations

from pathlib import Path

from ringreduce.bench.train.modes.ddp_gloo import DdpGloo
from ringreduce.bench.train.modes.mode import Team


class DdpRingreduce(DdpGloo):
    """Started and met as ddp-gloo is."""

    name = "ddp-ringreduce"
    backend = "ringreduce"

    def join(self, folder: Path, timeout_s: float) -> Team:
        """See Mode."""
        import ringreduce.torch  # noqa: F401  registers the backend

        return super().join(folder, timeout_s)
