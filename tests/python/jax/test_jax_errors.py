"""ringreduce.jax where something is wrong: mismatches, dead ranks, bad arguments, several devices, and the way out."""

from typing import Any

import pytest
from ranks import run_ranks, send_to_test, start_ranks

pytest.importorskip("jax", reason="JAX is not installed")

ENV = {"JAX_PLATFORMS": "cpu"}


def mismatch() -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    shapes = (
        r"Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape \[2.*\], but another rank sent a tensor"
    )
    with hvd.init() as world:
        rank = world.rank
        with pytest.raises(hvd.MismatchError, match="^" + shapes):
            hvd.allreduce(jnp.ones(2 + rank))
        with pytest.raises(hvd.MismatchError, match="Mismatched data types"):
            hvd.allreduce(jnp.ones(2, (jnp.int32, jnp.float32)[rank]))
        with pytest.raises(hvd.MismatchError, match="Mismatched operations"):
            (hvd.allreduce, hvd.broadcast)[rank](jnp.ones(2))
        assert hvd.allreduce(jnp.ones(2)).tolist() == [1, 1]  # the job goes on

        big = jnp.ones((600, 600))

        @jax.jit
        def wrong(x: Any) -> Any:
            for _ in range(4):
                x = jnp.tanh(x @ big)  # long enough for the call to return before it has run
            return hvd.allreduce(x[: 2 + rank])

        right = jax.jit(lambda x: hvd.allreduce(x[:2], op=hvd.Sum).sum())
        with pytest.raises(RuntimeError, match="MismatchError: " + shapes) as caught:
            jax.block_until_ready(wrong(big))
        assert not isinstance(caught.value, hvd.Error)  # XLA has one class
        # What follows carries the report until somebody takes it; then collectives work again.
        with pytest.raises(hvd.MismatchError, match="^" + shapes), hvd.named_errors():
            jax.block_until_ready(wrong(big))
        assert float(right(big)) == 2400
        with hvd.named_errors():
            assert float(right(big)) == 2400
        with pytest.raises(ZeroDivisionError), hvd.named_errors():
            raise ZeroDivisionError

        compiled = jax.jit(hvd.allgather)
        with pytest.raises(RuntimeError, match="InvalidArgumentError: allgather: the ranks sent 1, 2 rows"):
            jax.block_until_ready(compiled(jnp.ones(1 + rank)))
        with pytest.raises(hvd.InvalidArgumentError), hvd.named_errors():
            jax.block_until_ready(compiled(jnp.ones(1 + rank)))
        hvd.barrier()
        wrong(big)
        with pytest.raises(hvd.MismatchError, match="^" + shapes):
            hvd.broadcast_object(7)  # it waits for what is under way
        wrong(big)
        with pytest.warns(RuntimeWarning, match=r"failed before shutdown\(\): Mismatched ALLREDUCE"):
            hvd.shutdown()


def test_a_mismatch_is_raised_on_all_ranks_with_the_text_of_the_core() -> None:
    run_ranks(mismatch, 2, env=ENV)


def errors_of_others() -> None:
    import binascii
    import os
    import time

    import jax
    import jax.numpy as jnp

    if os.environ["MECHANISM"] == "io_callback":
        import sys

        sys.modules["jax.ffi"] = None  # type: ignore[assignment]
    import ringreduce.jax as hvd

    assert os.environ["MECHANISM"] == hvd.MECHANISM
    x = jnp.ones(2)
    with hvd.init() as world:
        for kind, ours in ((TimeoutError, None), (binascii.Error, None), (hvd.PeerLostError, hvd.PeerLostError)):

            def load(_: Any, kind: type[Exception] = kind) -> Any:
                raise kind("the store")

            step = jax.jit(lambda x, load=load: jax.pure_callback(load, x, x))
            with pytest.raises(RuntimeError, match="the store") as caught, hvd.named_errors():
                jax.block_until_ready(step(x))
            assert (type(caught.value) if isinstance(caught.value, hvd.Error) else None) is ours
        if world.rank == 0:
            with pytest.raises(hvd.TimeoutError, match="rank"), hvd.named_errors():
                jax.block_until_ready(jax.jit(hvd.allreduce)(x))
        else:
            time.sleep(3)


