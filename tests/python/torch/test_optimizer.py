"""DistributedOptimizer: Horovod's behaviour and texts, and where gradients lie."""

import contextlib
import copy
import io
import os
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there
from ringreduce.torch.optimizer import buckets  # noqa: E402
from ringreduce.torch.optimizer.layout import plan  # noqa: E402


def small_model() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def rank_input(rank: int, step: int = 0) -> Any:
    return torch.sin(torch.arange(12.0).reshape(2, 6) * (rank + 1) + step)


def local_gradients(model: Any, rank: int, steps: tuple[int, ...] = (0,)) -> list[Any]:
    """What autograd gives one rank alone, summed over backward passes."""
    alone = copy.deepcopy(model)
    for parameter in alone.parameters():
        parameter.grad = None
    for step in steps:
        alone(rank_input(rank, step)).pow(2).sum().backward()
    return [parameter.grad for parameter in alone.parameters()]


def expected(model: Any, size: int, steps: tuple[int, ...] = (0,), op: int = hvd.Average) -> list[Any]:
    sums = [sum(grads) for grads in zip(*(local_gradients(model, rank, steps) for rank in range(size)), strict=True)]
    return [grad / size if op == hvd.Average else grad for grad in sums]


def check(model: Any, wanted: list[Any], tolerance: float = 1e-6) -> None:
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        assert torch.allclose(parameter.grad, grad, rtol=tolerance, atol=tolerance)


def reduce_in_every_setting() -> None:
    with hvd.init() as world:
        settings: list[tuple[dict[str, Any], tuple[int, ...], float]] = [
            ({}, (0,), 1e-6),
            ({"op": hvd.Sum}, (0,), 1e-6),
            ({"gradient_as_bucket_view": False}, (0,), 1e-6),
            ({"compression": hvd.Compression.fp16}, (0,), 1e-2),
            ({"compression": hvd.Compression.bf16, "groups": 3}, (0,), 5e-2),
            ({"gradient_predivide_factor": 2.0}, (0,), 1e-6),
            ({"groups": 2}, (0,), 1e-6),
            ({"backward_passes_per_step": 2}, (0, 1), 1e-6),
            ({"backward_passes_per_step": 3, "gradient_as_bucket_view": False}, (0, 1, 2), 1e-6),
        ]
        for options, steps, tolerance in settings:
            model = small_model()
            plain = torch.optim.SGD(model.parameters(), lr=0.0)
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **options)
            for to_none in (True, False, True):
                for step in steps:
                    model(rank_input(world.rank, step)).pow(2).sum().backward()
                optimizer.step()
                check(model, expected(model, world.size, steps, options.get("op", hvd.Average)), tolerance)
                optimizer.zero_grad(set_to_none=to_none)
                assert all((p.grad is None) is to_none for p in model.parameters())


def test_reduces_in_every_setting(run_ranks: Callable[..., Any]) -> None:
    run_ranks(reduce_in_every_setting, 3)


def keep_views() -> None:
    """After a step, gradients are views of one registered allocation, and stay the same ones."""
    with hvd.init() as world:
        model = small_model()
        model[0].weight.data = model[0].weight.data.t().contiguous().t()  # dense, not contiguous
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())

        def step() -> list[int]:
            model(rank_input(world.rank)).pow(2).sum().backward()
            optimizer.step()
            check(model, expected(model, world.size))
            return [parameter.grad.data_ptr() for parameter in model.parameters()]

        first = step()
        assert max(first) - min(first) < 4096
        assert model[0].weight.grad.stride() == model[0].weight.stride()
        optimizer.zero_grad()
        assert step() == first
        optimizer.zero_grad(set_to_none=False)
        assert step() == first
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        assert step() == first


def test_gradients_are_views_of_registered_memory(run_ranks: Callable[..., Any]) -> None:
    run_ranks(keep_views, 2)


