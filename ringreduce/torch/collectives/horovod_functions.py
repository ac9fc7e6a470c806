"""Horovod's autograd functions, for scripts that call apply() of them themselves, and its arguments in its order.

Each is the collective of that name, which is differentiable; here it only has Horovod's other spelling.
"""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch.collectives.allreduce import allreduce, grouped_allreduce
from ringreduce.torch.collectives.data_movement import allgather, alltoall, broadcast, grouped_allgather
from ringreduce.torch.collectives.reducescatter import grouped_reducescatter, reducescatter
from ringreduce.torch.compression import Compression

Tensors = tuple[torch.Tensor, ...]


class HorovodAllreduce:
    """hvd.allreduce()."""

    @staticmethod
    def apply(
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """The reduced tensor; arguments are allreduce()'s."""
        return allreduce(
            tensor, average, name, Compression.none, op, prescale_factor, postscale_factor, process_set=process_set
        )


class HorovodGroupedAllreduce:
    """hvd.grouped_allreduce()."""

    @staticmethod
    def apply(
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> Tensors:
        """The reduced tensors; arguments are grouped_allreduce()'s."""
        factors = (prescale_factor, postscale_factor)
        return tuple(grouped_allreduce(tensors, average, name, Compression.none, op, *factors, process_set=process_set))


class HorovodAllgather:
    """hvd.allgather()."""

    @staticmethod
    def apply(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        """Every rank's rows; arguments are allgather()'s."""
        return allgather(tensor, name, process_set)


class HorovodGroupedAllgather:
    """hvd.grouped_allgather()."""

    @staticmethod
    def apply(name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Tensors:
        """Every rank's rows of each tensor; arguments are grouped_allgather()'s."""
        return tuple(grouped_allgather(tensors, name, process_set))


class HorovodBroadcast:
    """hvd.broadcast()."""

    @staticmethod
    def apply(tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        """The root's tensor; arguments are broadcast()'s."""
        return broadcast(tensor, root_rank, name, process_set)


class HorovodAlltoall:
    """hvd.alltoall()."""

    @staticmethod
    def apply(tensor: torch.Tensor, splits: torch.Tensor | None, name: str | None, process_set: ProcessSet) -> Any:
        """The rows received, and with splits also how many came from each rank; arguments are alltoall()'s."""
        return alltoall(tensor, splits, name, process_set)


class HorovodReducescatter:
    """hvd.reducescatter()."""

    @staticmethod
    def apply(
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        """This rank's rows of the reduced tensor; arguments are reducescatter()'s."""
        return reducescatter(tensor, name, Compression.none, op, process_set, prescale_factor, postscale_factor)


class HorovodGroupedReducescatter:
    """hvd.grouped_reducescatter()."""

    @staticmethod
    def apply(
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> Tensors:
        """This rank's rows of each reduced tensor; arguments are grouped_reducescatter()'s."""
        factors = (prescale_factor, postscale_factor)
        return tuple(grouped_reducescatter(tensors, name, Compression.none, op, process_set, *factors))
