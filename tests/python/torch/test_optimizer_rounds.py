"""DistributedOptimizer where a round of gradients does not go from backward() straight to step(): gradients that are
taken away, reductions that are asked for twice, and steps that are left out. Ranks stay alike, or there is an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there

SETTINGS: dict[str, dict[str, Any]] = {
    "views": {},
    "no views": {"gradient_as_bucket_view": False},
    "fp16": {"compression": hvd.Compression.fp16},
    "shares": {"shard_step": True},
}
NOT_REDUCED = r"needs a synchronize\(\) after the last backward"
VIEWS_AND_SHARES = [pytest.param(SETTINGS[name], id=name) for name in ("views", "shares")]


def three_layers() -> Any:
    torch.manual_seed(3)
    return torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(3))


def sgd(model: Any, **settings: Any) -> Any:
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), **settings)


def assert_alike(model: Any) -> None:
    """The parameters are the same on all ranks."""
    for name, parameter in model.named_parameters():
        everywhere = hvd.allgather(parameter.detach().reshape(1, -1))
        assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere)), name


def loss_of(model: Any, rank: int, step: int) -> Any:
    return model[2](model[1](model[0](torch.sin(torch.arange(8.0) * (rank + 1) + step).view(2, 4)))).pow(2).sum()


# --- gradients that cannot be reduced ---------------------------------------------------------------------------------


def keep_graphs(settings: dict[str, Any]) -> None:
    """A round of gradients with a graph is refused with the cure, and over; the next one is as if it had not been."""
    with hvd.init() as world:
        model, alone = three_layers(), three_layers()
        optimizer = sgd(model, **settings)
        plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        cure = r"torch\.autograd\.grad\(.*create_graph=True\).* plain backward\(\)"
        for step in range(3):
            if step != 1:  # the first round, and one that finds the buckets laid out, where backward() raises too
                optimizer.zero_grad()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch speaks of a reference cycle
                    loss = loss_of(model, world.rank, step)
                    if step == 0 and "shard_step" not in settings:
                        loss.backward(create_graph=True)
                    else:
                        with pytest.raises(AssertionError, match=cure):
                            loss.backward(create_graph=True)
                with pytest.raises(AssertionError, match=cure):
                    optimizer.step()
            optimizer.zero_grad()
            loss_of(model, world.rank, step).backward()
            optimizer.step()
            assert_alike(model)
            plain.zero_grad()
            (sum(loss_of(alone, rank, step) for rank in range(world.size)) / world.size).backward()
            plain.step()
        tolerance = 1e-2 if "compression" in settings else 1e-5
        for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_gradients_with_a_graph(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(keep_graphs, 2, args=(settings,))


# --- gradients that are taken away ------------------------------------------------------------------------------------


def drop_before_the_reduction(settings: dict[str, Any], when: int) -> None:
    """The last layer's gradient is under way on rank 0 by then, and not on rank 1; in the first step on neither."""
    with hvd.init() as world:
        model = three_layers()
        first, second, third = model
        optimizer = sgd(model, **settings)
        for step in range(3):
            optimizer.zero_grad()
            inner = first(torch.ones(2, 4) * (world.rank + 1))
            third(second(inner) if world.rank == 0 or step != when else inner).pow(2).sum().backward()
            if step == when:
                third.weight.grad = None
                with pytest.raises(hvd.InvalidArgumentError, match=r"changed after backward.*taken away"):
                    optimizer.step()
            else:
                optimizer.step()
            assert_alike(model)


@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize("settings", [pytest.param(its, id=name) for name, its in SETTINGS.items()])
def test_gradients_that_are_dropped_before_the_reduction(
    settings: dict[str, Any], when: int, run_ranks: Callable[..., Any]
) -> None:
    run_ranks(drop_before_the_reduction, 2, args=(settings, when))


def drop_between_passes() -> None:
    """What is dropped before the last pass is a gradient that is missing, on whichever rank."""
    with hvd.init() as world:
        model = three_layers()
        first, second, third = model
        optimizer = sgd(model, backward_passes_per_step=2)
        for step in range(3):
            for number in range(2):
                inner = first(torch.ones(2, 4) * (world.rank + step + 1))
                is_used = world.rank == 0 or number == 0
                third(second(inner) if is_used else inner).pow(2).sum().backward()
                if number == 0:
                    model.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
            assert_alike(model)


