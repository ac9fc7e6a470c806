"""ringreduce.jax: every collective, outside and inside of jit, against NumPy."""

from typing import Any

import pytest
from ranks import run_ranks

pytest.importorskip("jax", reason="JAX is not installed")

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ENV = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}


def inputs(size: int, dtype: str, shape: tuple[int, ...] = (5, 3)) -> list[Any]:
    """What each rank has: small numbers that depend on rank and position, exact in every dtype and every product."""
    import jax.numpy as jnp
    import numpy as np

    count = int(np.prod(shape))
    return [
        ((np.arange(count).reshape(shape) * (rank + 2)) % 5 + 1 - (rank == 1)).astype(jnp.dtype(dtype))
        for rank in range(size)
    ]


def reductions() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    fold = {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}
    with hvd.init() as world:
        every = {dtype: inputs(world.size, dtype) for dtype in FLOATS + INTEGERS}
        own = {dtype: arrays[world.rank] for dtype, arrays in every.items()}

        @jax.jit
        def reduced(own: dict[str, Any]) -> dict[Any, dict[str, Any]]:
            return {op: {dtype: hvd.allreduce(x, op=op) for dtype, x in own.items()} for op in (*fold, hvd.Average)}

        results = reduced(own)
        for dtype, arrays in every.items():
            wide = np.stack(arrays).astype(np.float64)
            for op, by in fold.items():
                assert results[op][dtype].dtype == own[dtype].dtype
                np.testing.assert_array_equal(np.asarray(results[op][dtype]).astype(np.float64), by(wide, axis=0))
            mean = wide.sum(0) / world.size
            if dtype in INTEGERS:
                mean = np.trunc(mean)
            tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6}.get(dtype, 1e-15)
            average = np.asarray(results[hvd.Average][dtype]).astype(np.float64)
            np.testing.assert_allclose(average, mean, rtol=tolerance)
        for dtype in ("bfloat16", "int8"):
            eager = hvd.allreduce(own[dtype], op=hvd.Max)
            np.testing.assert_array_equal(np.asarray(eager), np.asarray(results[hvd.Max][dtype]))

        flags = [np.array([True, rank == 1, False, rank != 2]) for rank in range(world.size)]
        for op, by in ((hvd.ReduceOp.LogicalAnd, np.all), (hvd.ReduceOp.LogicalOr, np.any)):
            np.testing.assert_array_equal(hvd.allreduce(flags[world.rank], op=op), by(flags, axis=0))

        scaled = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0))
        np.testing.assert_array_equal(scaled(own["float64"]), np.sum(every["float64"], axis=0) * 1.5)
        assert float(hvd.allreduce(world.rank + 1.0)) == (world.size + 1) / 2  # a number, averaged
        assert hvd.allreduce(jnp.zeros((0, 3))).shape == (0, 3)
        seen = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.bf16))(
            jnp.full(3, 1 + 2**-12 * world.rank)
        )
        assert (seen.dtype, seen.tolist()) == (jnp.float64, [float(world.size)] * 3)


def test_reductions() -> None:
    run_ranks(reductions, 3, env=ENV)


def grouped() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        rank, size = world.rank, world.size
        tree = {
            "w": jnp.arange(6, dtype=jnp.float32).reshape(2, 3) * (rank + 1),
            "rest": [jnp.arange(4, dtype=jnp.bfloat16) + rank, None, (np.int32(rank), jnp.float64(rank / 4))],
        }
        before = hvd.stats()["operations"]
        total = jax.jit(lambda tree: hvd.grouped_allreduce(tree, op=hvd.Sum))(tree)
        ranks = size * (size - 1) // 2
        assert hvd.stats()["operations"] - before == 1
        assert jax.tree_util.tree_structure(total) == jax.tree_util.tree_structure(tree)
        np.testing.assert_array_equal(total["w"], np.arange(6).reshape(2, 3) * (ranks + size))
        np.testing.assert_array_equal(total["rest"][0].astype(float), np.arange(4) * size + ranks)
        assert (total["rest"][2][0].dtype, int(total["rest"][2][0])) == (jnp.int32, ranks)
        assert float(total["rest"][2][1]) == ranks / 4
        assert hvd.grouped_allreduce([]) == []
        short = hvd.grouped_allreduce([jnp.ones(2) / 3, jnp.arange(2)], compression=hvd.Compression.fp16)
        assert [item.dtype.name for item in short] == ["float64", "int64"]
        assert float(short[0][0]) == float(np.float16(1 / 3))


def test_a_tree_is_reduced_by_one_operation() -> None:
    run_ranks(grouped, 2, env=ENV)


