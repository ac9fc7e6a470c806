"""Keras's torch backend: ringreduce.torch, on gradients where autograd has put them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce import torch as hvd
from ringreduce.job.process_sets import ProcessSet
from ringreduce.keras import compression as ours
from ringreduce.torch.compression import Compression

SAME = {
    ours.FP16Compressor: Compression.fp16,
    ours.BF16Compressor: Compression.bf16,
}
"""torch's twins of our compressors: between hosts these cast in the core, once, and sum in float32."""


def check() -> None:
    """A step can always communicate here."""


@torch.no_grad()
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    compression: Any,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """In place where tensors are contiguous and nothing compresses them."""
    compression = SAME.get(compression, compression)
    settings = (op, prescale_factor, postscale_factor, process_set)
    if compression is Compression.none:
        return hvd.grouped_allreduce_([tensor.contiguous() for tensor in tensors], None, name, *settings)
    return hvd.grouped_allreduce(tensors, None, name, compression, *settings)


def is_traced(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.compiler.is_compiling()


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.is_sparse


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense()


def divided(tensor: torch.Tensor, number: int) -> torch.Tensor:
    return tensor / number


def sparse_allreduce(tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet) -> torch.Tensor:
    reduced: torch.Tensor = hvd.sparse_allreduce_async(tensor, name or "sparse_gradient", op, process_set).wait()
    return reduced


def allgather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
    return hvd.allgather(tensor, name, process_set)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> torch.Tensor:
    return hvd.broadcast(tensor, root_rank, name, process_set)


def reducescatter(tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet) -> torch.Tensor:
    return hvd.reducescatter(tensor, name, Compression.none, op, process_set)