def save(thing: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(thing, stream)
    stream.seek(0)
    return stream


def follow_the_rules() -> None:
    with hvd.init() as world:
        model = small_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        assert isinstance(optimizer, torch.optim.SGD)
        assert type(optimizer).__name__ == "SGD"
        assert optimizer.param_groups is plain.param_groups

        def backward() -> None:
            model(rank_input(world.rank)).pow(2).sum().backward()

        backward()
        with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after loss.backward\(\) but before"):
            optimizer.zero_grad()
        with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
            backward()
        optimizer.synchronize()
        optimizer.zero_grad()

        backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        clipped = [parameter.grad.clone() for parameter in model.parameters()]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with optimizer.skip_synchronize():
                optimizer.step()
        assert all(torch.equal(p.grad, c) for p, c in zip(model.parameters(), clipped, strict=True))
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)

        optimizer.zero_grad()
        backward()
        optimizer.synchronize()
        with pytest.warns(UserWarning, match="without optimizer.skip_synchronize"):
            optimizer.step()

        saved = optimizer.state_dict()
        assert saved["state"].keys() == {0, 1, 2, 3}
        optimizer.zero_grad()
        backward()
        optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        holder = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        takes = [lambda: copy.copy(optimizer), lambda: copy.deepcopy(optimizer), lambda: pickle.dumps(optimizer)]
        takes += [lambda: save(optimizer), lambda: copy.deepcopy(holder), lambda: pickle.dumps([model, optimizer])]
        for take in takes:
            with pytest.raises(hvd.InvalidArgumentError, match=r"cannot be copied or pickled.*state_dict\(\)"):
                take()
        again = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1)
        stream = save(optimizer.state_dict())
        again.load_state_dict(torch.load(stream))
        assert str(again.state_dict()) == str(optimizer.state_dict())

        optimizer.set_backward_passes_per_step(2)
        wanted = expected(model, world.size, (0, 0))
        backward()
        backward()
        optimizer.step()
        check(model, wanted)

        optimizer.backward_passes_per_step = 3
        optimizer.add_param_group({"params": torch.nn.Linear(1, 1).parameters()})
        optimizer.zero_grad()
        wanted = expected(model, world.size, (0, 0, 0))
        for _ in range(3):
            backward()
        optimizer.step()
        check(model, wanted)
        assert optimizer.backward_passes_per_step == 3


def test_horovods_rules(run_ranks: Callable[..., Any]) -> None:
    run_ranks(follow_the_rules, 2)


def miss_some() -> None:
    """A parameter without a gradient on some ranks counts as zero there; on no rank, it gets zeros."""
    with hvd.init() as world:
        layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
        with torch.no_grad():
            for parameter in layers.parameters():
                parameter.fill_(1.0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.0), op=hvd.Sum, groups=3)
        for _ in range(2):
            loss = layers[0](torch.full((1, 2), world.rank + 1.0)).sum()
            if world.rank == 1:
                loss = loss + layers[1](torch.full((1, 2), 5.0)).sum()
            loss.backward()
            optimizer.step()
            assert layers[0].weight.grad.unique().tolist() == [3.0]
            assert layers[1].weight.grad.unique().tolist() == [5.0]
            assert layers[1].bias.grad.unique().tolist() == [1.0]
            assert layers[2].weight.grad.unique().tolist() == [0.0]
            optimizer.zero_grad()
        optimizer.step()
        assert not any(parameter.grad.any() for parameter in layers.parameters())


def test_missing_gradients_are_zeros(run_ranks: Callable[..., Any]) -> None:
    run_ranks(miss_some, 2)


