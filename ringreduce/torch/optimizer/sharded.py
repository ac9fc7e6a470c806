"""DistributedOptimizer(shard_step=True): the step is shared out, and so is the optimizer's state (ZeRO stage 1).

In a step each rank gets its share of the reduced gradients (one reduce-scatter a bucket), updates its share of the
parameters, with its share of the momenta, and all ranks get all shares (one all-gather a bucket). With N ranks that
moves as many bytes as an all-reduce, and takes 1/N of the memory for state and of the arithmetic of the update. Buckets
do not span parameter groups, so each shard has the options of one group; the user's own optimizer class updates the
shards as if they were parameters. That needs an optimizer which treats each element by itself; the results are then
those of the step that is not shared out.

What differs from the step that is not shared out:

* After step(), parameter.grad is reduced on the share of this rank only. After synchronize() it is so everywhere.
* Hooks before the step run before it waits for the reduction.
* state_dict() is collective: it gathers the shares, into the format of the plain optimizer. optimizer.state has that of
  frozen parameters alone, and of the others the keys.
* Parameters that are added or switched on later have buckets of their own; none can be switched off.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
SC 2020, arXiv:1910.02054, section 5.1.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch

from ringreduce._core import Work
from ringreduce.collectives.ops import Average, Max, Sum
from ringreduce.errors import InvalidArgumentError, MismatchError, ShutdownError, TimeoutError
from ringreduce.torch.collectives.allreduce import allreduce_
from ringreduce.torch.compression import NoneCompressor
from ringreduce.torch.optimizer import kept_gradients
from ringreduce.torch.optimizer.clipping import norm_of, scale_down
from ringreduce.torch.optimizer.distributed_optimizer import NOT_REDUCED, DistributedMixin, Named
from ringreduce.torch.optimizer.reducer import Settings
from ringreduce.torch.optimizer.shard_state import StateInShards, of_pieces, to_parameters, to_pieces, to_shard
from ringreduce.torch.optimizer.shards import ShardedBucket, ShardedReducer
from ringreduce.torch.tracing import STEP, untraced

ELEMENTWISE = (
    "ASGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
"""The classes of torch.optim whose update of an element depends on that element's own gradients and state only."""

HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)

REPLACED = (
    "a gradient was replaced after clip_grad_norm_(), which with shard_step=True reduces this rank's share of it only: "
    "call optimizer.synchronize() before gradients are replaced, on all ranks"
)


