"""A GPU whose memory is used up. By itself: nothing else may run on the GPU meanwhile."""

from __future__ import annotations

import pytest
from cuda_ranks import start
from ranks import start_ranks

pytestmark = pytest.mark.usefixtures("torch_gpu")


def exhausted() -> str:
    """An all-gather whose result does not fit into what rank 0 has left of the GPU; returns what it is told."""
    torch, hvd, device = start()
    count = (200 << 20) if hvd.rank() == 1 else 1
    mine = torch.ones(count, dtype=torch.uint8, device=device)
    spare = torch.empty(2 * count, dtype=torch.uint8, device=device)
    del spare  # stays in the allocator's pool, for rank 1's result
    hvd.barrier()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - (100 << 20), dtype=torch.uint8, device=device) if hvd.rank() == 0 else None
    hvd.barrier()
    try:
        rows = hvd.allgather(mine)
    except (hvd.HorovodInternalError, torch.cuda.OutOfMemoryError) as error:
        return str(error)
    del hog
    return f"{rows.shape[0]} rows"


def test_out_of_memory_is_an_error() -> None:
    with start_ranks(exhausted, 2) as job:
        outcomes = job.wait()
    assert all(one.status is not None and one.status >= 0 for one in outcomes), job.report()
    told = [str(one.value or one.error) for one in outcomes]
    assert "memory" in told[0].lower(), told