def come_in_any_order() -> None:
    """Small gradients in any order, and one that comes too often on one rank only: no other rank waits for it."""
    usual, buckets.BATCH_NBYTES = buckets.BATCH_NBYTES, 300
    with hvd.init() as world:
        parameters = [torch.nn.Parameter(torch.zeros(3 + i)) for i in range(40)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=0.0), [(f"p{i}", p) for i, p in enumerate(parameters)]
        )
        order = random.Random(world.rank)

        def backward(index: int, step: int) -> None:
            (parameters[index].sum() * (world.rank + 10 * index + 1000 * step)).backward()

        for step in range(10):
            for index in order.sample(range(40), 40):
                backward(index, step)
                with pytest.raises(AssertionError, match="but before"):
                    optimizer.zero_grad()
            optimizer.step()
            mean = (world.size - 1) / 2
            assert all(p.grad.eq(mean + 10 * i + 1000 * step).all() for i, p in enumerate(parameters))
            optimizer.zero_grad()
        in_turn = list(range(40)[::-1])
        for coming in ([39, *in_turn], [*in_turn, 39]):
            for index in coming if world.rank == 1 else in_turn:
                backward(index, 0)
            if world.rank == 1:
                with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
                    optimizer.step()
            else:
                optimizer.step()
            assert all(p.grad.eq(mean + 10 * i).all() for i, p in enumerate(parameters) if i != 39)
            optimizer.zero_grad()
    buckets.BATCH_NBYTES = usual


def test_small_gradients_come_in_any_order(run_ranks: Callable[..., Any]) -> None:
    run_ranks(come_in_any_order, 3)


def take_closures() -> None:
    with hvd.init() as world:
        model = small_model()
        wanted = expected(model, world.size)
        reference = [p.detach() - 0.1 * grad for p, grad in zip(model.parameters(), wanted, strict=True)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(rank_input(world.rank)).pow(2).sum()
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0
        for parameter, value in zip(model.parameters(), reference, strict=True):
            assert torch.allclose(parameter, value, rtol=1e-6)


def test_closures_are_reduced(run_ranks: Callable[..., Any]) -> None:
    run_ranks(take_closures, 2)


def change_shape() -> None:
    """Parameters added later, sparse gradients made dense, half the ranks only, an optimizer that is gone."""
    with hvd.init() as world:
        model, extra = small_model(), torch.nn.Linear(3, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), op=hvd.Sum)
        optimizer.add_param_group({"params": extra.parameters(), "lr": 0.0})
        extra(model(rank_input(world.rank))).sum().backward()
        optimizer.step()
        sums = hvd.allgather_object([p.grad.tolist() for p in [*model.parameters(), *extra.parameters()]])
        assert sums[0] == sums[1]
        assert extra.bias.grad.item() == 2.0 * world.size
        del optimizer
        extra.bias.grad = None
        extra(torch.ones(1, 3)).sum().backward()
        assert extra.bias.grad.item() == 1.0

        table = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=0.0), sparse_as_dense=True, op=hvd.Sum
        )
        table(torch.tensor([world.rank, 3])).sum().backward()
        optimizer.step()
        assert table.weight.grad.is_sparse
        assert table.weight.grad._indices().tolist() == [[0, 1, 3]]  # of all ranks, and no row without a gradient
        assert table.weight.grad.to_dense().tolist() == [[1, 1], [1, 1], [0, 0], [2, 2]]

        # Zeros instead of no gradient, which broadcast_optimizer_state() leaves, make the first gradient a dense one.
        table = torch.nn.Embedding(4, 2, sparse=True)
        plain = torch.optim.SGD(table.parameters(), lr=0.0)
        hvd.broadcast_optimizer_state(plain, root_rank=0)
        optimizer = hvd.DistributedOptimizer(plain, op=hvd.Sum)
        for step in range(2):
            late = pytest.warns(RuntimeWarning, match="reduced as a dense one") if step else contextlib.nullcontext([])
            with late as seen:
                table(torch.tensor([world.rank, 3])).sum().backward()
                optimizer.step()
            assert [one.filename for one in seen] == [__file__] * step
            assert table.weight.grad.tolist() == [[1, 1], [1, 1], [0, 0], [2, 2]]
            optimizer.zero_grad()

        alone = hvd.add_process_set([1])
        model = small_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), process_set=alone)
        model(rank_input(world.rank)).pow(2).sum().backward()
        optimizer.step()
        check(model, local_gradients(model, world.rank))


def test_layouts_change(run_ranks: Callable[..., Any]) -> None:
    run_ranks(change_shape, 2)


