"""What DistributedOptimizer puts in front of the user's optimizer class: reduction before the step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ringreduce import config
from ringreduce.collectives.ops import Max
from ringreduce.common.arguments import whole_passes
from ringreduce.common.same_start import OPTIMIZER
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job.collective_json import allreduce_integers
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch.collectives.allreduce import allreduce, allreduce_
from ringreduce.torch.optimizer import kept_gradients, same_start
from ringreduce.torch.optimizer.clipping import norm_of, scale_down
from ringreduce.torch.optimizer.grad_scaler import reduce_before_unscaling
from ringreduce.torch.optimizer.mixins import ParameterWatch, check_gradient_dtypes, check_memory, same_groups
from ringreduce.torch.optimizer.progress import Progress
from ringreduce.torch.optimizer.reducer import INTERRUPTED, Reducer, Settings
from ringreduce.torch.tracing import STEP, untraced

Named = tuple[str, torch.nn.Parameter, int]

NOT_REDUCED = "step() within skip_synchronize() needs a synchronize() after the last backward()"

reduce_before_unscaling()


class DistributedMixin(torch.optim.Optimizer):
    """Comes before the user's class in the class of the result; super() is that class."""

    _plain: type[torch.optim.Optimizer]
    _reducers: list[Any]

    def _start(
        self,
        names: dict[torch.nn.Parameter, str],
        settings: Settings,
        process_set: ProcessSet,
        backward_passes_per_step: int,
    ) -> None:
        self._parameter_names = names
        self._watch = ParameterWatch() if process_set.included() and process_set.size() != 1 else None
        self._settings = settings
        self._process_set = process_set
        self._progress = Progress(passes=backward_passes_per_step, joins=process_set.joins)
        self._reducers = []
        self._reduced: set[torch.nn.Parameter] = set()
        self._extend()

    def _extend(self) -> None:
        """Has the parameters reduced that are not yet. Collective; needs more than one rank to be of use."""
        if not self._process_set.included() or self._process_set.size() == 1:
            return
        found = [
            (self._parameter_names[p], p, section)
            for section, group in enumerate(self.param_groups)
            for p in group["params"]
            if p not in self._reduced
        ]
        new = [item for item in found if item[1].requires_grad]
        if new:
            check_gradient_dtypes(new)
            if self._progress.is_compared:
                self._compare_anew("with new parameters")
            self._reducers.append(self._make_reducer(new))
            self._reduced.update(p for _, p, _ in new)
        # After an error it has those of before, to try again.
        self._progress.idle = [p for _, p, _ in found if not p.requires_grad]

    def _make_reducer(self, named: list[Named]) -> Reducer:
        whole = [(name, parameter, 0) for name, parameter, _ in named]
        views = self._settings.views and not self._progress.keeps_gradients
        return Reducer(whole, self._settings._replace(views=views), self._process_set, self._progress.passes)

    def _pending(self) -> bool:
        return any(reducer.pending for reducer in self._reducers)

    def _reduce(self, has_closure: bool = False) -> None:
        """Waits until the gradients are reduced. Collective. After an interrupt it goes on where it was, if it can."""
        self._check_lost()
        try:
            self._reduce_all()
        except KeyboardInterrupt as error:
            self._progress.is_lost = has_closure or not self._can_resume()
            if hasattr(error, "add_note") and not self._progress.is_lost:  # Python >= 3.11
                error.add_note("ringreduce:" + INTERRUPTED)
            raise
        self._progress.use()

    def _can_resume(self) -> bool:
        """Whether an interrupted reduction can be waited for once more: one reducer's, of buckets that were there."""
        if self._progress.is_extending or not self._progress.is_compared:
            return False
        return len(self._reducers) == 1 and self._reducers[0].can_resume

    def _check_lost(self) -> None:
        """Raises MismatchError after an interrupt of which nobody knows how far this rank had come.

        Raises InvalidArgumentError where a newer optimizer reduces the gradients.
        """
        if any(reducer.is_detached for reducer in self._reducers):
            raise InvalidArgumentError(
                "a newer DistributedOptimizer of the same parameters, or of some of them, has been made, and reduces "
                "their gradients: this one has none. Call step() of the newer one, or make a DistributedOptimizer again"
            )
        if self._progress.is_lost:
            raise MismatchError(
                "a step() was interrupted where it cannot be taken up, so this rank is apart from the others: end the "
                "job, or make a new DistributedOptimizer after shutdown() and init() on all ranks"
            )

    def _plainly(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """The plain optimizer's step: after an interrupt some parameters have been updated, and others have not."""
        try:
            return step(*arguments)
        except KeyboardInterrupt:
            self._progress.is_lost = True
            raise

    def _reduce_all(self) -> None:
        self._check_groups()
        if self._progress.idle and any(parameter.requires_grad for parameter in self._progress.idle):
            self._progress.is_extending = True
            self._extend()
            self._progress.is_extending = False
        if self._reducers:
            self._compare_start(self._reducers[0].prefix)
        for reducer in self._reducers:
            reducer.synchronize()

    def _check_groups(self) -> None:
        if self._watch is not None:
            self._watch.check(self.param_groups, self._parameter_names)

    def _compare_start(self, prefix: str) -> None:
        """Whether the ranks start from the same. Collective; the prefix is of its operations.

        Before the first step; before the first with new parameters, which each rank may have made by itself; and before
        the first after join(), because a rank that had joined lacks the steps that the others took meanwhile.
        """
        joins = self._process_set.joins
        if joins != self._progress.joins:
            self._progress.joins = joins
            self._compare_anew("after join()")
        if not self._progress.is_compared:
            self._progress.is_compared = same_start.check(
                self._start_values(), f"{prefix}.start", self._process_set, self._progress.compares, self.param_groups
            )

    def _compare_anew(self, when: str) -> None:
        self._progress.is_compared, self._progress.compares = False, f"{OPTIMIZER} {when}"

    def _start_values(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters and the optimizer's state, by names, in the same order on all ranks."""
        self._check_groups()
        parameters = [(self._parameter_names[p], p) for group in self.param_groups for p in group["params"]]
        return [*parameters, *self._start_state(parameters)]

    def _start_state(self, parameters: list[tuple[str, torch.nn.Parameter]]) -> list[tuple[str, torch.Tensor]]:
        """What of the optimizer's state is the same on all ranks."""
        return [
            (f"the optimizer's {key} of {name}", value)
            for name, parameter in parameters
            for key, value in self.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        ]

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward() calls come before a step. To set it is to call set_backward_passes_per_step()."""
        return self._progress.passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward() calls come before a step; between steps."""
        passes = whole_passes(passes)
        self._progress.passes = passes
        for reducer in self._reducers:
            reducer.set_passes(passes)

    def synchronize(self) -> None:
        """Waits until the gradients are reduced, for what comes between backward() and step(), such as clipping.

        Then call step() within skip_synchronize(). Parameters without a gradient get zeros.
        """
        if self._is_to_be_reduced():
            self._reduce()
        self._progress.synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() leaves out the reduction that synchronize() has done.

        >>> optimizer.synchronize()
        >>> torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        >>> with optimizer.skip_synchronize():
        ...     optimizer.step()
        """
        self._progress.should_synchronize = False
        try:
            yield
        finally:
            self._progress.should_synchronize = True

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Reduces the gradients, and scales them so that the norm of all together is at most max_norm.

        The step() that follows uses them as they are. Collective. Arguments and result as of
        torch.nn.utils.clip_grad_norm_; the norm is the same on all ranks, which agree on it by eight bytes.

        >>> loss.backward()
        >>> optimizer.clip_grad_norm_(1.0)
        >>> optimizer.step()
        """
        if (not self._progress.synchronized or self._pending()) and self._is_to_be_reduced():
            self._reduce()
        self._progress.synchronized = False
        parameters = [p for group in self.param_groups for p in group["params"]]
        if self._reducers:
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = allreduce_(norm_of(grads, float(norm_type)), op=Max, process_set=self._process_set)[0]
            norm = scale_down(grads, norm, max_norm, norm_type, error_if_nonfinite)
        else:  # one rank, or its own gradients for op=Adasum
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
        self._progress.clipped = self._progress.is_doubtful = True
        return norm

    def _is_to_be_reduced(self) -> bool:
        """Whether the gradients are not reduced yet; the same on all ranks. Collective after clip_grad_norm_().

        When a step is left out, one rank may have new gradients and another may have had no batch: they ask each other.
        """
        is_new = not self._progress.clipped or self._pending()
        if not self._progress.is_doubtful or not self._reducers:
            return is_new
        name = f"{self._reducers[0].prefix}.new"
        return allreduce_integers(self._process_set.group, name, [int(is_new)], Max) == [1]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch.amp.GradScaler.step() asks for before it divides the gradients, which are to be reduced by then.

        The answer is the plain optimizer's. Collective.
        """
        self._reduce_for_scaler()
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    def _reduce_for_scaler(self) -> None:
        """Reduces the gradients, unless they are; the step() that follows uses them as they are. Collective."""
        if self._progress.should_synchronize and not self._is_fresh():
            self.synchronize()
            self._progress.clipped = self._progress.scaled = True

    def _is_fresh(self) -> bool:
        """Whether the gradients are reduced, and no others have come since."""
        return (self._progress.clipped or self._progress.synchronized) and not self._pending()

    def _forget_reduction(self) -> None:
        """What was reduced has been used, or never will be."""
        self._progress.synchronized = self._progress.clipped = self._progress.scaled = False

    def _begin_step(self) -> None:
        """Warns where step() reduces once more what synchronize() has reduced."""
        if self._progress.should_synchronize and self._progress.synchronized and not self._progress.clipped:
            self._progress.synchronized = False
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
                "if you use optimizer.synchronize() in your code.",
                stacklevel=3,
            )

    def _is_reduced(self) -> bool:
        """True when step() need not reduce; takes note that the gradients are used now. After the closure, if any."""
        if not self._progress.should_synchronize:
            self._check_reduced()
        is_reduced = self._is_fresh()
        self._progress.use()
        return is_reduced or not self._progress.should_synchronize

    def _check_reduced(self) -> None:
        """Raises AssertionError within skip_synchronize(), where gradients of this rank alone would be used."""
        if self._pending():
            raise AssertionError(NOT_REDUCED)

    @untraced(STEP)
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's step, with reduced gradients.

        A closure's gradients are reduced each time it is called, unless it does so itself by clip_grad_norm_() or
        synchronize().
        """
        self._check_lost()
        self._begin_step()
        if closure is None:
            if not self._is_reduced():
                self._reduce()
            self._progress.synchronized = False
            result = self._plainly(super().step)
        else:

            def synchronized() -> Any:
                loss = closure()
                if not self._is_reduced():
                    self._reduce(has_closure=True)
                self._progress.synchronized = False
                return self._loss_of_all(loss)

            result = self._plainly(super().step, synchronized)
        if self._progress.looks:
            self._plainly(self._look_at_state)
        return result

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the plain step(), not here again

    def _look_at_state(self) -> None:
        """After the first steps: if the optimizer keeps gradients, they and the next ones get memory of their own."""
        stretches = [whole for reducer in self._reducers for whole in reducer.stretches]
        if not stretches:  # none yet, where a rank has joined
            return
        self._progress.looks -= 1
        kept = list(kept_gradients.find(self.state, stretches))
        if not kept:
            return
        self._progress.looks, self._progress.keeps_gradients = 0, True
        for _, _, holder, at in kept:
            holder[at] = holder[at].detach().clone()
        for reducer in self._reducers:
            reducer.let_go_of_views()
        parameter, key, *_ = kept[0]
        warnings.warn(
            f"DistributedOptimizer: the optimizer keeps the gradient of {self._parameter_names[parameter]} itself in "
            f"its state, as {key!r}, where the next gradient would overwrite it; from now on gradients get memory of "
            "their own. Pass gradient_as_bucket_view=False, or change the optimizer to keep a clone()",
            RuntimeWarning,
            stacklevel=config.users_level(),
        )

    def _loss_of_all(self, loss: Any) -> Any:
        """The loss that LBFGS searches along, reduced as the gradients are: by its own each rank would go elsewhere.

        Other optimizers only hand it on, so that it stays each rank's own.
        """
        settings, process_set = self._settings, self._process_set
        if not isinstance(self, torch.optim.LBFGS) or not process_set.included() or process_set.size() == 1:
            return loss
        device = loss.device if isinstance(loss, torch.Tensor) else "cpu"
        own = torch.as_tensor(loss, dtype=torch.float64, device=device).detach().reshape(1)
        return allreduce(own, op=settings.op, process_set=process_set)[0]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own, which may take no argument, as those of Apex do.

        Raises AssertionError between backward() and the step that uses its gradients.
        """
        if self._pending():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
                + (INTERRUPTED if any(reducer.is_half_done for reducer in self._reducers) else "")
            )
        self._forget_reduction()
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, state_dict: Any) -> None:
        """As the optimizer's own; a round of gradients that has begun is reduced first, and left unused."""
        for reducer in self._reducers:
            reducer.settle()
        self._forget_reduction()
        self._progress.should_synchronize = True
        with same_groups(self):
            super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own. Collective: the new parameters are reduced from now on too.

        After an error, such as a MismatchError for a group that differs by rank, the optimizer is without the group.
        """
        self._check_groups()
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        names = self._parameter_names
        found = list(enumerate(self.param_groups[-1]["params"]))
        named = {p: f"allreduce.noname.{index}.{i}" for i, p in found if p not in names}
        names.update(named)
        try:
            check_memory([(names[p], p) for _, p in found], self._process_set)
            self._extend()
        except BaseException as error:
            del self.param_groups[-1]
            for parameter in named:
                del names[parameter]
            self._progress.is_lost |= not isinstance(error, Exception)  # an interrupt: others may have the group
            raise

    def compression_state_dict(self) -> list[list[dict[str, Any]]]:
        """What the compressor remembers on this rank, bucket by bucket: each rank's own part of a checkpoint."""
        return [reducer.exchange_state() for reducer in self._reducers]

    def load_compression_state_dict(self, state: list[list[dict[str, Any]]]) -> None:
        """Goes on from there: on as many ranks, with the same parameters and settings, between steps.

        Raises:
            InvalidArgumentError: the state is of another compression or of other buckets; of these, where there are
                none yet, the first step tells.
        """
        if len(state) != len(self._reducers):
            raise InvalidArgumentError(f"the state is of {len(state)} reducers, and there are {len(self._reducers)}")
        for reducer, theirs in zip(self._reducers, state, strict=True):
            reducer.load_exchanges(theirs)

    def __reduce__(self) -> Any:
        """Raises InvalidArgumentError: a copy would be no DistributedOptimizer, or reduce nothing, without a word."""
        raise InvalidArgumentError(
            "a DistributedOptimizer cannot be copied or pickled: the hooks on its parameters and its registered memory "
            "belong to this rank. Save and load optimizer.state_dict(); where a copy is needed, copy the plain "
            "optimizer and make a DistributedOptimizer of the copy, on all ranks"
        )
