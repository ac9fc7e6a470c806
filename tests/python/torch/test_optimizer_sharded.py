"""DistributedOptimizer(shard_step=True): the same results as without, with the state in shares."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there
from ringreduce.torch.optimizer import layout, shards  # noqa: E402

BITS = "bits"
CLOSE = "close"

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": (BITS, {"lr": 0.1}),
    "SGD momentum": (BITS, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1}),
    "SGD nesterov": (BITS, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adam": (BITS, {"lr": 0.01, "weight_decay": 0.01}),
    "Adam amsgrad": (BITS, {"lr": 0.01, "amsgrad": True}),
    "AdamW": (BITS, {"lr": 0.01}),
    "RMSprop": (CLOSE, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "Adagrad": (CLOSE, {"lr": 0.1, "initial_accumulator_value": 0.5}),
    "Adadelta": (CLOSE, {"lr": 1.0}),
    "Adamax": (CLOSE, {"lr": 0.01}),
    "NAdam": (CLOSE, {"lr": 0.01}),
    "RAdam": (CLOSE, {"lr": 0.01}),
    "ASGD": (CLOSE, {"lr": 0.1}),
    "Rprop": (CLOSE, {"lr": 0.01}),
}


class Net(torch.nn.Module):
    """Odd sizes; a parameter without dimensions, one that is dense but not contiguous, one that is used at times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = torch.nn.Linear(13, 37)
        self.second = torch.nn.Linear(37, 11)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.rare = torch.nn.Linear(11, 11, bias=False)
        self.first.weight.data = self.first.weight.data.t().contiguous().t()

    def forward(self, x: Any, rare: bool = False) -> Any:
        y = self.second(torch.tanh(self.first(x))) * self.scale
        return self.rare(y) if rare else y


def batch(rank: int, step: int) -> Any:
    return torch.sin(torch.arange(39.0).reshape(3, 13) * (rank + 1.3) + step)


def loss_of(model: Any, rank: int, step: int) -> Any:
    return model(batch(rank, step).to(model.scale.dtype), rare=step % 2 == 1).pow(2).mean()


def groups_of(model: Any) -> list[dict[str, Any]]:
    """Two groups of different options; buckets must not span them."""
    first = [model.first.weight, model.scale, model.rare.weight]
    return [{"params": first}, {"params": [model.first.bias, *model.second.parameters()], "lr": 0.03}]


def make(name: str, model: Any, options: dict[str, Any]) -> Any:
    return getattr(torch.optim, name.split()[0])(groups_of(model), **options)


@contextmanager
def small_buckets(nbytes: int = 900) -> Iterator[None]:
    """Several buckets, and several pieces of each shard."""
    usual = layout.BUCKET_NBYTES, shards.PIECE_NBYTES
    layout.BUCKET_NBYTES, shards.PIECE_NBYTES = nbytes, 128
    try:
        yield
    finally:
        layout.BUCKET_NBYTES, shards.PIECE_NBYTES = usual


def train(optimizer: Any, model: Any, rank: int, steps: int = 4, scheduler: Any = None) -> None:
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 3 != 2)
        loss_of(model, rank, step).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def train_alone(optimizer: Any, model: Any, size: int, steps: int = 4, scheduler: Any = None) -> None:
    """One process on the batch of all ranks; a parameter that is not used has a gradient of zeros."""
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        (sum(loss_of(model, rank, step) for rank in range(size)) / size).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    return all(
        torch.allclose(x, y, rtol=tolerance, atol=tolerance)
        for x, y in zip(a.parameters(), b.parameters(), strict=True)
    )


