"""ringreduce.jax under grad, jvp, vmap, scan, while_loop, cond and remat; the order of operations; memory."""

import os
from typing import Any

import pytest
from ranks import receive_from_test, run_ranks, send_to_test, start_ranks

pytest.importorskip("jax", reason="JAX is not installed")

ENV = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}


def derivatives() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        rank = world.rank
        every = [np.linspace(0.1, 0.8, 6).reshape(3, 2) * (r + 1) for r in range(2)]
        x = jnp.asarray(every[rank])
        weights = [np.arange(6.0).reshape(3, 2) - r for r in range(2)]  # the cotangent of each rank's output
        w = weights[rank]

        def gradient(function: Any, weight: Any) -> Any:
            both = [transform(lambda x: (function(x) * weight).sum())(x) for transform in (jax.grad, jit_grad)]
            np.testing.assert_array_equal(*both)
            return both[0]

        def jit_grad(function: Any) -> Any:
            return jax.jit(jax.grad(function))

        def total(x: Any) -> Any:
            return hvd.allreduce(jnp.sin(x), op=hvd.Sum, prescale_factor=2.0)

        np.testing.assert_allclose(gradient(total, w), 2 * w * np.cos(every[rank]), rtol=1e-14)
        mean = np.mean(weights, axis=0)
        average = gradient(lambda x: hvd.allreduce(jnp.sin(x)), w)
        np.testing.assert_allclose(average, mean * np.cos(every[rank]), rtol=1e-14)
        from_root = gradient(lambda x: hvd.broadcast(x, 1), w)
        np.testing.assert_array_equal(from_root, mean if rank == 1 else np.zeros((3, 2)))
        tall = [np.arange(12.0).reshape(6, 2) * (r + 1) for r in range(2)]
        gathered = gradient(hvd.allgather, tall[rank])
        np.testing.assert_array_equal(gathered, np.mean(tall, axis=0)[3 * rank : 3 * rank + 3])
        rows = [2, 1]  # of three, by rank
        for op in (hvd.Sum, hvd.Average):
            parts = [np.arange(2.0 * rows[r]).reshape(rows[r], 2) + r for r in range(2)]
            scattered = gradient(lambda x: hvd.reducescatter(x, op=op, postscale_factor=3.0), parts[rank])  # noqa: B023
            np.testing.assert_array_equal(scattered, 3 * np.concatenate(parts))
        sends = np.array([[1, 1], [2, 0]])
        output_rows = sends.sum(0)
        back = [np.arange(2.0 * output_rows[r]).reshape(-1, 2) + 10 * r for r in range(2)]
        received = sends[:, rank]
        exchanged = gradient(lambda x: hvd.alltoall(x, sends[rank], received_splits=received)[0], back[rank])
        own = {0: [back[0][:1], back[1][:1], np.zeros((1, 2))], 1: [back[0][1:], np.zeros((1, 2))]}[rank]
        np.testing.assert_array_equal(exchanged, np.concatenate(own))
        # Outside of jit grad needs no received_splits: the ranks tell each other.
        told = jax.grad(lambda x: (hvd.alltoall(x, sends[rank])[0] * back[rank]).sum())(x)
        np.testing.assert_array_equal(told, exchanged)

        primal, tangent = jax.jvp(total, (x,), (jnp.ones((3, 2)) * (rank + 1),))
        np.testing.assert_allclose(primal, 2 * np.sin(every).sum(0), rtol=1e-14)
        moved = [np.cos(every[r]) * (r + 1) for r in range(2)]
        np.testing.assert_allclose(tangent, 2 * np.sum(moved, axis=0), rtol=1e-14)

        def linear(x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum)

        def transposed(y: Any) -> Any:
            return jax.linear_transpose(linear, x)(y)[0]

        np.testing.assert_array_equal(transposed(x), every[rank])
        np.testing.assert_array_equal(jax.linear_transpose(transposed, x)(x)[0], np.sum(every, axis=0))

        # Nor do two transposes of a reducescatter change it.
        rows = jnp.concatenate([x, 2 * x + rank])[:4]
        for op in (hvd.Sum, hvd.Average):

            def scattered(y: Any, op: Any = op) -> Any:
                return hvd.reducescatter(y, op=op)

            def gathered(y: Any, scattered: Any = scattered) -> Any:
                return jax.linear_transpose(scattered, rows)(y)[0]

            twice = jax.linear_transpose(gathered, scattered(rows))(rows)[0]
            np.testing.assert_array_equal(twice, scattered(rows))

        tree = {"a": x, "n": jnp.arange(3) * rank, "b": x[0]}  # an integer has no gradient

        def of_tree(floats: Any) -> Any:
            out = hvd.grouped_allreduce({**tree, **floats}, op=hvd.Sum)
            return (out["a"] * w).sum() + out["b"].sum() * out["n"].sum()

        grads = jax.grad(of_tree)({"a": x, "b": x[0]})
        np.testing.assert_array_equal(grads["a"], w)
        np.testing.assert_array_equal(grads["b"], np.full(2, 3.0))
        with pytest.raises(hvd.InvalidArgumentError, match="gradient for op Average and Sum, not for Max"):
            jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum())(x)
        largest = jax.grad(lambda x: (hvd.allreduce(jax.lax.stop_gradient(x), op=hvd.Max) * x).sum())(x)
        np.testing.assert_array_equal(largest, np.max(every, axis=0))


