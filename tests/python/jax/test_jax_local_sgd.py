"""local_sgd(), step by step beside a twin in NumPy that knows all ranks; bits, saved states, errors, the page."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from page_programs import program
from ranks import run_ranks, start_ranks

pytest.importorskip("jax", reason="JAX is not installed")

ENV = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
SHAPES = {"a": (4, 3), "b": (5,), "c": ()}
LR = 0.05
STEPS = 17
METHODS: dict[str, dict[str, Any]] = {
    "averaging": {"every": 4},
    "averaging in each step": {"every": 1},
    "post-local": {"every": 3, "warmup": 7},
    "a part is kept": {"every": 4, "mix": 0.25},
    "DiLoCo": {"every": 5, "outer": (0.7, 0.9)},
    "all together": {"every": 4, "warmup": 3, "outer": (0.8, 0.3), "mix": 0.5},
}


def start() -> dict[str, Any]:
    waves = {name: np.sin(np.arange(float(np.prod(shape))) + n) for n, (name, shape) in enumerate(SHAPES.items())}
    return {name: wave.reshape(SHAPES[name]) for name, wave in waves.items()}


def gradients(x: dict[str, Any], rank: int, step: int) -> dict[str, Any]:
    """Of a loss that pulls each rank somewhere else, and nonlinearly."""
    pulls = {name: np.cos(step + rank * np.arange(float(value.size))).reshape(value.shape) for name, value in x.items()}
    return {name: value - pulls[name] + 0.1 * value**3 for name, value in x.items()}


class Twin:
    """All ranks' parameters, with SGD of momentum 0.5 on each, in float64."""

    def __init__(self, size: int, arguments: dict[str, Any]) -> None:
        self.size, self.a = size, {"warmup": 0, "outer": None, "mix": 0.0} | arguments
        self.x = [start() for _ in range(size)]
        self.v = [{name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(size)]
        self.m = start()
        self.u = {name: np.zeros(shape) for name, shape in SHAPES.items()}

    def step(self, step: int) -> None:
        warmup, mix = self.a["warmup"], self.a["mix"]
        every = [gradients(self.x[r], r, step) for r in range(self.size)]
        for name in SHAPES:
            for r in range(self.size):
                mine = sum(one[name] for one in every) / self.size if step <= warmup else every[r][name]
                self.v[r][name] = 0.5 * self.v[r][name] + mine
                self.x[r][name] = self.x[r][name] - LR * self.v[r][name]
            if step <= warmup:
                self.m[name] = self.x[0][name]
            elif (step - warmup) % self.a["every"] == 0:
                self.average(name, mix)

    def average(self, name: str, mix: float) -> None:
        mean = sum(x[name] for x in self.x) / self.size
        if self.a["outer"] is None:
            self.m[name] = mean
        else:
            lr, momentum = self.a["outer"]
            d = self.m[name] - mean
            self.u[name] = momentum * self.u[name] + d
            self.m[name] = self.m[name] - lr * (d + momentum * self.u[name])
        for x in self.x:
            x[name] = mix * x[name] + (1 - mix) * self.m[name]


class Sgd:
    """With momentum 0.5. State: (number of updates, velocities)."""

    def init(self, params: Any) -> Any:
        import jax
        import jax.numpy as jnp

        return jnp.zeros((), jnp.int32), jax.tree_util.tree_map(jnp.zeros_like, params)

    def update(self, grads: Any, state: Any, params: Any = None, *, rate: float = LR) -> tuple[Any, Any]:
        import jax

        velocity = jax.tree_util.tree_map(lambda g, v: 0.5 * v + g, grads, state[1])
        return jax.tree_util.tree_map(lambda v: -rate * v, velocity), (state[0] + 1, velocity)


def made(hvd: Any, arguments: dict[str, Any], dtype: str = "float64") -> tuple[Any, Any, Any]:
    """The parameters, the transformation and its state."""
    import jax.numpy as jnp

    arguments = dict(arguments)
    if arguments.get("outer"):
        arguments["outer"] = hvd.diloco(*arguments["outer"])
    params = {name: jnp.asarray(value, dtype) for name, value in start().items()}
    tx = hvd.local_sgd(Sgd(), **arguments)
    return params, tx, tx.init(params)


def stepped(tx: Any) -> Any:
    """(gradients, state, params) to (params, state), compiled: by step()."""
    import jax

    return jax.jit(tx.step)


def updated(tx: Any) -> Any:
    """The same by update() and the sum."""
    import jax

    def advance(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grads, state, params)
        return jax.tree_util.tree_map(lambda p, u: p + u, params, updates), state

    return jax.jit(advance)


def given(params: Any, rank: int, step: int) -> Any:
    """The gradients of a step, in the dtype of the parameters."""
    arrays = {name: np.asarray(value, np.float64) for name, value in params.items()}
    return {name: value.astype(params[name].dtype) for name, value in gradients(arrays, rank, step).items()}


def numbers(params: Any) -> np.ndarray:
    return np.concatenate([np.asarray(params[name]).reshape(-1) for name in SHAPES])


def differences() -> dict[str, float]:
    """By method: how far this rank's parameters are from the twin's, after any step, by step() and by update().

    Where ranks average without keeping a part, whether they have the same bits then, and between averagings not.
    """
    import ringreduce.jax as hvd

    found = {}
    with hvd.init() as world:
        for method, arguments in METHODS.items():
            params, tx, state = made(hvd, arguments)
            others, _, other_state = made(hvd, arguments)
            step_by, update_by = stepped(tx), updated(tx)
            twin = Twin(world.size, arguments)
            found[method] = 0.0
            for step in range(1, STEPS + 1):
                params, state = step_by(given(params, world.rank, step), state, params)
                others, other_state = update_by(given(others, world.rank, step), other_state, others)
                twin.step(step)
                expected = numbers(twin.x[world.rank])
                for mine in (params, others):
                    found[method] = max(found[method], float(np.abs(numbers(mine) - expected).max()))
                rows = hvd.allgather(numbers(params).reshape(1, -1))
                since = step - arguments.get("warmup", 0)
                together = since <= 0 or (since % arguments["every"] == 0 and not arguments.get("mix"))
                assert all((rows[0] == row).all() == together for row in rows[1:]), (method, step)
            assert int(state.step) == int(state.inner[0]) == STEPS
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_method_is_its_equations(size: int) -> None:
    for found in run_ranks(differences, size, env=ENV):
        assert found.keys() == METHODS.keys()
        assert max(found.values()) < 1e-12, found


def averaged_by_hand(dtype: str) -> tuple[bool, float]:
    """Whether step() with every=1 gives the bits of an allreduce() of the parameters; how far update() is from them.

    By hand it is not compiled: XLA rounds p - rate v once where it compiles both operations into one.
    """
    import jax

    import ringreduce.jax as hvd

    with hvd.init() as world:
        ours, tx, state = made(hvd, {"every": 1}, dtype)
        sums, theirs, own, plain = ours, ours, state, Sgd().init(ours)

        def alone(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
            updates, state = Sgd().update(grads, state, params)
            return jax.tree_util.tree_map(lambda p, u: p + u, params, updates), state

        same, off = True, 0.0
        for step in range(1, 11):
            grads = given(theirs, world.rank, step)
            ours, state = stepped(tx)(grads, state, ours)
            sums, own = updated(tx)(given(sums, world.rank, step), own, sums)
            theirs, plain = alone(grads, plain, theirs)
            theirs = {name: hvd.allreduce(value) for name, value in theirs.items()}
            same = same and bool((numbers(ours) == numbers(theirs)).all())
            off = max(off, float(np.abs(numbers(sums) - numbers(theirs)).max()))
        return same, off


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_averaging_in_each_step_is_parameter_averaging_bit_for_bit(dtype: str) -> None:
    for same, off in run_ranks(averaged_by_hand, 3, args=(dtype,), env=ENV):
        assert same
        assert off < 20 * np.finfo(dtype).eps  # ten steps, each with a rounding of a change below 1


def saved(tree: Any) -> bytes:
    import jax

    file = io.BytesIO()
    np.savez(file, *map(np.asarray, jax.tree_util.tree_leaves(tree)))
    return file.getvalue()


def loaded(content: bytes, like: Any) -> Any:
    import jax

    with np.load(io.BytesIO(content)) as arrays:
        leaves = [arrays[name] for name in arrays.files]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)


def resumed(stop: int) -> dict[str, bool]:
    """By method: whether a rank that saves after some steps, and loads into new objects, goes on with the same bits."""
    import ringreduce.jax as hvd

    found = {}
    with hvd.init() as world:
        for method in ("averaging", "DiLoCo", "all together"):
            params, tx, state = made(hvd, METHODS[method])
            content = b""
            advance = stepped(tx)
            for step in range(1, STEPS + 1):
                params, state = advance(given(params, world.rank, step), state, params)
                if step == stop:
                    content = saved((params, state))
            again, tx, state = made(hvd, METHODS[method])
            again, state = loaded(content, (again, state))
            for step in range(stop + 1, STEPS + 1):
                again, state = advance(given(again, world.rank, step), state, again)
            found[method] = bool((numbers(params) == numbers(again)).all())
    return found


@pytest.mark.parametrize("stop", [2, 9, 10])
def test_a_saved_state_goes_on_with_the_same_bits(stop: int) -> None:
    for found in run_ranks(resumed, 2, args=(stop,), env=ENV):
        assert list(found.values()) == [True] * 3, found


def synchronized() -> None:
    import jax

    import ringreduce.jax as hvd

    def rows_of(params: Any) -> Any:
        return hvd.allgather(numbers(params).reshape(1, -1))

    with hvd.init() as world:
        for arguments in ({"every": 4}, {"every": 4, "mix": 0.5}, {"every": 5, "outer": (0.7, 0.9)}):
            for synchronize in (lambda tx: tx.synchronize, lambda tx: jax.jit(tx.synchronize)):
                params, tx, state = made(hvd, arguments)
                # Before the first step ranks have what they were given.
                begun, _ = synchronize(tx)(jax.tree_util.tree_map(lambda p: p + world.rank, params), state)
                assert (rows_of(begun)[0] != rows_of(begun)[1]).all()
                twin = Twin(world.size, arguments)
                # Donated: the parameters and m must not be one buffer.
                advance = jax.jit(tx.step, donate_argnums=(1, 2))
                for step in range(1, 10):
                    params, state = advance(given(params, world.rank, step), state, params)
                    twin.step(step)
                    if step == 7:
                        apart = rows_of(params)
                        assert (apart[0] != apart[1]).any()
                        params, state = synchronize(tx)(params, state)
                        for name in SHAPES:
                            twin.average(name, 0.0)
                        together = rows_of(params)
                        assert (together[0] == together[1]).all()
                    np.testing.assert_allclose(numbers(params), numbers(twin.x[world.rank]), rtol=0, atol=1e-12)
        params, tx, state = made(hvd, {"every": 2, "warmup": 3, "outer": (0.7, 0.9)})
        params, state = tx.step(given(params, world.rank, 1), state, params)
        before = hvd.stats()["operations"]
        kept, _ = tx.synchronize(params, state)
        assert hvd.stats()["operations"] == before
        assert (numbers(kept) == numbers(params)).all()


def test_synchronize_ends_the_period_on_all_ranks() -> None:
    run_ranks(synchronized, 2, env=ENV)


def counted() -> None:
    """One operation in each step that averages, gradients or parameters, two where m begins, none in the others."""
    import jax

    import ringreduce.jax as hvd

    with hvd.init() as world:
        params, tx, state = made(hvd, {"every": 3, "warmup": 2, "outer": (0.7, 0.9)})
        advance = stepped(tx)
        counts, sent = [hvd.stats()["operations"]], [hvd.stats()["bytes_moved"]]
        for step in range(1, 10):
            params, state = jax.block_until_ready(advance(given(params, world.rank, step), state, params))
            counts.append(hvd.stats()["operations"])
            sent.append(hvd.stats()["bytes_moved"])
        assert np.diff(counts).tolist() == [1, 1, 2, 0, 1, 0, 0, 1, 0]
        # Of each: the parameters, and the bits of the step.
        assert np.diff(sent).tolist() == [8 * (18 + 63) * count for count in np.diff(counts)]


def test_ranks_communicate_in_the_steps_that_average_only() -> None:
    run_ranks(counted, 2, env=ENV)


def other_sets() -> None:
    """Ranks 0 and 1 average, rank 2 alone; extra arguments reach the inner optimizer; numbers may be leaves."""
    import ringreduce.jax as hvd

    with hvd.init() as world:
        pair, single = hvd.add_process_set([0, 1]), hvd.add_process_set([2])
        tx = hvd.local_sgd(Sgd(), every=1, process_set=single if world.rank == 2 else pair)
        params = {"w": 2.0}
        params, _ = tx.step({"w": 1.0 + world.rank}, tx.init(params), params, rate=0.5)
        assert float(params["w"]) == (0.5 if world.rank == 2 else 1.25)


def test_process_sets() -> None:
    run_ranks(other_sets, 3, env=ENV)


def narrow() -> None:
    """bfloat16 parameters under an inner optimizer whose updates are float32, as mixed precision has them."""
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    class Wide(Sgd):
        def update(self, grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
            updates, state = super().update(grads, state, params, **extra)
            return jax.tree_util.tree_map(lambda u: u.astype(jnp.float32), updates), state

    with hvd.init() as world:
        for outer in (None, hvd.diloco()):
            tx = hvd.local_sgd(Wide(), every=2, outer=outer)
            params = {"w": jnp.arange(1, 9, dtype=jnp.bfloat16)}
            state = tx.init(params)
            for step in range(1, 5):
                grads = {"w": jnp.full(8, step + world.rank, jnp.bfloat16)}
                updates, _ = jax.jit(tx.update)(grads, state, params)
                params, state = jax.jit(tx.step)(grads, state, params)
                assert updates["w"].dtype == jnp.float32
                assert params["w"].dtype == jnp.bfloat16
            rows = hvd.allgather(params["w"].reshape(1, -1))
            assert (rows[0] == rows[1]).all()
            assert (params["w"] < jnp.arange(1, 9)).all()


def test_updates_may_be_wider_than_parameters() -> None:
    run_ranks(narrow, 2, env=ENV)


def with_optax() -> None:
    import jax
    import jax.numpy as jnp
    import optax

    import ringreduce.jax as hvd

    with hvd.init() as world:
        target = jnp.linspace(-1, 1, 6) * (world.rank + 1)
        outers = (hvd.diloco(0.6, 0.8), optax.sgd(0.6, momentum=0.8, nesterov=True))
        results = []
        for outer in outers:
            inner = hvd.local_sgd(optax.adamw(0.1), every=3, outer=outer)
            tx = optax.chain(optax.clip_by_global_norm(0.5), inner)
            params = jnp.ones(6)
            state = tx.init(params)

            @jax.jit
            def step(params: Any, state: Any, tx: Any = tx) -> tuple[Any, Any]:
                grads = jax.grad(lambda p: ((p - target) ** 2).sum())(params)
                updates, state = tx.update(grads, state, params)
                return optax.apply_updates(params, updates), state

            for _ in range(8):
                params, state = step(params, state)
            params, _ = inner.synchronize(params, state[1])
            rows = hvd.allgather(params.reshape(1, -1))
            assert (rows[0] == rows[1]).all()
            results.append(np.asarray(params))
        np.testing.assert_allclose(results[0], results[1], rtol=1e-13)
        init, update = inner
        assert int(update(params, init(params), params)[1].step) == 1
        outer = hvd.diloco(0.5, 0.0)
        updates, _ = outer.update(params, outer.init(params))
        np.testing.assert_array_equal(updates, -0.5 * params)


def test_optax_inside_and_outside() -> None:
    pytest.importorskip("optax", reason="Optax is not installed")
    run_ranks(with_optax, 2, env=ENV)


def different(compiled: bool) -> None:
    import jax

    import ringreduce.jax as hvd

    hvd.init()
    params, tx, state = made(hvd, {"every": 2 + hvd.rank()})
    advance = stepped(tx) if compiled else tx.step
    with hvd.named_errors():
        for step in range(1, 4):
            params, state = jax.block_until_ready(advance(given(params, hvd.rank(), step), state, params))


@pytest.mark.parametrize("compiled", [False, True])
def test_ranks_with_other_arguments_are_told_so(compiled: bool) -> None:
    with start_ranks(different, 2, args=(compiled,), env=ENV) as ranks:
        for outcome in ranks.wait():
            assert outcome.kind == "MismatchError", outcome
            assert "local_sgd(every=2" in str(outcome.error)
            assert "local_sgd(every=3" in str(outcome.error)


WRONG: dict[str, dict[str, Any]] = {
    "every is a whole number, 1 or more, not 0": {"every": 0},
    "every is a whole number, 1 or more, not 2.0": {"every": 2.0},
    "warmup is a whole number, 0 or more, not -1": {"every": 2, "warmup": -1},
    "mix is 0 or more, and less than 1, not 1.0": {"every": 2, "mix": 1.0},
    "mix is 0 or more, and less than 1, not 'half'": {"every": 2, "mix": "half"},
    "outer is a transformation": {"every": 2, "outer": 0.7},
    "this one is a function": {"every": 2, "outer": Twin.average},
    "inner is a transformation": {"inner": None, "every": 2},
}


def refusals() -> None:
    import ringreduce.jax as hvd

    for text, arguments in WRONG.items():
        with pytest.raises(hvd.InvalidArgumentError) as caught:
            hvd.local_sgd(**({"inner": Sgd()} | arguments))
        assert text in str(caught.value)
    for lr, momentum in ((0.0, 0.9), (0.7, 1.0), (0.7, -0.1)):
        with pytest.raises(hvd.InvalidArgumentError, match="diloco: lr is above 0"):
            hvd.diloco(lr, momentum)
    with hvd.init():
        params, tx, state = made(hvd, {"every": 2})
        with pytest.raises(hvd.InvalidArgumentError, match=r"tx\.update\(gradients, state, params\)"):
            tx.update(params, state)


def test_wrong_arguments_are_refused() -> None:
    run_ranks(refusals, 1, env=ENV)


def of_the_page() -> list[float]:
    """Runs the program of docs/user/jax.md; the parameters at its end."""
    text = program("jax.md", "Local SGD", "local_sgd")
    names: dict[str, Any] = {}
    exec(compile(text, "<the page's program>", "exec"), names)
    result: list[float] = names["params"].tolist()
    names["hvd"].shutdown()
    return result


def test_the_program_of_the_page() -> None:
    pytest.importorskip("optax", reason="Optax is not installed")
    one, other = run_ranks(of_the_page, 2, env=ENV)
    assert one == other
    assert one == pytest.approx([1.0, 2.0, 3.0], abs=0.1)
