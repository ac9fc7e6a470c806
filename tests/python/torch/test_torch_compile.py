"""ringreduce.torch under torch.compile: no graph breaks, the same bits, the same order; what breaks the graph works."""

import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest
import rank_pool

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there
from ringreduce.torch import tracing  # noqa: E402

pytestmark = pytest.mark.skipif(
    not tracing.TRACEABLE, reason=f"torch {torch.__version__}: operators in graphs need torch 2.4"
)


def every_collective(x: Any, weight: Any, process_set: Any) -> tuple[list[Any], list[Any]]:
    """Results that have a gradient, and results that have none. Rows of x: a multiple of the ranks."""
    n = hvd.size()
    summed = hvd.allreduce(x * weight, op=hvd.Sum, prescale_factor=2.0, name="summed")
    average, largest = hvd.grouped_allreduce([summed * x, x])
    halved = hvd.allreduce(x * 0.5, compression=hvd.Compression.fp16)
    gathered = hvd.allgather(average[: hvd.rank() + 1] * weight)
    several = hvd.grouped_allgather([average[:1], x[hvd.rank() :]])
    copy = hvd.broadcast(largest * weight, root_rank=n - 1)
    hvd.barrier()
    swapped = hvd.alltoall(summed)
    dealt, counts = hvd.alltoall(x, splits=[1] * n)
    scattered = hvd.reducescatter(x * weight, op=hvd.Sum)
    own, other = hvd.grouped_reducescatter([x, summed])
    hvd.allreduce(x.detach(), name="nobody looks at this one")
    alone = hvd.allreduce(x, op=hvd.Sum, process_set=process_set)
    plain = x.detach() * 3
    top, first = plain + hvd.rank(), plain * (hvd.rank() + 2)
    pair = [plain + 1, plain.to(torch.int64) * hvd.rank()]
    assert hvd.allreduce_(top, op=hvd.Max) is top
    hvd.broadcast_(first, 0)
    hvd.grouped_allreduce_(pair, op=hvd.Min)
    with_gradient = [summed, average, largest, halved, gathered, *several, copy, swapped, dealt, scattered, own, other]
    return [*with_gradient, alone], [counts, top, first, *pair]


def bits(function: Callable[..., Any], x: Any, process_set: Any) -> list[Any]:
    """All results and all gradients, where every result weighs differently in the loss."""
    x = x.clone().requires_grad_()
    weight = torch.tensor([2.0, 0.5, 3.0], requires_grad=True)
    results, others = function(x, weight, process_set)
    sum((result.double() * (at + 1)).sum() for at, result in enumerate(results)).backward()
    return [result.detach() for result in results] + others + [x.grad, weight.grad]


def compile_every_collective() -> None:
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    with hvd.init() as world:
        n, r = world.size, world.rank
        mine = hvd.add_process_set([0])
        other = hvd.add_process_set([1])
        mine = mine if r == 0 else other
        xs = [torch.arange(3.0 * rows).reshape(rows, 3) + r for rows in (n, 2 * n, 3 * n)]
        eager = [bits(every_collective, x, mine) for x in xs]
        assert torch.equal(eager[0][0], sum(2 * (xs[0] - r + k) for k in range(n)) * torch.tensor([2.0, 0.5, 3.0]))
        for backend in ("eager", "aot_eager"):
            compiled = torch.compile(every_collective, backend=backend, fullgraph=True)
            for x, wanted in zip(xs, eager, strict=True):
                got = bits(compiled, x, mine)
                assert len(got) == len(wanted) == 21
                for at, pair in enumerate(zip(got, wanted, strict=True)):
                    assert torch.equal(*pair), (backend, len(x), at, pair)
                    assert pair[0].dtype == pair[1].dtype
                    assert pair[0].stride() == pair[1].stride()
        torch._dynamo.reset()
        explained = torch._dynamo.explain(every_collective)(xs[0], torch.ones(3), mine)
        assert explained.graph_break_count == 0, explained.break_reasons
        assert explained.op_count > 14


def test_compiled_collectives_give_the_same_bits_and_no_graph_break(run_ranks: Callable[..., Any]) -> None:
    run_ranks(compile_every_collective, 2)