def test_derivatives() -> None:
    run_ranks(derivatives, 2, env=ENV)


def other_outputs() -> None:
    """Ranks whose losses use other outputs of a group, or of named operations: no gradient is for another array."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        rank = world.rank
        x = jnp.ones(3)

        def in_group(a: Any, b: Any, n: Any) -> Any:
            first, second, _ = hvd.grouped_allreduce([a, b, n], name="group")
            return (first, 10 * second)[rank].sum()

        for transform in (jax.grad, lambda *arguments: jax.jit(jax.grad(*arguments))):
            first, second = transform(in_group, (0, 1))(x, x, jnp.arange(3))
            np.testing.assert_array_equal(first, np.full(3, 0.5))
            np.testing.assert_array_equal(second, np.full(3, 5.0))
        # Only one of the operands is differentiated, another one on each rank.
        own = jax.grad(in_group, rank)(x, x, jnp.arange(3))
        np.testing.assert_array_equal(own, np.full(3, (0.5, 5.0)[rank]))

        def moved(a: Any) -> Any:
            return hvd.grouped_allreduce([a, x] if rank == 0 else [x, a], op=hvd.Sum)

        _, tangents = jax.jvp(moved, (x,), (x * (1 + rank),))
        np.testing.assert_array_equal(tangents, [np.full(3, 1.0), np.full(3, 2.0)])

        def named(a: Any, b: Any) -> Any:
            return (hvd.allreduce(a, name="a"), 10 * hvd.allreduce(b, name="b"))[rank].sum()

        with pytest.raises(hvd.MismatchError, match=r"[ab]\.gradient.*[ab]\.gradient"):
            jax.grad(named, (0, 1))(x, x)
        with pytest.raises(hvd.MismatchError, match=r"a\.tangent"):
            jax.jvp(lambda y: named(y, x) if rank == 0 else named(x, y), (x,), (x,))
        for function in (hvd.allgather, hvd.broadcast, hvd.reducescatter, hvd.alltoall):
            arguments = {"root_rank": 0} if function is hvd.broadcast else {}
            jax.grad(lambda y: function(y, name="n", **arguments).sum())(jnp.ones(4))  # noqa: B023


def test_gradients_of_other_outputs() -> None:
    run_ranks(other_outputs, 2, env=ENV)


def control_flow() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    def total(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    with hvd.init() as world:
        rank = world.rank
        xs = jnp.arange(6.0).reshape(3, 2) + rank
        sums = np.arange(6.0).reshape(3, 2) * 2 + 1

        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            return total(x) + carry, carry

        def run(xs: Any) -> Any:
            return jax.lax.scan(step, jnp.zeros(2), xs)

        carry, seen = jax.jit(run)(xs)
        np.testing.assert_array_equal(carry, sums.sum(0))
        np.testing.assert_array_equal(seen, np.concatenate([np.zeros((1, 2)), sums.cumsum(0)[:-1]]))
        weight = jnp.array([1.0, 3.0])
        slopes = jax.jit(jax.grad(lambda xs: (run(xs)[0] ** 2 * weight).sum()))(xs)
        np.testing.assert_allclose(slopes, np.tile(2 * sums.sum(0) * weight, (3, 1)))

        # Ranks agree on when to stop: a collective in the condition as well as in the body.
        count, value = jax.lax.while_loop(
            lambda state: hvd.allreduce(state[0], op=hvd.Max) < 5,
            lambda state: (state[0] + 1, total(state[1])),
            (jnp.asarray(rank), xs[0]),
        )
        assert int(count) == 4 + rank
        np.testing.assert_array_equal(value, sums[0] * 2**3)

        choose = jax.jit(lambda flag, x: jax.lax.cond(flag, total, lambda x: hvd.allreduce(x, op=hvd.Max), x))
        np.testing.assert_array_equal(choose(True, xs[0]), sums[0])
        np.testing.assert_array_equal(choose(False, xs[0]), np.arange(2.0) + 1)

        with jax.disable_jit():
            np.testing.assert_array_equal(choose(True, xs[0]), sums[0])

        def block(x: Any) -> Any:
            return jnp.sin(total(jnp.sin(x)))

        before = hvd.stats()["operations"]
        plain = np.asarray(jax.jit(jax.grad(lambda x: block(x).sum()))(xs))
        once = hvd.stats()["operations"] - before
        kept = np.asarray(jax.jit(jax.grad(lambda x: jax.checkpoint(block)(x).sum()))(xs))
        assert (once, hvd.stats()["operations"] - before - once) == (1, 1)  # remat keeps what has an effect
        np.testing.assert_allclose(kept, plain, rtol=1e-14)
        both = np.sin(np.arange(6.0).reshape(3, 2)), np.sin(np.arange(6.0).reshape(3, 2) + 1)
        np.testing.assert_allclose(plain, np.cos(np.sum(both, axis=0)) * np.cos(xs), rtol=1e-14)

        mapped = jax.vmap(lambda x, y: hvd.grouped_allreduce((x, y), op=hvd.Sum), in_axes=(1, None), out_axes=(1, None))
        first, second = mapped(xs, xs[0])
        np.testing.assert_array_equal(first, sums)
        np.testing.assert_array_equal(second, sums[0])
        np.testing.assert_array_equal(jax.jit(jax.vmap(lambda x: hvd.broadcast(x, 1)))(xs), np.asarray(xs) - rank + 1)
        slopes = jax.vmap(jax.grad(lambda x: (total(x) ** 2).sum()))(xs)
        np.testing.assert_array_equal(slopes, 2 * sums)
        for moving in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
            with pytest.raises(NotImplementedError, match=r"within jax\.vmap .* call it outside of vmap"):
                jax.vmap(moving)(jnp.ones((2, 2)))


def test_control_flow() -> None:
    run_ranks(control_flow, 2, env=ENV)


def steps_that_decide() -> None:
    """Optimizers whose counter of steps decides about a collective: under vmap, and under all else as before."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import export

    import ringreduce.jax as hvd

    def last(tx: Any) -> Any:
        """The updates of the second step, which communicates."""
        return lambda gradients, step, params: tx.update(gradients, tx.init(params)._replace(step=step), params)[0]

    with hvd.init() as world:
        x = jnp.arange(6.0).reshape(2, 3) + world.rank
        inner, one = hvd.diloco(0.1), jnp.ones((), jnp.int32)
        counted = {
            "distributed": hvd.distributed(inner, every=2),
            "local_sgd": hvd.local_sgd(inner, every=2),
            "local_sgd, warmup": hvd.local_sgd(inner, every=2, warmup=1),
            "local_sgd, outer": hvd.local_sgd(inner, every=2, outer=hvd.diloco()),
        }
        for kind, tx in counted.items():
            states = jax.vmap(tx.init)(x)
            before = hvd.stats()["operations"]
            calls = [(tx.update, (x, states, x))]
            if kind != "distributed":
                calls += [(tx.step, (x, states, x)), (tx.synchronize, (x, states))]
            for call, arguments in calls:
                for mapped in (jax.vmap(call), jax.jit(jax.vmap(call))):
                    with pytest.raises(NotImplementedError, match=rf"^{kind[:9]}.*jax\.vmap.* on the stacked pytree"):
                        mapped(*arguments)
            assert hvd.stats()["operations"] == before

            # A step that is not mapped is one counter for all.
            axes = jax.tree_util.tree_map(lambda _: 0, states)._replace(step=None)
            by_element = jax.jit(jax.vmap(tx.update, in_axes=(0, axes, 0), out_axes=(0, axes)))
            together, state, states = jax.jit(tx.update), tx.init(x), states._replace(step=jnp.zeros((), jnp.int32))
            for number in range(1, 5):
                updates, state = together(x * number, state, x)
                of_elements, states = by_element(x * number, states, x)
                np.testing.assert_allclose(of_elements, updates, rtol=1e-14)

            update = last(tx)
            expected = update(x, one, x)
            np.testing.assert_allclose(jax.jit(update)(x, one, x), expected, rtol=1e-14)
            with jax.disable_jit():
                np.testing.assert_allclose(update(x, one, x), expected, rtol=1e-14)
            loss = lambda gradients, update=update: update(gradients, one, x).sum()  # noqa: E731
            slopes = jax.grad(loss)(x)
            assert (np.asarray(slopes) < 0).all()
            np.testing.assert_allclose(jax.jit(jax.grad(jax.checkpoint(loss)))(x), slopes, rtol=1e-14)
            np.testing.assert_allclose(jax.jvp(loss, (x,), (x * 0 + 1,))[1], slopes.sum(), rtol=1e-14)
            scanned = jax.jit(lambda state, xs, tx=tx: jax.lax.scan(lambda s, g: tx.update(g, s, x)[::-1], state, xs))
            _, many = scanned(tx.init(x), jnp.stack([x, 2 * x, 3 * x, 4 * x]))
            np.testing.assert_allclose(many[-1], updates, rtol=1e-14)
            unchecked = [export.DisabledSafetyCheck.custom_call("ringreduce_allreduce")]
            program = export.export(jax.jit(update), disabled_checks=unchecked)(x, one, x)
            np.testing.assert_allclose(program.call(x, one, x), expected, rtol=1e-14)