def step_everything() -> list[str]:
    problems = []
    with hvd.init() as world, small_buckets():
        for name, (kind, options) in OPTIMIZERS.items():
            for foreach in (False, True):
                chosen = options | {"foreach": foreach}
                models = [Net() for _ in range(3)]
                start = copy.deepcopy(models[0])
                plain = make(name, models[0], chosen)
                whole = hvd.DistributedOptimizer(make(name, models[1], chosen))
                shared = hvd.DistributedOptimizer(make(name, models[2], chosen), shard_step=True)
                decay = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (plain, whole, shared)]
                train_alone(plain, models[0], world.size, scheduler=decay[0])
                train(whole, models[1], world.rank, scheduler=decay[1])
                train(shared, models[2], world.rank, scheduler=decay[2])
                what = f"{name} foreach={foreach}"
                assert isinstance(shared, getattr(torch.optim, name.split()[0]))
                if close(models[2], start, 1e-4):
                    problems.append(f"{what}: nothing was learnt")
                if not close(models[2], models[0]):
                    problems.append(f"{what}: not as one process")
                if not (equal if kind == BITS else close)(models[2], models[1]):
                    problems.append(f"{what}: not as the step that is not shared out ({kind})")
                digest = [parameter.tolist() for parameter in models[2].parameters()]
                if any(theirs != digest for theirs in hvd.allgather_object(digest)):
                    problems.append(f"{what}: ranks differ")
    return problems


@pytest.mark.parametrize("size", [2, 3])
def test_every_optimizer_steps_as_without_shares(size: int, run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(step_everything, size) == [[]] * size


def state_count(optimizer: Any) -> int:
    """Elements that this rank keeps, step counts left out."""
    inner = sum(
        v.numel() for s in optimizer._inner.state.values() for v in s.values() if torch.is_tensor(v) and v.dim()
    )
    return inner + sum(v.numel() for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v))


def keep_shares() -> None:
    """1/N of the state, no copies, two operations a bucket; gradients and parameters in registered memory."""
    with hvd.init() as world:
        model = torch.nn.Sequential(torch.nn.Linear(512, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
        count = sum(parameter.numel() for parameter in model.parameters())
        values = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), shard_step=True)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), values, strict=True))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(8, 512)).pow(2).sum().backward()
            optimizer.step()

        step()
        padding = 16 * world.size + 16 * 4
        assert 2 * count / world.size <= state_count(optimizer) <= 2 * (count + padding) / world.size
        addresses = [(parameter.data_ptr(), parameter.grad.data_ptr()) for parameter in model.parameters()]
        before = hvd.stats()
        for _ in range(3):
            step()
        used = {name: value - before[name] for name, value in hvd.stats().items()}
        assert addresses == [(parameter.data_ptr(), parameter.grad.data_ptr()) for parameter in model.parameters()]
        assert (used["direct"], used["two_shot"], used["one_shot"], used["bytes_copied"]) == (2 * 3, 0, 0, 0)
        assert 3 * 4 * count * (1 + 1 / world.size) <= used["bytes_moved"]


@pytest.mark.parametrize("size", [2, 3])
def test_state_is_shared_out_and_nothing_is_copied(size: int, run_ranks: Callable[..., Any]) -> None:
    run_ranks(keep_shares, size)


def same_state(one: Any, two: Any) -> bool:
    """Two state_dict()s, bit by bit."""
    if one["param_groups"] != two["param_groups"] or one["state"].keys() != two["state"].keys():
        return False
    return all(
        theirs.keys() == ours.keys()
        and all(
            torch.equal(ours[key], theirs[key]) if torch.is_tensor(ours[key]) else ours[key] == theirs[key]
            for key in ours
        )
        for ours, theirs in ((one["state"][index], two["state"][index]) for index in one["state"])
    )


