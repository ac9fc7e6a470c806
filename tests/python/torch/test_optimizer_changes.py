"""DistributedOptimizer while somebody else changes gradients or moves a model: the right sums, or an error."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from deadlines import HANG_S

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there
from ringreduce.torch.optimizer.reducer import Reducer  # noqa: E402

SETTINGS: dict[str, dict[str, Any]] = {
    "views": {},
    "no views": {"gradient_as_bucket_view": False},
    "fp16": {"compression": hvd.Compression.fp16},
    "shares": {"shard_step": True},
}


def convolutional() -> Any:
    """Its last gradient of a backward() is of 324 KiB, so that the reduction of all begins before step()."""
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(144, 576),
        torch.nn.Tanh(),
        torch.nn.Unflatten(1, (16, 6, 6)),
        torch.nn.Conv2d(16, 8, 3),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 3),
    )


def images(rank: int, step: int) -> Any:
    return torch.sin(torch.arange(2 * 4 * 6 * 6.0).reshape(2, 4, 6, 6) * (rank + 1) + step)


# --- gradients that are changed between backward() and step() --------------------------------------------------------


def clip_norm(model: Any, optimizer: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def clip_value(model: Any, optimizer: Any) -> None:
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)


def replace(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 2


CHANGES = (clip_norm, clip_value, replace)


def change_gradients(settings: dict[str, Any]) -> None:
    with hvd.init() as world:
        groups = {} if "shard_step" in settings else {"groups": 3}
        for change, more in itertools.product(CHANGES, ({}, groups)):
            model = convolutional()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **settings, **more)
            for step in range(4):
                optimizer.zero_grad()
                model(images(world.rank, step)).pow(2).sum().backward()
                if step == 2:  # all buckets are under way
                    change(model, optimizer)
                    with pytest.raises(hvd.InvalidArgumentError, match=r"optimizer\.clip_grad_norm_.*skip_synchronize"):
                        optimizer.step()
                    continue
                optimizer.synchronize()
                change(model, optimizer)  # here it may
                with optimizer.skip_synchronize():
                    optimizer.step()
            for parameter in model.parameters():
                rows = hvd.allgather(parameter.detach()[None])
                assert all(torch.equal(rows[0], row) for row in rows)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_gradients_that_are_changed_while_they_are_reduced(
    settings: dict[str, Any], run_ranks: Callable[..., Any]
) -> None:
    run_ranks(change_gradients, 2, args=(settings,))


def scale_gradients(settings: dict[str, Any], clips: bool, is_enabled: bool = True) -> None:
    """A GradScaler's step(): as one rank with all data, without what is infinite on one rank only.

    clips: after unscale_(), as with the plain optimizer or, in every other step, as with Horovod's. Sums show what is
    reduced twice.
    """
    with hvd.init() as world:
        model = convolutional()
        alone = copy.deepcopy(model)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), op=hvd.Sum if clips else hvd.Average, **settings
        )
        plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
        parts = 1 if clips else world.size
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=100, enabled=is_enabled)
        for step in range(5):
            optimizer.zero_grad()
            plain.zero_grad()
            is_infinite = is_enabled and step in (1, 2)
            most = 1e9 if step == 4 else 0.01  # once so that nothing is clipped, which hides a second reduction
            x = images(world.rank, step)
            scaler.scale(model(x * float("inf") if is_infinite and world.rank == 1 else x).pow(2).sum()).backward()
            if clips:
                if step == 4:
                    optimizer.synchronize()  # Horovod's scripts do so: its unscale_() reduces nothing
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), most)
                bool(optimizer._step_supports_amp_scaling)  # a look more than torch's own
                if step in (0, 2):
                    optimizer.synchronize()  # has been done
            elif step == 4:
                optimizer.clip_grad_norm_(1e9)
            with optimizer.skip_synchronize() if clips and step % 2 == 0 else nullcontext():
                scaler.step(optimizer)
            scaler.update()
            assert not optimizer._progress.clipped  # also where the step was left out: the next round is another one
            assert scaler.get_scale() == ({0: 64.0, 1: 32.0}.get(step, 16.0) if is_enabled else 1.0)
            if not is_infinite:
                for rank in range(world.size):
                    (alone(images(rank, step)).pow(2).sum() / parts).backward()
                if clips:
                    assert (torch.nn.utils.clip_grad_norm_(alone.parameters(), most) > most) == (step != 4)
                plain.step()
        tolerance = 1e-2 if "compression" in settings else 1e-5
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)
            rows = hvd.allgather(mine.detach()[None])
            assert all(torch.equal(rows[0], row) for row in rows)


@pytest.mark.parametrize("clips", [False, True], ids=["step", "unscale and clip"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_grad_scaler_looks_at_reduced_gradients(
    settings: dict[str, Any], clips: bool, run_ranks: Callable[..., Any]
) -> None:
    run_ranks(scale_gradients, 2, args=(settings, clips))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_grad_scaler_that_is_switched_off_reduces_too(
    settings: dict[str, Any], run_ranks: Callable[..., Any]
) -> None:
    run_ranks(scale_gradients, 2, args=(settings, True, False))


class Around(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Has the groups of the optimizer within, as Lookahead and SAM do."""

    def __init__(self, base: Any) -> None:
        super().__init__(base.param_groups, {})
        self.base, self.param_groups = base, base.param_groups

    def load_state_dict(self, state_dict: Any) -> None:
        self.base.load_state_dict(state_dict)
        self.param_groups = self.base.param_groups


