"""ringreduce.torch: collectives against the oracle, their gradients, objects, parameters, optimizer state."""

import re
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there
from ringreduce.torch.distributed import layout  # noqa: E402

DTYPES = [name for name in oracle.DTYPES if hasattr(torch, name)]


def tensor_of(array: np.ndarray) -> Any:
    """A tensor with the array's content, bfloat16 included."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def array_of(tensor: Any) -> np.ndarray:
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(oracle.dtype("bfloat16"))
    return tensor.numpy()


def reduce_everything() -> list[str]:
    """What is wrong with any form of allreduce, any dtype, operation and count."""
    problems = []
    with hvd.init() as world:
        for name, op in [(name, op) for name in DTYPES for op in oracle.OPS if oracle.meaningful(name, op)]:
            for count in (0, 1, world.size + 1, 1009):
                inputs = [oracle.values(op, rank, count, name, op) for rank in range(world.size)]
                mine = tensor_of(inputs[world.rank])
                in_place, handed_over = mine.clone(), mine.clone()
                registered = hvd.symmetric_empty(count, dtype=mine.dtype)
                registered.copy_(mine)
                strided = mine.repeat_interleave(2)[::2]
                assert count < 2 or not strided.is_contiguous()
                kept = mine.clone()
                results = {
                    "allreduce": hvd.allreduce(mine, op=op),
                    "strided": hvd.allreduce(strided, op=op),
                    "allreduce_": hvd.allreduce_(in_place, op=op),
                    "async": hvd.synchronize(hvd.allreduce_async(mine, op=op, name="a")),
                    "async_": hvd.synchronize(hvd.allreduce_async_(handed_over, op=op, name="b")),
                    "grouped": hvd.grouped_allreduce([mine[:1], mine], op=op)[1],
                    "registered": hvd.allreduce_(registered, op=op),
                }
                assert results["allreduce_"] is in_place
                assert results["async_"] is handed_over
                assert torch.equal(mine, kept)
                for form, result in results.items():
                    if wrong := oracle.wrong(array_of(result), inputs, op):
                        problems.append(f"{form} of {count} {name}, op {op}: {wrong}")
    return problems


def test_allreduce_of_every_dtype_and_operation(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(reduce_everything, 3) == [[], [], []]


def move() -> None:
    with hvd.init() as world:
        mine = torch.arange(world.rank * 6.0).reshape(-1, 3) + world.rank
        gathered = hvd.allgather(mine)
        assert torch.equal(
            gathered, torch.cat([torch.arange(rank * 6.0).reshape(-1, 3) + rank for rank in range(world.size)])
        )
        for root in range(world.size):
            value = torch.full((2, 5), float(world.rank + 1), dtype=torch.bfloat16)
            copy = hvd.broadcast(value, root)
            assert copy.tolist() == [[root + 1.0] * 5] * 2
            assert value[0, 0] == world.rank + 1
            assert hvd.broadcast_(value, root_rank=root) is value
            assert torch.equal(value, copy)
        handles = [hvd.broadcast_async_(torch.tensor(world.rank), root, name=f"r{root}") for root in range(world.size)]
        assert [int(hvd.synchronize(handle)) for handle in reversed(handles)] == list(reversed(range(world.size)))
        assert all(hvd.poll(handle) for handle in handles)
        assert hvd.allgather_object({"rank": world.rank, "text": "x" * 100 * world.rank}) == [
            {"rank": rank, "text": "x" * 100 * rank} for rank in range(world.size)
        ]
        assert hvd.broadcast_object(("from", world.rank), root_rank=1, name="object") == ("from", 1)
        hvd.barrier()
        if world.rank == 0:
            assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name="alone").tolist() == [1.0, 1.0, 1.0]
        lasts = hvd.join()
        assert lasts in range(world.size)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tensors_and_objects_move(size: int, run_ranks: Callable[..., Any]) -> None:
    run_ranks(move if size > 1 else move_alone, size)


def move_alone() -> None:
    with hvd.init():
        assert hvd.allgather(torch.arange(3)).tolist() == [0, 1, 2]
        assert hvd.broadcast(torch.arange(3), 0).tolist() == [0, 1, 2]
        assert hvd.broadcast_object("x") == "x"
        assert hvd.join() == 0


def differentiate() -> None:
    """Gradients of each collective with rank-dependent inputs and weights; expected values by hand."""
    with hvd.init() as world:
        n, r = world.size, world.rank
        weight = [torch.tensor([1.0, 10.0]) * (rank + 1) for rank in range(n)]
        total = sum(weight)

        def gradient(use: Callable[[Any], Any]) -> Any:
            x = torch.tensor([2.0, 3.0], requires_grad=True)
            (use(x * x) * weight[r]).sum().backward()
            return x.grad / (2 * x.detach())

        assert torch.allclose(gradient(lambda y: hvd.allreduce(y, op=hvd.Sum)), total)
        assert torch.allclose(gradient(lambda y: hvd.allreduce(y)), total / n)
        scaled = gradient(lambda y: hvd.allreduce(y, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25))
        assert torch.allclose(scaled, total / 2)
        assert torch.allclose(gradient(lambda y: sum(hvd.grouped_allreduce([y, 2 * y], op=hvd.Sum))), 3 * total)
        assert torch.allclose(gradient(lambda y: hvd.broadcast(y, 1)), total / n if r == 1 else torch.zeros(2))

        rows = torch.ones(r + 1, 2, requires_grad=True)
        gathered = hvd.allgather(rows)
        position = torch.arange(1.0, len(gathered) + 1)[:, None]
        (gathered * position * weight[r]).sum().backward()
        start = r * (r + 1) // 2
        assert torch.allclose(rows.grad, position[start : start + r + 1] * total / n)

        x = torch.tensor([2.0, 3.0], requires_grad=True)
        (slope,) = torch.autograd.grad((hvd.allreduce(x**3, op=hvd.Sum) * weight[r]).sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), x)
        assert torch.allclose(curvature, 6 * x.detach() * total)

        low = hvd.allreduce(torch.ones(2, requires_grad=True), op=hvd.Min)
        with pytest.raises(hvd.InvalidArgumentError, match="not for Min"):
            low.sum().backward()


def test_gradients(run_ranks: Callable[..., Any]) -> None:
    run_ranks(differentiate, 3)


def refuse() -> None:
    with hvd.init() as world:
        wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
            (ValueError, "Tensor is required to be contiguous", lambda: hvd.allreduce_(torch.ones(4, 4).t()[1:])),
            (ValueError, "ComplexFloatTensor", lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64))),
            (ValueError, r"hvd\.sparse_allreduce_async", lambda: hvd.allreduce(torch.eye(2).to_sparse())),
            (ValueError, r"use tensor\.to_dense\(\)$", lambda: hvd.allgather(torch.eye(2).to_sparse_csr())),
            (hvd.UnavailableError, "meta memory", lambda: hvd.allreduce(torch.ones(2, device="meta"))),
            (ValueError, "torch.Tensor is expected", lambda: hvd.allreduce_([1.0])),
            (ValueError, "supersedes average", lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)),
            (ValueError, "invalid root rank 9", lambda: hvd.broadcast(torch.ones(1), 9)),
            (ValueError, "invalid params of type", lambda: hvd.broadcast_parameters(iter([torch.ones(1)]), 0)),
            *(
                (ValueError, text, lambda params=params: hvd.broadcast_parameters(params, 0))
                for params, text in (
                    (
                        {"a": torch.ones(1), "_extra_state": {"scale": 3}},
                        "'_extra_state' is no tensor, but .* dict",
                    ),
                    ([("a", torch.ones(1)), ("b", None)], r"'b' is no tensor, but .* NoneType; .*broadcast_object\(\)"),
                    ([torch.ones(1), 7], "entry 1 is no tensor, but a value of type int"),
                )
            ),
            (ValueError, "was not created or has been cleared", lambda: hvd.synchronize(17)),
            (ValueError, "is not supported", lambda: hvd.symmetric_empty(2, dtype=torch.complex64)),
        ]
        for kind, text, call in wrong:
            with pytest.raises(kind, match=text):
                call()
        with pytest.raises(hvd.MismatchError, match="shape"):
            hvd.allreduce(torch.ones(3 + world.rank), name="shapes")
        with pytest.warns(DeprecationWarning, match="average"):
            assert hvd.allreduce(torch.ones(1), average=False).item() == world.size
        # An operation where Horovod has `average`: as numbers, Average is False and Sum is True.
        x = torch.tensor([1.0 + world.rank])
        for op, value in ((hvd.Average, 1.5), (hvd.Sum, 3.0), (hvd.Max, 2.0)):
            assert hvd.allreduce(x, op).item() == hvd.allreduce_(x.clone(), op).item() == value
            assert hvd.grouped_allreduce([x], op)[0].item() == hvd.allreduce_async(x, op).wait().item() == value
        for call, *names in (
            (lambda: hvd.allreduce(x, hvd.Average), "Average", "Sum"),
            (lambda: hvd.grouped_allreduce([x], hvd.Sum), "Sum", "Average"),
            (lambda: hvd.allreduce_async(x, hvd.Min).wait(), "Min", "Average"),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
                hvd.allreduce(x, op=hvd.Sum)
            text = r"computes {}, where Horovod .* computes {}\. Write op=hvd\.{}".format(*names, names[0])
            assert len(caught) == (world.rank == 0)
            assert all(re.search(text, str(one.message)) and one.filename == __file__ for one in caught)
        assert hvd.allreduce(torch.tensor([1.5 + world.rank]), compression=hvd.Compression.fp16).item() == 2.0
        assert hvd.allreduce(torch.tensor(2**40 + 2 * world.rank), compression=hvd.Compression.fp16).item() == 2**40 + 1
    with pytest.raises(hvd.NotInitializedError):
        hvd.allreduce(torch.ones(1))


def test_what_is_refused_and_what_is_left(run_ranks: Callable[..., Any]) -> None:
    run_ranks(refuse, 2)


def share_parameters() -> None:
    with hvd.init() as world:
        torch.manual_seed(world.rank)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
        model[0].weight.data = model[0].weight.data.t().contiguous().t()
        model.double()(torch.randn(8, 5, dtype=torch.float64))
        mine = {name: value.clone() for name, value in model.state_dict().items()}
        roots = hvd.broadcast_object(mine, root_rank=1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        for name, value in model.state_dict().items():
            assert torch.equal(value, roots[name])
        assert not model[0].weight.is_contiguous()
        assert world.rank == 1 or not torch.equal(mine["0.weight"], model[0].weight)
        for params in (list(model.parameters()), list(model.named_parameters())):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += world.rank
            hvd.broadcast_parameters(params, root_rank=0)
            assert (
                len({str(value) for value in hvd.allgather_object([p.sum().item() for p in model.parameters()])}) == 1
            )


def share_other_numbers() -> None:
    """None of the root's tensors meets one of the next call."""
    with hvd.init() as world:
        tensors = [torch.full((3,), float(world.rank)) for _ in range(3)]
        for number in ((3, 1)[world.rank], (3, 0)[world.rank]):
            for params in (tensors[:number], {str(at): tensor for at, tensor in enumerate(tensors[:number])}):
                with pytest.raises(hvd.MismatchError, match="broadcast_parameters: the ranks give other numbers"):
                    hvd.broadcast_parameters(params, 0)
        assert {float(value) for tensor in tensors for value in tensor} == {world.rank}