def check_operators() -> None:
    """torch's own check: schema, shapes (also symbolic ones), gradient registered, agreement with AOTAutograd."""
    with hvd.init() as world:
        n, r = world.size, world.rank
        x = (torch.arange(6.0).reshape(2, 3) + r).requires_grad_()
        strided = torch.arange(12.0).reshape(2, 6).t().requires_grad_()
        whole = torch.arange(4.0 * n).reshape(2 * n, 2).requires_grad_()
        settings = ("name", int(hvd.Sum), 0.5, 2.0, 0)
        operators = torch.ops.ringreduce
        checked = [
            (operators.allreduce, (x, *settings)),
            (operators.allreduce, (strided, None, int(hvd.Average), 1.0, 1.0, 0)),
            (operators.grouped_allreduce, ([x, strided], *settings)),
            (operators.allgather, (x.detach()[r:].clone().requires_grad_(), None, None, 0)),
            (operators.allgather, (x, None, 2 * n, 0)),
            (operators.own_rows, (torch.ones(sum(range(n + 1)), 2), torch.arange(1, n + 1), r + 1, 0)),
            (operators.broadcast, (x, n - 1, None, 0)),
            (operators.alltoall, (whole, None, None, 0)),
            (operators.alltoall, (whole, torch.tensor([1] * n), None, 0)),
            (operators.sent_back, (whole.detach(), torch.tensor([1] * n), n + 2, 0)),
            (operators.reducescatter, (x.detach()[:, :2].clone().requires_grad_(), *settings)),
            (operators.barrier, (None, 0)),
        ]
        for operator, arguments in checked:
            outcome = torch.library.opcheck(operator.default, arguments)
            assert set(outcome.values()) == {"SUCCESS"}, (operator, outcome)
        assert {name for name in dir(operators) if not name.startswith("_")} >= {"allreduce", "barrier"}
        back = operators.sent_back(torch.ones(n, 1) * (r + 1), torch.tensor([1] * n), n + 2, 0)
        assert back[:, 0].tolist() == [k + 1.0 for k in range(n)] + [0.0, 0.0]


@pytest.mark.parametrize("size", [1, 2])
def test_operators_pass_torchs_own_check(size: int, run_ranks: Callable[..., Any]) -> None:
    run_ranks(check_operators, size)


def places() -> list[int]:
    """What graphs of the world, and of a set of ranks, have as an argument."""
    from ringreduce.torch.collectives.members import place_of, process_set_of

    with hvd.init() as world:
        first = hvd.add_process_set([0]) if world.size > 1 else hvd.global_process_set
        assert [process_set_of(place_of(one)) for one in (hvd.global_process_set, first)] == [
            hvd.global_process_set,
            first,
        ]
        seen: list[int] = []

        def backend(graph: Any, inputs: Any) -> Any:
            seen.extend(node.args[-1] for node in graph.graph.nodes if "ringreduce" in str(node.target))
            return graph.forward

        torch.compile(lambda x: hvd.reducescatter(x, op=hvd.Sum), backend=backend)(torch.ones(4))
        assert seen == [place_of(hvd.global_process_set)]
        return [*seen, place_of(first)]


def test_graphs_of_other_ranks_and_numbers_of_ranks_differ(run_ranks: Callable[..., Any]) -> None:
    """So that inductor, which keeps compiled graphs on disk, takes none whose shapes are another rank's."""
    (alone,), (first, second) = run_ranks(places, 1), run_ranks(places, 2)
    assert len({alone[0], first[0], second[0]}) == 3
    assert first[1] != second[1]


def keep_the_order() -> list[Any]:
    """Ranks use different results, so their graphs differ; were one dropped or moved, shapes would not match."""

    def step(x: Any) -> Any:
        first = hvd.allreduce(x[:1], op=hvd.Sum)
        second = hvd.allreduce(x[:2] * 2, op=hvd.Sum)
        hvd.barrier()
        third = hvd.allreduce(x[:3], op=hvd.Max)
        return (first.sum() * 1000 + third.sum()) if hvd.rank() == 0 else second.sum()

    with hvd.init() as world:
        x = torch.arange(4.0) + world.rank + 1
        results = [step(x).item()]
        backends = ["eager", "aot_eager"]
        if shutil.which("g++"):
            import torch._inductor.config as inductor

            inductor.reorder_for_peak_memory = inductor.reorder_for_locality = False  # docs/user/torch-compile.md
            backends.append("inductor")
        for backend in backends:
            before = hvd.stats()["operations"]
            results.append(torch.compile(step, backend=backend, fullgraph=True)(x).item())
            assert hvd.stats()["operations"] == before + 4
        return results


def test_nothing_is_dropped_or_moved(run_ranks: Callable[..., Any]) -> None:
    results = run_ranks(keep_the_order, 2)
    assert [set(values) for values in results] == [{3000.0 + 2 + 3 + 4}, {2 * (3.0 + 5)}]


def train_with_inductor() -> Any:
    def loss(x: Any, w: Any) -> Any:
        y = hvd.allreduce(x * w, op=hvd.Sum)
        z = hvd.allgather(y[: hvd.rank() + 1] * 2)
        return (z * 0.25).sum() + hvd.broadcast(y, 1).sum()

    with hvd.init() as world:
        x, w = torch.arange(6.0).reshape(3, 2) + world.rank, torch.tensor([2.0, 3.0], requires_grad=True)
        (wanted,) = torch.autograd.grad(loss(x, w), w)
        compiled = torch.compile(loss, backend="inductor", fullgraph=True)
        (got,) = torch.autograd.grad(compiled(x, w), w)
        assert torch.equal(got, wanted)
        assert got.abs().min() > 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler (g++), and there is none")