def load_beside_a_scheduler() -> None:
    wrap: Callable[[Any], Any]
    with hvd.init():
        for wrap in (hvd.DistributedOptimizer, lambda plain: hvd.LocalSGD(plain, every=2)):
            around = Around(torch.optim.SGD(convolutional().parameters(), lr=1.0))
            optimizer = wrap(around)
            optimizer.load_state_dict(optimizer.state_dict())
            assert optimizer.param_groups[0] is around.base.param_groups[0]
            plain = torch.optim.SGD(convolutional().parameters(), lr=1.0)
            scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
            optimizer = wrap(plain)
            saved = optimizer.state_dict()
            saved["param_groups"][0]["momentum"] = 0.25
            optimizer.load_state_dict(saved)
            assert optimizer.param_groups is plain.param_groups
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                scheduler.step()
            assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.5, 0.25), wrap


def test_a_scheduler_made_before_changes_the_rate_after_a_load(run_ranks: Callable[..., Any]) -> None:
    run_ranks(load_beside_a_scheduler, 2)


def test_a_bucket_is_launched_once_whatever_thread_its_gradients_come_in() -> None:
    begun: list[int] = []
    inside, may_go = threading.Event(), threading.Event()

    class Bucket:
        def __init__(self, number: int) -> None:
            self.number, self.waiting = number, 1

        def note_stream(self, parameter: Any) -> None:
            pass

        def is_complete(self, passes: int) -> bool:
            return self.waiting == 0

        def begin(self) -> None:
            begun.append(self.number)
            inside.set()
            assert may_go.wait(HANG_S)

    buckets: list[Any] = [Bucket(0), Bucket(1)]
    reducer: Any = object.__new__(Reducer)
    vars(reducer).update(_launching=threading.Lock(), _buckets=buckets, _launched=0, _passes=1, _makes_dense=False)
    threads = []
    for bucket in buckets:
        slot = SimpleNamespace(passes_left=1, bucket=bucket, parameter=None, is_large=False)
        threads.append(threading.Thread(target=reducer.ready, args=(slot,)))
        threads[-1].start()
        assert inside.wait(HANG_S)
    may_go.set()
    for thread in threads:
        thread.join(HANG_S)
    assert begun == [0, 1]


def drop_gradients() -> None:
    """What is dropped after synchronize() is not stepped with, on any rank."""
    with hvd.init() as world:
        model = convolutional()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for step in range(2):
            model(images(world.rank, step)).pow(2).sum().backward()
            if step == 1:
                at = model[1].weight.detach().clone()
                optimizer.synchronize()
                model[1].weight.grad = None
            with optimizer.skip_synchronize() if step == 1 else nullcontext():
                optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(model[1].weight, at)
        assert not torch.equal(model[1].weight, before[0])


def test_gradients_that_are_dropped(run_ranks: Callable[..., Any]) -> None:
    run_ranks(drop_gradients, 2)