def check_shardable(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    """Raises InvalidArgumentError for an optimizer that is not known to be elementwise, or settings that do not fit."""
    kind = type(optimizer)
    known = [getattr(torch.optim, name, None) for name in ELEMENTWISE]
    if kind not in known and not getattr(kind, "ringreduce_elementwise", False):
        raise InvalidArgumentError(
            f"shard_step=True needs an optimizer that updates each element by itself: one of torch.optim's "
            f"{', '.join(ELEMENTWISE)}, or a class with the attribute ringreduce_elementwise = True; not "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    if settings.compression is not NoneCompressor:
        raise InvalidArgumentError("shard_step=True reduces gradients as they are; pass no compression")
    if settings.op not in (Average, Sum):
        raise InvalidArgumentError("shard_step=True supports op Average and Sum")
    if not settings.views:
        raise InvalidArgumentError("shard_step=True needs gradient_as_bucket_view=True")
    owners: dict[int, torch.Tensor] = {}
    for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.numel()):
        if owners.setdefault(parameter.data_ptr(), parameter) is not parameter:
            raise InvalidArgumentError(
                "shard_step=True: two parameters share their memory; give both modules the same torch.nn.Parameter"
            )


def _plain_step(plain: type[torch.optim.Optimizer]) -> Callable[[torch.optim.Optimizer], Any]:
    """The class's step() without the hooks that torch puts around it: they belong to the whole optimizer."""
    step: Any = plain.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


class ShardedMixin(DistributedMixin):
    """Comes before the user's class; an instance of that class alone, `_inner`, updates the shards."""

    _inner: torch.optim.Optimizer

    def _start(self, names: dict[torch.nn.Parameter, str], *arguments: Any) -> None:
        inner: Any = object.__new__(self._plain)
        inner.__dict__.update(vars(self))
        inner.__dict__.update((name, OrderedDict()) for name in HOOKS if name in vars(self))
        inner.state = defaultdict(dict)
        inner.param_groups = []
        self._inner = inner
        super()._start(names, *arguments)
        whole = self.state  # which the plain optimizer has too
        self._keep_whole_state()
        whole.clear()

    def _keep_whole_state(self) -> None:
        """Has self.state know of the shards."""
        self.state: Any = StateInShards(self.state, self._inner.state, self._reducers)

    def _make_reducer(self, named: list[Named]) -> ShardedReducer:
        reducer = ShardedReducer(named, self._settings, self._process_set, self._progress.passes)
        self._fit_groups()
        for bucket in reducer.shards:
            self._inner.param_groups[bucket.section]["params"].extend(bucket.pieces)
        return reducer

    def _start_state(self, parameters: list[tuple[str, torch.nn.Parameter]]) -> list[tuple[str, torch.Tensor]]:
        """None: each rank has the state of its own share."""
        return []

    def _extend(self) -> None:
        super()._extend()
        if any(self._inner.state.values()):  # else all of it is whole until the next step()
            self._shard_state()

    def _fit_groups(self) -> None:
        groups = self._inner.param_groups
        groups += [{"params": []} for _ in self.param_groups[len(groups) :]]

    def _buckets(self) -> list[ShardedBucket]:
        return [bucket for reducer in self._reducers for bucket in reducer.shards]

    def synchronize(self) -> None:
        """Waits until the gradients are reduced, in parameter.grad on all ranks, for what comes before step().

        Costs an all-gather of the gradients; clip_grad_norm_() does not.
        """
        is_interrupted = bool(self._progress.under_way) and not self._progress.is_updated
        self._complete()
        if is_interrupted:
            return
        is_shared = self._progress.scaled and not self._pending()
        super().synchronize()
        if not is_shared:
            self._spread(ShardedBucket.share_gradients)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """See DistributedMixin: each rank looks at its share, and one small all-reduce puts the norms together.

        Raises InvalidArgumentError for a norm_type that is not > 0, unless synchronize() has come before.
        """
        if self._progress.synchronized and not self._pending():
            whole = super().clip_grad_norm_(max_norm, norm_type, error_if_nonfinite)
            self._progress.synchronized = True  # parameter.grad is whole, and what replaces it now is used
            return whole
        order = float(norm_type)
        if not order > 0:
            raise InvalidArgumentError(
                f"clip_grad_norm_: norm_type must be > 0 with shard_step=True, where each rank looks at its share, and "
                f"is {norm_type}: call optimizer.synchronize() before, then each rank looks at whole gradients"
            )
        if self._is_to_be_reduced():
            self._reduce()
        self._progress.synchronized = False
        grads = [bucket.shard.grad for bucket in self._buckets() if bucket.shard.grad is not None]
        mine = norm_of(grads, order)
        total = mine if math.isinf(order) else mine**order
        allreduce_(total, op=Max if math.isinf(order) else Sum, process_set=self._process_set)
        norm = total[0] if math.isinf(order) else total[0] ** (1.0 / order)
        norm = scale_down(grads, norm, max_norm, norm_type, error_if_nonfinite)
        self._progress.clipped = self._progress.is_doubtful = True
        return norm

    @untraced(STEP)
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's step: this rank's share, then everybody's. A closure is called once, and may reduce."""
        self._check_lost()
        if self._complete() and not self._pending():
            return None  # it was an interrupted step() that remained to be done
        self._begin_step()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        fresh = self._is_fresh()
        if fresh and not self._progress.synchronized and any(bucket.has_replaced() for bucket in self._buckets()):
            raise InvalidArgumentError(REPLACED)
        if not self._is_reduced():
            self._reduce()
        elif not fresh:
            raise AssertionError(NOT_REDUCED)
        elif self._progress.synchronized:
            with torch.no_grad():
                for bucket in self._buckets():
                    bucket.recollect()
        self._progress.synchronized = False
        self._update()
        if self._progress.looks:
            self._look_at_state()
        return loss

    step = torch.optim.Optimizer.profile_hook_step(step)
    step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it again

    def _update(self) -> None:
        inner, buckets = self._inner, self._buckets()
        for bucket in buckets:
            bucket.adopt()
        idle = [(piece, piece.grad) for bucket in buckets if not bucket.has_gradients() for piece in bucket.pieces]
        self._fit_groups()
        for group, options in zip(inner.param_groups, self.param_groups, strict=True):
            group.update((key, value) for key, value in options.items() if key != "params")
        for name in ("grad_scale", "found_inf"):  # what torch.amp.GradScaler tells a fused optimizer
            vars(inner).pop(name, None)  # of an earlier step
            if hasattr(self, name):
                setattr(inner, name, getattr(self, name))
        self._shard_state()
        try:
            for piece, _ in idle:
                piece.grad = None
            self._plainly(_plain_step(self._plain), inner)
        finally:
            for piece, grad in idle:
                piece.grad = grad
        for options, group in zip(self.param_groups, inner.param_groups, strict=True):  # some optimizers count there
            options.update((key, value) for key, value in group.items() if key != "params")
        self._progress.is_updated = True
        self._spread(ShardedBucket.share_values)
        self._complete()

    def _look_at_state(self) -> None:
        """After the first steps: raises InvalidArgumentError if the optimizer keeps gradients."""
        kept = next(kept_gradients.find(self._inner.state, [bucket.whole for bucket in self._buckets()]), None)
        if kept is not None:
            raise InvalidArgumentError(
                f"the optimizer keeps gradients themselves in its state, as {kept[1]!r}, where the next ones would "
                "overwrite them: change it to keep a clone(), or pass gradient_as_bucket_view=False, without "
                "shard_step=True"
            )
        self._progress.looks -= 1

    def _spread(self, start: Callable[[ShardedBucket], Work]) -> None:
        self._progress.under_way = [start(bucket) for bucket in self._buckets()]
        self._await_shares()

    def _await_shares(self) -> None:
        try:
            for work in self._progress.under_way:
                work.wait()
        except Exception:
            self._progress.under_way, self._progress.is_updated = [], False
            raise
        self._progress.under_way = []

    def _complete(self) -> bool:
        """Ends what an interrupt has left under way. Whether that is the end of a step()."""
        self._await_shares()
        is_updated, self._progress.is_updated = self._progress.is_updated, False
        for bucket in self._buckets() if is_updated else ():
            bucket.publish()
        return is_updated

    @property
    def state_of_shards(self) -> Any:
        """What this rank keeps of the state since its last step(); for broadcast_optimizer_state()."""
        return self._inner.state

    def unsharded_buckets(self) -> list[ShardedBucket]:
        """The buckets of whose parameters a state was loaded or broadcast since the last step()."""
        if len(self.state) == 0:
            return []
        return [bucket for bucket in self._buckets() if any(self.state.get(slot.parameter) for slot in bucket.slots)]

    def _shard_state(self) -> None:
        """Takes this rank's share of a state that was loaded or broadcast, and lets go of it; not of the frozen's."""
        taken = [(bucket, to_pieces(bucket, to_shard(bucket, self.state))) for bucket in self.unsharded_buckets()]
        for bucket, states in taken:
            self._inner.state.update(zip(bucket.pieces, states, strict=True))
            for slot in bucket.slots:
                self.state.pop(slot.parameter, None)

    def state_dict(self) -> dict[str, Any]:
        """The whole state, in the plain optimizer's format. Collective, unless it was loaded since the last step()."""
        if self.unsharded_buckets():
            return super().state_dict()
        full = self._gathered_state()
        parameters = (p for group in self.param_groups for p in group["params"])
        try:
            self.state.update((parameter, full[parameter]) for parameter in parameters if parameter in full)
            return super().state_dict()
        finally:
            for parameter in full:
                self.state.pop(parameter, None)

    def _gathered_state(self) -> dict[Any, dict[str, Any]]:
        full: dict[Any, dict[str, Any]] = {}
        try:
            for bucket in self._buckets():
                states = [self._inner.state.get(piece, {}) for piece in bucket.pieces]
                full.update(to_parameters(bucket, of_pieces(bucket, states)))
        except (MismatchError, ShutdownError, TimeoutError) as error:
            raise type(error)(
                f"{error}. With shard_step=True state_dict() gathers the state from all ranks: call it on all of them, "
                "and save the result on one"
            ) from error
        return full

    def load_state_dict(self, state_dict: Any) -> None:
        """Takes a whole state, of a plain or distributed optimizer; each step() from now on uses this rank's share."""
        super().load_state_dict(state_dict)
        self._inner.state.clear()
        self._keep_whole_state()