def test_a_counter_of_steps_is_not_mapped() -> None:
    run_ranks(steps_that_decide, 2, env=ENV)


def order() -> list[str]:
    import re

    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        # Nothing but the token orders these: shapes and dtypes differ, so that any other order would be a mismatch.
        def independent(x: Any) -> list[Any]:
            outputs = []
            for at in range(30):
                size = 1 + (at * 7) % 11
                dtype = (jnp.float32, jnp.float64, jnp.int32)[at % 3]
                outputs.append(hvd.allreduce((jnp.sin(x[: size * 20]) * 1000 * at).astype(dtype), op=hvd.Max))
                outputs.append(hvd.broadcast((x[at:] * (world.rank + 1)).astype(dtype), at % 2))
            hvd.barrier()
            return outputs

        x = jnp.linspace(0, 1, 256)
        compiled = jax.jit(independent).lower(x).compile()
        outputs = jax.jit(independent)(x)
        for at in range(30):
            root_scale = at % 2 + 1
            expected = (np.asarray(x)[at:] * root_scale).astype(outputs[2 * at + 1].dtype)
            np.testing.assert_array_equal(outputs[2 * at + 1], expected)
        # Programs that were dispatched without waiting keep their order too, and so do calls between them.
        steps = [jax.jit(lambda x, at=at: hvd.allreduce(x[: 3 + at] * (at + 1), op=hvd.Sum)) for at in range(5)]
        late = []
        for at, step in enumerate(steps):
            late.append(step(x + world.rank))
            late.append(hvd.allreduce(np.arange(at + 1)))
        for at in range(5):
            np.testing.assert_allclose(late[2 * at], (2 * np.asarray(x)[: 3 + at] + 1) * (at + 1), rtol=1e-14)
        return re.findall(r'custom_call_target="ringreduce_(\w+)"', compiled.as_text())


