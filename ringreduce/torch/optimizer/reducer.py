"""The reducer: reduces an optimizer's gradients over the ranks while and after autograd computes them.

One hook per parameter says that its gradient is final on this rank. A bucket whose gradients have all come is launched;
buckets are launched in index order on every rank, which is agreed once, so nothing is negotiated afterwards and a rank
cannot be ahead in another bucket. What has not come by synchronize() is taken as it is, or as zeros.

The buckets are laid out in the first synchronize(), because which gradients are sparse is seen only then.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from ringreduce.collectives.objects import allgather_object
from ringreduce.collectives.ops import Max
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job import collective_json
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch import gradient_reduction
from ringreduce.torch.compression import NoneCompressor, way_for
from ringreduce.torch.gradient_reduction import Channel
from ringreduce.torch.optimizer import layout, owners
from ringreduce.torch.optimizer.buckets import Bucket, ExchangeBucket, Slot
from ringreduce.torch.optimizer.registered_bucket import RegisteredBucket, allocate
from ringreduce.torch.optimizer.sparse_bucket import SparseBucket
from ringreduce.torch.profiling import ranged
from ringreduce.torch.tracing import STEP, untraced

_made = 0  # reducers in this process, for names that differ between optimizers


INTERRUPTED = " An interrupt has left the last step() half done: call step() again, which waits for the rest."


class Settings(NamedTuple):
    """How the gradients are reduced; the same on all ranks."""

    op: int
    prescale: float
    postscale: float
    compression: Any  # a Compressor or a Stateful
    groups: list[list[torch.Tensor]] | int
    sparse_as_dense: bool
    views: bool


class Reducer:
    """Reduces the gradients of some parameters: (name, parameter, section) each, see Slot.

    Construction is collective over the process set.
    """

    has_shares = False  # shard_step=True

    def __init__(
        self,
        named: Sequence[tuple[str, torch.nn.Parameter, int]],
        settings: Settings,
        process_set: ProcessSet,
        passes: int,
    ) -> None:
        self._settings = settings
        self._process_set = process_set
        self._channel = Channel(process_set, settings.op, settings.prescale, settings.postscale)
        self._limit = layout.limit()
        self._makes_dense = settings.sparse_as_dense
        self._sparse_again: dict[int, int] = {}  # slots whose gradients were made dense, and their sparse dimensions
        self._passes = passes
        self._begun = False  # a hooked gradient is final since the last synchronize()
        self._is_for_once = False  # the buckets are for this step, in which a rank had joined
        self._is_half_done = False  # synchronize() was interrupted
        self._group = weakref.ref(process_set.group)
        self.is_detached = False
        """Whether a newer reducer has taken over one of its parameters."""
        self._slots = [Slot(parameter, name, section) for name, parameter, section in reversed(named)]
        self._prefix = self._agree(self._groups())
        self._buckets: list[Bucket] = []
        self._loaded: list[dict[str, Any]] = []
        # Once: a compressor may count what it does.
        self._described = gradient_reduction.described(settings.compression)
        self._launched = 0
        # Autograd has a thread for each GPU, and runs the CPU's nodes in the caller's.
        self._launching = threading.Lock()
        owners.take_over(self._slots, self)
        for slot in self._slots:
            slot.hook = _register(slot, weakref.ref(self))
        self.remove = weakref.finalize(self, _remove, self._slots)
        """Takes the hooks off the parameters."""
        self._expect()

    @property
    def prefix(self) -> str:
        """How the names of its operations begin, the same on all ranks."""
        return self._prefix

    @property
    def pending(self) -> bool:
        """Whether a gradient has come since the last synchronize()."""
        return self._begun or any(bucket.arrived for bucket in self._buckets)

    @property
    def is_busy(self) -> bool:
        """Whether it is pending, and in the job in which it was made."""
        return self.pending and self._group() is self._process_set.group

    def detach(self) -> None:
        """Takes its hooks off: a newer reducer has one of the parameters."""
        self.remove()
        self.is_detached = True

    @property
    def can_resume(self) -> bool:
        """Whether an interrupted synchronize() can be called once more: what its buckets wait for can be, again."""
        has_plain = all(isinstance(bucket, RegisteredBucket) for bucket in self._buckets)
        return bool(self._buckets) and has_plain and not self._is_for_once

    @property
    def is_half_done(self) -> bool:
        """Whether a synchronize() was interrupted; another one takes it up."""
        return self._is_half_done

    @property
    def exchanges(self) -> list[gradient_reduction.Exchange]:
        """What the compressor made, one for each bucket; none before the first synchronize()."""
        return [bucket.exchange for bucket in self._buckets if isinstance(bucket, ExchangeBucket)]

    def exchange_state(self) -> list[dict[str, Any]]:
        """What they remember, and of which compression; before the first synchronize(), what was loaded."""
        if not self._buckets:
            return self._loaded
        return [{"compression": self._described, "exchange": one.state_dict()} for one in self.exchanges]

    def load_exchanges(self, state: list[dict[str, Any]]) -> None:
        """Has the exchanges go on from what they remembered; once there are buckets, if there are none yet.

        Raises InvalidArgumentError, before any has loaded its part, for a state of another compression, or of another
        number of buckets.
        """
        told = [one.get("compression", "one that it does not name") for one in state]
        if any(theirs != self._described for theirs in told):
            raise InvalidArgumentError(
                f"the compressor's state is of {', '.join(sorted(set(told)))}, and this optimizer has "
                f"{self._described}: make it with the compression of the state, or leave the state out, and the last "
                "step's remainder is lost"
            )
        self._loaded = state if not self._buckets else []
        if not self._buckets or not state:
            return
        if len(state) != len(self.exchanges):
            raise InvalidArgumentError(
                f"the compressor's state is of {len(state)} buckets, and there are {len(self.exchanges)}"
            )
        for one, theirs in zip(self.exchanges, state, strict=True):
            one.load_state_dict(theirs["exchange"])

    def set_passes(self, passes: int) -> None:
        """Expects so many gradients of each parameter in a round, from the next round on."""
        self.settle()
        self._passes = passes
        self._expect()

    def settle(self) -> None:
        """Ends a round that has begun, whose gradients nobody uses: other ranks may be waiting for it."""
        if self.pending:
            with suppress(InvalidArgumentError):  # somebody has changed them, or taken them away
                self.synchronize()

    @untraced(STEP)
    @ranged("DistributedOptimizer.synchronize")
    def synchronize(self) -> None:
        """Launches what is left, and waits until every gradient is reduced. Raises the first error of all buckets."""
        try:
            with torch.no_grad():
                error = self._end_round()
            self._expect()
        except BaseException as ended:
            self._is_half_done = not isinstance(ended, Exception)
            raise
        if error is not None:
            raise error

    def _end_round(self) -> Exception | None:
        error: Exception | None = None
        if not self._buckets:
            self._is_for_once = not self._begin_layout()
        elif self._makes_dense:
            self._make_dense()
        if any(bucket.has_arrived_too_often(self._passes) for bucket in self._buckets):
            error = _too_often()  # raised when the other ranks have what they wait for
        try:
            for bucket in self._buckets[self._launched :]:
                bucket.begin()
                self._launched += 1
        except Exception as caught:
            error = error or caught
        for bucket in self._buckets[: self._launched]:
            try:
                bucket.finish()
            except Exception as caught:
                error = error or caught
        for at, dims in self._sparse_again.items():
            _make_sparse(self._slots[at], dims)
        if self._is_for_once:
            self._drop_layout()
        return error

    @untraced(STEP)
    def ready(self, slot: Slot) -> None:
        """Called by autograd when the slot's parameter has a new gradient."""
        self._begun = True
        left = slot.passes_left
        if left > 1:
            slot.passes_left = left - 1
            return
        if left <= 0:
            raise _too_often(INTERRUPTED if self._is_half_done else "")
        slot.passes_left = 0
        bucket = slot.bucket
        if bucket is None:
            return
        if self._makes_dense:
            _make_dense(slot)
        bucket.note_stream(slot.parameter)
        if slot.is_large:
            bucket.collect(slot)
        with self._launching:
            bucket.waiting -= 1
            buckets = self._buckets
            while self._launched < len(buckets) and buckets[self._launched].is_complete(self._passes):
                buckets[self._launched].begin()
                self._launched += 1

    def _expect(self) -> None:
        """Begins a round."""
        for slot in () if self._buckets else self._slots:
            slot.passes_left = self._passes
        for bucket in self._buckets:
            bucket.expect(self._passes)
        self._launched = 0
        self._begun = self._is_half_done = False

    def _make_dense(self) -> None:
        for slot in self._slots:
            _make_dense(slot)

    def _begin_layout(self) -> bool:
        """Makes the buckets. Collective. False where a rank has joined before its first step: they are for this step.

        Registered memory takes all ranks. So the buckets that stay are made in the first step of all.
        """
        everyone, sparse = self._find_sparse()
        if self._makes_dense:
            self._sparse_again, sparse = sparse, {}
            self._make_dense()
        if not everyone:
            self._buckets = self._lay_out(sparse, may_register=False)
            return False
        self._use(self._lay_out(sparse))
        self.load_exchanges(self._loaded)
        return True

    def _drop_layout(self) -> None:
        self._buckets = []
        self._is_for_once = False
        for slot in self._slots:
            slot.bucket = None

    def _use(self, buckets: list[Bucket]) -> None:
        """Takes the buckets that were laid out; small gradients are only written down from now on."""
        self._buckets = buckets
        if self._makes_dense:
            return
        for bucket in buckets:
            _batch(bucket)

    @property
    def stretches(self) -> list[torch.Tensor]:
        """The registered memory in which gradients are views."""
        return [bucket.whole for bucket in self._buckets if isinstance(bucket, RegisteredBucket)]

    def let_go_of_views(self) -> None:
        """Leaves gradients in the tensors that autograd gives them, from the next round on. Between rounds."""
        for at, bucket in enumerate(self._buckets):
            if isinstance(bucket, RegisteredBucket):
                exchange = gradient_reduction.make(NoneCompressor, bucket.channel)
                self._buckets[at] = ExchangeBucket(bucket.slots, bucket.name, exchange)
                if not self._makes_dense:
                    _batch(self._buckets[at])
        self._expect()

    def _lay_out(self, sparse: Mapping[int, int], may_register: bool = True) -> list[Bucket]:
        """Makes the buckets; all gradients of the first round are there, or will not come. Collective.

        Args:
            sparse: slots that travel by their indices and values, with their sparse dimensions.
            may_register: whether gradients get registered memory, which takes all ranks.
        """
        settings, channel = self._settings, self._channel
        groups = self._groups(sparse)
        names = [f"{self._prefix}.{index}" for index in range(len(groups) + len(sparse))]
        ways = [
            way_for(self._settings.compression, [slot.parameter.dtype for slot in slots], self._channel)
            for slots in groups
        ]
        views = settings.views and may_register
        is_registered = [views and compression is NoneCompressor for compression, _ in ways]
        registered = [slots for slots, here in zip(groups, is_registered, strict=True) if here]
        sizes = [RegisteredBucket.nbytes(slots) for slots in registered]
        stretches = iter(allocate(sizes, [slots[0].parameter.device for slots in registered], self._process_set))
        buckets: list[Bucket] = []
        for slots, name, way, here in zip(groups, names, ways, is_registered, strict=False):
            if here:
                buckets.append(RegisteredBucket(slots, name, next(stretches), way[1]))
            else:
                buckets.append(ExchangeBucket(slots, name, gradient_reduction.make(*way)))
        for (at, dims), name in zip(sorted(sparse.items()), names[len(groups) :], strict=True):
            buckets.append(SparseBucket(self._slots[at], name, channel, dims))
        for bucket in buckets:
            bucket.passes = self._passes
        return buckets

    def _groups(self, but: Container[int] = ()) -> list[list[Slot]]:
        """The slots of each bucket, without some."""
        slots = [slot for at, slot in enumerate(self._slots) if at not in but]
        return layout.group(slots, self._settings.groups, self._limit)

    def _find_sparse(self) -> tuple[bool, dict[int, int]]:
        """Whether all ranks take part, and which slots have a sparse gradient on any of those that do. Collective.

        By slot: how many sparse dimensions.
        """
        mine = []
        for slot in self._slots:
            grad = slot.parameter.grad
            mine.append(grad.sparse_dim() if grad is not None and grad.layout is not torch.strided else 0)
        group, name = self._process_set.group, f"{self._prefix}.sparse"
        everyone = collective_json.has_nobody_joined(group, name)
        dims = collective_json.allreduce_integers(group, name, mine, Max)
        return everyone, {at: dim for at, dim in enumerate(dims) if dim}

    def _agree(self, groups: Sequence[Sequence[Slot]]) -> str:
        """Checks that all ranks have the same layout; returns the prefix of the buckets' names. Collective."""
        global _made
        at = {id(slot): index for index, slot in enumerate(self._slots)}
        described = [layout.describe(slot) for slot in self._slots]
        buckets = [[at[id(slot)] for slot in slots] for slots in groups]
        chosen = self._settings
        settings = (
            f"op={int(chosen.op)} prescale={chosen.prescale} postscale={chosen.postscale} "
            f"compression={gradient_reduction.described(chosen.compression)} gradient_as_bucket_view={chosen.views} "
            f"shard_step={self.has_shares} fusion_threshold={self._limit}"
        )
        digest = hashlib.sha256(repr((described, buckets, settings)).encode()).hexdigest()
        mine = [_made, digest, owners.are_busy(self._slots)]
        gathered = collective_json.allgather_json(self._process_set.group, "DistributedOptimizer", mine)
        _made = max(made for made, *_ in gathered) + 1
        if any(theirs != digest for _, theirs, _ in gathered):
            agreed: layout.Agreed = (described, buckets, settings)
            raise MismatchError(layout.difference(allgather_object(agreed, process_set=self._process_set)))
        if any(is_busy for *_, is_busy in gathered):
            ranks = zip(self._process_set.ranks, gathered, strict=True)
            raise owners.busy([rank for rank, (*_, is_busy) in ranks if is_busy])
        return f"DistributedOptimizer.{_made}.bucket"


