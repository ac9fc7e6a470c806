"""torch's DistributedDataParallel over the process group of ringreduce.torch, on the settings of ddp-gloo."""

from __future__ import annotations

from ringreduce.bench.train.modes.ddp_gloo import DdpGloo


class DdpRingreduce(DdpGloo):
    """Started and met as ddp-gloo is."""

    name = "ddp-ringreduce"
    backend = "ringreduce"
