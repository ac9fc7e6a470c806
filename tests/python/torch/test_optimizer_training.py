"""DistributedOptimizer among what else a script uses: sparse gradients, mixed precision, schedulers, torch.compile."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there


def net(seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 5))


def batch(rank: int, step: int = 0) -> Any:
    return torch.sin(torch.arange(28.0).reshape(4, 7) * (rank + 1.3) + step)


def alike(model: Any) -> bool:
    """Whether all ranks have the same parameters, bit by bit."""
    mine = [parameter.detach().float().numpy().tobytes() for parameter in model.parameters()]
    return all(theirs == mine for theirs in hvd.allgather_object(mine))


def close(model: Any, other: Any, tolerance: float = 1e-5) -> bool:
    return all(
        torch.allclose(a, b, rtol=tolerance, atol=tolerance)
        for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def alone(model: Any, make: Callable[[Any], Any], size: int, steps: int, passes: int = 1) -> Any:
    """One process, trained on the batches of all ranks."""
    other = copy.deepcopy(model)
    optimizer = make(other)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            (sum(other(batch(rank, step + part)).pow(2).mean() for rank in range(size)) / size).backward()
        optimizer.step()
    return other


# --- sparse gradients -------------------------------------------------------------------------------------------------


def reduce_sparse() -> None:
    with hvd.init() as world:
        n, r = world.size, world.rank

        def rows_of(rank: int, step: int) -> Any:  # rank 0 sees nothing in step 1
            return torch.tensor([] if rank == 0 and step == 1 else [rank, rank, 7 + step, 12], dtype=torch.int64)

        def run(table: Any, top: Any, optimizer: Any, rank_list: list[int], scale: float, step: int) -> None:
            optimizer.zero_grad()
            for rank in rank_list:
                rows = rows_of(rank, step)
                if len(rows) or len(rank_list) > 1:
                    (top(table(rows)).sum() * (rank + 1) * scale).backward()
                elif top.weight.requires_grad:
                    (top(torch.zeros(1, 3)).sum() * 0).backward()
            optimizer.step()

        for kind, options, settings in (
            ("SGD", {"lr": 0.1}, {}),
            ("SGD", {"lr": 0.1}, {"op": hvd.Sum}),
            ("SGD", {"lr": 0.1}, {"gradient_predivide_factor": 2.0}),
            ("SGD", {"lr": 0.1}, {"compression": hvd.Compression.fp16}),
            ("SparseAdam", {"lr": 0.1}, {}),
        ):
            tables, tops = [], []
            for _ in range(2):
                torch.manual_seed(1)
                tables.append(torch.nn.Embedding(40, 3, sparse=True))
                tops.append(torch.nn.Linear(3, 2))
                tops[-1].requires_grad_(kind == "SGD")
            parameters = [
                [p for m in pair for p in m.parameters() if p.requires_grad] for pair in zip(tables, tops, strict=True)
            ]
            plain = getattr(torch.optim, kind)(parameters[0], **options)
            optimizer = hvd.DistributedOptimizer(getattr(torch.optim, kind)(parameters[1], **options), **settings)
            for step in range(3):
                run(tables[0], tops[0], plain, list(range(n)), 1.0 if "op" in settings else 1 / n, step)
                run(tables[1], tops[1], optimizer, [r], 1.0, step)
                assert tables[1].weight.grad.layout is torch.sparse_coo
                assert alike(tables[1])
                tolerance = 1e-2 if "compression" in settings else 1e-5
                assert close(tables[1], tables[0], tolerance), (kind, settings, step)
                assert close(tops[1], tops[0], tolerance), (kind, settings, step)

        big = torch.nn.Embedding(5000, 16, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(big.parameters(), lr=0.1), backward_passes_per_step=2)
        for step in range(2):
            before = hvd.stats()["bytes_moved"]
            optimizer.zero_grad()
            for part in range(2):
                big(torch.tensor([r, 4000 + part])).sum().backward()
            optimizer.step()
            if step == 1:
                assert hvd.stats()["bytes_moved"] - before < 1000  # of 320 000
            grad = big.weight.grad.to_dense()
            assert grad[:, 0].nonzero().flatten().tolist() == [*range(n), 4000, 4001]
            assert torch.allclose(grad[4000], torch.ones(16))
            assert torch.allclose(grad[r], torch.full((16,), 2.0 / n))

        late = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(late.parameters(), lr=0.1))
        optimizer.step()
        optimizer.zero_grad()
        with pytest.warns(RuntimeWarning, match="was dense or missing on all ranks in the first step"):
            late(torch.tensor([r])).sum().backward()
        optimizer.step()
        assert late.weight.grad.tolist() == [[1.0 / n] * 2 if row < n else [0.0] * 2 for row in range(4)]

        other = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1), op=hvd.Max)
        other(torch.tensor([0])).sum().backward()
        with pytest.raises(hvd.InvalidArgumentError, match="not Max"):
            optimizer.step()


def test_sparse_gradients(run_ranks: Callable[..., Any]) -> None:
    run_ranks(reduce_sparse, 2)


def average_sparse_of_half_precision() -> None:
    """Half of the smallest fp16 is 0 in fp16, and the sum of the largest is infinite: the average is neither."""
    with hvd.init():
        for scale in (2**-24, 60000.0):
            for is_sparse in (True, False):
                torch.manual_seed(1)
                table = torch.nn.Embedding(4, 2, sparse=is_sparse, dtype=torch.float16)
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.0))
                (table(torch.tensor([1])) * torch.tensor(scale, dtype=torch.float16)).sum().backward()
                optimizer.step()
                grad = table.weight.grad
                assert grad.is_sparse == is_sparse
                assert grad.dtype is torch.float16
                assert grad.to_dense().tolist() == [[scale if row == 1 else 0.0] * 2 for row in range(4)], is_sparse


def test_sparse_gradients_of_half_precision(run_ranks: Callable[..., Any]) -> None:
    run_ranks(average_sparse_of_half_precision, 2)


# --- training ---------------------------------------------------------------------------------------------------------


def change_what_is_trained() -> None:
    """Parameters that are switched on and off, accumulation, checkpoints, schedulers, step hooks, clipping."""
    with hvd.init() as world:
        n, r = world.size, world.rank

        def sgd(model: Any) -> Any:
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

        for options in ({}, {"gradient_as_bucket_view": False}):
            model, start = net(), net()
            model[0].requires_grad_(False)
            optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **options)
            for on in (False, True):
                model[0].requires_grad_(on)
                for step in range(2):
                    optimizer.zero_grad()
                    model(batch(r, step)).pow(2).mean().backward()
                    optimizer.step()
                    assert alike(model)
                assert torch.equal(model[0].weight, start[0].weight) is not on
            model[2].requires_grad_(False)
            kept = model[2].weight.detach().clone()
            for step in range(2):
                optimizer.zero_grad()
                model(batch(r, step)).pow(2).mean().backward()
                optimizer.step()
            assert torch.equal(model[2].weight, kept)  # no zeros, which weight decay and momentum would act on
            assert alike(model)

        model = net()
        wanted = alone(model, sgd, n, 3, passes=2)
        optimizer = hvd.DistributedOptimizer(sgd(model), backward_passes_per_step=2)
        for step in range(3):
            optimizer.zero_grad()
            for part in range(2):
                model(batch(r, step + part)).pow(2).mean().backward()
            optimizer.step()
        assert close(model, wanted)

        model = net()
        inner = torch.optim.Adam(model.parameters(), lr=0.1)
        before = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
        optimizer = hvd.DistributedOptimizer(inner)
        after = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
        calls: list[int] = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        for step in range(3):
            optimizer.zero_grad()
            model(batch(r, step)).pow(2).mean().backward()
            if step == 2:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                optimizer.zero_grad()
                model(batch(r, step)).pow(2).mean().backward()
            optimizer.step()
            if step < 2:
                before.step()
                after.step()
        assert len(calls) == 3
        assert alike(model)
        assert optimizer.param_groups[0]["lr"] != 0.1
        fresh = torch.optim.Adam(net().parameters())
        fresh.load_state_dict(optimizer.state_dict())
        assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        again = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
        again.load_state_dict(fresh.state_dict())
        assert str(again.state_dict()) == str(optimizer.state_dict())
        assert isinstance(again, torch.optim.Adam)

        half = net().to(torch.bfloat16)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(half.parameters(), lr=0.1))
        half(batch(r).to(torch.bfloat16)).pow(2).mean().backward()
        grads = hvd.allgather_object([parameter.grad.clone() for parameter in half.parameters()])
        norm = optimizer.clip_grad_norm_(0.01)
        assert torch.equal(hvd.broadcast(norm, 0), norm)
        for at, parameter in enumerate(half.parameters()):
            assert parameter.grad.dtype is torch.bfloat16
            mean = sum(theirs[at].float() for theirs in grads) / n
            assert torch.allclose(parameter.grad.float(), mean * (0.01 / norm.float()), rtol=0.05, atol=1e-4)
        optimizer.step()
        assert alike(half)


def test_training_goes_on_while_things_change(run_ranks: Callable[..., Any]) -> None:
    run_ranks(change_what_is_trained, 2)


def scale_and_compile(settings: dict[str, Any]) -> None:
    with hvd.init() as world:
        n, r = world.size, world.rank

        def sgd(model: Any) -> Any:
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model), **settings)
        for step in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(batch(r, step)).float().pow(2).mean()
            loss.backward()
            optimizer.step()
        assert alike(model)
        assert close(model, alone(net(), sgd, n, 3), 3e-2)
        assert not close(model, net(), 3e-2)

        model = net()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **settings)
        for step in range(3):
            optimizer.zero_grad()
            compiled(batch(r, step)).pow(2).mean().backward()
            optimizer.step()
        assert alike(model)
        assert close(model, alone(net(), sgd, n, 3))

        if not hasattr(torch.amp, "GradScaler"):
            return
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model), **settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        for step in range(4):
            kept = [parameter.detach().clone() for parameter in model.parameters()]
            optimizer.zero_grad()
            x = batch(r, step)
            if step == 2 and r == 1:
                x = x * float("inf")  # on one rank only: all of them must leave the step out
            scaler.scale(model(x).pow(2).mean()).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            stayed = all(torch.equal(a, b) for a, b in zip(model.parameters(), kept, strict=True))
            assert stayed is (step == 2)
            assert scaler.get_scale() == (512.0 if step >= 2 else 1024.0)
        assert alike(model)

        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(batch(r, 1)).float().pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        assert norm > 1e-3
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        assert alike(model)


@pytest.mark.parametrize("settings", [{}, {"shard_step": True}], ids=["whole", "shared out"])
def test_mixed_precision_and_compile(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(scale_and_compile, 2, args=(settings,))


# --- Adasum -----------------------------------------------------------------------------------------------------------


def pairwise(a: Any, b: Any) -> Any:
    """Adasum of two vectors, from the paper."""
    dot, aa, bb = (float((x * y).sum()) for x, y in ((a, b), (a, a), (b, b)))
    return (1 - dot / (2 * aa) if aa else 1.0) * a + (1 - dot / (2 * bb) if bb else 1.0) * b


def add_adaptively() -> None:
    with hvd.init() as world:
        models = [net() for _ in range(world.size)]
        plain = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
        mine = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(mine.parameters(), lr=0.01), op=hvd.Adasum)
        assert isinstance(optimizer, torch.optim.Adam)
        with pytest.raises(AssertionError, match="Skipping synchronization is not supported"):
            optimizer.skip_synchronize().__enter__()
        with pytest.raises(hvd.InvalidArgumentError, match="op=Adasum: a GradScaler leaves out steps"):
            bool(optimizer._step_supports_amp_scaling)  # what torch.amp.GradScaler.step() reads first
        for step in range(3):
            start = [parameter.detach().clone() for parameter in mine.parameters()]
            optimizer.zero_grad()
            mine(batch(world.rank, step)).pow(2).mean().backward()
            optimizer.step()
            for rank, (model, one) in enumerate(zip(models, plain, strict=True)):
                one.zero_grad()
                model(batch(rank, step)).pow(2).mean().backward()
                one.step()
            for parameter, first, *theirs in zip(
                mine.parameters(), start, *(model.parameters() for model in models), strict=True
            ):
                wanted = first + pairwise(*(p.detach().double() - first.double() for p in theirs))
                assert torch.allclose(parameter.double(), wanted, rtol=1e-4, atol=1e-6)
                for other in theirs:
                    other.data.copy_(parameter.detach())
            assert alike(mine)


def test_adasum_combines_the_ranks_changes(run_ranks: Callable[..., Any]) -> None:
    run_ranks(add_adaptively, 2)


def search_along_lines(skips: bool) -> tuple[list[list[float]], list[list[float]]]:
    """Parameters after LBFGS with a line search: on each rank's half of the data, and alone on all of it.

    skips: the closure reduces by synchronize(), and step() is called within skip_synchronize().
    """
    ends = []
    with hvd.init() as world:
        for alone in (False, True):
            torch.manual_seed(0)
            inputs, targets = torch.randn(16, 3, dtype=torch.float64), torch.randn(16, 1, dtype=torch.float64)
            if not alone:
                inputs, targets = (part[world.rank :: world.size] for part in (inputs, targets))
            model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
            optimizer: Any = torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn="strong_wolfe")
            if not alone:
                optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

            def closure(
                model: Any = model,
                optimizer: Any = optimizer,
                inputs: Any = inputs,
                targets: Any = targets,
                alone: bool = alone,
            ) -> Any:
                optimizer.zero_grad()
                loss = (model(inputs) - targets).square().mean()
                loss.backward()
                if skips and not alone:
                    optimizer.synchronize()
                return loss

            for _ in range(3):
                with optimizer.skip_synchronize() if skips and not alone else contextlib.nullcontext():
                    optimizer.step(closure)
            ends.append([parameter.tolist() for parameter in model.parameters()])
    return ends[0], ends[1]


@pytest.mark.parametrize("skips", [False, True])
def test_lbfgs_searches_along_the_loss_of_all_ranks(skips: bool, run_ranks: Callable[..., Any]) -> None:
    (first, whole), (second, _) = run_ranks(search_along_lines, 2, args=(skips,))
    assert first == second
    for got, expected in zip(first, whole, strict=True):
        assert torch.allclose(torch.tensor(got), torch.tensor(expected), rtol=1e-6)


# --- an optimizer that keeps gradients --------------------------------------------------------------------------------


class Keeping(torch.optim.Optimizer):
    """Adds the difference from the previous gradient, which it keeps as it is: `state["previous"] = parameter.grad`.

    since: the step from which on it keeps them.
    """

    ringreduce_elementwise = True

    def __init__(self, params: Any, since: int = 0, in_list: bool = False) -> None:
        super().__init__(params, {"lr": 0.1})
        self.steps, self.since, self.in_list = 0, since, in_list

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state, grad = self.state[parameter], parameter.grad
            (previous,) = state["previous"] if self.in_list and state else [state.get("previous", torch.zeros(()))]
            parameter.sub_(grad * 0.1 + (grad - previous) * 0.05)
            if self.steps >= self.since:
                state["previous"] = [grad] if self.in_list else grad
        self.steps += 1


def keep_gradients(compression: str) -> None:
    with hvd.init() as world:
        for kind in ({}, {"since": 1}, {"in_list": True}):
            for views in (True, False):
                model = net()
                wanted = alone(model, lambda other, kind=kind: Keeping(other.parameters(), **kind), world.size, 6)
                optimizer = hvd.DistributedOptimizer(
                    Keeping(model.parameters(), **kind),
                    model.named_parameters(),
                    gradient_as_bucket_view=views,
                    groups=[[model[0].weight, model[0].bias]],
                    compression=getattr(hvd.Compression, compression),
                )
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    for step in range(6):
                        optimizer.zero_grad()
                        model(batch(world.rank, step)).pow(2).mean().backward()
                        optimizer.step()
                told = [str(one.message) for one in caught if "gradient_as_bucket_view=False" in str(one.message)]
                assert len(told) == (1 if views and compression == "none" else 0), told
                assert all("'previous'" in text and "0.weight" in text for text in told)
                assert alike(model)
                assert close(model, wanted, 1e-5 if compression == "none" else 1e-2)
        model = net()
        shared = hvd.DistributedOptimizer(Keeping(model.parameters()), shard_step=True)
        model(batch(world.rank)).pow(2).mean().backward()
        with pytest.raises(hvd.InvalidArgumentError, match=r"'previous'.*shard_step=True"):
            shared.step()


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_an_optimizer_that_keeps_gradients(compression: str, run_ranks: Callable[..., Any]) -> None:
    run_ranks(keep_gradients, 2, args=(compression,))