def freeze(settings: dict[str, Any], when: int) -> None:
    """A layer that is frozen on all ranks is left alone; on one rank it is an error there."""
    with hvd.init() as world:
        model = convolutional()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **settings
        )

        def step(number: int) -> None:
            optimizer.zero_grad()
            model(images(world.rank, number)).pow(2).sum().backward()
            optimizer.step()

        for number in range(when):
            step(number)
        model[4].requires_grad_(False)
        before = model[4].weight.detach().clone()
        step(when)
        assert torch.equal(model[4].weight, before)
        model[4].requires_grad_(True)
        step(when + 1)
        assert not torch.equal(model[4].weight, before)
        model[1].weight.requires_grad_(world.rank == 0)
        if world.rank == 0:
            step(when + 2)
        else:
            with pytest.raises(hvd.MismatchError, match=r"1\.weight no longer requires a gradient on this rank"):
                step(when + 2)


@pytest.mark.parametrize("when", [0, 2])
@pytest.mark.parametrize("settings", list(SETTINGS.values())[:3], ids=list(SETTINGS)[:3])
def test_a_parameter_that_is_frozen_on_one_rank_only(
    settings: dict[str, Any], when: int, run_ranks: Callable[..., Any]
) -> None:
    run_ranks(freeze, 2, args=(settings, when))


def freeze_what_was_sent(compression: str) -> None:
    """What a compressor has kept of a layer's gradients is sent after the layer was frozen on all ranks."""
    with hvd.init() as world:
        model = convolutional()
        chosen = {"int8": hvd.Compression.int8, "powersgd": hvd.Compression.powersgd(rank=1)}[compression]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), compression=chosen
        )
        for number in range(5):
            optimizer.zero_grad()
            model(images(world.rank, number)).pow(2).sum().backward()
            optimizer.step()
            if number == 1:
                model[4].requires_grad_(False)


@pytest.mark.parametrize("compression", ["int8", "powersgd"])
def test_a_parameter_that_is_frozen_on_all_ranks(compression: str, run_ranks: Callable[..., Any]) -> None:
    run_ranks(freeze_what_was_sent, 2, args=(compression,))


# --- models that are moved between steps -----------------------------------------------------------------------------


def to_double_and_back(model: Any, rank: int) -> None:
    model.double()
    model.float()


def to_channels_last(model: Any, rank: int) -> None:
    model.to(memory_format=torch.channels_last)


def one_rank_to_channels_last(model: Any, rank: int) -> None:
    if rank == 1:
        model.to(memory_format=torch.channels_last)


def other_data(model: Any, rank: int) -> None:
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad.data.clone()


def to_shared_memory(model: Any, rank: int) -> None:
    model.share_memory()


def on_a_queue(model: Any, rank: int) -> None:
    """Shared memory too, for one gradient and one parameter, on one rank."""
    if rank == 1:
        queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
        for tensor in (model[1].weight.grad, model[1].bias):
            queue.put(tensor)
            assert torch.equal(queue.get(), tensor)


MOVES = (to_double_and_back, to_channels_last, one_rank_to_channels_last, other_data, to_shared_memory, on_a_queue)


def move_models(settings: dict[str, Any], sets_to_none: bool) -> None:
    with hvd.init() as world:
        for move in MOVES:
            model = convolutional()
            alone = copy.deepcopy(model)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **settings)
            plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
            for step in range(4):
                optimizer.zero_grad(set_to_none=sets_to_none)
                plain.zero_grad()
                if step == 3:
                    for parameter in model.parameters():
                        parameter.grad = None
                model(images(world.rank, step)).pow(2).sum().backward()
                for rank in range(world.size):
                    (alone(images(rank, step)).pow(2).sum() / world.size).backward()
                optimizer.step()
                plain.step()
                if step in (0, 2):
                    move(model, world.rank)
            tolerance = 1e-2 if "compression" in settings else 1e-5
            for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
                assert torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance), move.__name__
                rows = hvd.allgather(mine.detach().contiguous()[None])
                assert all(torch.equal(rows[0], row) for row in rows), move.__name__


@pytest.mark.parametrize("sets_to_none", [True, False])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_models_that_are_moved_between_steps(
    settings: dict[str, Any], sets_to_none: bool, run_ranks: Callable[..., Any]
) -> None:
    run_ranks(move_models, 2, args=(settings, sets_to_none))


def share_while_reducing(settings: dict[str, Any]) -> None:
    """Shared between backward() and step(): the gradient's new memory is not where it is being reduced."""
    with hvd.init() as world:
        model = convolutional()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **settings)
        for step in range(2):
            optimizer.zero_grad()
            model(images(world.rank, step)).pow(2).sum().backward()
            if step == 1:
                model[1].weight.grad.share_memory_()
                with pytest.raises(hvd.InvalidArgumentError, match="changed after backward"):
                    optimizer.step()
            else:
                optimizer.step()