def movement() -> None:
    import jax
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        rank, size = world.rank, world.size
        all_of = {dtype: inputs(size, dtype) for dtype in ("bfloat16", "float64", "uint8", "bool")}

        @jax.jit
        def moved(own: dict[str, Any]) -> list[dict[str, Any]]:
            sources = [{dtype: hvd.broadcast(x, root) for dtype, x in own.items()} for root in range(size)]
            return [*sources, {dtype: hvd.allgather(x) for dtype, x in own.items()}]

        *sources, gathered = moved({dtype: arrays[rank] for dtype, arrays in all_of.items()})
        for dtype, every in all_of.items():
            np.testing.assert_array_equal(gathered[dtype], np.concatenate(every))
            for root in range(size):
                np.testing.assert_array_equal(sources[root][dtype], every[root])
        np.testing.assert_array_equal(hvd.broadcast(all_of["bfloat16"][rank], 2), all_of["bfloat16"][2])
        ragged = [np.arange(2.0 * rows).reshape(rows, 2) + rows for rows in (2, 0, 3)]
        np.testing.assert_array_equal(hvd.allgather(ragged[rank], name="ragged"), np.concatenate(ragged))

        every = inputs(size, "float32", (7, 2))
        total = np.sum(every, axis=0)
        own = [total[:3], total[3:5], total[5:]][rank]
        np.testing.assert_array_equal(jax.jit(lambda x: hvd.reducescatter(x, op=hvd.Sum))(every[rank]), own)
        np.testing.assert_allclose(hvd.reducescatter(every[rank]), own / size, rtol=1e-6)
        scatter = jax.jit(lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=2, postscale_factor=0.5))
        np.testing.assert_array_equal(scatter(every[rank]), own)

        every = inputs(size, "int32", (6, 2))
        parts = np.concatenate([array[2 * rank : 2 * rank + 2] for array in every])
        np.testing.assert_array_equal(hvd.alltoall(every[rank]), parts)
        np.testing.assert_array_equal(jax.jit(hvd.alltoall)(every[rank]), parts)
        sends = np.array([[1, 2, 3], [0, 1, 4], [2, 0, 0]])  # [from, to]
        starts = np.concatenate([np.zeros((3, 1), int), sends.cumsum(1)], axis=1)
        parts = np.concatenate([every[r][starts[r, rank] : starts[r, rank + 1]] for r in range(size)])
        output, received = hvd.alltoall(every[rank], sends[rank])
        np.testing.assert_array_equal(output, parts)
        assert received.tolist() == sends[:, rank].tolist()
        compiled = jax.jit(lambda x: hvd.alltoall(x, sends[rank], received_splits=sends[:, rank]))
        np.testing.assert_array_equal(compiled(every[rank])[0], parts)
        jax.jit(hvd.barrier)()
        hvd.barrier(name="the end")


def test_movement() -> None:
    run_ranks(movement, 3, env=ENV)


