"""local_sgd() where ranks are not alike: in other steps, in synchronize(), after join(), begun before a broadcast."""

from __future__ import annotations

from typing import Any

import pytest
from ranks import run_ranks, start_ranks

pytest.importorskip("jax", reason="JAX is not installed")

ENV = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}


class Sgd:
    """p - gradient."""

    def init(self, params: Any) -> Any:
        return ()

    def update(self, grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        import jax

        return jax.tree_util.tree_map(lambda g: -g, grads), state


def walked(tx: Any, steps: int, params: Any, state: Any, rank: int, compiled: bool = True) -> tuple[Any, Any]:
    """After so many steps, by 1 + rank each."""
    import jax

    advance = jax.jit(tx.step) if compiled else tx.step
    for _ in range(steps):
        params, state = jax.block_until_ready(advance(params * 0 - 1 - rank, state, params))
    return params, state


def of_other_steps(case: str, compiled: bool) -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.named_errors():
        rank = hvd.init().rank
        arguments = {
            "a loaded state": {"every": 2},
            "uneven steps": {"every": 5},
            "in warmup": {"every": 2, "warmup": 9},
        }
        params = jnp.zeros(3, jnp.bfloat16)
        tx = hvd.local_sgd(Sgd(), outer=hvd.diloco(), **arguments[case])
        state = tx.init(params)
        if case == "uneven steps":
            params, state = walked(tx, (12, 8)[rank], params, state, rank, compiled)
        else:
            state = state._replace(step=jnp.asarray(2 * rank, jnp.int32))
            params, state = walked(tx, 4, params, state, rank, compiled)
        params, state = (jax.jit(tx.synchronize) if compiled else tx.synchronize)(params, state)
        jax.block_until_ready(params)


TEXTS = {
    "a loaded state": "ranks are in different steps",
    "uneven steps": "synchronize",
    "in warmup": "ranks are in different steps",
}


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("compiled", [False, True])
def test_ranks_in_other_steps_are_told_so(case: str, compiled: bool) -> None:
    with start_ranks(of_other_steps, 2, args=(case, compiled), env=ENV) as ranks:
        for outcome in ranks.wait():
            assert outcome.kind == "MismatchError", outcome
            assert TEXTS[case] in str(outcome.error)


def exact() -> None:
    """Steps that are equal are found to be, whatever the mean of equal numbers is; those that differ too."""
    import jax
    import numpy as np

    from ringreduce.jax import alike

    jax.config.update("jax_enable_x64", False)
    for size in (1, 2, 3, 49, 98, 103, 1000):
        for step in (0, 1, 6, 2**31 - 1):
            for other in (step, step ^ 1, step ^ 2**30):
                sent = [np.asarray(alike.presence_and_step(one)) for one in (step, other)]
                total = sent[0] * (size - 1) + sent[1 if size > 1 else 0]
                for mean in (total / np.float32(size), total * (np.float32(1) / np.float32(size))):
                    assert mean.dtype == np.float32
                    assert bool(alike.are_in_one_step(mean)) == (size == 1 or other == step)


def test_steps_are_compared_exactly() -> None:
    run_ranks(exact, 1, env=ENV)


def left(outer: bool) -> list[float]:
    """Rank 2 joins after 5 steps, the others take 8 and synchronize; then all go on from the last one's."""
    import jax.numpy as jnp

    import ringreduce as rr
    import ringreduce.jax as hvd

    with hvd.init() as world:
        tx = hvd.local_sgd(Sgd(), every=4, outer=hvd.diloco(1.0, 0.0) if outer else None)
        seen = []
        for dtype in (jnp.float64, jnp.bfloat16):
            params = jnp.full(2, 64, dtype)
            state = tx.init(params)
            params, state = walked(tx, 5 if world.rank == 2 else 10, params, state, world.rank)
            if world.rank != 2:
                params, state = tx.synchronize(params, state)
                seen += params.tolist()
            last = rr.join()
            assert last != 2
            params, state = hvd.broadcast_parameters((params, state), last)
            params, state = walked(tx, 3, params, state, world.rank)
            params, state = tx.synchronize(params, state)
            seen += params.tolist()
        return seen


@pytest.mark.parametrize("outer", [False, True])
def test_after_a_join_the_others_divide_by_those_that_are_there(outer: bool) -> None:
    one, other, third = run_ranks(left, 3, args=(outer,), env=ENV)
    # 4 steps of 1, 2, 3 are 8 on average; then 4 and 2 of 1, 2 are 6 and 3.
    there = 64 + 8 + 6 + 3
    assert one == other
    assert one[:4] == pytest.approx([there] * 2 + [there + 6] * 2, rel=1e-14)
    assert one[4:] == pytest.approx([there] * 2 + [there + 6] * 2, rel=2**-7)
    assert third == one[2:4] + one[6:]


def begun_early(warmup: int) -> list[float]:
    """init() of each rank's own parameters, and then the first rank's are broadcast."""
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.init() as world:
        tx = hvd.local_sgd(Sgd(), every=2, warmup=warmup, outer=hvd.diloco(0.5, 0.0))
        params = jnp.full(2, 10.0 * (1 + world.rank))
        state = tx.init(params)
        params = hvd.broadcast_parameters(params)
        params, state = walked(tx, warmup + 2, params, state, world.rank)
        assert jax.tree_util.tree_leaves(state.common)[0].tolist() == params.tolist()
        return list(params.tolist())


@pytest.mark.parametrize("warmup", [0, 1])
def test_init_may_come_before_the_broadcast(warmup: int) -> None:
    # A step is 1.5 on average; the outer one takes half of two.
    expected = [10 + 1.5 * warmup + 1.5] * 2
    assert run_ranks(begun_early, 2, args=(warmup,), env=ENV) == [expected] * 2


def begun_apart(warmup: int, joins: bool) -> list[list[float]]:
    """Each rank begins with parameters of its own. Where rank 0 joins, it does so before m begins."""
    import jax
    import jax.numpy as jnp

    import ringreduce as rr
    import ringreduce.jax as hvd

    with hvd.init() as world:
        seen = []
        if not (joins and world.rank == 0):
            for compiled in (True, False):
                tx = hvd.local_sgd(Sgd(), every=2, warmup=warmup, outer=hvd.diloco(0.5, 0.0))
                params = jnp.full(2, 10.0 * (1 + world.rank))
                state = tx.init(params)
                params, state = walked(tx, warmup + 2, params, state, world.rank, compiled)
                seen.append(params.tolist())
                params, state = walked(tx, 1, params, state, world.rank, compiled)
                params, state = (jax.jit(tx.synchronize) if compiled else tx.synchronize)(params, state)
                seen.append(params.tolist())
                assert state.common.tolist() == params.tolist()
        rr.join()
        return seen


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("joins", [False, True])
def test_ranks_that_begin_apart_are_the_same_after_an_averaging(warmup: int, joins: bool) -> None:
    first, *others = run_ranks(begun_apart, 3, args=(warmup, joins), env=ENV)
    # m begins as the mean of those that are there, and goes half of the way of two steps, and then of one.
    # Steps are 2 or 2.5 on average; in warmup ranks that have joined count as well.
    mean, by = (25, 2.5) if joins else (20, 2)
    after = mean + warmup * (5 / 3 if joins else 2) + by
    assert others[0] == others[1]
    assert first == ([] if joins else others[0])
    expected = [[after] * 2, [after + by / 2] * 2]
    for row, value in zip(others[0], 2 * expected, strict=True):
        assert row == pytest.approx(value, rel=1e-12)


def begun_alike() -> None:
    """m begins with the bits of the parameters that all ranks have, also where the mean of them has others."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init():
        tx = hvd.local_sgd(Sgd(), every=2, outer=hvd.diloco())
        bare = np.random.default_rng(0).normal(size=10000)
        have_others = []
        for dtype in (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64):
            params = jnp.asarray(bare, dtype)
            have_others.append(bool((hvd.allreduce(params) != params).any()))
            _, state = jax.jit(tx.step)(params, tx.init(params * 0), params)
            assert (state.common == params).all(), dtype
        assert any(have_others)


def test_m_begins_with_the_bits_that_all_ranks_have() -> None:
    run_ranks(begun_alike, 3, env=ENV)


def rested() -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.init() as world:
        for mix in (0.0, 0.5):
            tx = hvd.local_sgd(Sgd(), every=2, outer=hvd.diloco(0.7, 0.9), mix=mix)
            params = jnp.ones(2)
            state = tx.init(params)
            for steps in (2, 1):
                params, state = walked(tx, steps, params, state, world.rank)
                if steps == 1:
                    params, state = tx.synchronize(params, state)  # of one step
                before = state
                for synchronize in (tx.synchronize, jax.jit(tx.synchronize)):
                    params, state = synchronize(params, state)
                    for mine, was in zip(*map(jax.tree_util.tree_leaves, (state, before)), strict=True):
                        assert mine.tolist() == was.tolist()
                    assert params.tolist() == state.common.tolist()


def test_synchronize_takes_no_outer_step_without_a_step() -> None:
    run_ranks(rested, 2, env=ENV)
