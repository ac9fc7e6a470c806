"""Ctrl-C in DistributedOptimizer's step(): the next step() goes on where it was, and what is called instead says so."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from interrupts import interrupt_rank_0
from ranks import receive_from_test, run_ranks, send_to_test, start_ranks

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there
from ringreduce.torch.optimizer.sharded import ShardedMixin  # noqa: E402

LOST = r"a step\(\) was interrupted where it cannot be taken up"


class Interrupted(torch.optim.SGD):
    """Ctrl-C comes after one parameter of the third step."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise KeyboardInterrupt
        return super().step(closure)


def interrupted_for_good(where: str) -> None:
    """All ranks are interrupted alike, where a step() cannot go on; none of them may go on with other sums."""
    with hvd.init():
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        first, last = (list(layer.parameters()) for layer in model)
        plain = (Interrupted if where == "update" else torch.optim.SGD)(first, lr=0.01)
        compression = hvd.Compression.fp16 if where == "compressed" else hvd.Compression.none
        optimizer = hvd.DistributedOptimizer(plain, compression=compression)
        if where == "second reducer":
            optimizer.add_param_group({"params": last})

        def backward() -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 4)).pow(2).sum().backward()

        for _ in range(2):
            backward()
            optimizer.step()
        backward()
        (bucket,) = optimizer._reducers[-1]._buckets
        finish = type(bucket).finish

        def interrupt(self: Any) -> None:
            if self is bucket:
                type(bucket).finish = finish  # type: ignore[method-assign]
                finish(self)
                raise KeyboardInterrupt
            finish(self)

        if where != "update":
            type(bucket).finish = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt) as caught:
            optimizer.step()
        assert not getattr(caught.value, "__notes__", [])
        for _ in range(2):
            with pytest.raises(hvd.MismatchError, match=LOST):
                optimizer.step()


@pytest.mark.parametrize("where", ["compressed", "second reducer", "update"])
def test_ctrl_c_where_a_step_cannot_be_taken_up(where: str) -> None:
    run_ranks(interrupted_for_good, 2, args=(where,))


def fail_to_combine(error: type[BaseException], in_a_hook: bool) -> None:
    """All ranks fail alike between their own step and the combined one."""

    def fail(*arguments: Any) -> Any:
        raise error

    with hvd.init():
        model = torch.nn.Linear(4, 3)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), op=hvd.Adasum)

        def step() -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 4)).pow(2).sum().backward()
            optimizer.step()

        step()
        if in_a_hook:
            hook = optimizer.register_step_post_hook(fail)
        else:
            optimizer._combine = fail
        with pytest.raises(error):
            step()
        if in_a_hook:
            hook.remove()
        else:
            del optimizer._combine
        for _ in range(2):
            with pytest.raises(hvd.MismatchError, match=LOST):
                step()


@pytest.mark.parametrize(
    ("error", "in_a_hook"), [(hvd.MismatchError, False), (KeyboardInterrupt, False), (ValueError, True)]
)
def test_a_step_whose_changes_are_not_combined(error: type[BaseException], in_a_hook: bool) -> None:
    run_ranks(fail_to_combine, 2, args=(error, in_a_hook))


def wait_with(first: Any, method: Any) -> Any:
    """The method, once the function has been called; from the next call on the method alone."""

    def waiting(self: Any, *arguments: Any) -> Any:
        ShardedMixin._spread = method  # type: ignore[method-assign]
        first()
        return method(self, *arguments)

    return waiting


def interrupted(at: int, where: str, shard_step: bool) -> list[str]:
    """Rank 0 is interrupted in step `at`, while it waits for rank 1."""
    texts: list[str] = []
    with hvd.init() as world:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        alone = copy.deepcopy(model)
        settings: dict[str, Any] = {"lr": 0.01, "momentum": 0.9}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), **settings), shard_step=shard_step)
        plain = torch.optim.SGD(alone.parameters(), **settings)

        def backward(step: int) -> None:
            optimizer.zero_grad()
            model(torch.full((2, 4), float(world.rank + step + 1))).pow(2).sum().backward()

        for step in range(4):
            is_last = where == "last shares" and step == at
            if step == at and world.rank == 1 and not is_last:
                receive_from_test()
            backward(step)
            if is_last:
                first = receive_from_test if world.rank == 1 else lambda: send_to_test("blocking")
                ShardedMixin._spread = wait_with(first, ShardedMixin._spread)  # type: ignore[method-assign]
            if step == at and world.rank == 0:
                if not is_last:
                    send_to_test("blocking")
                with pytest.raises(KeyboardInterrupt) as caught:
                    optimizer.synchronize() if where == "synchronize" else optimizer.step()
                texts += getattr(caught.value, "__notes__", [])
                send_to_test("interrupted")
                if at == 0:
                    with pytest.raises(hvd.MismatchError, match=LOST):
                        optimizer.step()
                    return texts
                if where == "step":
                    with pytest.raises(AssertionError, match=r"half done: call step\(\) again"):
                        optimizer.zero_grad()
                if where == "goes on":
                    with pytest.raises(AssertionError, match=r"half done: call step\(\) again"):
                        model(torch.ones(2, 4)).sum().backward()
                    return texts
            if step == at and where == "synchronize":
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
            plain.zero_grad()
            for rank in range(world.size):
                (alone(torch.full((2, 4), float(rank + step + 1))).pow(2).sum() / world.size).backward()
            plain.step()
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    return texts


@pytest.mark.parametrize(
    ("at", "where", "shard_step"),
    [
        (2, "step", False),
        (2, "step", True),
        (2, "synchronize", False),
        (2, "synchronize", True),
        (2, "last shares", True),
        (2, "goes on", False),
        (0, "step", False),
    ],
)
def test_ctrl_c_in_a_step(at: int, where: str, shard_step: bool) -> None:
    with start_ranks(interrupted, 2, args=(at, where, shard_step)) as job:
        interrupt_rank_0(job)
        first, second = job.wait()
    assert first.error is None, first
    if at == 0 or where == "goes on":
        assert second.kind == "ShutdownError", second
        return
    assert second.error is None, second
    if where != "last shares" and hasattr(BaseException, "add_note"):
        assert "call step() again" in first.value[0]
