"""The collectives of a process group that move data without computing, and barrier.

On GPUs nobody waits to learn how much has come. The core knows what the outputs have room for, and an operation that
brings something else fails on the rank whose outputs those are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.distributed.base import Collectives, InPlace, has_limit, is_async
from ringreduce.torch.distributed.layout import (
    checked,
    contiguous,
    deal,
    gathered,
    joined,
    movable,
    one_stretch,
    units,
)
from ringreduce.torch.distributed.work import Work
from ringreduce.torch.tensors import apart, on_stream


class DataMovement(Collectives):
    """Options are torch's; every call returns a Work."""

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        """Overwrites one tensor with that of opts.rootRank."""
        tensor, root = self._one(tensors, "broadcast"), self._check_root(opts.rootRank, "broadcast")
        place = InPlace([tensor])
        native = self._member.group.broadcast_async(movable(place.buffers[0]), root, self._name_of_call())
        native = on_stream(native, place.buffers[0])
        return self._work(native, [tensor], opts, None if root == self._rank else place.finish)

    def allgather(self, outputs: Any, sources: Any, opts: Any = None) -> Work:
        """Every rank's tensor, on every rank, in a list with one output per rank; the sizes may differ."""
        source = self._one(sources, "allgather")
        listed = outputs[0] if not isinstance(outputs[0], torch.Tensor) else outputs
        targets = [checked(target) for target in listed]
        self._check_list(targets, "allgather")
        flat = one_stretch(targets)
        return self._gather_into(targets, flat, source, opts, "allgather")

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], sources: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """allgather of several tensors; outputs[rank][i] is what sources[i] is on that rank."""
        self._check_list(outputs, "allgather_coalesced")
        works = [
            self.allgather([[output[i] for output in outputs]], [source], opts) for i, source in enumerate(sources)
        ]
        return self._all_of(works, [target for output in outputs for target in output])

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        """Every rank's tensor, one behind the other in one output, on every rank."""
        output, source = checked(output), checked(source)
        if output.numel() != source.numel() * self._size or output.dtype is not source.dtype:
            raise InvalidArgumentError(
                f"all_gather of {source.dtype} {tuple(source.shape)} into {output.dtype} {tuple(output.shape)} on "
                f"{self._size} ranks: the output has {self._size} times the elements of the input, in its dtype"
            )
        return self._gather_into([output], one_stretch([output]), source, opts, "all_gather")

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """all_gather_single of several tensors."""
        works = [self.all_gather_single(a, b, opts) for a, b in zip(outputs, sources, strict=True)]
        return self._all_of(works, outputs)

    def gather(self, outputs: Any, sources: Any, opts: Any) -> Work:
        """Every rank's tensor on opts.rootRank, in a list with one output per rank; elsewhere the list is empty."""
        source, root = self._one(sources, "gather"), self._check_root(opts.rootRank, "gather")
        targets = [checked(target) for target in outputs[0]] if root == self._rank else []
        if root == self._rank:
            self._check_list(targets, "gather")
        buffer = contiguous(source)
        room = [target.numel() * units(source) for target in targets]
        native = on_stream(self._member.group.gather_async(movable(buffer), root, self._name_of_call(), room), buffer)

        def finish(_: Any) -> None:
            if native.counts:  # on a GPU this waits until the output is there
                deal(gathered(native, source.dtype, source), targets)

        return self._work(native, targets, opts, finish if targets else None)

    def scatter(self, outputs: Any, sources: Any, opts: Any) -> Work:
        """Deals the list of opts.rootRank out to all ranks, one tensor each."""
        output, root = self._one(outputs, "scatter"), self._check_root(opts.rootRank, "scatter")
        source, place = None, InPlace([output])
        if root == self._rank:
            parts = [checked(part) for part in sources[0]]
            self._check_list(parts, "scatter")
            if {part.numel() for part in parts} != {output.numel()}:
                raise InvalidArgumentError(
                    f"scatter: the tensors have {[part.numel() for part in parts]} elements, and each output has "
                    f"{output.numel()}"
                )
            source = movable(apart(joined(parts), place.buffers[0], -root * output.numel()))
        native = self._member.group.scatter_async(source, movable(place.buffers[0]), root, self._name_of_call())
        return self._work(on_stream(native, place.buffers[0]), [output], opts, place.finish)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        source_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """Sends rows of the input to every rank and receives rows from each; no splits = equal parts."""
        output, source = checked(output), checked(source)
        return self._exchange(
            [output],
            output,
            source,
            self._elements(output, output_splits, "output"),
            self._elements(source, source_splits, "input"),
            opts,
            in_place=True,
        )

    def alltoall(self, outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Sends one tensor of a list to each rank, and receives one from each; the sizes may differ."""
        targets, parts = [checked(x) for x in outputs], [checked(x) for x in sources]
        self._check_list(targets, "all_to_all")
        self._check_list(parts, "all_to_all")
        stretch = one_stretch(targets)
        flat = stretch if stretch is not None else targets[0].new_empty(sum(target.numel() for target in targets))
        received = [target.numel() for target in targets]
        sent = [part.numel() for part in parts]
        return self._exchange(targets, flat, joined(parts), received, sent, opts, in_place=stretch is not None)

    def barrier(self, opts: Any = None) -> Work:
        """Returns, or completes, once every rank has called it."""
        group, name = self._member.group, self._name_of_call()
        if not is_async(opts) and not has_limit(opts):
            group.barrier(name)
            return Work(None, [])
        return self._work(group.barrier_async(name), [], opts)

    # The names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single

    def _gather_into(
        self, targets: list[torch.Tensor], flat: torch.Tensor | None, source: torch.Tensor, opts: Any, what: str
    ) -> Work:
        """Gathers into `flat`, which lies over the targets, or, where they have no common memory, through a copy."""
        total = sum(target.numel() for target in targets)
        buffer = source.new_empty(total) if flat is None else flat
        if buffer.dtype is not source.dtype:
            raise InvalidArgumentError(f"{what} of {source.dtype} into {buffer.dtype}: the dtypes must be the same")
        counts = [target.numel() for target in targets]
        if len(targets) != self._size:
            counts = [source.numel()] * self._size
        room = [count * units(source) for count in counts]
        mine = apart(contiguous(source), buffer, sum(counts[: self._rank]))
        native = on_stream(
            self._member.group.allgather_async(movable(mine), self._name_of_call(), movable(buffer), room), buffer
        )

        def finish(_: Any) -> None:
            deal(buffer, targets)

        return self._work(native, targets, opts, finish if flat is None else None)

    def _exchange(
        self,
        targets: list[torch.Tensor],
        flat: torch.Tensor,
        source: torch.Tensor,
        received: Sequence[int],
        sent: Sequence[int],
        opts: Any,
        in_place: bool,
    ) -> Work:
        """All-to-all of `sent` elements of the source to each rank, `received` elements of each into `flat`.

        in_place: flat is the targets' memory; else they get copies of its parts.
        """
        if flat.dtype is not source.dtype:
            raise InvalidArgumentError(f"all_to_all of {source.dtype} into {flat.dtype}: the dtypes must be the same")
        place, unit = InPlace([flat]), units(source)
        native = self._member.group.alltoall_async(
            movable(apart(contiguous(source), place.buffers[0])),
            [count * unit for count in sent],
            self._name_of_call(),
            movable(place.buffers[0]),
            [count * unit for count in received],
        )
        native = on_stream(native, place.buffers[0])

        def finish(_: Any) -> None:
            if place.finish is not None:
                place.finish(None)
            deal(flat, targets)

        return self._work(native, targets, opts, place.finish if in_place else finish)

    def _elements(self, tensor: torch.Tensor, splits: Sequence[int], what: str) -> list[int]:
        """How many elements of the tensor belong to each rank."""
        rows = tensor.shape[0] if tensor.ndim else 1
        if not splits:
            if rows % self._size:
                raise InvalidArgumentError(
                    f"all_to_all: the {what}'s first dimension, {rows}, is not a multiple of {self._size} ranks; pass "
                    "split sizes"
                )
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows or min(splits) < 0:
            raise InvalidArgumentError(
                f"all_to_all: {what} split sizes {list(splits)} for {self._size} ranks and {rows} rows; they are one "
                "per rank, and their sum is the first dimension"
            )
        width = tensor.numel() // rows if rows else 0
        return [rows_of * width for rows_of in splits]

    def _check_list(self, tensors: Sequence[Any], what: str) -> None:
        if len(tensors) != self._size:
            raise InvalidArgumentError(f"{what} takes a list of {self._size} tensors, one per rank, not {len(tensors)}")