def sets_and_objects() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        rank = world.rank
        pair = hvd.add_process_set([0, 2])
        alone = hvd.add_process_set([1])
        if pair.included():
            x = jnp.arange(4.0) + rank
            np.testing.assert_array_equal(hvd.allreduce(x, process_set=pair), np.arange(4.0) + 1)
            assert hvd.allgather(x, process_set=pair).shape == (8,)
            got = jax.jit(lambda x: hvd.broadcast(x, 2, process_set=pair))(x)
            np.testing.assert_array_equal(got, np.arange(4.0) + 2)
            with pytest.raises(hvd.InvalidArgumentError, match="invalid root rank 1"):
                hvd.broadcast(x, 1, process_set=pair)
        else:
            assert hvd.allreduce(7, process_set=alone) == 7
            with pytest.raises(hvd.InvalidArgumentError, match=r"^Allreduce: Rank 1 is not a member of the provided"):
                hvd.allreduce(7, process_set=pair)
        params = {"w": jnp.full((3, 2), rank), "b": [np.arange(3) * rank, None], "rate": 0.1 * rank}
        params["key"] = jax.random.key(rank)
        same = hvd.broadcast_parameters(params, root_rank=1)
        assert same["w"].tolist() == [[1, 1]] * 3
        assert same["b"][0].tolist() == [0, 1, 2]
        assert same["b"][1] is None
        assert float(same["rate"]) == 0.1
        assert float(jax.random.uniform(same["key"])) == float(jax.random.uniform(jax.random.key(1)))
        assert hvd.broadcast_object({"epoch": rank}, 2) == {"epoch": 2}
        assert hvd.allgather_object("x" * rank) == ["", "x", "xx"]
        assert hvd.broadcast_parameters({}) == {}
        hvd.remove_process_set(alone)
        for call in (hvd.allreduce, hvd.allgather, hvd.broadcast, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(hvd.InvalidArgumentError, match=r"process_set=\[0\] is no ProcessSet: give what"):
                call(jnp.zeros(3), process_set=[0])
        with pytest.raises(hvd.InvalidArgumentError, match=r"process_set=\[0\] is no ProcessSet"):
            hvd.barrier(process_set=[0])


def bfloat16_as_an_array() -> None:
    import jax.numpy as jnp

    import ringreduce as rr

    with rr.init() as world:
        x = jnp.arange(3, dtype=jnp.bfloat16) + world.rank
        total = rr.allreduce(x, op=rr.Sum)
        assert total.dtype == jnp.bfloat16
        assert total.tolist() == [1.0, 3.0, 5.0]
        with pytest.raises(rr.InvalidArgumentError, match="cannot be written in place"):
            rr.allreduce_(x)


def test_the_api_for_arrays_takes_bfloat16() -> None:
    """The buffer protocol has no format for it, of which JAX tells by a BufferError."""
    run_ranks(bfloat16_as_an_array, 2, env=ENV)


def test_process_sets_parameters_and_objects() -> None:
    run_ranks(sets_and_objects, 3, env=ENV)


def without_ffi() -> str:
    import sys

    sys.modules["jax.ffi"] = None  # type: ignore[assignment]

    with pytest.warns(RuntimeWarning, match="no foreign function interface"):
        import ringreduce.jax as hvd
    import jax
    import jax.numpy as jnp

    with hvd.init() as world:
        x = jnp.arange(3.0) + world.rank

        def loss(x: Any) -> Any:
            gathered = hvd.allgather(hvd.broadcast(hvd.allreduce(x * x, op=hvd.Sum), 1))
            hvd.barrier()
            return gathered.sum() / 2

        assert float(jax.jit(loss)(x)) == sum(i**2 + (i + 1) ** 2 for i in range(3))
        averaged = jax.grad(lambda x: hvd.allreduce(x * x, op=hvd.Sum).sum())(x)
        assert averaged.tolist() == [2 * (i + world.rank) for i in range(3)]
        with pytest.raises(hvd.MismatchError, match=r"^Mismatched ALLREDUCE tensor shapes"):
            hvd.allreduce(jnp.ones(2 + world.rank))
        rest = jax.jit(lambda x: hvd.reducescatter(hvd.alltoall(x), op=hvd.Sum))(jnp.arange(4) + 10 * world.rank)
        assert rest.tolist() == ([2, 4], [22, 24])[world.rank]
    return hvd.MECHANISM


def test_without_the_foreign_function_interface() -> None:
    assert run_ranks(without_ffi, 2, env={**ENV, "RR_TEST_NOTHING_IMPORTED": "1"}) == ["io_callback"] * 2


def many_names() -> int:
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.init():
        x = jnp.arange(3.0)
        for number in range(300):
            assert hvd.allreduce(x, name=f"loss of step {number}").tolist() == [0, 1, 2]
        return len(x.device.client.live_executables())


def test_names_that_are_used_once_keep_no_memory() -> None:
    assert run_ranks(many_names, 1, env=ENV)[0] < 290


def names_in_turn() -> list[int]:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    counts = []
    with hvd.init():
        x = jnp.arange(3.0)
        for _ in range(3):
            compiled.clear()
            for number in range(260):
                assert hvd.allreduce(x, name=f"gradient {number}").tolist() == [0, 1, 2]
            counts.append(len(compiled))
    return counts


def test_names_that_are_used_again_are_not_compiled_again_and_again() -> None:
    """However many there are: those that were used longest ago are those that come next."""
    first, _, third = run_ranks(names_in_turn, 1, env=ENV)[0]
    assert (first >= 260, third) == (True, 0)


def unset_elsewhere() -> int:
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        return int(hvd.broadcast(np.int64(2**40 if world.rank else 7)))


def test_what_does_not_fit_into_32_bits_matters_on_the_root_only() -> None:
    assert run_ranks(unset_elsewhere, 2, env=ENV) == [7, 7]


def more_rows_than_32_bits_count() -> None:
    """Rows without elements cost nothing, so there can be 2^34 of them."""
    import jax
    import numpy as np

    import ringreduce.jax as hvd

    with hvd.init() as world:
        many = 1 << 33
        source = np.empty((2 * many, 0), np.uint8)
        for wide in (False, True):
            jax.config.update("jax_enable_x64", wide)
            assert hvd.allgather(source[: many * (world.rank + 1)]).shape == (3 * many, 0)
            assert hvd.alltoall(source).shape == source.shape
            rows, counts = hvd.alltoall(source, [0, 2 * many])
            assert rows.shape == (4 * many * world.rank, 0)
            assert counts.tolist() == [2 * many * world.rank] * 2
            dtype, kind = ((np.int32, jax.Array), (np.int64, jax.Array if wide else np.ndarray))[world.rank]
            assert counts.dtype == dtype
            assert isinstance(counts, kind)


def test_more_rows_than_32_bits_count() -> None:
    run_ranks(more_rows_than_32_bits_count, 2)
