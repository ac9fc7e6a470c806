"""The reducer: reduces an optimizer's gradients over the ranks while and after autograd computes them.

One hook per parameter says that its gradient is final on this rank. A bucket whose gradients have all come is launched;
buckets are launched in index order on every rank, which is agreed once, so nothing is negotiated afterwards and a rank
cannot be ahead in another bucket. What has not come by synchronize() is taken as it is, or as zeros.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ringreduce import agreement
from ringreduce._core import Work
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.objects import allgather_object
from ringreduce.process_sets import ProcessSet
from ringreduce.torch.buckets import BUCKET_NBYTES, Bucket, Slot, TensorBucket, plan, registered, strides_of
from ringreduce.torch.compression import Compressor, NoneCompressor
from ringreduce.torch.tracing import STEP, untraced

_made = 0  # reducers in this process, for names that differ between optimizers


class Settings(NamedTuple):
    """How the gradients are reduced; the same on all ranks."""

    op: int
    prescale: float
    postscale: float
    compression: type[Compressor]
    groups: list[list[torch.Tensor]] | int
    sparse_as_dense: bool
    views: bool


class Reducer:
    """Reduces the gradients of some named parameters. Construction is collective over the process set."""

    def __init__(
        self, named: Sequence[tuple[str, torch.nn.Parameter]], settings: Settings, process_set: ProcessSet, passes: int
    ) -> None:
        self._settings = settings
        self._process_set = process_set
        self._passes = passes
        self.pending = False  # a gradient has come since the last synchronize()
        self._launched: list[Work] = []
        slots = [Slot(parameter, name) for name, parameter in reversed(named)]
        groups = _group(slots, settings.groups)
        self._prefix = self._agree(groups)
        if settings.views and settings.compression is NoneCompressor:
            self._buckets = registered(groups, process_set)
        else:
            self._buckets = [TensorBucket(slots, settings.compression) for slots in groups]
        hooks = [_register(slot, weakref.ref(self)) for slot in slots]
        self.remove = weakref.finalize(self, _remove, hooks)
        """Takes the hooks off the parameters."""
        self._expect()

    def set_passes(self, passes: int) -> None:
        """Expects so many gradients of each parameter in a round, from the next round on."""
        self.settle()
        self._passes = passes
        self._expect()

    def settle(self) -> None:
        """Ends a round that has begun: other ranks may be waiting for it."""
        if self.pending:
            self.synchronize()

    def _expect(self) -> None:
        """Begins a round."""
        for bucket in self._buckets:
            bucket.waiting = len(bucket.slots)
            for slot in bucket.slots:
                slot.passes_left = self._passes
        self._launched = []
        self.pending = False

    @untraced(STEP)
    def synchronize(self) -> None:
        """Launches what is left, and waits until every gradient is reduced. Raises the first error of all buckets."""
        error: BaseException | None = None
        with torch.no_grad():
            for bucket in self._buckets[len(self._launched) :]:
                for slot in bucket.slots:
                    if slot.passes_left > 0:
                        self._collect(slot)
                self._launch(bucket)
            for work, bucket in zip(self._launched, self._buckets, strict=True):
                try:
                    work.wait()
                    bucket.finish()
                except Exception as caught:
                    error = error or caught
        self._expect()
        if error is not None:
            raise error

    @untraced(STEP)
    def ready(self, slot: Slot) -> None:
        """Called by autograd when the slot's parameter has a new gradient."""
        if slot.passes_left <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self.pending = True
        slot.passes_left -= 1
        if slot.passes_left == 0:
            bucket = slot.bucket
            self._collect(slot)
            bucket.waiting -= 1
            while len(self._launched) < len(self._buckets) and self._buckets[len(self._launched)].waiting == 0:
                self._launch(self._buckets[len(self._launched)])

    def _collect(self, slot: Slot) -> None:
        grad = slot.parameter.grad
        if grad is not None:
            if grad.requires_grad:
                raise AssertionError("gradients that require gradients (create_graph=True) cannot be reduced in place")
            if grad.layout is not torch.strided:
                if not self._settings.sparse_as_dense:
                    raise InvalidArgumentError(
                        f"the gradient of {slot.name} is sparse; pass sparse_as_dense=True to DistributedOptimizer"
                    )
                slot.parameter.grad = grad.to_dense()
        slot.bucket.collect(slot)

    def _launch(self, bucket: Bucket) -> None:
        operands = bucket.operands()
        settings = self._settings
        work = self._process_set.group.allreduce_async(
            operands,
            operands,
            settings.op,
            settings.prescale,
            settings.postscale,
            f"{self._prefix}.{len(self._launched)}",
        )
        self._launched.append(work)

    def _agree(self, groups: Sequence[Sequence[Slot]]) -> str:
        """Checks that all ranks have the same layout; returns the prefix of the buckets' names. Collective."""
        global _made
        layout = [[_describe(slot) for slot in slots] for slots in groups]
        chosen = self._settings
        settings = (
            f"op={int(chosen.op)} prescale={chosen.prescale} postscale={chosen.postscale} "
            f"compression={chosen.compression.__name__} gradient_as_bucket_view={chosen.views}"
        )
        digest = hashlib.sha256(repr((layout, settings)).encode()).hexdigest()
        offers = agreement.exchange(self._process_set.group, "DistributedOptimizer", [_made, digest])
        _made = max(made for made, _ in offers) + 1
        if any(theirs != digest for _, theirs in offers):
            raise MismatchError(_difference(allgather_object((layout, settings), process_set=self._process_set)))
        return f"DistributedOptimizer.{_made}.bucket"