@pytest.mark.parametrize("mechanism", ["ffi", "io_callback"])
def test_errors_of_other_code_keep_their_class(mechanism: str) -> None:
    env = {**ENV, "MECHANISM": mechanism, "RINGREDUCE_TIMEOUT": "1", "RR_TEST_NOTHING_IMPORTED": "1"}
    run_ranks(errors_of_others, 2, env=env)


def other_rows() -> None:
    """Rows that fit in all, and not by rank."""
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    with hvd.init() as world:
        gather = jax.jit(hvd.allgather)
        rows = (2, 3, 1)[world.rank]
        expected = f"the ranks sent 2, 3, 1 rows, and the program was compiled for {rows}, {rows}, {rows};"
        with pytest.raises(hvd.InvalidArgumentError, match=expected), hvd.named_errors():
            jax.block_until_ready(gather(jnp.ones((rows, 2))))
        splits = [1, 2, 3]
        exchange = jax.jit(lambda x, received: hvd.alltoall(x, splits, received_splits=received)[0], static_argnums=1)
        right = (world.rank + 1,) * 3
        assert exchange(jnp.ones((6, 2)), right).shape == (3 * world.rank + 3, 2)
        if world.rank == 1:
            with pytest.raises(hvd.InvalidArgumentError, match=r"2, 2, 2 rows.* for 1, 2, 3;"), hvd.named_errors():
                jax.block_until_ready(exchange(jnp.ones((6, 2)), (1, 2, 3)))
        else:
            jax.block_until_ready(exchange(jnp.ones((6, 2)), right))
        hvd.barrier()


def test_rows_that_fit_in_all_only_are_an_error() -> None:
    run_ranks(other_rows, 3, env=ENV)


def trees() -> None:
    """Leaves of equal shapes at other places of the pytree are never taken for each other."""
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd
    from ringreduce.collectives import ops

    @jax.tree_util.register_pytree_node_class
    class Plain:
        """Without names of its parts."""

        def __init__(self, *parts: Any) -> None:
            self.parts = parts

        def tree_flatten(self) -> tuple[Any, None]:
            return self.parts, None

        @classmethod
        def tree_unflatten(cls, _: None, parts: Any) -> Any:
            return cls(*parts)

    class Key:
        """Has another text on each rank, as one with its address in it, or a set of strings, may have."""

        def __lt__(self, other: Any) -> bool:
            return False

        def __repr__(self) -> str:
            return f"key of rank {hvd.rank()}"

    def mean(tree: Any) -> Any:
        return hvd.grouped_allreduce(tree)

    def product(tree: Any) -> Any:
        return hvd.grouped_allreduce(tree, op=hvd.Product, compression=hvd.Compression.fp16)

    def gradient(tree: Any) -> Any:
        return jax.grad(lambda t: sum(x.sum() for x in jax.tree_util.tree_leaves(hvd.grouped_allreduce(t))))(tree)

    def update(tree: Any) -> Any:
        tx = hvd.distributed(hvd.diloco())
        return tx.update(tree, tx.init(tree))[0]

    with hvd.init() as world:
        rank = world.rank
        x = jnp.ones(3) * (1 + rank)
        different = (
            [{"a": x, "b": None}, {"a": None, "b": x}],
            [{"a": x}, {"b": x}],
            [[x, None], [None, x]],
            [Plain(x, None), Plain(None, x)],
        )
        for number, both in enumerate(different):
            calls = (mean, product, gradient, update, hvd.broadcast_parameters) if number == 0 else (mean,)
            for call in calls:
                for wrong in (call, jax.jit(call)):
                    with pytest.raises(hvd.MismatchError), hvd.named_errors():
                        jax.block_until_ready(wrong(both[rank]))
        with pytest.raises(hvd.MismatchError):  # the next operation is not taken for one of this
            hvd.broadcast_parameters(([x, x], [x])[rank])
        with pytest.raises(hvd.MismatchError):
            hvd.broadcast_parameters(([x], [])[rank])
        mapped = jax.vmap(lambda tree: hvd.grouped_allreduce(tree), in_axes=1, out_axes=1)
        with pytest.raises(hvd.MismatchError):
            mapped([{"a": jnp.ones((2, 3))}, {"b": jnp.ones((2, 3))}][rank])
        assert mapped({"a": jnp.ones((2, 3)) * rank})["a"].tolist() == [[0.5] * 3] * 2
        same = {"a": Plain(x, {("n", 1): x}), "b": [x, None]}
        for call, value in ((mean, 1.5), (gradient, 1.0), (hvd.broadcast_parameters, 1.0)):
            assert [leaf.tolist() for leaf in jax.tree_util.tree_leaves(jax.jit(call)(same))] == [[value] * 3] * 3
        for tree in ({Key(): x}, x, [x]):
            assert [leaf.tolist() for leaf in jax.tree_util.tree_leaves(mean(tree))] == [[1.5] * 3]
        odd = {"n": jnp.arange(3) % 2 == rank, "o": jnp.arange(3)}  # bool comes first, and has few operations
        assert hvd.grouped_allreduce(odd, op=ops.LogicalOr)["n"].tolist() == [True] * 3
        assert hvd.grouped_allreduce({"a": None}) == {"a": None}
        hvd.barrier()


