"""Elastic training: ElasticSampler works in any job; run and the states are reserved until elastic jobs exist."""

from __future__ import annotations

from ringreduce.torch.elastic.sampler import ElasticSampler
from ringreduce.torch.elastic.state import ObjectState, State, TorchState, run, run_fn
from ringreduce.torch.mpi_ops import init, shutdown

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "init", "run", "run_fn", "shutdown"]