def refuse() -> None:
    with hvd.init() as world:
        model = small_model()
        named = list(model.named_parameters())

        def wrap(named_parameters: Any = named, **options: Any) -> Any:
            return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters, **options)

        int8 = hvd.Compression.int8()
        assert repr(wrap(backward_passes_per_step=4.0).backward_passes_per_step) == "4"  # as Horovod takes it
        wrong: list[tuple[str, Callable[[], Any]]] = [
            (r"should be a sequence of tuples", lambda: wrap(model.parameters())),
            (r"must be unique. Found duplicates: a", lambda: wrap([("a", p) for p in model.parameters()])),
            (r"one or more model parameters were not named", lambda: wrap(named[1:])),
            (r"should be a sequence of tuples .* is a FP16Compressor", lambda: wrap(hvd.Compression.fp16)),
            (r"should be a sequence of tuples .* is a Linear", lambda: wrap(torch.nn.Linear(2, 2))),
            (r"should be a sequence of tuples", lambda: wrap([(*pair, 1) for pair in named])),
            (r"backward_passes_per_step must be > 0", lambda: wrap(backward_passes_per_step=0)),
            (r"must be > 0, and a whole number, not 2.5", lambda: wrap(backward_passes_per_step=2.5)),
            (r"must be > 0, and a whole number, not True", lambda: wrap(backward_passes_per_step=True)),
            (r"must be > 0, and a whole number, not '2'", lambda: wrap(backward_passes_per_step="2")),
            (r"must be > 0, and a whole number, not 0.5", lambda: wrap().set_backward_passes_per_step(0.5)),
            (r"compression='fp16' is no compressor: give hvd.Compression.fp16", lambda: wrap(compression="fp16")),
            (r"compression=None is no compressor", lambda: wrap(compression=None)),
            (r"optimizer is a torch.optim.Optimizer, .* not a Sequential", lambda: hvd.DistributedOptimizer(model)),
            (r"not supported with op != Average", lambda: wrap(gradient_predivide_factor=2.0, op=hvd.Sum)),
            (r"groups should be a non-negative integer or a list", lambda: wrap(groups=-1)),
            (r"groups should be a non-negative integer or a list", lambda: wrap(groups=[named[0][1]])),
            (r"op=Adasum takes Compression.none, fp16 or bf16", lambda: wrap(op=hvd.Adasum, compression=int8)),
            (r"op=Adasum combines the change of each parameter", lambda: wrap(op=hvd.Adasum, groups=2)),
            (r"can only appear once in groups", lambda: wrap(groups=[[named[0][1]], [named[0][1]]])),
            (r"is a DistributedOptimizer already", lambda: hvd.DistributedOptimizer(wrap())),
        ]
        for text, call in wrong:
            with pytest.raises(ValueError, match=text):
                call()
        other = torch.nn.Sequential(torch.nn.Linear(6 + world.rank, 4))
        with pytest.raises(hvd.MismatchError, match=r"0.weight float32 \[4, 6\].*rank 1 has 0.weight float32 \[4, 7\]"):
            hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters())
        with pytest.raises(hvd.MismatchError, match=r"rank 0 has 4 parameters, but rank 1 has 3"):
            hvd.DistributedOptimizer(torch.optim.SGD(list(model.parameters())[world.rank :], lr=0.1), named)
        for names in (named, None):
            turned = list(model.parameters())[:: 1 if world.rank == 0 else -1]
            with pytest.raises(hvd.MismatchError, match=r"the same parameters in another order .*sorted by name"):
                hvd.DistributedOptimizer(torch.optim.SGD(turned, lr=0.1), names)
        mixed = [torch.nn.Parameter(torch.zeros(3, dtype=one)) for one in (torch.float32, torch.float64)]
        named_mixed = [(str(index), one) for index, one in enumerate(mixed)]
        with pytest.raises(hvd.MismatchError, match="the same parameters in another order"):  # with the same buckets
            hvd.DistributedOptimizer(torch.optim.SGD(mixed[:: 1 if world.rank == 0 else -1], lr=0.1), named_mixed)
        with pytest.raises(hvd.MismatchError, match=r"op=0 .*but rank 1 has 1, op=1 "):
            wrap(op=hvd.Average if world.rank == 0 else hvd.Sum)
        with pytest.raises(hvd.MismatchError, match=r"shard_step=True .*but rank 1 has 1, .*shard_step=False "):
            wrap(shard_step=world.rank == 0)
        with pytest.warns(DeprecationWarning, match="num_groups"):
            wrap(num_groups=2)