def test_other_numbers_of_parameters(run_ranks: Callable[..., Any]) -> None:
    run_ranks(share_other_numbers, 2, env={"RINGREDUCE_TIMEOUT": "60"})


def test_parameters_of_the_root(run_ranks: Callable[..., Any]) -> None:
    run_ranks(share_parameters, 2)


def share_no_state() -> None:
    """Where no rank has stepped yet, Horovod leaves gradients of zeros; frozen parameters have none."""
    with hvd.init() as world:
        model = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        model[2].requires_grad_(False)
        before = [parameter.clone() for parameter in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5, weight_decay=0.5)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
        assert [parameter.grad is None for parameter in model.parameters()] == [False] * 3 + [True] * 2
        assert model[0].weight.grad.is_sparse
        assert model[0].weight.grad._nnz() == 0
        assert torch.equal(hvd.broadcast(model[1].bias.grad, root_rank=0), torch.zeros(2))
        assert all(map(torch.equal, model.parameters(), before))
        table = torch.nn.Parameter(torch.full((3, 2), float(world.rank)))
        hvd.broadcast_optimizer_state(torch.optim.SparseAdam([table]), root_rank=0)
        assert table.grad.is_sparse


def test_no_state_of_the_root(run_ranks: Callable[..., Any]) -> None:
    run_ranks(share_no_state, 2)