def test_order_is_that_of_the_program() -> None:
    seen = run_ranks(order, 2, env=ENV)
    assert seen[0] == ["allreduce", "broadcast"] * 30 + ["barrier"]
    assert seen[1] == seen[0]


def ahead_of_time() -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.init() as world:
        x = jnp.arange(3.0) + world.rank
        compiled = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum)).lower(x).compile()
        for _ in range(3):  # JAX has another path from the second call on
            assert compiled(x).tolist() == [1, 3, 5]
        gradient = jax.jit(jax.grad(lambda x: (hvd.allreduce(x) ** 2).sum())).lower(x).compile()
        assert [gradient(x).tolist() for _ in range(3)] == [[1, 3, 5]] * 3


def test_a_program_that_is_compiled_ahead_of_time_runs_more_than_once() -> None:
    run_ranks(ahead_of_time, 2, env=ENV)


def two_threads() -> list[float]:
    import os
    import threading
    import time

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # XLA has one thread
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    with hvd.init() as world:
        pair = hvd.add_process_set([0, 1])

        def step(x: Any, process_set: Any) -> Any:
            for _ in range(4):
                x = jnp.tanh(x @ x)  # long enough for JAX to leave it to that thread
            return hvd.allreduce(x * 0 + 1, op=hvd.Sum, process_set=process_set)[0, 0]

        steps = [jax.jit(lambda x: step(x, hvd.global_process_set)), jax.jit(lambda x: step(x, pair))]
        x = jnp.ones((300, 300)) / 300
        sums = [0.0, 0.0]

        def run(at: int) -> None:
            if at != world.rank:  # ranks begin in opposite order
                time.sleep(0.5)
            sums[at] = float(steps[at](x))

        threads = [threading.Thread(target=run, args=(at,)) for at in range(2 if world.rank < 2 else 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sums


def test_threads_with_process_sets_of_their_own_need_no_thread_of_xla() -> None:
    assert run_ranks(two_threads, 3, env={**ENV, "RINGREDUCE_TIMEOUT": "60"}) == [[3, 2], [3, 2], [3, 0]]


def opposite_orders() -> str:
    import time
    from concurrent.futures import ThreadPoolExecutor

    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    with hvd.init() as world, ThreadPoolExecutor(2) as threads:
        x = jnp.ones(3)

        def built(name: str) -> Any:
            return jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name=name)).lower(x).compile()

        names = ("x", "y") if world.rank == 0 else ("y", "x")
        first, second = [threads.submit(built, name).result() for name in names]
        send_to_test("built")
        receive_from_test()
        begun = threads.submit(first, x)
        time.sleep(1)
        for result in (begun, threads.submit(second, x)):
            assert result.result().tolist() == [world.size] * 3
    return "done"


