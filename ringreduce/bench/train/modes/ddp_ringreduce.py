"""torch's DistributedDataParallel over the process group of ringreduce.torch, on the settings of ddp-gloo."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from ringreduce import environment
from ringreduce.bench.train.modes.ddp_gloo import Replicas
from ringreduce.bench.train.modes.mode import Mode, Team


class DdpRingreduce(Mode):
    """Under ringrun, met through a file as ddp-gloo is."""

    name = "ddp-ringreduce"

    def join(self, folder: Path, timeout_s: float) -> Team:
        """See Mode."""
        from torch import distributed

        import ringreduce.torch  # noqa: F401  registers the backend

        place = environment.detect()
        store, wait = f"file://{folder}/ringreduce-store", timedelta(seconds=timeout_s)
        distributed.init_process_group("ringreduce", store, wait, place.size, place.rank)
        return Replicas(place.rank, place.size)