def share_state(kind: str, options: dict[str, Any]) -> None:
    """Only the root has stepped, with options of its own; then everyone has its state and goes on alike."""
    with hvd.init() as world:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.5}]
        optimizer = getattr(torch.optim, kind)(groups, **options)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        if world.rank == 1:
            for _ in range(3):
                super(type(wrapped), wrapped).zero_grad()
                loss = model(torch.ones(2, 3)).sum()
                grads = torch.autograd.grad(loss, list(model.parameters()))
                for parameter, grad in zip(model.parameters(), grads, strict=True):
                    parameter.grad = grad
                optimizer.step()
            wrapped.param_groups[1]["lr"] = 0.125
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        hvd.broadcast_optimizer_state(wrapped, root_rank=1, model=model)
        states = hvd.allgather_object(wrapped.state_dict())
        assert str(states[0]) == str(states[1])
        assert len(states[0]["state"]) == (0 if kind == "SGD" and not options.get("momentum") else 4)
        assert wrapped.param_groups[1]["lr"] == 0.125
        assert optimizer.param_groups[1]["lr"] == 0.125
        model(torch.ones(2, 3)).sum().backward()
        wrapped.step()
        scheduler.step()
        assert wrapped.param_groups[1]["lr"] != 0.125
        assert len({str(s) for s in hvd.allgather_object([p.tolist() for p in model.parameters()])}) == 1
        with pytest.raises(ValueError, match=r"cannot broadcast torch.optim.LBFGS state"):
            hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {"lr": 0.1}), ("Adagrad", {"lr": 0.1})],
)
def test_optimizer_state_of_the_root(kind: str, options: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(share_state, 2, args=(kind, options))


def share_sparse_state() -> None:
    """The momentum of sparse gradients is sparse; only the root has stepped."""
    with hvd.init() as world:
        torch.manual_seed(0)
        table = torch.nn.Embedding(6, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.5, momentum=0.5)

        def step(rows: list[int]) -> None:
            optimizer.zero_grad()
            (table(torch.tensor(rows)) * torch.arange(1.0, 1 + len(rows))[:, None]).sum().backward()
            optimizer.step()

        if world.rank == 1:
            step([1, 1, 4])
            step([2, 4])
            optimizer.state[table.weight]["none yet"] = torch.sparse_coo_tensor(torch.empty(1, 0), [], (7,))
            optimizer.state[table.weight]["twice"] = torch.sparse_coo_tensor([[3, 3]], [1.0, 2.0], (7,))
        roots = hvd.broadcast_object(dict(optimizer.state[table.weight]), root_rank=1)
        assert roots["momentum_buffer"].is_sparse
        hvd.broadcast_parameters(table.state_dict(), root_rank=1)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        for name, theirs in roots.items():
            mine = optimizer.state[table.weight][name]
            assert mine.layout is torch.sparse_coo
            assert mine.is_coalesced() == theirs.is_coalesced()
            assert mine.size() == theirs.size()
            assert torch.equal(mine._indices(), theirs._indices())
            assert torch.equal(mine._values(), theirs._values())
        step([1, 5])
        weights = hvd.allgather_object(table.weight.tolist())
        assert weights[0] == weights[1]
        sparse = torch.eye(2).to_sparse()
        for params, what in (({"w": torch.ones(2), "x": sparse}, "'x'"), ([sparse], "entry 0")):
            with pytest.raises(hvd.InvalidArgumentError, match=rf"{what}: Tensor layout .*sparse_coo is not supported"):
                hvd.broadcast_parameters(params, 0)
        if world.rank == 1:
            optimizer.state[table.weight]["rows"] = torch.eye(2).to_sparse_csr()
        with pytest.raises(hvd.InvalidArgumentError, match=r"of the root's state, Tensor layout .*sparse_csr"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)


def test_sparse_state_of_the_root(run_ranks: Callable[..., Any]) -> None:
    run_ranks(share_sparse_state, 2, env={"RINGREDUCE_TIMEOUT": "60"})


def broadcast_expanded() -> None:
    """A tensor whose elements share memory cannot be overwritten: refused before the others are, but sent as state."""
    with hvd.init() as world:
        module = torch.nn.Linear(2, 1)
        module.register_buffer("scale", torch.full((1, 2), float(world.rank)).expand(3, 2))
        for params, what in ((module.state_dict(), "'scale'"), (list(module.state_dict().values()), "entry 2")):
            before = [parameter.detach().clone() for parameter in module.parameters()]
            with pytest.raises(hvd.InvalidArgumentError, match=rf"{what}.*share memory \(expand\(\)\).*clone\(\)"):
                hvd.broadcast_parameters(params, root_rank=1)
            assert all(map(torch.equal, module.parameters(), before))
        kept = {"one": torch.ones(1).expand(1, 1), "none": torch.ones(1, 0).expand(4, 0)}  # nothing is shared there
        hvd.broadcast_parameters(kept, root_rank=1)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        if world.rank == 1:
            optimizer.state[module.weight]["scale"] = module.scale
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.state[module.weight]["scale"].tolist() == [[1.0, 1.0]] * 3


def test_what_has_elements_in_the_same_memory(run_ranks: Callable[..., Any]) -> None:
    run_ranks(broadcast_expanded, 2, env={"RINGREDUCE_TIMEOUT": "60"})


def share_a_lambda() -> None:
    with hvd.init() as world:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5)
        if world.rank == 1:
            weight.grad = torch.tensor([3.0, 5.0])
            optimizer.step()
            table = torch.arange(3.0)
            optimizer.param_groups[0]["warmup"] = lambda step: table[step] + 7
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["warmup"](2).item() == 9
        assert optimizer.state[weight]["momentum_buffer"].tolist() == [3, 5]