def test_other_trees_are_a_mismatch() -> None:
    run_ranks(trees, 2, env=ENV)


def arguments() -> None:
    import os

    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce.jax as hvd

    x = jnp.ones(4)
    for call in (hvd.allreduce, hvd.allgather, hvd.broadcast, hvd.reducescatter, hvd.alltoall):
        with pytest.raises(hvd.NotInitializedError, match="has not been initialized"):
            call(x)
    with pytest.raises(hvd.NotInitializedError):
        jax.jit(hvd.barrier)()
    kept = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    with hvd.init():
        assert kept(x).tolist() == [1] * 4
        for dtype in (jnp.complex64, jnp.float8_e4m3fn):
            with pytest.raises(hvd.InvalidArgumentError, match=f"Tensor type {jnp.dtype(dtype).name} is not supported"):
                hvd.allreduce(x.astype(dtype))
        with pytest.raises(hvd.InvalidArgumentError, match="real and imaginary part"):
            jax.jit(hvd.broadcast)(x.astype(jnp.complex64))
        with pytest.raises(hvd.InvalidArgumentError, match="op Adasum is not available"):
            hvd.allreduce(x, op=hvd.Adasum)
        with pytest.raises(hvd.InvalidArgumentError, match="only supports AVERAGE and SUM"):
            hvd.reducescatter(x, op=hvd.Max)
        for reduce in (hvd.allreduce, hvd.reducescatter):
            with pytest.raises(hvd.InvalidArgumentError, match=r"op='sum' is a string: write op=hvd\.Sum"):
                jax.jit(lambda x, reduce=reduce: reduce(x, op="sum"))(x)
        for call in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
            with pytest.raises(hvd.InvalidArgumentError, match="scalar"):
                call(x[0])
        seen = {"tokens": np.int64(2**40)}  # JAX is set to 32 bits, and would make 0 of it
        for call in (hvd.broadcast_parameters, hvd.grouped_allreduce):
            for wrong in (lambda call=call: call(seen), jax.jit(lambda call=call: call(seen))):
                with pytest.raises(hvd.InvalidArgumentError, match=r"int64 .* not fit into the int32 .*jax_enable_x64"):
                    wrong()
        assert int(hvd.broadcast_parameters({"tokens": np.int64(-(2**31))})["tokens"]) == -(2**31)
        for call in (hvd.allreduce, hvd.allgather, hvd.broadcast_parameters):
            with pytest.raises(hvd.InvalidArgumentError, match="name is a text or None, not 3"):
                jax.jit(lambda x, call=call: call(x, name=3))(x)
        with pytest.raises(hvd.InvalidArgumentError, match="invalid root rank 3"):
            hvd.broadcast(x, 3)
        with pytest.raises(hvd.InvalidArgumentError, match="needs received_splits"):
            jax.jit(lambda x: hvd.alltoall(x, [4]))(x)
        for splits, text in (([1, 2], "Number of entries"), ([5], "Sum of splits"), ([-1], "negative"), ([1.0], "1D")):
            with pytest.raises(hvd.InvalidArgumentError, match=text):
                hvd.alltoall(x, splits)
        with pytest.raises(hvd.InvalidArgumentError, match="concrete splits"):
            jax.jit(lambda x, s: hvd.alltoall(x, s))(x, jnp.array([4]))
        with pytest.raises(hvd.InvalidArgumentError, match="every must be a whole number, 1 or more"):
            hvd.distributed(None, every=0)
        with pytest.raises(ValueError, match=r"more than 1 device.*ringreduce collective"):
            jax.pmap(hvd.allreduce)(jnp.ones((2, 3)))
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
        spread = jax.device_put(jnp.ones((2, 3)), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i")))
        with pytest.raises(ValueError, match=r"more than 1 device.*ringreduce collective"):
            jax.jit(hvd.allreduce)(spread)
        late = kept(x * 3)  # may be under way when the job ends: shutdown() waits for it
    assert late.tolist() == [3] * 4
    with pytest.raises(RuntimeError, match="NotInitializedError: ringreduce has not been initialized"):
        jax.block_until_ready(kept(x))
    with hvd.init():
        assert kept(x).tolist() == [1] * 4


def test_arguments_devices_and_the_life_of_a_job() -> None:
    run_ranks(arguments, 1, env=ENV)


def program_of_an_earlier_job() -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    alone = [hvd.ProcessSet([rank]) for rank in range(2)]
    with hvd.init(process_sets=alone) as world:
        x = jnp.full(3, world.rank + 1.0)
        program = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=alone[world.rank]))
        assert program(x).tolist() == x.tolist()
    with hvd.init(process_sets=alone[::-1]):
        with pytest.raises(RuntimeError, match="InvalidArgumentError: Process set provided does not exist"):
            jax.block_until_ready(program(x))
        with pytest.raises(hvd.InvalidArgumentError), hvd.named_errors():
            jax.block_until_ready(program(x))
        jax.clear_caches()
        assert program(x).tolist() == x.tolist()
        hvd.barrier()