def save_state(name: str, options: dict[str, Any]) -> tuple[Any, bytes]:
    """The state of the step that is shared out is that of the one that is not, before and after a reload."""
    with hvd.init() as world, small_buckets():
        models = [Net() for _ in range(2)]
        whole = hvd.DistributedOptimizer(make(name, models[0], options))
        shared = hvd.DistributedOptimizer(make(name, models[1], options), shard_step=True)
        assert same_state(whole.state_dict(), shared.state_dict())
        for _ in range(2):
            for model, optimizer in zip(models, (whole, shared), strict=True):
                train(optimizer, model, world.rank)
            assert same_state(whole.state_dict(), shared.state_dict())
            kept = state_count(shared)
            saved = shared.state_dict()
            assert same_state(saved, shared.state_dict())
            assert state_count(shared) == kept
            plain = make(name, models[0], options)
            plain.load_state_dict(copy.deepcopy(saved))  # which takes the tensors themselves
            assert same_state(plain.state_dict(), saved)
            for optimizer in (whole, shared):
                optimizer.load_state_dict(copy.deepcopy(saved))
            assert same_state(saved, shared.state_dict())
        assert equal(*models)
        assert str(shared) == str(whole)
        with pytest.raises(hvd.InvalidArgumentError, match=r"cannot be copied .*state_dict\(\)"):
            copy.deepcopy(shared)
        train(whole, models[0], world.rank, 1)
        return saved, pickle.dumps([parameter.detach() for parameter in models[1].parameters()])


def resume(name: str, options: dict[str, Any], saved: Any, parameters: bytes) -> Any:
    """Goes on elsewhere, with the checkpoint on rank 0 only."""
    with hvd.init() as world, small_buckets(500):
        model = Net()
        plain = make(name, model, options)
        if world.rank == 0:
            plain.load_state_dict(saved)
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), pickle.loads(parameters), strict=True):
                    parameter.copy_(value)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), shard_step=True)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert same_state(optimizer.state_dict(), saved)
        for step in range(3):  # the same batch on all ranks: the same result on any number of them
            optimizer.zero_grad()
            loss_of(model, 0, step).backward()
            optimizer.step()
        return [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["Adam", "SGD momentum"])
def test_state_goes_to_the_plain_optimizer_and_to_other_numbers_of_ranks(
    name: str, run_ranks: Callable[..., Any]
) -> None:
    options = OPTIMIZERS[name][1]
    saved, parameters = run_ranks(save_state, 3, args=(name, options))[0]
    end = run_ranks(resume, 2, args=(name, options, saved, parameters))[0]
    model = Net()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), pickle.loads(parameters), strict=True):
            parameter.copy_(value)
    plain = make(name, model, options)
    plain.load_state_dict(saved)
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        loss_of(model, 0, step).backward()
        plain.step()
    for parameter, value in zip(model.parameters(), end, strict=True):
        assert torch.allclose(parameter, torch.tensor(value), rtol=1e-6, atol=1e-7)