def _register(slot: Slot, reference: weakref.ref[Reducer]) -> Any:
    """Puts a hook on the slot's parameter; the hook does not keep the reducer alive."""

    def hook(_: torch.Tensor) -> None:
        reducer = reference()
        if reducer is not None:
            reducer.ready(slot)

    return _hook(slot, hook)


def _hook(slot: Slot, hook: Callable[[torch.Tensor], None]) -> Any:
    parameter = slot.parameter
    is_required = parameter.requires_grad
    parameter.requires_grad_(True)  # torch refuses a hook on a parameter that is frozen just now
    try:
        return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    finally:
        parameter.requires_grad_(is_required)


def _batch(bucket: Bucket) -> None:
    """Has small gradients only written down."""
    bucket.batch_small_gradients()
    for slot in bucket.batched:
        slot.hook.remove()
        slot.hook = _hook(slot, bucket.arrive_on_gpu if slot.parameter.is_cuda else bucket.arrived.append)


def _remove(slots: Sequence[Slot]) -> None:
    for slot in slots:
        slot.hook.remove()


def _too_often(hint: str = "") -> AssertionError:
    return AssertionError(
        "Gradients were computed more than backward_passes_per_step times before call to step(). "
        "Increase backward_passes_per_step to accumulate gradients locally." + hint
    )


def _make_dense(slot: Slot) -> None:
    grad = slot.parameter.grad
    if grad is not None and grad.layout is not torch.strided:
        slot.parameter.grad = grad.to_dense()


def _make_sparse(slot: Slot, dims: int) -> None:
    """The rows of a reduced gradient that are not zero: what torch.optim.SparseAdam asks for."""
    grad = slot.parameter.grad
    if grad is not None and grad.layout is torch.strided:
        slot.parameter.grad = grad.to_sparse(dims)
