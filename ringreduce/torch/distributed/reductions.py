"""The collectives of a process group that compute: allreduce, reduce, reduce_scatter, and their relatives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ringreduce.collectives.handles import Submitted
from ringreduce.collectives.ops import ReduceOp
from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.distributed.base import Collectives, InPlace, has_limit, is_async
from ringreduce.torch.distributed.layout import (
    Reduction,
    checked,
    contiguous,
    deal,
    joined,
    movable,
    reducible,
    units,
)
from ringreduce.torch.distributed.sparse import Coordinates
from ringreduce.torch.distributed.work import Several, Work
from ringreduce.torch.tensors import apart, on_stream

SCATTERED = (ReduceOp.Sum, ReduceOp.Average)  # what the core's reducescatter computes


class Reductions(Collectives):
    """Options are torch's; every call returns a Work."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduces one tensor over all ranks, in place; all ranks get the same bits. A sparse one: SUM and AVG."""
        opts = opts if opts is not None else dist.AllreduceOptions()
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo:
            return self._allreduce_sparse(tensors[0], opts)
        return self._allreduce([self._one(tensors, "allreduce")], opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """allreduce of several tensors, of one dtype or several, as one operation."""
        opts = opts if opts is not None else dist.AllreduceCoalescedOptions()
        return self._allreduce([checked(tensor) for tensor in tensors], opts)

    def reduce(self, tensors: Any, opts: Any) -> Work:
        """Reduces one tensor over all ranks, in place on opts.rootRank; on the others it stays as it is."""
        tensor, reduction = self._one(tensors, "reduce"), Reduction(opts.reduceOp)
        root = self._check_root(opts.rootRank, "reduce")
        if reduction.op is None:
            return self._xor([tensor], [tensor] if root == self._rank else [], opts)
        place = InPlace([tensor])
        operand = reducible(reduction.view(place.buffers[0]))
        native = self._member.group.reduce_async(
            operand, operand, reduction.op, reduction.factor, 1.0, root, self._name_of_call()
        )
        native = on_stream(native, place.buffers[0])
        return self._work(native, [tensor], opts, place.finish if root == self._rank else None)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        """Reduces `source`, which has the ranks' parts one behind the other; this rank's part goes to `output`."""
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        return self._reduce_scatter([checked(output)], [checked(source)], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """reduce_scatter_single of several tensors."""
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        return self._reduce_scatter([checked(x) for x in outputs], [checked(x) for x in sources], opts)

    def reduce_scatter(
        self, outputs: Any, sources: Sequence[Sequence[torch.Tensor]] | Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Reduces a list of tensors, one per rank; this rank's goes to the output. The sizes may differ."""
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        output = self._one(outputs, "reduce_scatter")
        listed = [sources] if isinstance(sources[0], torch.Tensor) else sources
        parts = [checked(part) for part in listed[0]]
        if len(parts) != self._size:
            raise InvalidArgumentError(f"reduce_scatter takes {self._size} tensors, one per rank, not {len(parts)}")
        if len({part.numel() for part in parts}) == 1:
            return self._reduce_scatter([output], [joined(parts)], opts)
        if output.numel() != parts[self._rank].numel():
            raise InvalidArgumentError(
                f"reduce_scatter: the output on rank {self._rank} has {output.numel()} elements, and its part of the "
                f"input {parts[self._rank].numel()}"
            )
        start = sum(part.numel() for part in parts[: self._rank])
        return self._slice_of_allreduce(output, joined(parts), start, opts)

    # The names before torch 2.13.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        reduction = Reduction(opts.reduceOp)
        if reduction.op is None:
            return self._xor(tensors, tensors, opts)
        place = InPlace(tensors)
        group, factor = self._member.group, reduction.factor
        operands = [reducible(reduction.view(buffer)) for buffer in place.buffers]
        if len(operands) == 1 and not is_async(opts) and not has_limit(opts):
            group.allreduce(operands[0], operands[0], reduction.op, factor, 1.0, self._name_of_call())
            if place.finish is not None:
                place.finish(None)
            return Work(None, tensors)
        native = group.allreduce_async(operands, operands, reduction.op, factor, 1.0, self._name_of_call())
        return self._work(on_stream(native, *place.buffers), tensors, opts, place.finish)

    def _reduce_scatter(self, outputs: list[torch.Tensor], sources: list[torch.Tensor], opts: Any) -> Work:
        reduction = Reduction(opts.reduceOp)
        for output, source in zip(outputs, sources, strict=True):
            if source.numel() != output.numel() * self._size or source.dtype is not output.dtype:
                raise InvalidArgumentError(
                    f"reduce_scatter of {source.dtype} {tuple(source.shape)} into {output.dtype} "
                    f"{tuple(output.shape)} on {self._size} ranks: the input has {self._size} times the elements of "
                    "the output, in its dtype"
                )
        if reduction.op not in SCATTERED:
            works = [
                self._slice_of_allreduce(output, source, self._rank * output.numel(), opts)
                for output, source in zip(outputs, sources, strict=True)
            ]
            return self._all_of(works, outputs)
        place = InPlace(outputs)
        calls = [
            (
                reducible(reduction.view(apart(contiguous(source), buffer, -self._rank * buffer.numel()))),
                reducible(reduction.view(buffer)),
                reduction.op,
                reduction.factor,
                1.0,
                self._name_of_call(),
            )
            for source, buffer in zip(sources, place.buffers, strict=True)
        ]
        with Submitted(self._member.group.reducescatter_async, calls) as each:
            natives = [on_stream(work, buffer) for work, buffer in zip(each, place.buffers, strict=True)]
            return self._work(natives[0] if len(natives) == 1 else Several(natives), outputs, opts, place.finish)

    def _slice_of_allreduce(self, output: torch.Tensor, source: torch.Tensor, start: int, opts: Any) -> Work:
        """Reduce-scatter by an all-reduce of a copy, for what the core's does not compute."""
        whole = contiguous(source).reshape(-1).clone()
        options = dist.AllreduceOptions()
        options.reduceOp, options.timeout = opts.reduceOp, opts.timeout
        work = self._allreduce([whole], options)
        return self._noted(work.then(lambda: deal(whole[start:], [output]), [output]))

    def _xor(self, tensors: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], opts: Any) -> Work:
        """Exclusive or, which the core does not compute: gathers and folds."""
        flat = joined(tensors)
        if flat.is_floating_point() or flat.is_complex():
            raise InvalidArgumentError(f"BXOR has no meaning for {flat.dtype}; it is for integers and bool")
        parts = flat.new_empty((self._size, flat.numel()))
        room = [flat.numel() * units(flat)] * self._size
        native = on_stream(
            self._member.group.allgather_async(movable(flat), self._name_of_call(), movable(parts), room), parts
        )

        def fold(_: Any) -> None:
            if targets:
                deal(functools.reduce(torch.bitwise_xor, parts.unbind()), targets)

        return self._work(native, tensors, opts, fold)

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        """Gathers every rank's coordinates and values; their sum is coalesced."""
        reduction = Reduction(opts.reduceOp)
        coordinates = Coordinates(tensor, reduction)
        calls = [(movable(part), self._name_of_call()) for part in coordinates.parts]
        with Submitted(self._member.group.allgather_async, calls) as works:
            natives = [on_stream(work, part) for work, part in zip(works, coordinates.parts, strict=True)]
            return self._work(Several(natives), [tensor], opts, lambda _: coordinates.sum(natives, self._size))
