"""Dual tensors of torch.autograd.forward_ad: a collective's result has the collective's result of the tangents."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as fwd  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402

Ranks = Callable[..., Any]


def linear() -> dict[str, Callable[..., Any]]:
    """Each collective, as a function of (x, y) of shape (5, 3) that returns one tensor."""
    splits = [1, 3]
    return {
        "allreduce": lambda x, y: hvd.allreduce(x, prescale_factor=0.5, postscale_factor=3.0),
        "named": lambda x, y: hvd.allreduce(x, name="x", op=hvd.Sum),
        "fp16": lambda x, y: hvd.allreduce(x, compression=hvd.Compression.fp16),
        "transposed": lambda x, y: hvd.allreduce(x.t()),
        "grouped_allreduce": lambda x, y: torch.cat(hvd.grouped_allreduce([x, y, x.detach()], op=hvd.Sum)),
        "allgather": lambda x, y: hvd.allgather(x[: 2 + hvd.rank()]),
        "grouped_allgather": lambda x, y: torch.cat(hvd.grouped_allgather([x, y[1:]], name="g")),
        "broadcast": lambda x, y: hvd.broadcast(x, 1),
        "alltoall": lambda x, y: hvd.alltoall(x[:4]),
        "alltoall with splits": lambda x, y: hvd.alltoall(x, splits)[0],
        "reducescatter": lambda x, y: hvd.reducescatter(x, op=hvd.Sum),
        "grouped_reducescatter": lambda x, y: torch.cat(hvd.grouped_reducescatter([x, y], prescale_factor=2.0)),
    }


def inputs(seed: int) -> Any:
    """Small integers, so that sums and halves are exact."""
    torch.manual_seed(10 * seed + hvd.rank())
    return torch.randint(-8, 8, (5, 3)).double()


def tangents() -> None:
    with hvd.init():
        x, y, dx, dy = map(inputs, range(4))
        for name, function in linear().items():
            expected = function(dx, dy)
            if name == "grouped_allreduce":
                expected[10:] = 0  # of what has no tangent
            for tracked in (False, True):
                leaf = x.clone().requires_grad_(tracked)
                with fwd.dual_level():
                    result = fwd.unpack_dual(function(fwd.make_dual(leaf, dx), fwd.make_dual(y, dy)))
                assert torch.equal(result.primal, function(x, y)), name
                assert torch.equal(result.tangent, expected), (name, tracked)
            assert torch.equal(torch.func.jvp(function, (x, y), (dx, dy))[1], expected), name


def a_loss() -> None:
    """Of one process on the joined batch, whose derivative along a direction torch alone gives."""
    with hvd.init() as world:
        torch.manual_seed(1)
        batch, weight, direction = (torch.randn(shape, dtype=torch.float64) for shape in ((6, 3), (3, 2), (3, 2)))
        part = batch[world.rank :: world.size]
        with fwd.dual_level():
            dual = fwd.make_dual(weight, direction)
            alone = fwd.unpack_dual((batch @ dual).tanh().square().mean()).tangent
            loss = hvd.allreduce((part @ hvd.broadcast(dual, 0)).tanh().square().mean())
            assert torch.allclose(fwd.unpack_dual(loss).tangent, alone, rtol=1e-12)


def test_the_derivative_of_a_loss(run_ranks: Ranks) -> None:
    run_ranks(a_loss, 2)


def test_tangents(run_ranks: Ranks) -> None:
    run_ranks(tangents, 2)


def part_of_a_group() -> None:
    """The ranks differ in which tensors of a group have tangents; the others' are zero."""
    with hvd.init() as world, fwd.dual_level():
        plain = [torch.ones(3), torch.ones(4), torch.arange(2)]
        plain[world.rank] = fwd.make_dual(plain[world.rank], torch.full_like(plain[world.rank], 5.0))
        first, second, numbers = map(fwd.unpack_dual, hvd.grouped_allreduce(plain, op=hvd.Sum))
        assert first.tangent.tolist() == [5.0] * 3
        assert second.tangent.tolist() == [5.0] * 4
        assert numbers.tangent is None


def test_ranks_that_differ_in_a_group(run_ranks: Ranks) -> None:
    run_ranks(part_of_a_group, 2)


def refused() -> None:
    with hvd.init(), fwd.dual_level():
        dual = fwd.make_dual(torch.ones(4), torch.ones(4))
        calls: dict[str, Callable[[], Any]] = {
            "with op Max": lambda: hvd.allreduce(dual, op=hvd.Max),
            "with op Product": lambda: hvd.grouped_allreduce([dual], op=hvd.Product),
            "with op Adasum": lambda: hvd.allreduce(dual, op=hvd.Adasum),
            "in place would": lambda: hvd.allreduce_(dual),
            "an operation in place": lambda: hvd.grouped_allreduce_([dual]),
            "operation in place": lambda: hvd.broadcast_(dual, 0),
            "this operation": lambda: hvd.allreduce_async(dual),
            "this operation would": lambda: hvd.allgather_async(dual),
            "operation would": lambda: hvd.reduce_async(dual, 0),
            "reduce with op Max": lambda: hvd.reduce(dual, 0, op=hvd.Max),
        }
        for text, call in calls.items():
            with pytest.raises(hvd.UnavailableError, match=text):
                call()
        assert torch.equal(hvd.allreduce(fwd.unpack_dual(dual).primal), torch.ones(4))
        with fwd._set_fwd_grad_enabled(False):
            assert torch.equal(hvd.allreduce_(dual.clone()), torch.ones(4))


def test_what_has_no_tangent_says_so(run_ranks: Ranks) -> None:
    run_ranks(refused, 2)


def differ() -> str:
    """Rank 1 has no tangent: neither rank may take another operation for the tangent's."""
    hvd.init()
    with fwd.dual_level():
        tensor = torch.ones(3)
        if hvd.rank() == 1:
            hvd.allreduce(tensor)
        with pytest.raises(hvd.MismatchError) as raised:
            hvd.allreduce(fwd.make_dual(tensor, tensor) if hvd.rank() == 0 else tensor)
    hvd.shutdown()
    return str(raised.value)


def test_ranks_that_differ_are_told(run_ranks: Ranks) -> None:
    for text in run_ranks(differ, 2):
        assert "ringreduce.tangent" in text