def test_what_is_refused(run_ranks: Callable[..., Any]) -> None:
    run_ranks(refuse, 2)


def test_one_rank_steps_as_the_plain_optimizer() -> None:
    with hvd.init():
        models = [small_model(), small_model()]
        plain = torch.optim.Adam(models[0].parameters(), lr=0.1)
        wrapped = hvd.DistributedOptimizer(torch.optim.Adam(models[1].parameters(), lr=0.1))
        for step in range(3):
            for model, optimizer in zip(models, (plain, wrapped), strict=True):
                optimizer.zero_grad()
                model(rank_input(0, step)).pow(2).sum().backward()
                optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_plan_of_buckets() -> None:
    assert plan([], [], 10) == []
    assert plan([4, 4, 4], "aaa", 10) == [[0, 1], [2]]
    assert plan([40, 4, 40], "aaa", 10) == [[0], [1], [2]]
    assert plan([4, 4, 4, 4], "abab", 100) == [[0, 2], [1, 3]]
    assert plan([4, 9, 4, 4], "abba", 10) == [[1], [2], [0, 3]]
    for limit in range(1, 30):
        sizes = [(7 * i) % 13 for i in range(40)]
        buckets = plan(sizes, [i % 3 for i in range(40)], limit)
        assert sorted(index for bucket in buckets for index in bucket) == list(range(40))
        assert all(len(bucket) == 1 or sum(sizes[i] for i in bucket) <= limit for bucket in buckets)
        assert [bucket[-1] for bucket in buckets] == sorted(bucket[-1] for bucket in buckets)


def count_buckets(shard_step: bool) -> int:
    """Operations of a step, beyond the first. Gradients of 96, 16, 48 and 12 bytes."""
    with hvd.init() as world:
        model = small_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), shard_step=shard_step
        )
        for step in range(2):
            before = hvd.stats()["operations"]
            wanted = expected(model, world.size, (step,))
            optimizer.zero_grad()
            model(rank_input(world.rank, step)).pow(2).sum().backward()
            optimizer.synchronize()
            check(model, wanted)
            count = hvd.stats()["operations"] - before
            with optimizer.skip_synchronize():
                optimizer.step()
        return count


@pytest.mark.parametrize(("threshold", "buckets"), [("", 1), ("0", 4), ("64", 3), ("1e9", 1)])
@pytest.mark.parametrize("name", ["HOROVOD_FUSION_THRESHOLD", "RINGREDUCE_FUSION_THRESHOLD"])
def test_the_fusion_threshold_is_the_size_of_buckets(
    name: str, threshold: str, buckets: int, run_ranks: Callable[..., Any]
) -> None:
    environ = {name: threshold} if threshold else {}
    assert run_ranks(count_buckets, 2, args=(False,), env=environ) == [buckets] * 2
    # Sharded: synchronize() gathers as well.
    assert run_ranks(count_buckets, 2, args=(True,), env=environ) == [2 * buckets] * 2


def differ_in_threshold() -> None:
    os.environ["HOROVOD_FUSION_THRESHOLD"] = "0" if os.environ["RINGREDUCE_RANK"] == "1" else "1000"
    with hvd.init(), pytest.raises(hvd.MismatchError, match=r"fusion_threshold=1000, but rank 1 .*fusion_threshold=0$"):
        hvd.DistributedOptimizer(torch.optim.SGD(small_model().parameters(), lr=0.1))


def test_ranks_with_other_fusion_thresholds(run_ranks: Callable[..., Any]) -> None:
    run_ranks(differ_in_threshold, 2)
