"""DistributedOptimizer: the user's own optimizer, whose step() uses gradients reduced over all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ringreduce.collectives.ops import Adasum, Average
from ringreduce.common.arguments import check_compression, check_predivide, whole_passes
from ringreduce.common.groups import Groups, checked, renamed
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.torch.compression import Compression, Compressor, Stateful
from ringreduce.torch.gradient_reduction import instance_of
from ringreduce.torch.optimizer.adasum_optimizer import AdasumMixin, check_adasum
from ringreduce.torch.optimizer.distributed_optimizer import DistributedMixin
from ringreduce.torch.optimizer.mixins import check_memory, check_optimizer, with_mixin
from ringreduce.torch.optimizer.reducer import Settings
from ringreduce.torch.optimizer.sharded import ShardedMixin, check_shardable
from ringreduce.torch.tracing import BLOCKS, untraced


@untraced(BLOCKS)
def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: type[Compressor] | Stateful = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient_as_bucket_view: bool = True,
    shard_step: bool = False,
) -> Any:
    """The optimizer with its state, in a class that reduces gradients first. Collective over the process set.

    The result is an instance of the optimizer's class too; state_dict() and load_state_dict() are its own.

    Args:
        optimizer: any torch optimizer.
        named_parameters: model.named_parameters(), used in messages and checks; must cover every parameter of the
            optimizer.
        compression: applied to each gradient before it travels, and undone after; docs/user/optimizer.md says where.
        backward_passes_per_step: backward() calls before a step; their gradients are summed on each rank first.
        op: Average (default), Sum, or Adasum: then each rank steps alone, and the changes are combined (adasum.py).
        gradient_predivide_factor: divides gradients by this before, and by size / this after the sum; op=Average only.
        groups: a number of groups of equal length, or lists of parameters, each reduced as one operation of its own.
        num_groups: the same number, under the name it had.
        sparse_as_dense: reduces sparse gradients as dense ones, and makes them sparse again for the optimizer;
            otherwise their indices and values are gathered.
        process_set: the ranks that take part.
        gradient_as_bucket_view: after a step, gradients are views of registered memory, which needs no copies.
            With False each parameter keeps the tensor that autograd gave it.
        shard_step: each rank keeps the optimizer's state of its share of the parameters only, and updates that
            (ZeRO stage 1; sharded.py says what differs). Parameters become views of registered memory. state_dict()
            is then collective: call it on all ranks, not only where the state is saved.

    Raises:
        InvalidArgumentError: an argument is wrong; it says which.
        MismatchError: the ranks' parameters or settings differ.
        UnavailableError: op is Adasum, and the number of ranks is no power of two.

    >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    """
    check_optimizer(optimizer, "DistributedOptimizer", "this optimizer is a DistributedOptimizer already")
    check_predivide(op, gradient_predivide_factor)
    backward_passes_per_step = whole_passes(backward_passes_per_step)
    check_compression(compression)
    groups = renamed(num_groups, groups)
    settings = Settings(
        op=op,
        prescale=1.0 / gradient_predivide_factor,
        postscale=gradient_predivide_factor,
        compression=instance_of(compression),
        groups=_checked_groups(groups),
        sparse_as_dense=sparse_as_dense,
        views=gradient_as_bucket_view,
    )
    names = _named(optimizer, named_parameters)
    check_memory([(names[p], p) for group in optimizer.param_groups for p in group["params"]], process_set)
    mixin: type[torch.optim.Optimizer] = DistributedMixin
    if op == Adasum:
        mixin = AdasumMixin
        check_adasum(settings, shard_step)
    elif shard_step:
        check_shardable(optimizer, settings)
        if process_set.included() and process_set.size() != 1:  # otherwise there is nobody to share with
            mixin = ShardedMixin
    wrapped = with_mixin(optimizer, mixin)
    wrapped._start(names, settings, process_set, backward_passes_per_step)
    return wrapped


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> dict[torch.nn.Parameter, str]:
    """The name of each parameter. Raises InvalidArgumentError unless names are unique and complete."""
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return {p: f"allreduce.noname.{g}.{i}" for g, params in enumerate(groups) for i, p in enumerate(params)}
    named = list(named_parameters) if isinstance(named_parameters, Iterable) else [named_parameters]
    for pair in named:
        if not isinstance(pair, tuple) or len(pair) != 2:
            found = pair.__name__ if isinstance(pair, type) else type(pair).__name__
            raise InvalidArgumentError(
                "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                f"model.named_parameters(). Here is a {found} in place of a tuple, or of the sequence"
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


def _checked_groups(groups: int | Sequence[Sequence[torch.Tensor]] | None) -> Groups:
    lists = checked(groups, "torch.Tensor", "parameter")
    if not isinstance(lists, int) and any(not isinstance(member, torch.Tensor) for group in lists for member in group):
        raise InvalidArgumentError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    return lists