@pytest.mark.parametrize("settings", [SETTINGS["views"], SETTINGS["shares"]], ids=["views", "shares"])
def test_a_gradient_that_is_shared_while_it_is_reduced(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(share_while_reducing, 2, args=(settings,))


def look_from_elsewhere() -> None:
    """Who maps a shared parameter goes on seeing it, and what is written there is the parameter."""
    with hvd.init() as world:
        model = convolutional()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), shard_step=True)
        queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
        queue.put(model[1].bias.detach())
        elsewhere = queue.get()
        for step in range(3):
            before = elsewhere.clone()
            optimizer.zero_grad()
            model(images(world.rank, step)).pow(2).sum().backward()
            optimizer.step()
            assert not torch.equal(elsewhere, before)
            assert torch.equal(elsewhere, model[1].bias)
        elsewhere.fill_(3.0)
        optimizer.zero_grad()
        (model(images(world.rank, step)).sum() * 0).backward()
        optimizer.step()
        assert torch.equal(model[1].bias, torch.full_like(elsewhere, 3.0))
        assert torch.equal(hvd.allgather(model[1].bias.detach()[None])[0], elsewhere)


def test_a_parameter_in_shared_memory_stays_there(run_ranks: Callable[..., Any]) -> None:
    run_ranks(look_from_elsewhere, 2)


def saved_nbytes(thing: Any) -> int:
    stream = io.BytesIO()
    torch.save(thing, stream)
    return len(stream.getvalue())


def save(settings: dict[str, Any]) -> None:
    with hvd.init() as world:
        model = convolutional()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), **settings)
        model(images(world.rank, 0)).pow(2).sum().backward()
        optimizer.step()
        for tensor in (model[1].bias.grad, model[1].bias.detach(), model[7].bias.grad):
            assert saved_nbytes(tensor) <= saved_nbytes(tensor.clone()) + 64
        for state in (model.state_dict(), optimizer.state_dict()):
            assert saved_nbytes(state) <= saved_nbytes(copy.deepcopy(state)) * 1.01