def _register(slot: Slot, reference: weakref.ref[Reducer]) -> Any:
    """Puts a hook on the slot's parameter; the hook does not keep the reducer alive."""

    def hook(_: torch.Tensor) -> None:
        reducer = reference()
        if reducer is not None:
            reducer.ready(slot)

    return slot.parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _group(slots: Sequence[Slot], groups: list[list[torch.Tensor]] | int) -> list[list[Slot]]:
    """The slots of each bucket: the user's groups, and buckets of BUCKET_NBYTES of the others."""
    if isinstance(groups, int):
        chosen = (
            {id(slot.parameter): index * groups // len(slots) for index, slot in enumerate(slots)} if groups else {}
        )
    else:
        chosen = {id(parameter): index for index, group in enumerate(groups) for parameter in group}
    nbytes = [slot.parameter.numel() * slot.parameter.dtype.itemsize for slot in slots]
    deals: list[list[int]] = []
    for grouped in (True, False):
        members = [index for index, slot in enumerate(slots) if (id(slot.parameter) in chosen) is grouped]
        kinds = [(slots[i].parameter.dtype, chosen.get(id(slots[i].parameter))) for i in members]
        limit = sum(nbytes) if grouped else BUCKET_NBYTES
        deals += [[members[i] for i in deal] for deal in plan([nbytes[i] for i in members], kinds, limit)]
    return [[slots[i] for i in deal] for deal in sorted(deals, key=lambda deal: deal[-1])]


def _describe(slot: Slot) -> str:
    parameter = slot.parameter
    dtype = str(parameter.dtype).removeprefix("torch.")
    return f"{slot.name} {dtype} {list(parameter.shape)} strides {list(strides_of(parameter))}"


def _difference(layouts: Sequence[Any]) -> str:
    """Which ranks differ from rank 0, and where first."""
    for rank, theirs in enumerate(layouts):
        if theirs == layouts[0]:
            continue
        ours, them = ([line for slots in layout[0] for line in slots] for layout in (layouts[0], theirs))
        where = next((i for i, pair in enumerate(zip(ours, them, strict=False)) if pair[0] != pair[1]), None)
        if where is not None:
            return (
                "Mismatched DistributedOptimizer: the ranks have different parameters (in reverse order, number "
                f"{where}: rank 0 has {ours[where]}, but rank {rank} has {them[where]})"
            )
        if len(ours) != len(them):
            return (
                f"Mismatched DistributedOptimizer: rank 0 has {len(ours)} parameters, but rank {rank} has {len(them)}"
            )
        return (
            "Mismatched DistributedOptimizer: the ranks have different groups or settings: rank 0 has "
            f"{len(layouts[0][0])} buckets, {layouts[0][1]}, but rank {rank} has {len(theirs[0])}, {theirs[1]}"
        )
    raise AssertionError("the layouts are equal")
