"""Gradients of gather, scatter, reduce, send and recv: those of one process that computes what all ranks compute.

A case has the loss of a rank, made with collectives, and the losses of all ranks, made by torch alone. Each rank's
gradient has to be the derivative of the sum of the losses; its own gradient is checked as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as fwd  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402
from ringreduce.common import gradient_numbers  # noqa: E402
from ringreduce.torch.collectives.tokens import PER_RANK  # noqa: E402

Ranks = Callable[..., Any]
ROWS = (2, 0, 3)
"""Of each rank's tensor."""


@dataclass
class Case:
    """A program on n ranks. Inputs are (x, y), both (rows, 3); y has ROWS rows, and each rank has one x."""

    loss: Callable[[Any, Any], Any]
    losses: Callable[[list[Any], list[Any]], list[Any]]
    rows: int = 4


def weights(like: Any, rank: int) -> Any:
    """Constants that differ for each rank and element."""
    return torch.linspace(0.5, 1.5 + rank, max(like.numel(), 1), dtype=like.dtype)[: like.numel()].view(like.shape)


def weighed(result: Any, rank: int) -> Any:
    """Not linear, so that the gradient has a gradient. A rank's token goes through unharmed."""
    return (result**3 * weights(result, rank)).sum()


def last() -> int:
    return hvd.size() - 1


def gather_loss(x: Any, y: Any) -> Any:
    rows = hvd.gather(y * y, root_rank=last())
    return (weighed(rows, 0) if hvd.rank() == last() else rows) + weighed(y, hvd.rank())


def gather_losses(xs: list[Any], ys: list[Any]) -> list[Any]:
    own = [weighed(y, rank) for rank, y in enumerate(ys)]
    return [*own[:-1], own[-1] + weighed(torch.cat([y * y for y in ys]), 0)]


def strided_gather_loss(x: Any, y: Any) -> Any:
    rows = hvd.gather(x.t()[::2], 0)
    return rows.sum() if hvd.rank() == 0 else rows  # the gradient of sum() is an expanded scalar


def strided_gather_losses(xs: list[Any], ys: list[Any]) -> list[Any]:
    return [sum(x.t()[::2].sum() for x in xs), *(x.sum() * 0 for x in xs[1:])]


