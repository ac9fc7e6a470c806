"""distributed() and examples/jax_mlp.py: N ranks train as one does."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deadlines import HANG_S
from ranks import clean_environment, run_ranks

pytest.importorskip("jax", reason="JAX is not installed")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "jax_mlp.py"
RINGRUN = Path(sys.executable).with_name("ringrun")
ENV = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}


def optimizer() -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    class Tx:
        """Gradient descent that counts its updates; takes what Optax's extended transformations take."""

        def init(self, params: Any) -> Any:
            return jnp.zeros((), jnp.int32)

        def update(self, grads: Any, state: Any, params: Any = None, *, rate: float = 0.5) -> tuple[Any, Any]:
            return jax.tree_util.tree_map(lambda g, p: -rate * g + 0 * p, grads, params), state + 1

    with hvd.init() as world:
        params = {"w": jnp.arange(4.0), "b": jnp.ones((2, 2), jnp.float32)}
        every = [[jax.tree_util.tree_map(lambda p: p * (r + 1) + at, params) for at in range(6)] for r in range(2)]  # noqa: B023
        own = every[world.rank]
        tx = hvd.distributed(Tx())
        state = tx.init(params)
        updates, state = jax.jit(tx.update)(own[0], state, params)
        assert int(state) == 1
        np.testing.assert_array_equal(updates["w"], -0.5 * 1.5 * np.arange(4.0))
        assert updates["b"].dtype == jnp.float32
        updates, _ = tx.update(own[0], state, params, rate=2.0)
        np.testing.assert_array_equal(updates["w"], -2 * 1.5 * np.arange(4.0))

        tx = hvd.distributed(Tx(), every=3, op=hvd.Sum)
        state = tx.init(params)
        update = jax.jit(tx.update)
        before = hvd.stats()["operations"]
        for at in range(6):
            updates, state = update(own[at], state, params)
            assert updates["b"].dtype == jnp.float32
            if at % 3 < 2:
                assert not updates["w"].any()
                assert not updates["b"].any()
                assert int(state.step) == at % 3 + 1
            else:
                mean = np.mean([sum(np.asarray(every[r][i]["w"]) for r in range(2)) for i in (at - 2, at - 1, at)], 0)
                np.testing.assert_allclose(updates["w"], -0.5 * mean, rtol=1e-14)
                assert not state.gradients["w"].any()
            jax.block_until_ready(updates)
            assert hvd.stats()["operations"] - before == (at + 1) // 3  # update steps only
        assert (int(state.inner), int(state.step)) == (2, 0)


def other_dtypes() -> None:
    """Gradients narrower than parameters and than what the transformation makes of them, as in mixed precision."""
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.init() as world:
        tx = hvd.distributed(hvd.diloco(lr=1.0, momentum=0.0), every=2)
        state = tx.init(jnp.ones(2, jnp.float32))
        updates = []
        for _ in range(4):
            update, state = jax.jit(tx.update)(jnp.ones(2, jnp.bfloat16) * (1 + world.rank), state)
            assert update.dtype == jnp.float32
            updates.append(update.tolist())
        assert updates == [[0, 0], [-1.5, -1.5]] * 2
        update, state = tx.update(2.0, tx.init(1.0))
        assert (float(update), float(tx.update(4.0, state)[0])) == (0, -3)  # numbers are arrays too
        for every in (0, 2.5, float("nan")):  # the step 1.5 never comes
            with pytest.raises(hvd.InvalidArgumentError, match=f"every must be a whole number, 1 or more, not {every}"):
                hvd.distributed(tx, every=every)
        with pytest.raises(hvd.InvalidArgumentError, match="compression='fp16' is no compressor"):
            hvd.distributed(tx, compression="fp16")


def test_updates_may_have_other_dtypes_than_gradients() -> None:
    run_ranks(other_dtypes, 2, env=ENV)


def wider_gradients() -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.init():
        tx = hvd.distributed(hvd.diloco(lr=1.0, momentum=0.0), every=2)
        state = tx.init(jnp.ones(2, jnp.bfloat16))
        for update in (tx.update, jax.jit(tx.update)):
            with pytest.raises(hvd.InvalidArgumentError, match=r"which is bfloat16; with these .* would be float32"):
                update(jnp.ones(2, jnp.float32), state)


def test_gradients_of_another_dtype_than_the_sum_are_refused_in_jit_and_outside() -> None:
    run_ranks(wider_gradients, 1, env=ENV)


