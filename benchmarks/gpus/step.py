"""A training step of a ResNet-50-sized model with DistributedOptimizer, beside the same step of one process.

The model is its parameters alone: the loss is the sum of each parameter times a constant tensor, which depends on rank
and position. So a step is little but gradients, their reduction and the update, every gradient is known, and after k
steps of SGD with lr 1 from zero each parameter is -k times the mean of the constants, exactly.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import ringreduce.torch as hvd
from gpus import pattern, shapes

WARM = 4
TRACED = 3


class Model(torch.nn.Module):
    """Parameters of given shapes, all zero, and the constants that make this rank's gradients."""

    def __init__(self, model: str, device: torch.device, rank: int) -> None:
        super().__init__()
        chosen = shapes.MODELS[model]()
        self.weights = torch.nn.ParameterList(torch.zeros(shape, device=device) for shape in chosen)
        self.constants = []
        for index, weight in enumerate(self.weights):
            constant = torch.empty(weight.numel(), device=device)
            pattern.fill(constant, rank, index)
            self.constants.append(constant.view(weight.shape))

    def forward(self) -> torch.Tensor:
        """The loss."""
        products = torch._foreach_mul(list(self.weights), self.constants)
        return torch.stack([product.sum() for product in products]).sum()

    def wrong(self, steps: int, ranks: int) -> int:
        """How many elements are not what so many steps must have made them."""
        bad = 0
        for index, weight in enumerate(self.weights):
            bad += pattern.wrong(weight.detach().reshape(-1) / -steps, ranks, index, ranks)
        return bad


def measure_steps(
    device: torch.device,
    add: Callable[..., None],
    timed: Callable[[Callable[[], Any], int], list[float]],
    model_name: str,
) -> None:
    """Measures the step as a program runs it. Collective."""
    torch.manual_seed(0)
    model = Model(model_name, device, hvd.rank())
    plain = torch.optim.SGD(model.parameters(), lr=1.0, foreach=True)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters()) if hvd.size() > 1 else plain
    steps = 0

    def step() -> None:
        nonlocal steps
        optimizer.zero_grad(set_to_none=False)
        model().backward()
        optimizer.step()
        steps += 1

    for _ in range(WARM):
        step()
    calls: dict[str, int] = {}
    if device.type == "cuda":
        torch.cuda.synchronize()
        calls = _calls(step)
        torch.cuda.set_sync_debug_mode("error")  # a call that waits for the device raises
        for _ in range(TRACED):
            step()
        torch.cuda.set_sync_debug_mode("default")
    times = timed(step, 50)
    facts = {"ranks": hvd.size(), "model": model_name, "path": os.environ.get("RINGREDUCE_GPU_PATH", "auto")}
    bad = model.wrong(steps, hvd.size())
    # The profiler itself waits for the device once, when it ends.
    waits = sorted(name for name in calls if "Synchronize" in name and name != "cudaDeviceSynchronize")
    add(what="step", way="eager", time_us=median(times) * 1e6, waits=waits, calls=calls, wrong=bad, **facts)


def _calls(step: Callable[[], None]) -> dict[str, int]:
    """How often a step calls each function of the CUDA runtime and driver, by torch's profiler; on any thread."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        step()
    return {event.key: event.count for event in trace.key_averages() if event.key.startswith("cu")}
