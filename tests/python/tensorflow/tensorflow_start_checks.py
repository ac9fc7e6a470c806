"""RINGREDUCE_CHECK_PARAMETERS with optimizers of TensorFlow 1. On three ranks."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from tensorflow_checks import BASE, ONE_THREAD

import ringreduce.tensorflow as hvd

KNOB = "RINGREDUCE_CHECK_PARAMETERS"
v1 = tf.compat.v1


@contextlib.contextmanager
def job(mode: str) -> Iterator[None]:
    """A job of its own with this value of the knob; the usual one after it."""
    hvd.shutdown()
    os.environ[KNOB] = mode
    hvd.init()
    yield
    hvd.shutdown()
    del os.environ[KNOB]
    hvd.init()


def said(train: Callable[[], Any]) -> list[str]:
    """On each rank, what training warned of, or wrote to stderr."""
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+") as file, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            train()
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        lines = [line for line in file.read().splitlines() if "first step" in line]
    warned = [str(one.message) for one in caught if "first step" in str(one.message)]
    assert all(one.filename == __file__ for one in caught if "first step" in str(one.message))
    return hvd.allgather_object(" ".join(lines + warned))


def distributed(**options: Any) -> Any:
    return hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.5, momentum=0.5), **options)


def is_same(value: Any) -> bool:
    return len(set(hvd.allgather_object(str(value.tolist())))) == 1


def eagerly(rank: int) -> None:
    cases = ["same", "differ", "broadcast by the script", "error", "broadcast", "off"]
    for case, compiled in [*((case, False) for case in cases), ("differ", True), ("error", True)]:
        with job(case if case in ("error", "broadcast", "off") else "warn"):
            if case == "error":
                error = tf.errors.InvalidArgumentError if compiled else hvd.MismatchError
                with pytest.raises(error, match=r"first step: y:0 is not the same on all ranks; 1 of 4"):
                    train(rank, case, compiled)
                continue
            check_texts(said(lambda case=case, compiled=compiled: train(rank, case, compiled)), case)


def train(rank: int, case: str, compiled: bool) -> None:
    """Four steps."""
    x, y = tf.Variable(BASE, name="x"), tf.Variable(BASE + (rank if case != "same" else 0), name="y")
    optimizer = distributed()

    def step() -> None:
        optimizer.minimize(lambda: tf.reduce_sum(x * y), var_list=[x, y])

    run = tf.function(step) if compiled else step
    for number in range(4):
        run()
        if number == 0 and case == "broadcast by the script":
            hvd.broadcast_variables([x, y, *optimizer.variables()], 0)
    assert is_same(y.numpy()) == (case not in ("differ", "off"))


def check_texts(texts: list[str], case: str) -> None:
    if case == "differ":
        assert "first step: y:0 is not the same on all ranks; 1 of 4 tensors differ" in texts[0]
        assert "hvd.broadcast_variables()" in texts[0]
        assert "hvd.BroadcastGlobalVariablesHook(0)" in texts[0]
        assert texts[1:] == ["", ""]
    else:
        assert texts == [""] * 3, case


def in_sessions(rank: int) -> None:
    cases = ["same", "differ", "hook", "error", "broadcast", "off"]
    kinds = [(case, True, 2) for case in cases] + [("same", False, 1), ("differ", False, 1)]
    for case, resource, passes in kinds:
        (v1.enable_control_flow_v2 if passes == 2 else v1.disable_control_flow_v2)()
        with job(case if case in ("error", "broadcast", "off") else "warn"), tf.Graph().as_default():
            x = v1.Variable(BASE, use_resource=resource, name="x")
            y = v1.Variable(BASE + (rank if case != "same" else 0), use_resource=resource, name="y")
            step = v1.train.get_or_create_global_step()
            train = distributed(backward_passes_per_step=passes).minimize(tf.reduce_sum(x * y), global_step=step)
            hooks = [hvd.BroadcastGlobalVariablesHook(0)] if case == "hook" else []
            with v1.train.MonitoredTrainingSession(hooks=hooks, config=ONE_THREAD) as session:

                def run(session: Any = session, train: Any = train, steps: int = 4 * passes) -> None:
                    for _ in range(steps):
                        session.run(train)

                if case == "error":
                    with pytest.raises(tf.errors.InvalidArgumentError, match=r"MismatchError: .*first step: y:0 is"):
                        run()
                    continue
                texts = said(run)
                assert session.run(step) == 4 * passes
                assert is_same(session.run(y)) == (case not in ("differ", "off"))
            check_texts(texts, case)
    v1.enable_control_flow_v2()
    optimizer = distributed()
    for _ in range(2):  # one optimizer in two graphs
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.Variable(BASE + rank, name="x")
            train = optimizer.minimize(tf.reduce_sum(x))
            session.run(v1.global_variables_initializer())
            texts = said(lambda session=session, train=train: [session.run(train) for _ in range(3)])
            assert "first step: x:0 is not the same on all ranks; 1 of 2 tensors differ" in texts[0]
    with job("broadcast"), tf.Graph().as_default():
        x = v1.Variable(BASE, use_resource=False)
        with pytest.raises(hvd.UnavailableError, match="needs variables made with use_resource=True"):
            distributed().minimize(tf.reduce_sum(x))


def variables_of_the_rank(rank: int) -> None:
    """They may differ, and their slots."""
    x, y = tf.Variable(BASE + rank), tf.Variable(BASE)
    optimizer = distributed()
    optimizer.register_local_var(x)

    def train() -> None:
        for _ in range(3):
            optimizer.minimize(lambda: tf.reduce_sum(x * 2.0) + tf.reduce_sum(y), var_list=[x, y])

    assert said(train) == [""] * 3


def state_that_differs(rank: int) -> None:
    """A rank that has made other variables before has other names; and its momentum of one is another."""
    x, y = tf.Variable(BASE), tf.Variable(BASE)
    plain = v1.train.MomentumOptimizer(0.5, momentum=0.5)
    if rank == 1:
        more = tf.Variable(BASE)
        plain.minimize(lambda: tf.reduce_sum(more), var_list=[more])
        plain.minimize(lambda: tf.reduce_sum(y) * 0.0, var_list=[y])
    optimizer = hvd.DistributedOptimizer(plain)

    def train() -> None:
        for _ in range(3):
            optimizer.minimize(lambda: tf.reduce_sum(x) + tf.reduce_sum(y), var_list=[x, y])

    assert said(train) == [""] * 3
    plain.get_slot(y, "momentum").assign(BASE + rank)
    again = hvd.DistributedOptimizer(plain)

    def train_again() -> None:
        for _ in range(3):
            again.minimize(lambda: tf.reduce_sum(x) + tf.reduce_sum(y), var_list=[x, y])

    texts = said(train_again)
    # The values follow the momentum by the second step.
    assert "is not the same on all ranks; 2 of 4 tensors differ" in texts[0]
    assert texts[1:] == ["", ""]


def two_lists_of_variables(rank: int) -> None:
    """One optimizer steps each by itself, in one run of the session: each is compared by itself."""
    with tf.Graph().as_default(), v1.Session(config=ONE_THREAD) as session:
        x, y = v1.Variable(BASE, name="x"), v1.Variable(BASE + rank, name="y")
        optimizer = distributed()
        steps = [optimizer.minimize(tf.reduce_sum(one), var_list=[one]) for one in (x, y)]
        session.run(v1.global_variables_initializer())
        texts = said(lambda: [session.run(steps) for _ in range(4)])
        assert texts[0].count("first step:") == 1
        assert "first step: y:0 is not the same on all ranks; 1 of 2 tensors differ" in texts[0]


def nothing_to_compare(rank: int) -> None:
    x = tf.Variable(BASE + rank)
    optimizer = distributed()
    optimizer.register_local_var(x)

    def train() -> None:
        for _ in range(3):
            optimizer.minimize(lambda: tf.reduce_sum(x), var_list=[x])

    assert said(train) == [""] * 3


def waits_for_ranks_that_have_joined(rank: int) -> None:
    import ringreduce

    x = tf.Variable(BASE + rank, name="x")
    optimizer = distributed()

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.minimize(lambda: tf.reduce_sum(x), var_list=[x])

    texts = said(lambda: (train(0 if rank == 0 else 3), ringreduce.join()))
    assert texts == [""] * 3
    texts = said(lambda: train(2))
    assert "first step: x:0 is not the same" in texts[0]
    assert texts[1:] == ["", ""]


def by_what_adasum_changes(rank: int) -> None:
    pair = hvd.add_process_set([0, 1])
    if rank < 2:
        x = tf.Variable(BASE + rank, name="x")
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.5, 0.5), op=hvd.Adasum, process_set=pair)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                optimizer.minimize(lambda: tf.reduce_sum(x * (rank + 1.0)), var_list=[x])
        texts = [str(one.message) for one in caught if "first step" in str(one.message)]
        assert len(texts) == 1 - rank
        assert all("x:0 is not the same on all ranks; 1 of 1 tensors differ" in text for text in texts)


CHECKS = [
    eagerly,
    in_sessions,
    variables_of_the_rank,
    state_that_differs,
    two_lists_of_variables,
    nothing_to_compare,
    waits_for_ranks_that_have_joined,
    by_what_adasum_changes,
]