def other_numbers(every: list[int]) -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.init() as world:
        tx = hvd.distributed(hvd.diloco(), every=every[world.rank])

        def train() -> None:
            state = tx.init(jnp.ones(2))
            for _ in range(6):
                _, state = jax.block_until_ready(jax.jit(tx.update)(jnp.ones(2), state))

        with pytest.raises(hvd.MismatchError, match=r"distributed\(every=3\)"), hvd.named_errors():
            train()


@pytest.mark.parametrize("every", [[2, 3], [1, 3]])
def test_ranks_that_reduce_in_other_calls_are_told_so(every: list[int]) -> None:
    run_ranks(other_numbers, 2, args=(every,), env=ENV)


def test_distributed_reduces_on_update_steps() -> None:
    run_ranks(optimizer, 2, env=ENV)


def eager() -> None:
    """Calls outside of jit, after the first ones of each kind, compile and trace nothing; results are new arrays."""
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.startswith("/jax/core/compile/") else None
    )

    class Tx:
        def init(self, params: Any) -> Any:
            return jax.tree_util.tree_map(jnp.zeros_like, params)

        def update(self, grads: Any, state: Any, params: Any = None, rate: float = 0.5) -> tuple[Any, Any]:
            state = jax.tree_util.tree_map(jnp.add, state, grads)
            return jax.tree_util.tree_map(lambda m: -rate * m, state), state

    def is_new(before: Any, after: Any) -> bool:
        """Whether no array is there twice, so that all may be donated."""
        arrays = [leaf for tree in (before, after) for leaf in jax.tree_util.tree_leaves(tree)]
        return len({array.unsafe_buffer_pointer() for array in arrays}) == len(arrays)

    with hvd.init() as world:
        params = {"a": jnp.ones(40), "b": jnp.ones((3, 7))}
        grads = jax.tree_util.tree_map(lambda p: p * (world.rank + 1.0), params)

        def calls(tx: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
            if not isinstance(tx, hvd.LocalSGD):
                return lambda params, state: tx.update(grads, state, params, rate=0.25)

            def call(params: Any, state: Any) -> tuple[Any, Any]:
                tx.update(grads, state, params)
                new = tx.synchronize(*tx.step(grads, state, params))
                assert is_new((params, state), new)
                return new

            return call

        for tx in (
            hvd.distributed(Tx(), every=2),
            hvd.distributed(Tx(), every=7, compression=hvd.Compression.bf16),
            hvd.local_sgd(Tx(), every=4),
            hvd.local_sgd(Tx(), every=3, warmup=2, outer=hvd.diloco(), mix=0.25),
            hvd.local_sgd(Tx(), every=4, outer=hvd.diloco()),
        ):
            call, state = calls(tx), tx.init(params)
            own = params
            for _ in range(16):
                own, state = call(own, state)
            before = len(compiled)
            for _ in range(20 if isinstance(tx, hvd.LocalSGD) else 50):
                own, state = call(own, state)
            assert compiled[before:] == []
        assert any(name.endswith("backend_compile_duration") for name in compiled)  # it is told of compilations


def test_outside_of_jit_nothing_is_compiled_again() -> None:
    run_ranks(eager, 2, env=ENV)


def with_optax() -> list[float]:
    import jax
    import jax.numpy as jnp
    import optax

    import ringreduce.jax as hvd

    with hvd.init() as world:
        rows = np.random.default_rng(0).normal(size=(8, 3))
        mine = jnp.asarray(rows[world.rank :: world.size])
        tx = hvd.distributed(optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1)))
        chained = optax.chain(tx, optax.scale(0.5))
        params = jnp.ones(3)
        state = chained.init(params)

        @jax.jit
        def step(params: Any, state: Any) -> tuple[Any, Any]:
            grads = jax.grad(lambda p: ((mine @ p - 1) ** 2).mean())(params)
            updates, state = chained.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(5):
            params, state = step(params, state)
        return np.asarray(params).tolist()


def test_optax() -> None:
    pytest.importorskip("optax", reason="Optax is not installed")
    alone = run_ranks(with_optax, 1, env=ENV)[0]
    two = run_ranks(with_optax, 2, env=ENV)
    assert two[0] == two[1]
    np.testing.assert_allclose(two[0], alone, rtol=1e-12)
    assert alone != [1, 1, 1]