def save_by_distributed_checkpoint() -> None:
    """What torch's helpers save and load is the state, and training goes on as if they had not been called."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    with hvd.init() as world, small_buckets():
        for flat in (False, True):
            models = [Net() for _ in range(4)]
            plain, left_alone, saved, fresh = (make("Adam", model, OPTIMIZERS["Adam"][1]) for model in models)
            left_alone, saved, fresh = (
                hvd.DistributedOptimizer(one, shard_step=True) for one in (left_alone, saved, fresh)
            )
            options = checkpoint.StateDictOptions(flatten_optimizer_state_dict=flat)
            for _ in range(2):
                train_alone(plain, models[0], world.size)
                train(left_alone, models[1], world.rank)
                train(saved, models[2], world.rank)
                saved.zero_grad()
                kept = state_count(saved)
                found = checkpoint.get_optimizer_state_dict(models[2], saved, options=options)
                wanted = checkpoint.get_optimizer_state_dict(models[0], plain, options=options)
                found_state, wanted_state = (
                    {key: value for key, value in one.items() if torch.is_tensor(value)} if flat else one["state"]
                    for one in (found, wanted)
                )
                torch.testing.assert_close(found_state, wanted_state, rtol=1e-5, atol=1e-5)
                assert state_count(saved) == kept
                assert bool(saved.state)
            assert equal(models[1], models[2])
            models[3].load_state_dict(models[2].state_dict())
            checkpoint.set_optimizer_state_dict(models[3], fresh, copy.deepcopy(found), options=options)
            assert same_state(saved.state_dict(), fresh.state_dict())
            assert copy.deepcopy(saved.state) == {}
            train(saved, models[2], world.rank)
            train(fresh, models[3], world.rank)
            assert equal(models[2], models[3])
            assert list(fresh.state[models[3].scale]) == ["step", "exp_avg", "exp_avg_sq"]
            with pytest.raises(hvd.InvalidArgumentError, match=r"shares of all ranks.*state_dict\(\)"):
                fresh.state[models[3].scale]["exp_avg"]


def test_torch_distributed_checkpoint(run_ranks: Callable[..., Any]) -> None:
    run_ranks(save_by_distributed_checkpoint, 2)


def clip() -> None:
    """Each way of clipping gives what one process has; gradients are whole after synchronize()."""
    with hvd.init() as world, small_buckets():
        for norm_type in (2.0, 1.0, float("inf")):
            models = [Net() for _ in range(5)]
            plain, *others = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models)
            wrapped = [hvd.DistributedOptimizer(one, shard_step=at != 3) for at, one in enumerate(others)]
            norms = []
            for step in range(3):
                for parameter in models[0].parameters():
                    parameter.grad = torch.zeros_like(parameter)
                (sum(loss_of(models[0], rank, step) for rank in range(world.size)) / world.size).backward()
                norms = [torch.nn.utils.clip_grad_norm_(models[0].parameters(), 0.01, norm_type)]
                wanted = [parameter.grad for parameter in models[0].parameters()]
                plain.step()
                for at, (model, optimizer) in enumerate(zip(models[1:], wrapped, strict=True)):
                    optimizer.zero_grad()
                    loss_of(model, world.rank, step).backward()
                    if at in (0, 3):
                        norms.append(optimizer.clip_grad_norm_(0.01, norm_type))
                        optimizer.step()
                        continue
                    optimizer.synchronize()
                    norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type))
                    for parameter, grad in zip(model.parameters(), wanted, strict=True):
                        assert torch.allclose(parameter.grad, grad, rtol=1e-4, atol=1e-7)
                        if at == 2:
                            parameter.grad = parameter.grad.clone()
                    with optimizer.skip_synchronize():
                        optimizer.step()
                assert torch.allclose(torch.stack(norms), norms[0].expand(len(norms)), rtol=1e-4)
                assert norms[0] > 0.02
                assert all(close(model, models[0]) for model in models[1:])
        with pytest.raises(AssertionError, match="needs a synchronize"), wrapped[0].skip_synchronize():
            wrapped[0].step()
        wrapped[0].zero_grad()
        loss_of(models[1], world.rank, 0).backward()
        models[1].scale.grad.fill_(float("nan"))
        for norm_type in (0.0, -1.0, -float("inf"), float("nan")):
            with pytest.raises(hvd.InvalidArgumentError, match=r"norm_type must be > 0 .*call optimizer\.synchronize"):
                wrapped[0].clip_grad_norm_(1.0, norm_type)
        with pytest.raises(RuntimeError, match="non-finite"):
            wrapped[0].clip_grad_norm_(1.0, error_if_nonfinite=True)


def test_clipping(run_ranks: Callable[..., Any]) -> None:
    run_ranks(clip, 2)


def clip_in_double() -> None:
    """The norm of float64 gradients is float64 in both forms, and so is what they are scaled by."""
    with hvd.init() as world, small_buckets():
        for norm_type in (2.0, 1.0, float("inf")):
            ends = []
            for shard_step in (False, True):
                model = Net().double()
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), shard_step=shard_step)
                for step in range(2):
                    optimizer.zero_grad()
                    loss_of(model, world.rank, step).backward()
                    norm = optimizer.clip_grad_norm_(0.01, norm_type)
                    optimizer.step()
                ends.append([norm, *(parameter.detach() for parameter in model.parameters())])
            for whole, shared in zip(*ends, strict=True):
                torch.testing.assert_close(shared, whole, rtol=1e-13, atol=1e-14)


def test_clipping_in_double(run_ranks: Callable[..., Any]) -> None:
    run_ranks(clip_in_double, 2)


def follow_the_rules() -> None:
    """Closures, accumulation, groups and parameters that come later, dtypes, the zero_grad guard, step hooks."""
    with hvd.init() as world, small_buckets():

        def pair(make_one: Callable[[Any], Any], model: Any, **options: Any) -> tuple[Any, Any, Any, Any]:
            other = copy.deepcopy(model)
            whole = hvd.DistributedOptimizer(make_one(model), **options)
            return model, whole, other, hvd.DistributedOptimizer(make_one(other), shard_step=True, **options)

        def adam(model: Any) -> Any:
            return torch.optim.Adam(model.parameters(), lr=0.01)

        one, whole, two, shared = pair(adam, Net(), backward_passes_per_step=2, groups=3, op=hvd.Sum)
        seen = []
        shared.register_step_pre_hook(lambda optimizer, *_: seen.append(optimizer))
        for step in range(3):
            for model, optimizer in ((one, whole), (two, shared)):
                optimizer.zero_grad()
                for part in range(2):
                    loss_of(model, world.rank, step + part).backward()
                with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after"):
                    optimizer.zero_grad()
                optimizer.step()
        assert equal(one, two)
        assert seen == [shared] * 3

        for model, optimizer in ((one, whole), (two, shared)):
            optimizer.set_backward_passes_per_step(1)
            model.extra = torch.nn.Linear(11, 2)
            with torch.no_grad():
                model.extra.weight.fill_(0.1 + world.rank)
                model.extra.bias.fill_(world.rank)
            optimizer.add_param_group({"params": model.extra.parameters(), "lr": 0.5})
            hvd.broadcast_parameters(model.state_dict(), root_rank=1)
            model.first.weight.data = model.first.weight.data.clone()  # whoever moves a parameter may do so

            def closure(model: Any = model, optimizer: Any = optimizer) -> Any:
                optimizer.zero_grad()
                loss = model.extra(model(batch(world.rank, 3))).pow(2).sum()
                loss.backward()
                return loss

            losses = [optimizer.step(closure).item() for _ in range(3)]
            assert losses[2] < losses[0]
        assert equal(one, two)
        assert same_state(whole.state_dict(), shared.state_dict())

        frozen = Net()
        frozen.first.requires_grad_(False)
        one, whole, two, shared = pair(adam, frozen)
        for model, optimizer in ((one, whole), (two, shared)):
            train(optimizer, model, world.rank, 2)
            model.first.requires_grad_(True)
            optimizer.zero_grad()
            train(optimizer, model, world.rank, 3)
            assert not torch.equal(model.first.weight, Net().first.weight)
        assert equal(one, two)
        two.first.bias.requires_grad_(False)
        shared.zero_grad()
        loss_of(two, world.rank, 0).backward()
        with pytest.raises(hvd.InvalidArgumentError, match="no longer requires a gradient"):
            shared.step()

        for dtype, same in ((torch.float64, equal), (torch.bfloat16, lambda a, b: close(a, b, 2e-2))):
            one, whole, two, shared = pair(lambda model: torch.optim.SGD(model.parameters(), 0.1, 0.9), Net().to(dtype))
            for model, optimizer in ((one, whole), (two, shared)):
                train(optimizer, model, world.rank)
            assert same(one, two)
            assert not close(one, Net().to(dtype), 2e-2)
            assert two.scale.dtype is dtype

        class Mine(torch.optim.SGD):
            ringreduce_elementwise = True

        one, whole, two, shared = pair(lambda model: Mine(model.parameters(), 0.1), Net())
        for model, optimizer in ((one, whole), (two, shared)):
            train(optimizer, model, world.rank)
        assert equal(one, two)
        assert isinstance(shared, Mine)

        alone = hvd.add_process_set([0])
        model, other = Net(), Net()
        optimizer = hvd.DistributedOptimizer(adam(model), shard_step=True, process_set=alone)
        train(optimizer, model, world.rank, 1)
        train(adam(other), other, world.rank, 1)
        assert close(model, other, 1e-6)


def test_horovods_rules(run_ranks: Callable[..., Any]) -> None:
    run_ranks(follow_the_rules, 2)


class Counting(torch.optim.Optimizer):
    """Counts its steps in the options of each group, as optimizers of timm and schedulefree do."""

    ringreduce_elementwise = True

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad * (group["lr"] / group["steps"]))


def count_in_groups() -> None:
    with hvd.init() as world:
        models = [Net(), Net()]
        for model, shard_step in zip(models, (False, True), strict=True):
            optimizer = hvd.DistributedOptimizer(Counting(groups_of(model)), shard_step=shard_step)
            train(optimizer, model, world.rank)
            assert [group["steps"] for group in optimizer.state_dict()["param_groups"]] == [4, 4]
        assert equal(*models)


def test_an_optimizer_may_count_in_its_groups(run_ranks: Callable[..., Any]) -> None:
    run_ranks(count_in_groups, 2)


def thaw(kind: str) -> None:
    """A parameter that is frozen when the optimizer's state is shared out keeps its own until it is thawed."""
    with hvd.init() as world, small_buckets():
        models = [Net(), Net()]
        wrapped = []
        for model, shard_step in zip(models, (False, True), strict=True):
            plain = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
            train_alone(plain, model, world.size)
            model.first.requires_grad_(False)
            wrapped.append(hvd.DistributedOptimizer(plain, shard_step=shard_step))
            hvd.broadcast_optimizer_state(wrapped[-1], 0)
        for is_frozen in (True, True, False, False):
            for model, optimizer in zip(models, wrapped, strict=True):
                model.first.requires_grad_(not is_frozen)
                train(optimizer, model, world.rank, 2)
            assert same_state(wrapped[0].state_dict(), wrapped[1].state_dict())
            for optimizer in wrapped:
                hvd.broadcast_optimizer_state(optimizer, 1)
        assert equal(*models)