def test_gradients_that_are_dropped_between_passes(run_ranks: Callable[..., Any]) -> None:
    run_ranks(drop_between_passes, 2)


def drop_with_shares() -> None:
    with hvd.init() as world:
        model = three_layers()
        optimizer = sgd(model, shard_step=True)

        def backward(step: int) -> list[Any]:
            optimizer.zero_grad()
            model[2](model[1](model[0](torch.ones(2, 4) * (world.rank + step + 1)))).pow(2).sum().backward()
            return [parameter.detach().clone() for parameter in model.parameters()]

        for step in range(3):
            before = backward(step)
            optimizer.synchronize()
            for parameter in model.parameters() if step == 1 else ():
                parameter.grad = None
            with optimizer.skip_synchronize():
                optimizer.step()
            assert [torch.equal(*both) for both in zip(before, model.parameters(), strict=True)] == [step == 1] * 3
            assert_alike(model)
        backward(3)
        optimizer.synchronize()
        model[1].weight.grad = None
        with optimizer.skip_synchronize(), pytest.raises(hvd.InvalidArgumentError, match=r"1\.weight was taken away"):
            optimizer.step()


def test_gradients_that_are_dropped_with_shares(run_ranks: Callable[..., Any]) -> None:
    run_ranks(drop_with_shares, 2)


def change_sparse_gradients() -> None:
    with hvd.init() as world:
        torch.manual_seed(1)
        embedding = torch.nn.Embedding(10, 4, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))

        def backward() -> None:
            optimizer.zero_grad()
            embedding(torch.tensor([world.rank, 3])).sum().backward()

        backward()
        optimizer.step()
        backward()
        before = embedding.weight.detach().clone()
        optimizer.synchronize()
        embedding.weight.grad = None
        with optimizer.skip_synchronize():
            optimizer.step()
        assert torch.equal(embedding.weight, before)
        for change in (lambda grad: grad * 0.5, lambda grad: grad.mul_(0.5), lambda grad: None):
            backward()
            embedding.weight.grad = change(embedding.weight.grad)
            with pytest.raises(hvd.InvalidArgumentError, match=r"changed after backward.*taken away"):
                optimizer.step()
        assert torch.equal(embedding.weight, before)
        backward()
        optimizer.step()
        assert not torch.equal(embedding.weight, before)
        assert_alike(embedding)


def test_sparse_gradients_that_are_changed_or_dropped(run_ranks: Callable[..., Any]) -> None:
    run_ranks(change_sparse_gradients, 2)


# --- reductions that are asked for twice, and steps that are left out -------------------------------------------------


def reduce_twice(settings: dict[str, Any]) -> None:
    with hvd.init() as world:
        found = []
        for clips in (1, 2):
            model = three_layers()
            optimizer = sgd(model, op=hvd.Sum, **settings)
            for step in range(2):
                optimizer.zero_grad()
                model[2](model[1](model[0](torch.ones(2, 4) * (world.rank + step + 1)))).pow(2).sum().backward()
                norms = [optimizer.clip_grad_norm_(float("inf")) for _ in range(clips)]
                assert torch.equal(norms[0], norms[-1])
                if clips == 1:
                    optimizer.step()
                    continue
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
            assert_alike(model)
            found.append([parameter.detach().clone() for parameter in model.parameters()])
        for once, twice in zip(*found, strict=True):
            torch.testing.assert_close(once, twice)