def test_first_collectives_in_opposite_orders_a_second_apart() -> None:
    """Every rank waits for what another one calls later, and each has one thread that has called: no deadlock.

    With more ranks than cores, where init() calls nothing to measure the machine.
    """
    size = len(os.sched_getaffinity(0)) + 1
    with start_ranks(opposite_orders, size, env={**ENV, "RINGREDUCE_TIMEOUT": "60"}) as job:
        for rank in range(size):
            assert job.receive(rank) == "built"
        for rank in range(size):
            job.send(rank)
        outcomes = job.wait()
        assert [outcome.value for outcome in outcomes] == ["done"] * size, outcomes


def memory() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        x = [jnp.arange(100_000.0) + world.rank, jnp.ones((300, 7), jnp.float32)]
        addresses = [array.unsafe_buffer_pointer() for array in x]
        y = jax.jit(lambda tree: hvd.grouped_allreduce(tree, op=hvd.Sum), donate_argnums=0)(x)
        np.testing.assert_array_equal(y[0], 2 * np.arange(100_000.0) + 1)
        assert [array.unsafe_buffer_pointer() for array in y] == addresses
        assert x[0].is_deleted()

        def step(params: Any, x: Any) -> Any:
            grads = jax.grad(lambda p: (jnp.tanh(x @ p["a"]) @ p["b"]).sum())(params)
            return jax.tree_util.tree_map(lambda p, g: p - g, params, hvd.grouped_allreduce(grads))

        params = {"a": jnp.ones((50, 60)), "b": jnp.ones((60, 10))}
        text = jax.jit(step).lower(params, jnp.ones((20, 50))).compile().as_text()
        assert "ringreduce_allreduce" in text
        assert " copy(" not in text  # gradients are reduced where they are
        kept = jnp.arange(5.0) + world.rank
        both = jax.jit(lambda x: (hvd.allreduce(x, op=hvd.Sum), x * 2))(kept)  # the input is needed afterwards
        np.testing.assert_array_equal(both[0], 2 * np.arange(5.0) + 1)
        np.testing.assert_array_equal(both[1], 2 * (np.arange(5.0) + world.rank))
        np.testing.assert_array_equal(kept, np.arange(5.0) + world.rank)


def test_gradients_and_donated_arrays_are_reduced_in_place() -> None:
    run_ranks(memory, 2, env=ENV)