def test_a_program_for_a_process_set_of_an_earlier_job_is_refused() -> None:
    run_ranks(program_of_an_earlier_job, 2, env=ENV)


def die(compiled: bool) -> None:
    import os

    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    world = hvd.init()

    def total(x: Any) -> Any:
        return hvd.allreduce(jnp.cos(x), op=hvd.Sum)

    reduce = jax.jit(total) if compiled else total
    x = jnp.ones(300_000)
    jax.block_until_ready(reduce(x))
    if world.rank == 1:
        os.kill(os.getpid(), 9)
    if not compiled:
        with pytest.raises(hvd.PeerLostError, match="rank 1"):
            reduce(x)
        with pytest.raises(hvd.PeerLostError, match="rank 1"):
            reduce(x)
    else:
        with pytest.raises(RuntimeError, match=r"PeerLostError: .*rank 1"):
            jax.block_until_ready(reduce(x))
        with pytest.raises(hvd.PeerLostError), hvd.named_errors():
            jax.block_until_ready(reduce(x))
    send_to_test("told")
    hvd.shutdown()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_killed_rank_is_an_error_in_seconds(compiled: bool) -> None:
    with start_ranks(die, 2, args=(compiled,), env=ENV) as job:
        assert job.receive(0, timeout_s=60) == "told"
        outcomes = job.wait(30)
    assert outcomes[1].status == -9
    assert outcomes[0].status == 0, outcomes[0]
    assert outcomes[0].ended - outcomes[1].ended < 10


def leave(how: str) -> None:
    import jax
    import jax.numpy as jnp

    import ringreduce.jax as hvd

    world = hvd.init()

    @jax.jit
    def step(x: Any) -> Any:
        for _ in range(4):
            x = jnp.tanh(hvd.allreduce(x @ x))
        return x

    step(jnp.ones((300, 300)) / 300)  # the result is not waited for
    if how == "error" and world.rank == 1:
        raise ZeroDivisionError


def test_leaving_without_waiting() -> None:
    run_ranks(leave, 2, args=("normally",), env=ENV)
    with start_ranks(leave, 2, args=("error",), env=ENV) as job:
        outcomes = job.wait()
    assert [outcome.kind for outcome in outcomes] == [None, "ZeroDivisionError"]
    assert outcomes[0].status == 0, outcomes[0]
