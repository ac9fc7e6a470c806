"""Arguments of Horovod's that may be said in two ways, or not together; the same checks in every framework."""

from __future__ import annotations

import warnings

from ringreduce.collectives.ops import Average, ReduceOp, Sum, check_op
from ringreduce.errors import InvalidArgumentError


def choose(op: int | None, average: int | None) -> int:
    """The operation that the two ways of saying it amount to; Average where neither is given.

    average: True, False, or an operation: allreduce(x, hvd.Sum) puts one where Horovod has `average`. Average is 0 and
    Sum is 1, so that as truth values they would mean each other.

    To be called by the function that has the arguments: a deprecation is reported where that is called.

    Raises:
        InvalidArgumentError: both are given.
    """
    if average is None:
        if op is None:
            return Average
        check_op(op)
        return op
    if op is not None:
        raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
    if isinstance(average, ReduceOp):
        return average
    check_op(average)  # such as allreduce(x, "sum")
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed", DeprecationWarning, stacklevel=3
    )
    return Average if average else Sum


def check_predivide(op: int, gradient_predivide_factor: float) -> None:
    """Raises InvalidArgumentError for what is no op, for a factor of 0, and for one with another op than Average."""
    check_op(op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor == 0.0:
        raise InvalidArgumentError("gradient_predivide_factor is 0")
