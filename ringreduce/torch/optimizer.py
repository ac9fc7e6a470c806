"""DistributedOptimizer: the user's own optimizer, whose step() uses gradients reduced over all ranks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.ops import Adasum, Average
from ringreduce.process_sets import ProcessSet, global_process_set
from ringreduce.torch.compression import Compression, Compressor
from ringreduce.torch.reducer import Reducer, Settings
from ringreduce.torch.tracing import BLOCKS, STEP, untraced


@untraced(BLOCKS)
def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient_as_bucket_view: bool = True,
) -> Any:
    """The optimizer with its state, in a class that reduces gradients first. Collective over the process set.

    The result is an instance of the optimizer's class too; state_dict() and load_state_dict() are its own.

    Args:
        optimizer: any torch optimizer.
        named_parameters: model.named_parameters(), for texts and checks; at least all parameters of the optimizer.
        compression: applied to each gradient before it travels, and undone after.
        backward_passes_per_step: backward() calls before a step; their gradients are summed on each rank first.
        op: Average (default) or Sum.
        gradient_predivide_factor: divides gradients by this before, and by size / this after the sum; op=Average only.
        groups: a number of groups of equal length, or lists of parameters, each reduced as one operation of its own.
        num_groups: the same number, under the name it had.
        sparse_as_dense: makes sparse gradients dense.
        process_set: the ranks that take part.
        gradient_as_bucket_view: after a step, gradients are views of registered memory, which needs no copies.
            With False each parameter keeps the tensor that autograd gave it.

    Raises:
        InvalidArgumentError: an argument is wrong; it says which.
        MismatchError: the ranks' parameters or settings differ.

    >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    if op == Adasum:
        raise UnavailableError("op=Adasum is not available; use op=Average or op=Sum")
    if backward_passes_per_step <= 0:
        raise InvalidArgumentError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    settings = Settings(
        op=op,
        prescale=1.0 / gradient_predivide_factor,
        postscale=gradient_predivide_factor,
        compression=compression,
        groups=_checked_groups(groups),
        sparse_as_dense=sparse_as_dense,
        views=gradient_as_bucket_view,
    )
    plain = type(optimizer)
    if isinstance(optimizer, _DistributedOptimizer):
        raise InvalidArgumentError("this optimizer is a DistributedOptimizer already")
    wrapped: Any = object.__new__(type(plain.__name__, (_DistributedOptimizer, plain), {"_plain": plain}))
    # A scheduler made before leaves a step() in the instance, bound to the plain optimizer.
    wrapped.__dict__.update((key, value) for key, value in vars(optimizer).items() if key != "step")
    wrapped._start(_named(optimizer, named_parameters), settings, process_set, backward_passes_per_step)
    return wrapped


class _DistributedOptimizer(torch.optim.Optimizer):
    """What is put in front of the optimizer's class."""

    _plain: type[torch.optim.Optimizer]
    _reducer: Reducer | None = None

    def _start(
        self,
        names: dict[torch.nn.Parameter, str],
        settings: Settings,
        process_set: ProcessSet,
        backward_passes_per_step: int,
    ) -> None:
        self._parameter_names = names
        self._settings = settings
        self._process_set = process_set
        self._synchronized = False
        self._should_synchronize = True
        self.backward_passes_per_step = backward_passes_per_step
        self._plan()

    def _plan(self) -> None:
        """Lays out buckets for the parameters there are. Collective; needs more than one rank to be of use."""
        if self._reducer is not None:
            self._reducer.remove()
        if not self._process_set.included() or self._process_set.size() == 1:
            return
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if parameters:
            named = [(self._parameter_names[p], p) for p in parameters]
            self._reducer = Reducer(named, self._settings, self._process_set, self.backward_passes_per_step)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward() calls come before a step; between steps."""
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def synchronize(self) -> None:
        """Waits until the gradients are reduced, for what comes between backward() and step(), such as clipping.

        Then call step() within skip_synchronize(). Parameters without a gradient get zeros.
        """
        if self._reducer is not None:
            self._reducer.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() leaves out the reduction that synchronize() has done.

        >>> optimizer.synchronize()
        >>> torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        >>> with optimizer.skip_synchronize():
        ...     optimizer.step()
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @untraced(STEP)
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's step, with reduced gradients. A closure's gradients are reduced each time it is called."""
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure)
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
                "if you use optimizer.synchronize() in your code.",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
            self._synchronized = False
            return super().step()

        def synchronized() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        result = super().step(synchronized)
        self._synchronized = False
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's own. Raises AssertionError between backward() and the step that uses its gradients."""
        if self._reducer is not None and self._reducer.pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """As the optimizer's own; a round of gradients that has begun is reduced first, and left unused."""
        if self._reducer is not None:
            self._reducer.settle()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own. Collective: the buckets are laid out anew."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        for i, parameter in enumerate(self.param_groups[-1]["params"]):
            self._parameter_names.setdefault(parameter, f"allreduce.noname.{index}.{i}")
        self._plan()

    def __reduce__(self) -> Any:
        """Pickles and copies as the plain optimizer: a rank's hooks and registered memory belong to this process."""
        return object.__new__, (self._plain,), self.__getstate__()


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> dict[torch.nn.Parameter, str]:
    """The name of each parameter. Raises InvalidArgumentError unless names are unique and complete."""
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return {p: f"allreduce.noname.{g}.{i}" for g, params in enumerate(groups) for i, p in enumerate(params)}
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if duplicates:
        raise InvalidArgumentError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(duplicates)}"
        )
    names = {parameter: name for name, parameter in named}
    unnamed = [str(id(p)) for params in groups for p in params if p not in names]
    if unnamed:
        raise InvalidArgumentError(
            "named_parameters was specified, but one or more model parameters were not named. Python object ids: "
            f"{', '.join(unnamed)}"
        )
    return names


def _checked_groups(groups: int | Sequence[Sequence[torch.Tensor]] | None) -> list[list[torch.Tensor]] | int:
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return groups or 0
    if isinstance(groups, int) or any(not isinstance(group, (list, tuple)) for group in groups):
        raise InvalidArgumentError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    members = [parameter for group in groups for parameter in group]
    if any(not isinstance(parameter, torch.Tensor) for parameter in members):
        raise InvalidArgumentError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    if len({id(parameter) for parameter in members}) != len(members):
        raise InvalidArgumentError("A parameter can only appear once in groups.")
    return [list(group) for group in groups]