def test_inductor(run_ranks: Callable[..., Any]) -> None:
    run_ranks(train_with_inductor, 2)


def small_model() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def rank_input(rank: int, step: int) -> Any:
    return torch.sin(torch.arange(12.0).reshape(2, 6) * (rank + 1) + step)


def trained_alone(size: int, steps: int) -> Any:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(model(rank_input(rank, step)).pow(2).sum() for rank in range(size)) / size).backward()
        optimizer.step()
    return model


def train(how: str) -> None:
    """`how`: the model is compiled; or the whole step, which breaks at what waits; or also the backward pass."""
    from torch._dynamo.utils import counters

    with hvd.init() as world:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        forward = torch.compile(model, backend="aot_eager") if how != "step" else model
        if how == "backward":
            torch._dynamo.config.compiled_autograd = True

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = forward(x).pow(2).sum()
            loss.backward()
            handle = hvd.allreduce_async(loss.detach(), name="loss")
            optimizer.step()
            return hvd.synchronize(handle) + hvd.allreduce(loss.detach())

        if how != "model":
            step = torch.compile(step, backend="aot_eager")
        for at in range(3):
            losses = step(rank_input(world.rank, at))
        alone = trained_alone(world.size, 2)
        wanted = sum(alone(rank_input(rank, 2)).pow(2).sum() for rank in range(world.size)) * 2 / world.size
        assert torch.allclose(losses, wanted, rtol=1e-5)
        for ours, theirs in zip(model.parameters(), trained_alone(world.size, 3).parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        ours = " ".join(counters["graph_break"])
        if how != "model":
            assert tracing.ASYNC in ours
            assert tracing.STEP in ours
            assert "allreduce_async of class" not in ours  # what is left alone is left alone all the way down


@pytest.mark.parametrize("how", ["model", "step", "backward"])
def test_training_a_compiled_model_on_n_ranks_is_training_on_one(how: str, run_ranks: Callable[..., Any]) -> None:
    run_ranks(train, 2, args=(how,))


def fail() -> None:
    with hvd.init() as world:
        reduce = torch.compile(lambda x: hvd.allreduce(x) + 1, backend="aot_eager", fullgraph=True)
        with pytest.raises(hvd.MismatchError, match="shape"):
            reduce(torch.ones(3 + world.rank))
        assert reduce(torch.ones(3) * world.rank).tolist() == [1.5] * 3
        broadcast = torch.compile(lambda x: hvd.broadcast(x, 9), backend="aot_eager", fullgraph=True)
        with pytest.raises(hvd.InvalidArgumentError, match="invalid root rank 9"):
            broadcast(torch.ones(3))
        unregistered = hvd.ProcessSet([0])
        outside = torch.compile(lambda x: hvd.allreduce(x, process_set=unregistered), backend="aot_eager")
        with pytest.raises(hvd.InvalidArgumentError, match="has not been registered"):
            outside(torch.ones(3))


def test_errors_are_those_of_uncompiled_calls(run_ranks: Callable[..., Any]) -> None:
    run_ranks(fail, 2)


def import_only() -> list[str]:
    with hvd.init():
        hvd.allreduce(torch.ones(3, requires_grad=True)).sum().backward()
        hvd.synchronize(hvd.allreduce_async(torch.ones(3)))
    return [name for name in ("torch._dynamo", "ringreduce.torch.uncompiled") if name in sys.modules]


def test_a_program_that_compiles_nothing_does_not_load_the_compiler(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(import_only, 1, env={rank_pool.NOTHING_MORE: "1"}) == [[]]


def count_in_a_graph() -> None:
    """Rows without elements cost nothing, so there can be 2^32 of them."""
    with hvd.init() as world:
        exchange = torch.compile(hvd.alltoall, backend="eager", dynamic=True)
        source = torch.empty((1 << 32, 0))
        splits = torch.tensor([0, 1 << 31])
        if world.rank == 1:
            with pytest.raises(hvd.InvalidArgumentError, match=r"2147483648 rows.*without torch.compile"):
                exchange(source, splits)
        else:
            assert exchange(source, splits)[1].tolist() == [0, 0]
        assert hvd.alltoall(source, splits)[1].tolist() == [(1 << 31) * world.rank] * 2


def test_counts_that_a_graph_cannot_have(run_ranks: Callable[..., Any]) -> None:
    run_ranks(count_in_a_graph, 2)
