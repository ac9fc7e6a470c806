"""Keras's jax backend: ringreduce.jax, outside and inside of jit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.experimental.sparse import JAXSparse

from ringreduce import jax as hvd
from ringreduce.errors import UnavailableError
from ringreduce.job.process_sets import ProcessSet


def check() -> None:
    """A step can always communicate here."""


def grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    """As one operation."""
    reduced: list[Any] = hvd.grouped_allreduce(
        list(tensors),
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        compression=compression,
    )
    return reduced


def is_traced(tensors: Sequence[Any]) -> bool:
    return any(isinstance(tensor, Tracer) for tensor in jax.tree.leaves(list(tensors)))


def is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, JAXSparse)


def dense(tensor: Any) -> Any:
    return tensor.todense()


def divided(tensor: Any, number: int) -> Any:
    return tensor / number


def sparse_allreduce(tensor: Any, name: str | None, op: int, process_set: ProcessSet) -> Any:
    raise UnavailableError(
        "sparse gradients of JAX have as many values on each rank as the program was compiled for, and cannot be "
        "gathered: DistributedOptimizer(..., sparse_as_dense=True)"
    )


def allgather(tensor: Any, name: str | None, process_set: ProcessSet) -> Any:
    return hvd.allgather(tensor, name=name, process_set=process_set)


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    return hvd.broadcast(tensor, root_rank, name=name, process_set=process_set)


def reducescatter(tensor: Any, name: str | None, op: int, process_set: ProcessSet) -> Any:
    return hvd.reducescatter(tensor, name=name, op=op, process_set=process_set)
