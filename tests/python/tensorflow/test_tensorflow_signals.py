"""Ctrl-C and SIGTERM while a kernel of TensorFlow waits for a rank that does not come."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow_ranks
from deadlines import SOON_S
from processes import all_asleep
from ranks import receive_from_test, send_to_test, start_ranks
from tensorflow_ranks import ENV, close

pytestmark = pytest.mark.skipif(not tensorflow_ranks.INSTALLED, reason="TensorFlow is not installed")


@pytest.mark.parametrize("where", ["eager", "function", "session"])
def test_a_signal_ends_a_wait(where: str) -> None:
    with start_ranks(waits, 2, args=(where,), env=ENV) as job:
        assert job.receive(0) == "waiting"
        all_asleep(job.procs[0].pid)
        job.kill(0, signal.SIGINT)
        assert job.receive(0, SOON_S) == "interrupted"

        assert job.receive(0) == "waiting"
        all_asleep(job.procs[0].pid)
        send_twice(job.procs[0].pid, signal.SIGTERM)  # its handler only remembers it: the step ends as it should
        all_asleep(job.procs[0].pid)
        job.send(1)
        assert job.receive(0, SOON_S) == "completed"

        assert job.receive(0) == "waiting"
        all_asleep(job.procs[0].pid)
        job.kill(0, signal.SIGTERM)
        all_asleep(job.procs[0].pid, 50)  # what comes within 0.2 s is the same signal
        job.kill(0, signal.SIGTERM)
        assert job.receive(0, SOON_S) == "interrupted"
        job.send(1)
        first, second = job.wait()
    assert first.value == second.value == "done", job.report()


def send_twice(pid: int, number: int) -> None:
    """Two signals at once, as when a launcher and a cluster's manager send the same one: to the process and to its main
    thread, which takes both when it goes on."""
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, number)
    assert ctypes.CDLL(None).tgkill(pid, pid, number) == 0
    os.kill(pid, signal.SIGCONT)


def waits(where: str) -> str:
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))

    def sum_of(name: str) -> Any:
        return hvd.allreduce(tf.constant([rank + 1.0] * 3000), op=hvd.Sum, name=name, ignore_name_scope=True)

    def in_session(name: str) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            return session.run(sum_of(name))

    calls: dict[str, Callable[[str], Any]] = {
        "eager": sum_of,
        "function": lambda name: tf.function(lambda: sum_of(name))(),
        "session": in_session,
    }
    call = calls[where]
    if rank == 1:
        receive_from_test()
        sum_of("second")
        receive_from_test()
    else:
        send_to_test("waiting")
        # Before 3.12 pybind11, in which TensorFlow makes its own exception, does not expect this one.
        is_lost = where != "eager" and sys.version_info < (3, 12)
        with pytest.raises(RuntimeError if is_lost else KeyboardInterrupt) as ended:
            call("first")
        assert "KeyboardInterrupt" in repr(ended.value)
        send_to_test("interrupted")

        send_to_test("waiting")
        close(call("second"), [3.0] * 3000)
        assert set(came) == {signal.SIGTERM}
        send_to_test("completed")

        if where == "eager":  # on the main thread the handler runs at once; a second one raises
            signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, interrupted))
        send_to_test("waiting")
        told = None if where == "eager" else r"Interrupted: rank 0/2 waited .* in allreduce 'third' when SIGTERM came"
        with pytest.raises(InterruptedError if where == "eager" else tf.errors.CancelledError, match=told):
            call("third")
        send_to_test("interrupted")
    for name in ("first", "third"):
        if rank == 1:  # what the other rank has submitted stands
            close(sum_of(name), [3.0] * 3000)
    close(hvd.allgather(tf.constant([float(rank)])), [0.0, 1.0])
    hvd.shutdown()
    return "done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_in_c_that_calls_the_one_before_it(number: int) -> None:
    with start_ranks(has_a_chaining_handler, 1, args=(number,), env=ENV) as job:
        (result,) = job.wait()
    assert result.value == [number, number, number], job.report()


def has_a_chaining_handler(number: int) -> list[int]:
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow as hvd

    hvd.init()
    came: list[int] = []
    signal.signal(number, lambda number, _: came.append(number))
    hvd.allreduce(tf.ones(3))
    with open(os.devnull, "w") as nowhere:
        faulthandler.register(number, chain=True, file=nowhere)
        hvd.allreduce(tf.ones(3))
        os.kill(os.getpid(), number)
        faulthandler.unregister(number)  # gives back the handler that it found
        os.kill(os.getpid(), number)
        signal.signal(number, lambda number, _: came.append(number))
        hvd.allreduce(tf.ones(3))
        os.kill(os.getpid(), number)
    hvd.shutdown()
    return came


def test_a_handler_in_c_of_two_signals() -> None:
    with start_ranks(has_two_chaining_handlers, 1, env=ENV) as job:
        (result,) = job.wait()
    assert result.value == [signal.SIGINT], job.report()


def has_two_chaining_handlers() -> list[int]:
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow as hvd

    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    with open(os.devnull, "w") as nowhere:
        faulthandler.register(signal.SIGTERM, file=nowhere)
        hvd.init()
        hvd.allreduce(tf.ones(3))
        faulthandler.register(signal.SIGINT, chain=True, file=nowhere)
        hvd.allreduce(tf.ones(3))
        os.kill(os.getpid(), signal.SIGINT)
    hvd.shutdown()
    return came


def interrupted(*_: Any) -> None:
    raise InterruptedError
