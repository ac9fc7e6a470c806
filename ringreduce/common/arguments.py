"""Arguments of Horovod's that may be said in two ways, or not together; the same checks in every framework."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any

from ringreduce import config
from ringreduce.basics import is_initialized, rank
from ringreduce.collectives.ops import Average, ReduceOp, Sum, check_op
from ringreduce.errors import InvalidArgumentError


def choose(op: int | None, average: int | None, is_traced: bool = False) -> int:
    """The operation that the two ways of saying it amount to; Average where neither is given.

    Args:
        op: an operation.
        average: True, False, or an operation: allreduce(x, hvd.Sum) puts one where Horovod has `average`. Average is 0
            and Sum is 1, so that as truth values, which Horovod takes them for, they mean each other: rank 0 warns.
        is_traced: leaves the warnings out, at which torch.compile would break the graph.

    To be called by the function that has the arguments: a warning is shown where that is called.

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
        if not is_traced:
            _warn_of_op(average)
        return average
    check_op(average)  # such as allreduce(x, "sum")
    if not is_traced:
        warnings.warn(
            "Parameter `average` has been replaced with `op` and will be removed", DeprecationWarning, stacklevel=3
        )
    return Average if average else Sum


def _warn_of_op(op: ReduceOp) -> None:
    """One warning in the job, of an operation in the place of `average`."""
    if is_initialized() and rank() > 0:
        return
    theirs = Average if op else Sum
    warnings.warn(
        f"hvd.{op.name} is in the place of `average`: this computes {op.name}, where Horovod takes it for a truth "
        f"value and computes {theirs.name}. Write op=hvd.{op.name}, or op=hvd.{theirs.name} for Horovod's result",
        RuntimeWarning,
        stacklevel=config.users_level(),
    )


def check_predivide(op: int, gradient_predivide_factor: float) -> None:
    """Raises InvalidArgumentError for what is no op, for a factor of 0, and for one with another op than Average."""
    check_op(op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor == 0.0:
        raise InvalidArgumentError("gradient_predivide_factor is 0")


def whole_passes(passes: Any) -> int:
    """A backward_passes_per_step, 4.0 included. Raises InvalidArgumentError for what is none."""
    if not isinstance(passes, Real) or isinstance(passes, bool) or passes < 1 or passes % 1 != 0:
        raise InvalidArgumentError(f"backward_passes_per_step must be > 0, and a whole number, not {passes!r}")
    return int(float(passes))


def check_compression(compression: Any) -> None:
    """Raises InvalidArgumentError for what has not the two functions of a compressor, such as "fp16"."""
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise InvalidArgumentError(
            f"compression={compression!r} is no compressor: give hvd.Compression.fp16, another of hvd.Compression, or "
            "a class with compress(tensor) and decompress(tensor, ctx)"
        )