@pytest.mark.parametrize("kind", ["Adam", "Adagrad"])
def test_the_state_of_a_frozen_parameter_is_kept(kind: str, run_ranks: Callable[..., Any]) -> None:
    run_ranks(thaw, 2, args=(kind,))


def test_staged_collectives_do_as_well(run_ranks: Callable[..., Any]) -> None:
    run_ranks(step_staged, 3, env={"RINGREDUCE_ALGORITHM": "two_shot"})


def step_staged() -> None:
    with hvd.init() as world:
        models = [Net() for _ in range(2)]
        wrapped = [
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, 0.9), shard_step=at == 1)
            for at, model in enumerate(models)
        ]
        for model, optimizer in zip(models, wrapped, strict=True):
            train(optimizer, model, world.rank)
        assert hvd.stats()["direct"] == 0
        assert equal(*models)


def refuse() -> None:
    with hvd.init():
        model = Net()

        def wrap(kind: str = "SGD", options: dict[str, Any] | None = None, **settings: Any) -> Any:
            chosen = [model.second.weight] if kind == "Muon" else model.parameters()
            plain = getattr(torch.optim, kind)(chosen, **(options or {"lr": 0.1}))
            return hvd.DistributedOptimizer(plain, shard_step=True, **settings)

        class Derived(torch.optim.Adam):
            """May do anything."""

        wrong: list[tuple[str, Callable[[], Any]]] = [
            ("not torch.optim.lbfgs.LBFGS", lambda: wrap("LBFGS")),
            ("not torch.optim.*SparseAdam", lambda: wrap("SparseAdam")),
            ("not .*Derived", lambda: hvd.DistributedOptimizer(Derived(model.parameters()), shard_step=True)),
            ("pass no compression", lambda: wrap(compression=hvd.Compression.fp16)),
            ("op Average and Sum", lambda: wrap(op=hvd.Max)),
            ("op Average and Sum", lambda: wrap(op=hvd.Adasum)),
            ("gradient_as_bucket_view=True", lambda: wrap(gradient_as_bucket_view=False)),
        ]
        for kind in ("Adafactor", "Muon"):
            if hasattr(torch.optim, kind):
                wrong.append((f"not .*{kind}", lambda kind=kind: wrap(kind)))
        twin = torch.nn.Linear(13, 37)
        twin.weight.data = model.first.weight.data
        plain = torch.optim.SGD([*model.parameters(), *twin.parameters()], lr=0.1)
        wrong.append(("share their memory", lambda: hvd.DistributedOptimizer(plain, shard_step=True)))
        for text, call in wrong:
            with pytest.raises(hvd.InvalidArgumentError, match=text):
                call()

        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), shard_step=True)
        alone = torch.optim.Adam(Net().parameters())
        for parameter in alone.param_groups[0]["params"][1:]:
            parameter.grad = torch.ones_like(parameter)
        alone.step()
        optimizer.load_state_dict(alone.state_dict())
        loss_of(model, 0, 1).backward()
        with pytest.raises(hvd.InvalidArgumentError, match="differs in its keys or step counts"):
            optimizer.step()
        optimizer.zero_grad()
        model.double()
        with pytest.raises(hvd.InvalidArgumentError, match="convert the model before"):
            optimizer.step()


