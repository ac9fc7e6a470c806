"""LocalSGD: ranks step alone, and average their parameters every so many steps.

With H steps between two averagings a rank sends 1/H of the bytes of DistributedOptimizer. docs/user/methods.md says
which method is which arguments, and what each changes in the result.
"""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.common.arguments import check_compression
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job.collective_json import allgather_json
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.torch.compression import Compression
from ringreduce.torch.gradient_reduction import instance_of
from ringreduce.torch.local_sgd.mixin import LocalSGDMixin, Schedule, split
from ringreduce.torch.local_sgd.outer import ElasticAveraging, Outer, diloco, slowmo
from ringreduce.torch.optimizer.mixins import check_optimizer, with_mixin
from ringreduce.torch.tracing import BLOCKS, untraced

__all__ = ["ElasticAveraging", "LocalSGD", "diloco", "slowmo"]

_made = 0  # in this process, for names that differ between optimizers


@untraced(BLOCKS)
def LocalSGD(
    optimizer: torch.optim.Optimizer,
    every: int,
    warmup: int = 0,
    outer: Outer | None = None,
    fragments: int = 1,
    overlap: int = 0,
    mix: float = 0.0,
    compression: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer with its state, in a class that averages the parameters over the ranks. Collective.

    The result is an instance of the optimizer's class too. With x the parameters of a rank and m what all ranks had
    after the last averaging, every `every` steps d = mean over the ranks of (m - x); then m becomes m - d, or what the
    outer optimizer makes of m with the gradient d; then x becomes mix x + (1 - mix) m. The optimizer's own state, such
    as momenta, stays each rank's own.

    Args:
        optimizer: any torch optimizer.
        every: steps between two averagings, H; 1 or more.
        warmup: so many steps come first in which gradients are averaged before each step, as DistributedOptimizer does
            (post-local SGD). Not with LBFGS.
        outer: a function from parameters to a torch optimizer, such as diloco(), slowmo() or ElasticAveraging(); None:
            m becomes the mean of x.
        fragments: the parameters are averaged in so many parts, one after the other within the H steps; at most
            `every`, and at most the number of parameters.
        overlap: so many steps pass between the start of an averaging and its use; less than `every`.
        mix: how much of a rank's own parameters it keeps, 0 to 1, without 1.
        compression: of d, as in DistributedOptimizer; default: none.
        process_set: the ranks that take part.

    Raises:
        InvalidArgumentError: an argument is wrong; it says which.
        MismatchError: ranks call with different arguments, or with different parameters.

    Sources: Lin, Stich, Patel and Jaggi, Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020, arXiv:1808.07217
    (averaging, post-local SGD); Douillard et al., DiLoCo, 2023, arXiv:2311.08105, and Streaming DiLoCo with overlapping
    communication, 2025, arXiv:2501.18512 (fragments, overlap, mix); Wang, Tantia, Ballas and Rabbat, SlowMo, ICLR 2020,
    arXiv:1910.00643; Zhang, Choromanska and LeCun, Deep learning with Elastic Averaging SGD, NIPS 2015,
    arXiv:1412.6651.

    >>> optimizer = hvd.LocalSGD(torch.optim.AdamW(model.parameters(), 4e-4), every=500, outer=hvd.diloco())
    """
    global _made
    check_optimizer(optimizer, "LocalSGD", "LocalSGD takes a plain torch optimizer, not one that reduces already")
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    _check(optimizer, len(parameters), every, warmup, outer, fragments, overlap, mix)
    compression = compression or Compression.none
    check_compression(compression)
    schedule = Schedule(every, warmup, fragments, overlap, mix, instance_of(compression))
    arguments = schedule.arguments(_described_outer(outer, split(parameters, fragments)))
    _made += 1
    if process_set.included() and len(process_set.ranks) > 1:
        _made = _agree(process_set, [_made, arguments, [[list(p.shape), str(p.dtype)] for p in parameters]])
    name = f"local_sgd.{_made}"
    wrapped = with_mixin(optimizer, LocalSGDMixin)
    wrapped._start(name, parameters, schedule, outer, arguments, process_set)
    return wrapped


def _check(
    optimizer: torch.optim.Optimizer,
    parameters: int,
    every: int,
    warmup: int,
    outer: Outer | None,
    fragments: int,
    overlap: int,
    mix: float,
) -> None:
    for name, value, least in (("every", every, 1), ("warmup", warmup, 0), ("fragments", fragments, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidArgumentError(f"LocalSGD: {name} is a whole number, {least} or more, not {value!r}")
    if fragments > min(every, parameters):
        raise InvalidArgumentError(
            f"LocalSGD: {fragments} fragments, but {every} steps between averagings and {parameters} parameters"
        )
    if not isinstance(overlap, int) or isinstance(overlap, bool) or not 0 <= overlap < every:
        raise InvalidArgumentError(f"LocalSGD: overlap is a number of steps below every={every}, not {overlap!r}")
    if not 0 <= mix < 1:
        raise InvalidArgumentError(f"LocalSGD: mix is 0 or more, and less than 1, not {mix!r}")
    if isinstance(outer, ElasticAveraging) and mix:
        raise InvalidArgumentError(
            "LocalSGD: ElasticAveraging() says itself how much of its own a rank keeps; leave mix out"
        )
    if warmup and isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgumentError("LocalSGD: LBFGS takes several gradients a step, and has no warmup")


def _described_outer(outer: Outer | None, parts: list[list[torch.nn.Parameter]]) -> str:
    """What an outer optimizer of these fragments is, for ranks and saved states to be compared.

    Raises InvalidArgumentError where it is none.
    """
    if outer is None:
        return ""
    # Of parameters as those that it will get: Muon, for one, takes matrices alone.
    return "; ".join(sorted({_described_outer_of(outer, part) for part in parts}))


def _described_outer_of(outer: Outer, part: list[torch.nn.Parameter]) -> str:
    try:
        made = outer([torch.nn.Parameter(torch.zeros_like(p.detach())) for p in part]) if callable(outer) else outer
    except Exception as error:
        raise InvalidArgumentError(
            f"LocalSGD: outer raised {type(error).__name__} ({error}) for parameters of the shapes "
            f"{[list(p.shape) for p in part]}: give one that takes them"
        ) from error
    if not callable(outer) or not isinstance(made, torch.optim.Optimizer):
        raise InvalidArgumentError(
            "LocalSGD: outer is a function from parameters to a torch optimizer, such as hvd.diloco() or "
            f"lambda parameters: torch.optim.SGD(parameters, 0.7); this one is or gives a {type(made).__name__}"
        )
    # What is off is left out: a later torch has more options, which are off, and takes states of this one.
    options = {name: value for name, value in made.defaults.items() if value is not None and value is not False}
    kind = "ElasticAveraging " if isinstance(outer, ElasticAveraging) else ""
    return f"{kind}{type(made).__name__} {options}"


def _agree(process_set: ProcessSet, mine: list[Any]) -> int:
    """The largest of the ranks' first values, which count what each has made.

    Raises MismatchError, on every rank, where a rank has other arguments or parameters than the first one.
    """
    every = allgather_json(process_set.group, "local_sgd", mine)
    for rank, theirs in zip(process_set.ranks, every, strict=True):
        for what, first, other in zip(("arguments", "parameters"), every[0][1:], theirs[1:], strict=True):
            if first != other:
                raise MismatchError(
                    f"LocalSGD: rank {process_set.ranks[0]} and rank {rank} have different {what}: {first} and {other}"[
                        :2000
                    ]
                )
    return max(int(theirs[0]) for theirs in every)