def test_options_of_the_root_that_pickle_does_not_take(run_ranks: Callable[..., Any]) -> None:
    pytest.importorskip("cloudpickle")
    run_ranks(share_a_lambda, 2, env={"RINGREDUCE_TIMEOUT": "60"})


def share_a_lock(has_cloudpickle: bool) -> None:
    """All ranks say so where the root's state cannot be pickled, and the job goes on."""
    if not has_cloudpickle:
        sys.modules["cloudpickle"] = None  # type: ignore[assignment]  # an import of it is an ImportError
    cure = "take it out" if has_cloudpickle else "install cloudpickle"
    with hvd.init() as world:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.5 + world.rank, momentum=0.5)
        weight.grad = torch.ones(2)
        optimizer.step()
        if world.rank == 1:
            optimizer.param_groups[0]["lock"] = threading.Lock()
        with pytest.raises(hvd.InvalidArgumentError, match=rf"root, rank 1, cannot be pickled.*TypeError.*{cure}"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 0.5 + world.rank
        optimizer.param_groups[0].pop("lock", None)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 1.5


@pytest.mark.parametrize("has_cloudpickle", [True, False])
def test_options_of_the_root_that_nothing_pickles(has_cloudpickle: bool, run_ranks: Callable[..., Any]) -> None:
    if has_cloudpickle:
        pytest.importorskip("cloudpickle")
    run_ranks(share_a_lock, 2, args=(has_cloudpickle,), env={"RINGREDUCE_TIMEOUT": "60"})


def stay_registered() -> dict[str, int]:
    with hvd.init():
        x = hvd.symmetric_empty(3, 1 << 16)
        hvd.allreduce_(x.fill_(1.0))
        before = hvd.stats()
        for _ in range(5):
            hvd.allreduce_(x[1])
        after = hvd.stats()
        return {name: after[name] - before[name] for name in ("bytes_copied", "operations")}


def test_slices_of_symmetric_tensors_are_reduced_without_copies(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(stay_registered, 2) == [{"bytes_copied": 0, "operations": 5}] * 2


def count_copies_of_strided_tensors() -> None:
    with hvd.init():
        plain = torch.arange(600.0).view(20, 30)
        negated = torch._neg_view(plain)
        assert negated.is_contiguous()
        assert negated.is_neg()

        def copied(call: Callable[[Any], Any], tensor: Any) -> int:
            before = hvd.stats()["bytes_copied"]
            call(tensor)
            return hvd.stats()["bytes_copied"] - before

        calls: list[Callable[[Any], Any]] = [
            hvd.allreduce,
            hvd.allgather,
            lambda tensor: hvd.grouped_allreduce([tensor, tensor[:0]]),
            lambda tensor: hvd.broadcast(tensor, 0),
            lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum),
            hvd.alltoall,
        ]
        for call in calls:
            expected = copied(call, plain.t().contiguous())
            assert copied(call, plain.t()) == expected + plain.nbytes
            assert copied(call, negated) == copied(call, plain) + plain.nbytes
        expected = copied(lambda tensor: hvd.broadcast_parameters([tensor], 0), plain)
        assert copied(lambda tensor: hvd.broadcast_parameters([tensor], 0), plain.t()) == expected + plain.nbytes

        before = hvd.stats()["bytes_copied"]
        for tensor in (plain, plain.t(), negated):
            assert layout.contiguous(tensor).is_contiguous()  # of the backend of torch.distributed
        assert hvd.stats()["bytes_copied"] - before == 2 * plain.nbytes


def test_copies_of_strided_tensors_are_counted(run_ranks: Callable[..., Any]) -> None:
    run_ranks(count_copies_of_strided_tensors, 1)