def scatter_loss(x: Any, y: Any) -> Any:
    part = hvd.scatter((x * x).t() if hvd.rank() == 1 else None, buffer_of((3, x.shape[0] // hvd.size())), 1)
    return weighed(part * weights(part, 5), hvd.rank()) + weighed(y, hvd.rank())


def scatter_losses(xs: list[Any], ys: list[Any]) -> list[Any]:
    parts = (xs[1] * xs[1]).t().reshape(len(xs), 3, -1)
    return [
        weighed(part * weights(part, 5), r) + weighed(y, r) for r, (part, y) in enumerate(zip(parts, ys, strict=True))
    ]


def reduce_loss(op: int) -> Callable[[Any, Any], Any]:
    def loss(x: Any, y: Any) -> Any:
        result = hvd.reduce(x.t() * x.t(), 1, op=op, prescale_factor=0.5, postscale_factor=3.0)
        return (weighed(result, 1) if hvd.rank() == 1 else result) + weighed(x, hvd.rank())

    return loss


def reduce_losses(op: int) -> Callable[[list[Any], list[Any]], list[Any]]:
    def losses(xs: list[Any], ys: list[Any]) -> list[Any]:
        total = 1.5 * sum(x.t() * x.t() for x in xs) / (len(xs) if op == hvd.Average else 1)
        return [weighed(x, rank) + (weighed(total, 1) if rank == 1 else 0) for rank, x in enumerate(xs)]

    return losses


buffers: list[Any] = []
"""That a rank has received into: the gradient of a gradient also goes through theirs."""


def buffer_of(shape: Any) -> Any:
    buffers.append(torch.full(tuple(shape), torch.nan, dtype=torch.float64, requires_grad=True))
    return buffers[-1]


def pipeline_loss(x: Any, y: Any) -> Any:
    """Each rank multiplies what comes by its own x, and hands it to the next."""
    hidden = x * x
    if hvd.rank() > 0:
        hidden = hidden * hvd.recv(buffer_of(x.shape), hvd.rank() - 1, tag=7)
    return weighed(hidden, 0) if hvd.rank() == last() else hvd.send(hidden, hvd.rank() + 1, tag=7)


def pipeline_losses(xs: list[Any], ys: list[Any]) -> list[Any]:
    hidden = torch.stack([x * x for x in xs]).prod(0)
    return [*(x.sum() * 0 for x in xs[1:]), weighed(hidden, 0)]


def exchange_loss(x: Any, y: Any) -> Any:
    """Two messages with the same tag to and fro; the second one's gradient travels first. Others look on."""
    rank = hvd.rank()
    if rank > 1:
        return weighed(x, rank)
    for _ in range(rank):
        pair = [hvd.recv(buffer_of(x.shape), 0), hvd.recv(buffer_of(x.shape), 0)]
    tokens = [hvd.send(x * x, 1 - rank), hvd.send(x.t() * 3, 1 - rank)]
    if rank == 0:
        pair = [hvd.recv(buffer_of(x.shape), 1), hvd.recv(buffer_of(x.shape), 1)]
    return weighed(pair[0] * pair[1], rank) + sum(tokens) + weighed(x, rank)


def exchange_losses(xs: list[Any], ys: list[Any]) -> list[Any]:
    own = [weighed(x, rank) for rank, x in enumerate(xs)]
    for rank in (0, 1):
        other = xs[1 - rank]
        own[rank] = own[rank] + weighed(other * other * (other.t() * 3).reshape(other.shape), rank)
    return own


CASES = {
    "gather": Case(gather_loss, gather_losses),
    "gather of strided": Case(strided_gather_loss, strided_gather_losses),
    "scatter": Case(scatter_loss, scatter_losses, 6),
    "reduce, Sum": Case(reduce_loss(hvd.Sum), reduce_losses(hvd.Sum)),
    "reduce, Average": Case(reduce_loss(hvd.Average), reduce_losses(hvd.Average)),
    "send and recv": Case(pipeline_loss, pipeline_losses),
    "messages to and fro": Case(exchange_loss, exchange_losses),
}


def inputs(rank: int, rows: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(rank)
    x = torch.rand((rows, 3), generator=generator, dtype=torch.float64) + 0.5
    y = torch.rand((ROWS[rank], 3), generator=generator, dtype=torch.float64) + 0.5
    return x.requires_grad_(), y.requires_grad_()


def derivatives(loss: Any, leaves: list[Any]) -> tuple[list[Any], list[Any]]:
    """The first, and those of the sum of their squares."""
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    first = torch.autograd.grad(loss, leaves, create_graph=True, **options)
    squares = sum((grad * grad).sum() for grad in first)
    second = torch.autograd.grad(squares, leaves, **options) if squares.requires_grad else [0.0 * x for x in leaves]
    return [grad.detach() for grad in first], list(second)


def check_case(name: str) -> None:
    case = CASES[name]
    with hvd.init() as world:
        every = [inputs(rank, case.rows) for rank in range(world.size)]
        losses = case.losses([x for x, _ in every], [y for _, y in every])
        first, second = derivatives(sum(losses), [leaf for pair in every for leaf in pair])

        mine = [leaf.detach().clone().requires_grad_() for leaf in every[world.rank]]
        loss = case.loss(*mine)
        assert torch.allclose(loss, losses[world.rank], rtol=1e-12)
        got, again = derivatives(loss, [*mine, *buffers])
        for at in range(2):
            place = 2 * world.rank + at
            assert torch.allclose(got[at], first[place], rtol=1e-12, atol=1e-12), (name, at, got[at], first[place])
            assert torch.allclose(again[at], second[place], rtol=1e-12, atol=1e-12), (name, at)
        assert all(not grad.any() for grad in got[2:]), "the gradient of a buffer is zero"

        buffers.clear()
        once = [leaf.detach().clone().requires_grad_() for leaf in mine]
        case.loss(*once).backward()  # the usual way, which keeps no graph
        for leaf, grad in zip(once, got, strict=False):
            assert not grad.any() if leaf.grad is None else torch.equal(leaf.grad, grad)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_one_process(name: str, size: int, run_ranks: Ranks) -> None:
    run_ranks(check_case, size, args=(name,))


def in_a_set() -> None:
    """Ranks 0 and 2; ranks are global ones, and rank 1 does something else."""
    with hvd.init() as world:
        pair = hvd.add_process_set([0, 2])
        if world.rank == 1:
            with pytest.raises(hvd.InvalidArgumentError, match="not a member"):
                hvd.gather(torch.ones(2), 0, process_set=pair)
            return
        x = torch.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
        rows = hvd.gather(x, 2, process_set=pair)
        average = hvd.reduce(x, 0, process_set=pair)
        part = hvd.scatter(x if world.rank == 2 else None, buffer_of((2,)).float(), 2, process_set=pair)
        message = hvd.send(x, 2, process_set=pair) if world.rank == 0 else hvd.recv(x + 0, 0, process_set=pair)
        loss = (rows * torch.arange(8.0).view(4, 2)).sum() if world.rank == 2 else rows
        loss = loss + average.sum() * 10 + part.sum() * 100 + message.sum() * (world.rank + 1) * 1000
        loss.backward()
        own = torch.arange(4.0).view(2, 2) + 2 * world.rank + 5
        of_parts, of_message = (100.0, 0.0) if world.rank == 2 else (0.0, 3000.0)
        assert torch.equal(x.grad, own + of_parts + of_message), x.grad


def test_a_process_set(run_ranks: Ranks) -> None:
    run_ranks(in_a_set, 3)


def values() -> None:
    """Without gradients: what the functions of ringreduce return, in every form; other dtypes; under no_grad()."""
    with hvd.init() as world:
        n, r = world.size, world.rank
        memory = torch.arange(100_000 * n + 1)
        hvd.scatter(memory[:-1] if r == 1 else None, memory[1:100_001], 1)  # the output lies in the root's tensor
        assert torch.equal(memory[1:100_001], torch.arange(100_000 * r, 100_000 * (r + 1)))
        for dtype in (torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float32):
            every = [(torch.arange(6).view(3, 2)[: rank + 1] + rank).to(dtype) for rank in range(n)]
            for rows in (hvd.gather(every[r], 0), hvd.synchronize(hvd.gather_async(every[r], 0, "named"))):
                assert rows is None if r else torch.equal(rows, torch.cat(every))
            whole = (torch.arange(4 * n).view(2 * n, 2) % 7).to(dtype) if r == n - 1 else None
            wanted = (torch.arange(4 * n).view(n, 2, 2) % 7)[r].to(dtype)
            output = torch.zeros(2, 2, dtype=dtype)
            assert hvd.scatter(whole, output, n - 1) is output
            assert torch.equal(output, wanted)
            assert torch.equal(hvd.scatter_async(whole, torch.empty(4, dtype=dtype), n - 1).wait(), wanted.view(-1))
            target = torch.zeros_like(output)
            if r == 0:
                assert hvd.send(wanted.t(), 1, tag=3) is None
                assert hvd.synchronize(hvd.send_async(wanted.t(), 1)) is None
            elif r == 1:
                first = (torch.arange(4).view(2, 2) % 7).to(dtype)
                assert hvd.recv(target, 0, tag=3) is target
                assert torch.equal(target, first.t())
                assert torch.equal(hvd.synchronize(hvd.recv_async(output, 0)), first.t())
        with torch.no_grad():
            leaf = torch.full((2,), r + 1.0, requires_grad=True)
            assert (hvd.gather(leaf, 0) is None) == (hvd.reduce(leaf, 0) is None) == (r != 0)
            hvd.scatter(torch.arange(2.0 * n) if r == 0 else None, leaf, 0)
            assert leaf.tolist() == [2.0 * r, 2.0 * r + 1]
            assert (hvd.send(leaf, 0) if r == 1 else hvd.recv(leaf, 1) if r == 0 else None) is (None if r else leaf)
        assert leaf.requires_grad


def test_values(run_ranks: Ranks) -> None:
    run_ranks(values, 3)


def halves() -> None:
    """Gradients of bfloat16, which are exact here, with a token that leaves the loss's dtype alone."""
    with hvd.init() as world:
        x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
        result = hvd.reduce(x, 1, op=hvd.Sum)
        loss = x.float().sum() + (4 * result.sum() if world.rank == 1 else result)
        assert loss.dtype == torch.float32
        loss.backward()
        assert x.grad.dtype == torch.bfloat16
        assert x.grad.tolist() == [5.0, 5.0]


def test_bfloat16(run_ranks: Ranks) -> None:
    run_ranks(halves, 2)


def tangents() -> None:
    """Each is linear: the tangent of its result is its result of the tangents."""

    def message(x: Any) -> Any:
        return hvd.send(x, 1, tag=2) if hvd.rank() == 0 else hvd.recv(x, 0, tag=2)

    programs: dict[str, Callable[[Any], Any]] = {
        "gather": lambda x: hvd.gather(x[hvd.rank() :], 0, "g"),
        "reduce": lambda x: hvd.reduce(x, 1, op=hvd.Sum, postscale_factor=2.0),
        "scatter": lambda x: hvd.scatter(x if hvd.rank() == 1 else None, x[: len(x) // 2] * 1, 1),
        "message": message,
    }
    with hvd.init() as world:
        x, dx = (torch.arange(8.0).view(4, 2) * (world.rank + k) for k in (1, 3))
        for name, program in programs.items():
            primal, tangent = program(x.clone()), program(dx.clone())
            with fwd.dual_level():
                result = fwd.unpack_dual(program(fwd.make_dual(x.clone(), dx)))
            for got, wanted in ((result.primal, primal), (result.tangent, tangent)):
                assert torch.equal(got, torch.zeros(()) if wanted is None else wanted), name
            assert torch.equal(torch.func.jvp(program, (x,), (dx,))[1], result.tangent), name
        with fwd.dual_level(), pytest.raises(hvd.UnavailableError, match="reduce with op Max"):
            hvd.reduce(fwd.make_dual(x, dx), 0, op=hvd.Max)


def test_tangents(run_ranks: Ranks) -> None:
    run_ranks(tangents, 2)


def wrong_on_all() -> None:
    with hvd.init() as world:
        r, other = world.rank, 1 - world.rank
        x, leaf = torch.ones(4, 3), torch.ones(4, 3, requires_grad=True)
        uneven = torch.ones(4, 3 + r)
        named: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
            "gather received invalid root rank 9": (hvd.InvalidArgumentError, lambda: hvd.gather(x, 9)),
            "gather received invalid root rank -1": (hvd.InvalidArgumentError, lambda: hvd.gather(leaf, -1)),
            "reduce received invalid root rank 2": (hvd.InvalidArgumentError, lambda: hvd.reduce(leaf, 2)),
            "scatter received invalid root rank 2": (hvd.InvalidArgumentError, lambda: hvd.scatter(x, leaf, 2)),
            "send received invalid root rank 5": (hvd.InvalidArgumentError, lambda: hvd.send(leaf, 5)),
            "the peer must be another rank": (hvd.InvalidArgumentError, lambda: hvd.send(leaf, r)),
            "peer must be another": (hvd.InvalidArgumentError, lambda: hvd.recv(x, r)),
            "tag=-1: a whole number": (hvd.InvalidArgumentError, lambda: hvd.send(leaf, other, tag=-1)),
            "tag=2147483648: a": (hvd.InvalidArgumentError, lambda: hvd.recv(x, other, tag=1 << 31)),
            "tag='x': a": (hvd.InvalidArgumentError, lambda: hvd.recv_async(x, other, tag="x")),
            "contiguous": (hvd.InvalidArgumentError, lambda: hvd.recv(x.t(), other)),
            "is required to be contiguous": (hvd.InvalidArgumentError, lambda: hvd.scatter(x, x.t(), 0)),
            "a torch.Tensor is expected, not list": (hvd.InvalidArgumentError, lambda: hvd.gather([1.0], 0)),
            "Tensor is expected, not int": (hvd.InvalidArgumentError, lambda: hvd.send(3, other)),
            "(?i)gather.*shape|dimension": (hvd.MismatchError, lambda: hvd.gather(uneven, 0)),
            "(?i)shape": (hvd.MismatchError, lambda: hvd.gather(uneven.requires_grad_(), 0)),
            "(?i)reduce.*shape": (hvd.MismatchError, lambda: hvd.reduce(uneven, 0)),
            "(?i)root": (hvd.MismatchError, lambda: hvd.reduce(leaf, r)),
        }
        for text, (kind, call) in named.items():
            with pytest.raises(kind, match=text):
                call()
        result = hvd.reduce(leaf, 0, op=hvd.Max)
        with pytest.raises(hvd.InvalidArgumentError, match="Average and Sum, not for Max"):
            result.sum().backward()
        if r == 0:
            for tensor in (torch.ones(9), torch.ones(8).int()):
                with pytest.raises(hvd.InvalidArgumentError, match="2 times the elements of output, in its dtype"):
                    hvd.scatter(tensor, torch.empty(4), 0)
            with pytest.raises(hvd.InvalidArgumentError, match="is expected, not NoneType"):
                hvd.scatter(None, torch.empty(4), 0)
            hvd.send(torch.ones(3), 1, tag=5)
            hvd.send(torch.ones(3), 1)
        else:
            for tensor, tag in ((torch.empty(3), 4), (torch.empty(4, requires_grad=True), 0)):
                with pytest.raises(hvd.MismatchError, match="the next message from that rank has tag"):
                    hvd.recv(tensor, 0, tag=tag)
        assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]


def test_errors(run_ranks: Ranks) -> None:
    run_ranks(wrong_on_all, 2)


def out_of_order() -> None:
    """A message of the program is not taken for a gradient."""
    with hvd.init() as world:
        if world.rank == 0:
            token = hvd.send(torch.ones(3, requires_grad=True), 1)
            with pytest.raises(hvd.MismatchError, match=r"expected tag -1, .* has tag 0"):
                token.backward()
        else:
            hvd.recv(torch.empty(3, requires_grad=True), 0)
            hvd.send(torch.ones(3), 0)


def test_a_message_is_no_gradient(run_ranks: Ranks) -> None:
    run_ranks(out_of_order, 2)


def many_messages() -> None:
    """Gradients, second ones and tangents of messages leave nothing behind."""

    def message(x: Any) -> Any:
        return hvd.send(x**3, 1) if hvd.rank() == 0 else (hvd.recv(x, 0) ** 3).sum()

    def step() -> int:
        x = torch.ones(3, requires_grad=True)
        (first,) = torch.autograd.grad(message(x), x, create_graph=True)
        torch.autograd.grad(first.sum(), x)
        torch.func.jvp(torch.func.grad(message), (torch.ones(3),), (torch.ones(3),))
        return sum(len(numbers) for numbers in gradient_numbers._numbers.values())

    with hvd.init():
        kept = step()
        assert [step() for _ in range(3)] == [kept] * 3


def test_messages_leave_no_counters(run_ranks: Ranks) -> None:
    run_ranks(many_messages, 2)


def passes_in_another_order() -> str:
    """Of two backward passes through one message, the second gradients would change places."""

    def second_derivatives() -> None:
        x = torch.full((3,), 2.0, requires_grad=True)
        if hvd.rank() == 0:
            losses = [hvd.send(x**3, 1)] * 2
        else:
            message = hvd.recv(x, 0)
            losses = [(message**2).sum(), (message**3).sum()]
        firsts = [torch.autograd.grad(loss, x, create_graph=True)[0] for loss in losses]
        if hvd.rank() == 0:
            (firsts[0] + 10 * firsts[1]).sum().backward()  # autograd begins with the later one
        for first in firsts if hvd.rank() == 1 else ():
            torch.autograd.grad(first.sum(), x, retain_graph=True)

    with hvd.init():
        try:
            second_derivatives()
        except (hvd.MismatchError, hvd.ShutdownError) as error:  # of the other rank, which leaves
            return str(error)
        return "no error"


def test_backward_passes_in_another_order(run_ranks: Ranks) -> None:
    assert any("Mismatched RECV: expected tag" in text for text in run_ranks(passes_in_another_order, 2))


def test_tags_of_passes() -> None:
    """Those of the first passes of many messages differ."""
    gradients = [-1 - number * gradient_numbers._STEP % (gradient_numbers.MOST_TAG + 1) for number in range(5000)]
    assert [gradient_numbers.tag_of_pass(tag, 0) for tag in gradients] == gradients
    tags = {gradient_numbers.tag_of_pass(tag, number) for tag in gradients for number in range(10)}
    assert len(tags) == 50_000
    assert max(tags) < 0


def test_tags_of_derivatives() -> None:
    """Those of messages that are in flight between two ranks are not the same, and no user's."""

    class Set:
        class Group:
            pass

        group = Group()

    def gradient(way: str, tag: int) -> int:
        return gradient_numbers.gradient_tag(Set(), way, 1, tag)  # type: ignore[arg-type]

    first = [gradient("send", tag) for tag in (0, 1, 2, gradient_numbers.MOST_TAG) for _ in range(1000)]
    second, third = (
        [gradient("recv", tag) for tag in first],
        [gradient("send", gradient("recv", tag)) for tag in first],
    )
    tangents = [gradient_numbers.tangent_tag(tag) for tag in first]
    for tags in (first, second, third, tangents):
        assert len(set(tags)) == len(first)
        assert min(tags) >= -gradient_numbers.MOST_TAG - 1
        assert max(tags) < 0
    # From one rank to the other go gradients of odd order, the other way those of even order, and tangents.
    assert not set(first) & set(third)
    assert not set(second) & set(tangents)
    assert [gradient("send", tag) for tag in first] == second


def backward_in_another_order(kind: str) -> str:
    """Rank 0 calls backward() for each of two losses, rank 1 for their sum; the gradients would change places."""
    import torch

    import ringreduce.torch as hvd

    hvd.init()
    xs = [torch.ones(3, requires_grad=True) for _ in range(2)]
    if kind == "send":
        made = [hvd.send(x, 0) if hvd.rank() == 1 else hvd.recv(x, 1).sum() for x in xs]
    elif kind == "gather":
        made = [hvd.gather(x, 0).sum() for x in xs]
    elif kind == "scatter":
        made = [hvd.scatter(torch.ones(6) if hvd.rank() == 0 else None, x, 0).sum() for x in xs]
    else:
        made = [hvd.reduce(x, 0, name=None if kind == "reduce" else "loss").sum() for x in xs]
    try:
        if hvd.rank() == 0:
            for loss in made:
                loss.backward()
        else:
            sum(made).backward()
    except hvd.HorovodInternalError as error:
        return type(error).__name__
    finally:
        hvd.shutdown()
    return "nothing"


@pytest.mark.parametrize("kind", ["send", "gather", "scatter", "reduce", "reduce of one name"])
def test_gradients_in_another_order_are_an_error(kind: str, run_ranks: Ranks) -> None:
    found = run_ranks(backward_in_another_order, 2, args=(kind,))
    assert "MismatchError" in found
    assert found[1] != "nothing"  # messages: rank 0 sends gradients, and may be done before rank 1 finds what they are
    assert kind == "send" or found[0] != "nothing"


def tokens_in_place() -> None:
    import torch

    import ringreduce.torch as hvd

    hvd.init()
    rank = hvd.rank()
    x = torch.ones(3, requires_grad=True)
    token = hvd.send(x * 2, 0) if rank == 1 else hvd.recv(torch.zeros(3, requires_grad=True), 1).sum()
    for loss in (hvd.gather(x, 0), hvd.reduce(x, 0), token):
        own = (5.0 * x).sum()
        if rank == 0:
            loss.mul_(3.0)  # what came is this rank's own
            (loss.sum() + own).backward()
        else:
            loss += own
            loss.backward()
    scale = 3.0 * (1 + 1 / 2 + 2) if rank == 1 else 3.0 * (1 + 1 / 2)
    assert x.grad is not None
    assert x.grad.tolist() == [15.0 + scale] * 3


def test_results_and_tokens_can_be_changed_in_place(run_ranks: Ranks) -> None:
    run_ranks(tokens_in_place, 2)


def compiled() -> None:
    """torch.compile breaks the graph at each, says why, and the gradients are there."""
    from torch._dynamo.utils import counters

    def step(x: Any) -> Any:
        rows = hvd.gather(x * 2, 0)
        total = hvd.reduce(x * 3, 0)
        part = hvd.scatter(x * 5 if hvd.rank() == 0 else None, torch.empty(2, requires_grad=True), 0)
        message = hvd.send(x * 7, 1) if hvd.rank() == 0 else hvd.recv(torch.empty(4, requires_grad=True), 0)
        return rows.sum() + total.sum() + part.sum() + message.sum()

    with hvd.init() as world:
        leaves = [torch.arange(4.0, requires_grad=True) for _ in range(2)]
        for function, x in zip((step, torch.compile(step, backend="aot_eager")), leaves, strict=True):
            function(x).backward()
        assert torch.equal(leaves[0].grad, leaves[1].grad)
        assert torch.equal(leaves[0].grad, torch.full((4,), 3.5 + (12.0 if world.rank == 0 else 0.0)))
        assert PER_RANK in " ".join(counters["graph_break"])


def test_torch_compile_breaks_the_graph(run_ranks: Ranks) -> None:
    run_ranks(compiled, 2)
