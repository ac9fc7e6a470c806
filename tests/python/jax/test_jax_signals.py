"""Ctrl-C while a compiled program of JAX waits for a rank that does not come."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest
from deadlines import SOON_S
from processes import all_asleep
from ranks import receive_from_test, send_to_test, start_ranks

pytest.importorskip("jax", reason="JAX is not installed")


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_ctrl_c_ends_a_wait_and_the_job(is_asynchronous: bool) -> None:
    with start_ranks(waits, 2, args=(is_asynchronous,)) as job:
        assert job.receive(0) == "waiting"
        all_asleep(job.procs[0].pid)
        job.kill(0, signal.SIGINT)
        assert job.receive(0, SOON_S) == "interrupted"
        job.send(1)
        first, second = job.wait()
    assert first.value == second.value == "done", job.report()


def waits(is_asynchronous: bool) -> str:
    import jax
    import jax.numpy as jnp

    import ringreduce as rr
    import ringreduce.jax as hvd

    jax.config.update("jax_cpu_enable_async_dispatch", is_asynchronous)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hvd.init()
    compiled = jax.jit(lambda x: hvd.allreduce(x + 1, op=hvd.Sum, name="g"))
    jax.block_until_ready(compiled(jnp.ones(3000)))
    if rr.rank() == 1:
        receive_from_test()
        with pytest.raises(RuntimeError, match=r"lost rank 0: .*SIGINT ended its wait in allreduce 'g'"):
            jax.block_until_ready(compiled(jnp.ones(3000)))
        return "done"
    send_to_test("waiting")
    # Python runs the handler when JAX has returned, which may be in the midst of what JAX's own error has begun.
    with pytest.raises(KeyboardInterrupt), suppress(RuntimeError):
        jax.block_until_ready(compiled(jnp.ones(3000)))
    send_to_test("interrupted")
    return "done"
