"""horovod.run(): ringreduce.run(), with Horovod's default of one rank. The command is ringrun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringreduce.launch.run import run as _run

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    **others: Any,
) -> list[Any]:
    """Calls func(*args, **kwargs) on num_proc ranks. ringreduce.run() says what the other arguments do.

    Args:
        np: the old name of num_proc.

    Returns:
        What each rank returned, by rank.
    """
    return _run(func, args, kwargs, num_proc=num_proc if np is None else np, **others)
