"""The columns of the comparison, in the order of the table. A new one is a file here and a row below."""

from __future__ import annotations

from ringreduce.bench.train.modes.ddp_gloo import DdpGloo
from ringreduce.bench.train.modes.ddp_ringreduce import DdpRingreduce
from ringreduce.bench.train.modes.horovod import Horovod
from ringreduce.bench.train.modes.independent import Independent, Lockstep
from ringreduce.bench.train.modes.methods import (
    DiLoCo,
    Easgd,
    Fp16,
    Int8,
    LocalSgd,
    Method,
    PowerSgd,
    SlowMo,
    Streaming,
)
from ringreduce.bench.train.modes.mode import Mode
from ringreduce.bench.train.modes.mwms import Mwms, MwmsRing
from ringreduce.bench.train.modes.ringreduce import Ringreduce, RingreduceShard
from ringreduce.bench.train.modes.single import Single, SingleAll

METHODS: dict[str, Method] = {
    method.name: method for method in (Fp16(), Int8(), PowerSgd(), LocalSgd(), DiLoCo(), Streaming(), SlowMo(), Easgd())
}
"""What --method chooses among."""

MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Single(),
        SingleAll(),
        Independent(),
        Lockstep(),
        Ringreduce(),
        RingreduceShard(),
        DdpRingreduce(),
        DdpGloo(),
        Mwms(),
        MwmsRing(),
        Horovod(),
        *METHODS.values(),
    )
}

ALWAYS = (Independent.name, Ringreduce.name)
"""Measured whatever --vs says: the figure, and its bound."""