@pytest.mark.parametrize("settings", VIEWS_AND_SHARES)
def test_a_norm_that_is_asked_for_twice(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(reduce_twice, 2, args=(settings,))


def leave_out_a_step(settings: dict[str, Any]) -> None:
    """The gradients of the second round come without backward(), so that no hook tells of them."""
    with hvd.init() as world:
        model = three_layers()
        optimizer = sgd(model, **settings)
        for step in range(3):
            optimizer.zero_grad()
            loss = model[2](model[1](model[0](torch.ones(2, 4) * (world.rank + step + 1)))).pow(2).sum()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.grad = grad
            if step < 2:
                optimizer.clip_grad_norm_(1.0)
            if step != 1:
                optimizer.step()
        assert_alike(model)


@pytest.mark.parametrize("settings", VIEWS_AND_SHARES)
def test_a_step_that_is_left_out(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(leave_out_a_step, 2, args=(settings,))


def leave_out_a_step_and_a_batch(settings: dict[str, Any]) -> None:
    """Rank 1 has no batch after a round that all have left out, and forgets to call zero_grad()."""
    with hvd.init() as world:
        model = three_layers()
        optimizer = sgd(model, **settings)
        for step in range(4):
            if world.rank == 0 or step != 1:
                optimizer.zero_grad()
                model[2](model[1](model[0](torch.ones(2, 4) * (world.rank + step + 1)))).pow(2).sum().backward()
            optimizer.clip_grad_norm_(1.0)
            if step != 0:
                optimizer.step()
        assert_alike(model)


@pytest.mark.parametrize("settings", VIEWS_AND_SHARES)
def test_a_step_that_is_left_out_before_a_missing_batch(
    settings: dict[str, Any], run_ranks: Callable[..., Any]
) -> None:
    run_ranks(leave_out_a_step_and_a_batch, 2, args=(settings,))


def skip_what_was_not_done(settings: dict[str, Any]) -> None:
    """skip_synchronize() without synchronize(), and after one that a later backward() has overtaken."""
    with hvd.init() as world:
        model = three_layers()
        optimizer = sgd(model, **settings)

        def backward(factor: int = 1) -> None:
            model[2](model[1](model[0](torch.ones(2, 4) * (world.rank + factor)))).pow(2).sum().backward()

        for step in range(3):
            for is_reduced in (False, True):
                backward(step + 1)
                with pytest.raises(AssertionError, match=NOT_REDUCED), optimizer.skip_synchronize():
                    optimizer.step()
                assert_alike(model)
                optimizer.synchronize()
                if is_reduced:
                    with optimizer.skip_synchronize():
                        optimizer.step()
            assert_alike(model)
            optimizer.zero_grad()
        with pytest.raises(AssertionError, match=NOT_REDUCED), optimizer.skip_synchronize():
            optimizer.step(backward)
        assert_alike(model)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_reduction_that_is_skipped_and_was_not_done(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(skip_what_was_not_done, 2, args=(settings,))


def keep_state_of_no_parameter() -> dict[str, int]:
    """Some optimizers keep state that belongs to no parameter."""
    with hvd.init() as world:
        model = three_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.state["of all"] = {"steps": 5 + world.rank}
        hvd.broadcast_optimizer_state(optimizer, 0)
        return dict(optimizer.state["of all"])


def test_state_of_no_parameter_is_broadcast(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(keep_state_of_no_parameter, 2) == [{"steps": 5}] * 2


def go_back_on_the_root(settings: dict[str, Any]) -> None:
    """A step is left out after a clip, and only the root loads a state; then one whose gradients were dropped."""
    with hvd.init() as world:
        model = three_layers()
        optimizer = sgd(model, **settings)

        def backward(step: int) -> None:
            model[2](model[1](model[0](torch.ones(2, 4) * (world.rank + step + 1)))).pow(2).sum().backward()

        backward(0)
        optimizer.step()
        saved = optimizer.state_dict()
        for step in (1, 2):
            optimizer.zero_grad()
            backward(step)
            if step == 1:
                optimizer.clip_grad_norm_(1.0)
            else:
                model.zero_grad()
            if world.rank == 0 or step == 2:
                optimizer.load_state_dict(saved)
            hvd.broadcast_parameters(model.state_dict(), 0)
            hvd.broadcast_optimizer_state(optimizer, 0)
            optimizer.zero_grad()
            backward(3)
            optimizer.clip_grad_norm_(1.0)
            optimizer.step()
            assert_alike(model)


@pytest.mark.parametrize("settings", VIEWS_AND_SHARES)
def test_a_state_that_the_root_goes_back_to(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(go_back_on_the_root, 2, args=(settings,))


def scale_for_once() -> None:
    """torch tells a fused optimizer the scale for one step; the next one has none."""
    with hvd.init():
        found = []
        for settings in ({}, {"shard_step": True}):
            model = three_layers()
            plain = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **settings)
            scaler = torch.amp.GradScaler("cpu")
            for step in range(2):
                optimizer.zero_grad()
                loss = model[2](model[1](model[0](torch.ones(2, 4)))).pow(2).sum()
                if step == 0:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()
            found.append([parameter.detach().clone() for parameter in model.parameters()])
        for whole, shares in zip(*found, strict=True):
            torch.testing.assert_close(whole, shares)


def test_a_scale_is_for_one_step(run_ranks: Callable[..., Any]) -> None:
    run_ranks(scale_for_once, 2)


def start_from_the_roots_state() -> None:
    """A fused optimizer goes through a parameter and its state as they lie in memory."""
    with hvd.init() as world:
        torch.manual_seed(2)
        model = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        plain = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        image = torch.sin(torch.arange(2 * 3 * 8 * 8.0)).reshape(2, 3, 8, 8)
        if world.rank == 0:
            model(image).pow(2).sum().backward()
            plain.step()
            plain.zero_grad()
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
        for _ in range(2):
            optimizer.zero_grad()
            model(image * (world.rank + 1)).pow(2).sum().backward()
            optimizer.step()
        assert_alike(model)


def test_the_roots_state_lies_as_on_the_root(run_ranks: Callable[..., Any]) -> None:
    run_ranks(start_from_the_roots_state, 2)


def broadcast_between_steps() -> None:
    """Shards stay where they are and options are sent, unless a rank has loaded a state that the root has not."""
    with hvd.init() as world:
        models = [three_layers() for _ in range(2)]
        optimizers = [sgd(models[0]), sgd(models[1], shard_step=True)]

        def step(number: int) -> None:
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                model[2](model[1](model[0](torch.ones(2, 4) * (world.rank + number)))).pow(2).sum().backward()
                optimizer.step()

        for number in range(3):
            step(number)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = 0.01 / (1 + number + world.rank)
                hvd.broadcast_optimizer_state(optimizer, 1)
                assert optimizer.param_groups[0]["lr"] == 0.01 / (2 + number)
        for whole, shares in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(whole, shares)
        sharded = optimizers[1]
        saved = sharded.state_dict()
        if world.rank == 0:
            sharded.load_state_dict(saved)
        with pytest.raises(hvd.InvalidArgumentError, match=r"rank 1, is in the shards.*ranks \[0\] have loaded"):
            hvd.broadcast_optimizer_state(sharded, 1)
        hvd.broadcast_optimizer_state(sharded, 0)
        step(3)
        for whole, shares in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(whole, shares)


def test_the_state_is_broadcast_between_steps(run_ranks: Callable[..., Any]) -> None:
    run_ranks(broadcast_between_steps, 2)


def replace_clipped_gradients() -> None:
    """With shares only this rank's share is reduced by clip_grad_norm_() alone: what replaces it is not ignored."""
    with hvd.init() as world:
        shared, whole = three_layers(), three_layers()
        sharing, plainly = sgd(shared, shard_step=True), sgd(whole)

        def begin(model: Any, optimizer: Any, step: int, *calls: str) -> None:
            optimizer.zero_grad()
            loss_of(model, world.rank, step).backward()
            for call in calls:
                getattr(optimizer, call)(*[0.5] * (call == "clip_grad_norm_"))
            for parameter in model.parameters():
                parameter.grad = parameter.grad.clamp(-0.1, 0.1)

        clip, synchronize = "clip_grad_norm_", "synchronize"
        for step, calls in enumerate([(clip, synchronize), (synchronize, clip), (synchronize, clip, clip)]):
            begin(shared, sharing, step, clip)
            with pytest.raises(hvd.InvalidArgumentError, match=r"replaced.*call optimizer\.synchronize\(\) before"):
                sharing.step()
            begin(shared, sharing, step, *calls)
            sharing.step()
            begin(whole, plainly, step, clip)
            plainly.step()
            assert_alike(shared)
            for mine, wanted in zip(shared.parameters(), whole.parameters(), strict=True):
                torch.testing.assert_close(mine, wanted)


def test_gradients_that_are_replaced_after_clipping(run_ranks: Callable[..., Any]) -> None:
    run_ranks(replace_clipped_gradients, 2)


# --- the norm ---------------------------------------------------------------------------------------------------------


def differ_in_threads(settings: dict[str, Any]) -> None:
    """torch's sums depend on its number of threads: those of most norms, and all of float16's."""
    with hvd.init() as world:
        torch.set_num_threads(1 + 3 * world.rank)
        own = []
        for dtype, norm_type in [(torch.float32, 1.0), (torch.float32, 3.0), (torch.float16, 2.0)]:
            torch.manual_seed(3)
            values = torch.randn(64, 32, 33, 33).to(dtype).contiguous(memory_format=torch.channels_last)
            model = torch.nn.ParameterList([torch.nn.Parameter(values)])
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **settings)
            model[0].grad = values.clone()
            own.append(torch.linalg.vector_norm(values, norm_type).item())
            norm = optimizer.clip_grad_norm_(1.0, norm_type)
            optimizer.step()
            assert_alike(model)
            assert hvd.allgather_object(norm.item()) == [norm.item()] * world.size
            wanted = torch.linalg.vector_norm(values.double(), norm_type)
            torch.testing.assert_close(norm.double(), wanted, rtol=1e-3, atol=0)
            assert torch.isnan(norm_of_nan(model, optimizer))
        mine, theirs = hvd.allgather_object(own)
        assert mine != theirs  # else this test shows nothing


def norm_of_nan(model: Any, optimizer: Any) -> Any:
    optimizer.zero_grad()
    model[0].grad = torch.full_like(model[0], float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True)
    return optimizer.clip_grad_norm_(1.0)


@pytest.mark.parametrize("settings", VIEWS_AND_SHARES)
def test_ranks_with_other_numbers_of_threads_agree_on_the_norm(
    settings: dict[str, Any], run_ranks: Callable[..., Any]
) -> None:
    run_ranks(differ_in_threads, 2, args=(settings,))


def clip_beside_a_joined_rank() -> None:
    with hvd.init() as world:
        model = three_layers()
        optimizer = sgd(model)
        for step in range(1 if world.rank else 3):
            optimizer.zero_grad()
            loss_of(model, world.rank, step).backward()
            optimizer.clip_grad_norm_(0.5, 1.0)
            optimizer.step()
        assert hvd.join() == 0


def test_clipping_beside_a_joined_rank(run_ranks: Callable[..., Any]) -> None:
    run_ranks(clip_beside_a_joined_rank, 2)


# --- closures that reduce ---------------------------------------------------------------------------------------------

IN_CLOSURES: dict[str, dict[str, Any]] = {
    "sum": {"op": hvd.Sum},
    "sum, no views": {"op": hvd.Sum, "gradient_as_bucket_view": False},
    "int8": {"compression": hvd.Compression.int8},
    "shares": {"shard_step": True},
    "sum, shares": {"shard_step": True, "op": hvd.Sum},
}


def reduce_in_closures(settings: dict[str, Any]) -> None:
    """Steps whose closure reduces are those of a round without a closure; the loss is this rank's."""
    with hvd.init() as world:
        models = [three_layers() for _ in range(4)]
        plainly, clipped, synchronized, before = [sgd(model, **settings) for model in models]
        for step in range(3):
            for model, optimizer in zip(models, (plainly, clipped, synchronized, before), strict=True):

                def closure(model: Any = model, optimizer: Any = optimizer, step: int = step) -> Any:
                    optimizer.zero_grad()
                    loss = loss_of(model, world.rank, step)
                    loss.backward()
                    if optimizer is clipped:
                        optimizer.clip_grad_norm_(0.5)
                    elif optimizer is synchronized:
                        optimizer.synchronize()
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    return loss

                if optimizer in (clipped, synchronized):
                    wanted = loss_of(model, world.rank, step)
                    assert optimizer.step(closure) == wanted  # this rank's
                    continue
                loss = closure()
                optimizer.clip_grad_norm_(0.5)
                optimizer.step(None if optimizer is plainly else lambda loss=loss: loss)
            for model in models:
                assert_alike(model)
        for model in models[1:]:
            for mine, wanted in zip(model.parameters(), models[0].parameters(), strict=True):
                torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("settings", IN_CLOSURES.values(), ids=IN_CLOSURES)
def test_a_closure_that_reduces(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(reduce_in_closures, 2, args=(settings,))


def search_with_clipped_gradients() -> None:
    """LBFGS evaluates its closure several times a step; each evaluation's gradients are reduced once."""
    with hvd.init() as world:
        model, alone = three_layers(), three_layers()
        plain = torch.optim.LBFGS(alone.parameters(), lr=0.1, max_iter=4)
        optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4), op=hvd.Sum)
        evaluations = []

        def closure() -> Any:
            evaluations.append(len(evaluations))
            optimizer.zero_grad()
            loss = loss_of(model, world.rank, 0)
            loss.backward()
            if len(evaluations) % 3 != 0:  # the rounds of one step may differ
                optimizer.clip_grad_norm_(1e6)
            return loss

        def closure_alone() -> Any:
            plain.zero_grad()
            loss = sum(loss_of(alone, rank, 0) for rank in range(world.size))
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
            plain.step(closure_alone)
        assert len(evaluations) > 4
        assert_alike(model)
        for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


def test_lbfgs_with_a_closure_that_clips(run_ranks: Callable[..., Any]) -> None:
    run_ranks(search_with_clipped_gradients, 2)


# --- an optimizer that is called through another object ---------------------------------------------------------------


class Delegating:
    """As Lightning's and Fabric's: takes on the optimizer's class, and finds its attributes by __getattr__."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.__class__ = type("Delegating" + type(optimizer).__name__, (type(self), type(optimizer)), {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return self._optimizer.step(closure)


class Sharing(Delegating):
    """As Lightning's before 2.1: with a shallow copy of what the optimizer had when it was wrapped."""

    def __init__(self, optimizer: Any) -> None:
        self.__dict__.update((key, value) for key, value in vars(optimizer).items() if key != "step")
        super().__init__(optimizer)


def clip_by_hand(model: Any, optimizer: Any) -> None:
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()


def clip_and_step(model: Any, optimizer: Any) -> None:
    optimizer.clip_grad_norm_(0.5)
    optimizer.step()


def reduce_through(wrapper: str, settings: dict[str, Any]) -> None:
    """The steps are those of the optimizer that is called itself."""
    wrap = {"delegating": Delegating, "sharing": Sharing}[wrapper]
    with hvd.init() as world:
        for end in (clip_by_hand, clip_and_step):
            models = [three_layers() for _ in range(2)]
            direct, wrapped = (sgd(model, **settings) for model in models)
            optimizers = direct, wrap(wrapped)
            for step in range(3):
                for model, optimizer in zip(models, optimizers, strict=True):
                    optimizer.zero_grad()
                    loss_of(model, world.rank, step).backward()
                    end(model, optimizer)
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.set_backward_passes_per_step(2)
                optimizer.zero_grad()
                for step in (3, 4):
                    loss_of(model, world.rank, step).backward()
                end(model, optimizer)
            for mine, wanted in zip(models[1].parameters(), models[0].parameters(), strict=True):
                torch.testing.assert_close(mine, wanted)
            assert wrapped.backward_passes_per_step == 2


@pytest.mark.parametrize("settings", [{"op": hvd.Sum}, {"op": hvd.Sum, "shard_step": True}], ids=["sum", "shares"])
@pytest.mark.parametrize("wrapper", ["delegating", "sharing"])
def test_an_optimizer_that_another_object_delegates_to(
    wrapper: str, settings: dict[str, Any], run_ranks: Callable[..., Any]
) -> None:
    run_ranks(reduce_through, 2, args=(wrapper, settings))
