"""gather, scatter, reduce, send and recv, with gradients, of memory of the fake CUDA driver (fake_torch_gpu.py)."""

from __future__ import annotations

from typing import Any

import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch")

import cuda_devices  # noqa: E402
from fake_torch_gpu import Gpu, on_gpu, start  # noqa: E402


def leaf(tensor: Any) -> Any:
    return on_gpu(tensor).requires_grad_()


def everything() -> None:
    hvd = start()
    size, rank = hvd.size(), hvd.rank()
    every = [torch.arange(6.0).view(3, 2)[: r + 1] + r for r in range(size)]
    whole = torch.arange(4.0 * size).view(2 * size, 2)

    rows = hvd.gather(on_gpu(every[rank]), 0)
    assert rows is None if rank else type(rows) is Gpu and torch.equal(rows.cpu(), torch.cat(every))
    output = on_gpu(torch.zeros(2, 2))
    assert hvd.scatter(on_gpu(whole) if rank == 1 else None, output, 1) is output
    assert torch.equal(output.cpu(), whole[2 * rank : 2 * rank + 2])
    total = hvd.reduce(on_gpu(torch.ones(5) * rank), 0, op=hvd.Sum)
    assert rank or total.cpu().tolist() == [size * (size - 1) / 2] * 5
    target = on_gpu(torch.zeros(2 * size, 2))
    if rank == 0:
        hvd.send(on_gpu(whole), 1, tag=3)
    elif rank == 1:
        assert torch.equal(hvd.recv(target, 0, tag=3).cpu(), whole)

    programs = {
        "gather": (lambda x: hvd.gather(x, 0), 2.0),
        "reduce": (lambda x: hvd.reduce(x, 0), 2.0 / size),
        "scatter": (lambda x: hvd.scatter(x if rank == 0 else None, on_gpu(torch.zeros(2)) + x[:2], 0), 2.0),
        "message": (lambda x: hvd.send(x, 1) if rank == 0 else hvd.recv(x, 0) if rank == 1 else x * 0, 2.0),
    }
    for name, (program, gradient) in programs.items():
        x = leaf(torch.arange(2.0 * size))
        (program(x).sum() * 2).backward()
        if rank == 0 or name in ("gather", "reduce"):
            assert torch.equal(x.grad.cpu(), torch.full((2 * size,), gradient)), name
        else:
            assert not x.grad.cpu().any(), name


@pytest.mark.parametrize(("size", "path"), [(2, "ipc"), (3, "staged")])
def test_on_gpu_memory(size: int, path: str) -> None:
    run_ranks(everything, size, env=cuda_devices.fake_environment(RINGREDUCE_GPU_PATH=path))