def with_extra_arguments() -> list[list[float]]:
    import jax
    import jax.numpy as jnp
    import optax

    import ringreduce.jax as hvd

    with hvd.init() as world:
        rows = np.random.default_rng(0).normal(size=(8, 3))
        mine = jnp.asarray(rows[world.rank :: world.size])
        found = []
        for inner in (
            hvd.distributed(optax.polyak_sgd(max_learning_rate=2.0)),
            hvd.distributed(optax.polyak_sgd(max_learning_rate=2.0), every=2),
            optax.chain(hvd.distributed(optax.scale(0.1)), optax.polyak_sgd(max_learning_rate=2.0)),
        ):
            tx = optax.chain(inner, optax.scale(0.5))
            params = jnp.ones(3)
            state = tx.init(params)

            @jax.jit
            def step(params: Any, state: Any, tx: Any = tx) -> tuple[Any, Any]:
                loss, grads = jax.value_and_grad(lambda p: ((mine @ p - 1) ** 2).mean())(params)
                updates, state = tx.update(grads, state, params, value=hvd.allreduce(loss))
                return optax.apply_updates(params, updates), state

            for _ in range(4):
                params, state = step(params, state)
            found.append(np.asarray(params).tolist())
        return found


def test_extra_arguments_go_through_optax_chain() -> None:
    pytest.importorskip("optax", reason="Optax is not installed")
    alone = run_ranks(with_extra_arguments, 1, env=ENV)[0]
    two = run_ranks(with_extra_arguments, 2, env=ENV)
    assert two[0] == two[1]
    np.testing.assert_allclose(two[0], alone, rtol=1e-12)


def with_steps_left_out() -> list[Any]:
    import jax
    import jax.numpy as jnp
    import optax

    import ringreduce.jax as hvd

    with hvd.init() as world:
        tx = hvd.distributed(optax.apply_if_finite(optax.sgd(1.0), 3))
        params = jnp.zeros(1)
        state = tx.init(params)
        seen = []
        for number in range(4):
            own = np.inf if (number, world.rank) == (1, 0) else 10.0**number
            updates, state = jax.jit(tx.update)(jnp.full(1, own), state, params)
            params = params + updates
            seen.append(float(params[0]))
        return seen


def test_ranks_leave_out_the_same_steps_where_apply_if_finite_is_within() -> None:
    pytest.importorskip("optax", reason="Optax is not installed")
    assert run_ranks(with_steps_left_out, 2, env=ENV) == [[-1.0, -1.0, -101.0, -1101.0]] * 2


def run_example(*options: str, ranks: int = 2) -> None:
    command = [str(RINGRUN), "-np", str(ranks), sys.executable, str(EXAMPLE), *options]
    environ = clean_environment() | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout


def train(ranks: int, folder: Path, *options: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    run_example(
        "--json", str(folder / f"{ranks}.json"), "--params", str(folder / f"{ranks}.npz"), *options, ranks=ranks
    )
    with np.load(folder / f"{ranks}.npz") as content:
        return json.loads((folder / f"{ranks}.json").read_text()), [content[name] for name in content.files]


def test_the_example_trains_on_the_real_data_as_one_rank_does(tmp_path: Path) -> None:
    options = ("--dtype", "float64", "--hidden", "32", "--epochs", "2", "--steps", "20", "--every", "2", "--lr", "0.1")
    alone, params = train(1, tmp_path, *options)
    two, others = train(2, tmp_path, *options)
    assert (alone["ranks"], two["ranks"]) == (1, 2)
    for one, other in zip(params, others, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12 * np.abs(one).max())
    np.testing.assert_allclose(two["losses"], alone["losses"], rtol=1e-12)
    assert two["losses"][1] < 0.8 * two["losses"][0]
    assert two["test_accuracy"] > 0.5


def test_the_example_tells_the_loss_of_narrow_parameters(tmp_path: Path) -> None:
    losses = []
    for batches, batch_size in ((20, 240), (300, 16)):  # the same 4,800 images for the same model
        options = ("--steps", str(batches), "--batch-size", str(batch_size), "--lr", "0", "--hidden", "8")
        result, _ = train(2, tmp_path, *options, "--epochs", "1", "--dtype", "bfloat16")
        losses += result["losses"]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)  # 300 losses summed in bfloat16 are 10 to 15 % off


def test_the_example_writes_each_file_by_itself(tmp_path: Path) -> None:
    drawn, params = tmp_path / "drawn.json", tmp_path / "params.npz"
    run_example("--epochs", "0", "--hidden", "8", "--json", str(drawn))
    assert json.loads(drawn.read_text()) == {"ranks": 2, "losses": [], "test_accuracy": None}
    run_example("--epochs", "0", "--hidden", "8", "--params", str(params))
    with np.load(params) as content:
        assert [content[name].shape for name in content.files] == [(784, 8), (8,), (8, 10), (10,)]


def test_the_seed_of_the_example_draws_the_model(tmp_path: Path) -> None:
    weights = []
    for number, seed in enumerate(("3", "3", "4")):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, params = train(2, folder, "--seed", seed, "--lr", "0", "--hidden", "8", "--epochs", "1", "--steps", "1")
        weights.append(params[0])
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])