def test_what_is_refused(run_ranks: Callable[..., Any]) -> None:
    run_ranks(refuse, 2)


def save_on_one_rank() -> str:
    """Rank 0 saves while rank 1 goes on with its next step. What state_dict() raises."""
    with hvd.init() as world:
        model = Net()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), shard_step=True)
        train(optimizer, model, world.rank, 1)
        go_on = optimizer.state_dict if world.rank == 0 else lambda: train(optimizer, model, world.rank, 1)
        with pytest.raises(hvd.MismatchError) as raised:
            go_on()
        return str(raised.value)


def test_state_dict_on_one_rank_only_says_that_it_is_collective(run_ranks: Callable[..., Any]) -> None:
    texts = run_ranks(save_on_one_rank, 2)
    assert all("rank 0 waits in allgather" in text and ".state'" in text for text in texts)
    assert texts[0].endswith("call it on all of them, and save the result on one")


def join_with(options: dict[str, Any]) -> str:
    """Rank 0 has a step less than rank 1, and has joined."""
    with hvd.init() as world:
        model = torch.nn.Embedding(8, 4, sparse=True) if options.pop("sparse", False) else torch.nn.Linear(8, 4)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
        text = ""
        for _ in range(1 + world.rank):
            optimizer.zero_grad()
            model(torch.arange(8) if isinstance(model, torch.nn.Embedding) else torch.ones(2, 8)).sum().backward()
            try:
                optimizer.step()
            except hvd.MismatchError as error:
                text = str(error)
        hvd.join()
        return text


GATHERING: list[tuple[dict[str, Any], str]] = [
    ({"shard_step": True}, "Reducescatter"),
    ({"compression": hvd.Compression.int8()}, "Allgather"),
    ({"sparse": True}, "Allgather"),
    ({"op": hvd.Adasum}, "Allgather"),
    ({}, ""),
    ({"compression": hvd.Compression.fp16}, ""),
    ({"compression": hvd.Compression.powersgd(rank=1)}, ""),
    ({"sparse": True, "sparse_as_dense": True}, ""),
]


@pytest.mark.parametrize(("options", "what"), GATHERING, ids=[str(list(row[0].values())) for row in GATHERING])
def test_what_gathers_says_so_beside_a_joined_rank(
    options: dict[str, Any], what: str, run_ranks: Callable[..., Any]
) -> None:
    first, second = run_ranks(join_with, 2, args=(options,))
    assert first == ""
    assert second.startswith(f"{what} is not supported with Join at this time." if what else "")
    assert bool(second) == bool(what)