@pytest.mark.parametrize("settings", [SETTINGS["views"], SETTINGS["shares"]], ids=["views", "shares"])
def test_what_is_saved_is_what_was_asked_for(settings: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    run_ranks(save, 2, args=(settings,))


def stay_double(sets_to_none: bool) -> None:
    with hvd.init() as world:
        model = convolutional()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(images(world.rank, 0)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad(sets_to_none)
        model.double()
        with pytest.raises(hvd.InvalidArgumentError, match=r"was torch.float32 .* when .* is torch.float64 .* now"):
            model(images(world.rank, 1).double()).pow(2).sum().backward()


@pytest.mark.parametrize("sets_to_none", [False, True])
def test_a_model_that_stays_double_is_refused(sets_to_none: bool, run_ranks: Callable[..., Any]) -> None:
    run_ranks(stay_double, 2, args=(sets_to_none,))


def keep_an_older_one(settings: dict[str, Any]) -> None:
    """The newest optimizer of a parameter reduces its gradient, once; an older one says so in step()."""
    with hvd.init() as world:
        models = [convolutional() for _ in range(2)]
        older, alone = (
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Sum, **settings)
            for model in models
        )

        def step(model: Any, optimizer: Any, at: int) -> None:
            optimizer.zero_grad()
            model(images(world.rank, at)).pow(2).mean().backward()
            optimizer.step()

        for at in range(2):
            step(models[0], older, at)
            step(models[1], alone, at)
        newer = hvd.DistributedOptimizer(torch.optim.SGD(models[0].parameters(), lr=0.1), op=hvd.Sum, **settings)
        for at in range(2, 5):
            step(models[0], newer, at)
            step(models[1], alone, at)
        for mine, wanted in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(mine, wanted)
        for end in (older.step, older.synchronize, lambda: older.clip_grad_norm_(1.0)):
            with pytest.raises(hvd.InvalidArgumentError, match="newer DistributedOptimizer of the same parameters"):
                end()

        if world.rank == 0:
            models[0](images(0, 5)).pow(2).mean().backward()
        with pytest.raises(AssertionError, match=r"rank 0 .* or delete an older DistributedOptimizer of the same"):
            hvd.DistributedOptimizer(torch.optim.SGD(models[0].parameters(), lr=0.1), op=hvd.Sum, **settings)
        newer.synchronize()
        newer.zero_grad()
        step(models[0], newer, 6)  # it still has them
        models[1](images(0, 7)).pow(2).mean().backward()
    with hvd.init() as world:  # whatever the older one has left undone in another job
        alone = hvd.DistributedOptimizer(torch.optim.SGD(models[1].parameters(), lr=0.1), op=hvd.Sum, **settings)
        alone.zero_grad()
        step(models[1], alone, 8)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_newest_optimizer_of_a_parameter_reduces_its_gradient(
    settings: dict[str, Any], run_ranks: Callable[..., Any]
) -> None:
    run_ranks(keep_an_older_one, 2, args=(settings,))


def resize() -> None:
    """A small gradient of another shape, whose bucket is gathered in step()."""
    with hvd.init():
        model = torch.nn.Linear(4, 3)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        model.weight.data, model.bias.data = torch.ones(5, 4), torch.ones(5)
        with pytest.raises(
            hvd.InvalidArgumentError, match=r"was torch.float32 \[3.* when .* is torch.float32 \[5.* now"
        ):
            model(torch.ones(2, 4)).sum().backward()


def test_a_parameter_of_another_shape_is_refused(run_ranks: Callable[..., Any]) -> None:
    run_ranks(resize, 2)


BY_HAND = r"of shape \[3, 4\], was put there by hand.*add_param_group"


def put_into_a_group_by_hand(settings: dict[str, Any], is_frozen: bool) -> None:
    """As torch.optim takes it; our hooks are on the parameters that were there, or on none where all are frozen."""
    with hvd.init():
        for place in (slice(0, 1), slice(2, 2)):  # in place of the first one, behind all
            model = torch.nn.Linear(4, 3).requires_grad_(not is_frozen)
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **settings)
            if not is_frozen:
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            new = torch.nn.Parameter(torch.ones(3, 4))
            optimizer.param_groups[0]["params"][place] = [new]
            new.sum().backward()
            with pytest.raises(hvd.InvalidArgumentError, match=BY_HAND):
                optimizer.step()
            with pytest.raises(hvd.InvalidArgumentError, match=BY_HAND):
                optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
            assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("is_frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_parameter_that_is_put_into_a_group_by_hand_is_refused(
    settings: dict[str, Any], is_frozen: bool, run_ranks: Callable[..., Any]
) -> None:
    run_ranks(put_into_a_group_by_hand, 2, args=[settings, is_frozen])


def test_a_parameter_that_is_put_into_a_group_by_hand_before_adasum_compares(run_ranks: Callable[..., Any]) -> None:
    run_ranks(put_into_a_group_by_hand, 2, args=[{"op": hvd.Adasum}, True])


