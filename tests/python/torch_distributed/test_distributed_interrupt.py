"""Ctrl-C in a synchronous collective of torch.distributed: its tensors are the caller's again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from interrupts import interrupt_rank_0
from ranks import receive_from_test, send_to_test, start_ranks

COUNT = 1 << 15


def interrupted(where: str) -> Any:
    """Rank 0 is interrupted while it waits for rank 1. What rank 1 is told, a sum, whether tensors are untouched."""
    import torch
    import torch.distributed as dist

    import ringreduce.torch

    dist.init_process_group("ringreduce", init_method="ringreduce://")
    rank = dist.get_rank()
    x = torch.full((COUNT,), float(rank))
    y = torch.empty(2 * COUNT)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 1),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, y),
        "all_gather": lambda: dist.all_gather_into_tensor(y, x),
    }
    told = ""
    if rank == 0:
        send_to_test("blocking")
        with pytest.raises(KeyboardInterrupt):
            calls[where]()
        x[:] = y[:] = 7.0
        send_to_test("interrupted")
    else:
        receive_from_test()
        try:
            calls[where]()
        except ringreduce.MismatchError as error:
            told = str(error)
    sums = torch.ones(2)
    dist.all_reduce(sums)
    kept = rank != 0 or bool((x == 7.0).all() and (y == 7.0).all())
    dist.destroy_process_group()
    return told, float(sums[0]), kept


@pytest.mark.parametrize("where", ["all_reduce", "broadcast", "reduce_scatter", "all_gather"])
def test_an_interrupted_call_is_withdrawn(where: str) -> None:
    with start_ranks(interrupted, 2, args=(where,)) as job:
        interrupt_rank_0(job)
        first, second = job.wait()
        assert first.value is not None, job.report()
        assert second.value is not None, job.report()
    assert first.value[1:] == second.value[1:] == (2.0, True)
    assert "rank 0 has withdrawn this operation" in second.value[0]