def steps_after_the_job() -> None:
    hvd.init()
    model = torch.nn.Linear(4, 3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for ends in (True, False):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if ends:
            hvd.shutdown()


def test_a_rank_alone_steps_on_after_shutdown(run_ranks: Callable[..., Any]) -> None:
    run_ranks(steps_after_the_job, 1)


def put_in_by_hand_after_it_was_refused() -> None:
    with hvd.init() as world:
        model = torch.nn.Linear(4, 3)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        new = torch.nn.Parameter(torch.ones(3, 4))
        with pytest.raises(hvd.MismatchError):
            optimizer.add_param_group({"params": [new] if world.rank == 0 else [torch.nn.Parameter(torch.ones(7))]})
        optimizer.param_groups[0]["params"].append(new)
        model(torch.ones(2, 4)).sum().backward()
        with pytest.raises(hvd.InvalidArgumentError, match=BY_HAND):
            optimizer.step()


def test_a_parameter_whose_group_was_refused_is_not_known(run_ranks: Callable[..., Any]) -> None:
    run_ranks(put_in_by_hand_after_it_was_refused, 2)


def optimizer_whose_zero_grad_takes_nothing() -> bool:
    class Fused(torch.optim.SGD):
        """As Apex's and DeepSpeed's fused optimizers."""

        def zero_grad(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    with hvd.init():
        model = torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(Fused(model.parameters(), lr=0.1), model.named_parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        plain = hvd.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1))
        assert "set_to_none" in inspect.signature(plain.zero_grad).parameters  # as Accelerate looks
        assert not inspect.signature(optimizer.zero_grad).parameters
        return model.weight.grad is None


def test_an_optimizer_whose_zero_grad_takes_nothing(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(optimizer_whose_zero_grad_takes_nothing, 2) == [True, True]


def gradients_of_another_dtype() -> str:
    with hvd.init():
        model = torch.nn.Linear(2, 1, dtype=torch.bfloat16)
        model.weight.grad_dtype = torch.float32
        with pytest.raises(hvd.InvalidArgumentError) as caught:
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        return str(caught.value)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no grad_dtype")
def test_gradients_of_another_dtype_are_refused(run_ranks: Callable[..., Any]) -> None:
    for text in run_ranks(gradients_of_another_dtype, 2):
        assert text.startswith(
            "DistributedOptimizer: weight is torch.bfloat16 and its grad_dtype is torch.float32; gradients are reduced"
        )


# --- parameters that differ by rank -----------------------------------------------------------------------------------


def add_what_differs(settings: dict[str, Any]) -> None:
    """Groups that differ by rank are refused and not kept; the right one is reduced then."""
    with hvd.init() as world:
        model, extra = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2, bias=False)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **settings)
        hvd.broadcast_parameters({**model.state_dict(), "extra": extra.weight.data}, 0)
        for wrong in (torch.zeros(2 + world.rank, 3), torch.zeros(3, 2).t() if world.rank else torch.zeros(2, 3)):
            with pytest.raises(hvd.MismatchError, match="the ranks have different parameters"):
                optimizer.add_param_group({"params": [torch.nn.Parameter(wrong)]})
            assert len(optimizer.param_groups) == 1
        optimizer.add_param_group({"params": extra.parameters()})
        assert len(optimizer.param_groups) == 2
        before = extra.weight.detach().clone()
        for step in range(2):
            optimizer.zero_grad()
            extra(model(torch.full((2, 4), float(world.rank + step + 1)))).pow(2).sum().backward()
            optimizer.step()
        assert not torch.equal(extra.weight, before)
        for parameter in (*model.parameters(), *extra.parameters()):
            everywhere = hvd.allgather_object(parameter.tolist())
            assert everywhere == everywhere[:1] * world.size


@pytest.mark.parametrize("settings", [{}, {"shard_step": True}], ids=["whole", "shares"])
def test_a_parameter_group_that_differs_by_rank_is_not_kept(
    settings: dict[str, Any], run_ranks: Callable[..., Any]
) -> None:
    run_ranks(add_what_differs, 2, args=(settings,))


def interrupt_an_addition() -> None:
    """After Ctrl-C in add_param_group() no rank knows how far the others have come."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with hvd.init():
        model = torch.nn.Linear(4, 3)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        optimizer._extend = interrupt
        with pytest.raises(KeyboardInterrupt):
            optimizer.add_param_group({"params": torch.nn.Linear(3, 2).parameters()})
        assert len(optimizer.param_groups) == 1
        with pytest.raises(hvd.MismatchError, match=r"was interrupted where it cannot be taken up"):
            optimizer.step()


def test_ctrl_c_while_a_parameter_group_is_added(run_ranks: Callable[..., Any]) -> None:
    run_ranks(interrupt_an_addition, 2)


def unfreeze_what_differs() -> None:
    """Each rank unfreezes another layer: an error in every step, until all unfreeze the same."""
    with hvd.init() as world:
        torch.manual_seed(3)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        model.requires_grad_(False)
        model[1].requires_grad_(True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), [*model.named_parameters()])

        def backward(step: int) -> None:
            optimizer.zero_grad()
            model(torch.full((2, 4), float(world.rank + step + 1))).pow(2).sum().backward()

        backward(0)
        optimizer.step()
        model[2 * world.rank].requires_grad_(True)
        backward(1)
        for _ in range(2):
            with pytest.raises(hvd.MismatchError, match="the ranks have different parameters"):
                optimizer.step()
        model.requires_grad_(True)
        optimizer.step()
        backward(2)
        optimizer.step()
        for parameter in model.parameters():
            everywhere = hvd.allgather_object(parameter.tolist())
            assert everywhere == everywhere[:1] * world.size


def test_layers_unfrozen_that_differ_by_rank(run_ranks: Callable[..., Any]) -> None:
    run_ranks(unfreeze_what_differs, 2)
