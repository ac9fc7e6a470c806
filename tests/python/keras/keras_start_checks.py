"""RINGREDUCE_CHECK_PARAMETERS with Keras: whether ranks train from the same values. Run within a job of two ranks."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras_checks import new_variables, tensor, values
from keras_training_checks import fit, make_model, weights

KNOB = "RINGREDUCE_CHECK_PARAMETERS"


@contextlib.contextmanager
def job(hvd: Any, mode: str) -> Iterator[None]:
    """A job of its own with this value of the knob; the usual one after it."""
    for value in (mode, None):
        hvd.shutdown()
        os.environ.pop(KNOB, None)
        if value is not None:
            os.environ[KNOB] = value
        hvd.init()
        if value is not None:
            yield


def compiled(hvd: Any, model: Any) -> Any:
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss="mse")
    return model


def said(hvd: Any, train: Callable[[], Any]) -> list[list[str]]:
    """On each rank, what training warned of or raised about the first step."""
    raised = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            train()
        except hvd.MismatchError as error:
            raised.append(str(error))
    warned = [one for one in caught if "first step" in str(one.message)]
    assert all(Path(one.filename).parent == Path(__file__).parent for one in warned)  # a line of the user's
    mine = [str(one.message) for one in warned] + raised
    return hvd.allgather_object(mine)


def is_same(hvd: Any, arrays: list[np.ndarray]) -> bool:
    return len(set(hvd.allgather_object(str([array.tolist() for array in arrays])))) == 1


def fit_warns_once_where_the_broadcast_was_forgotten(hvd: Any) -> None:
    model = compiled(hvd, make_model(seed=hvd.rank()))
    said_first, said_later = said(hvd, lambda: fit(hvd, model)), said(hvd, lambda: fit(hvd, model))
    assert [len(texts) for texts in said_first] == [1, 0]
    assert said_later == [[], []]
    first = model.trainable_variables[0].path
    assert f"first step: {first} is not the same on all ranks" in said_first[0][0]
    assert "BroadcastGlobalVariablesCallback(0)" in said_first[0][0]
    assert not is_same(hvd, weights(model))


def fit_says_nothing_where_variables_are_broadcast(hvd: Any) -> None:
    for built in (True, False):  # before the first batch, and after it
        model = compiled(hvd, make_model(seed=hvd.rank(), built=built))
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        assert said(hvd, lambda model=model, callbacks=callbacks: fit(hvd, model, callbacks=callbacks)) == [[], []]
        assert is_same(hvd, weights(model))
    model = compiled(hvd, make_model(seed=0))
    assert said(hvd, lambda: fit(hvd, model)) == [[], []]


def local_variables_may_differ(hvd: Any) -> None:
    model = compiled(hvd, make_model(seed=0))
    for variable in model.trainable_variables[:2]:
        variable.assign(variable + float(hvd.rank()))
        model.optimizer.register_local_var(variable)
    assert said(hvd, lambda: fit(hvd, model)) == [[], []]
    model = compiled(hvd, make_model(seed=0))
    for variable in model.trainable_variables[:2]:
        variable.assign(variable + float(hvd.rank()))
    model.optimizer.register_local_var(model.trainable_variables[0])
    assert model.trainable_variables[1].path in said(hvd, lambda: fit(hvd, model))[0][0]


def optimizer_state_that_differs_is_named(hvd: Any) -> None:
    model = compiled(hvd, make_model(seed=0))
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(5 * hvd.rank())
    texts = said(hvd, lambda: fit(hvd, model))
    assert [len(some) for some in texts] == [1, 0]
    assert "first step: the optimizer's " in texts[0][0]
    assert "iteration is not the same" in texts[0][0]


def the_knob_makes_it_an_error_or_mends_it(hvd: Any) -> None:
    with job(hvd, "error"):
        texts = said(hvd, lambda: fit(hvd, compiled(hvd, make_model(seed=hvd.rank()))))
        assert [len(some) for some in texts] == [1, 1]
    with job(hvd, "off"):
        assert said(hvd, lambda: fit(hvd, compiled(hvd, make_model(seed=hvd.rank())))) == [[], []]
    with job(hvd, "broadcast"):
        model = compiled(hvd, make_model(seed=hvd.rank()))
        assert said(hvd, lambda: fit(hvd, model)) == [[], []]
        assert is_same(hvd, weights(model))


def a_loop_is_compared_before_its_second_step(hvd: Any) -> None:
    """The second: Horovod's loops broadcast after the first, when Keras has made all variables."""
    for broadcasts in (True, False):
        variables = new_variables()
        variables[1].assign(variables[1] + float(hvd.rank()))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))

        def train(variables: list[Any] = variables, optimizer: Any = optimizer, broadcasts: bool = broadcasts) -> None:
            for step in range(3):
                optimizer.apply([tensor(value) for value in values(step)], variables)
                if step == 0 and broadcasts:
                    hvd.broadcast_variables(variables + optimizer.variables, root_rank=0)

        texts = said(hvd, train)
        assert [len(some) for some in texts] == ([0, 0] if broadcasts else [1, 0])
        if not broadcasts:
            assert f"{variables[1].path} is not the same on all ranks; 1 of 8 tensors" in texts[0][0]


def gradients_that_a_rank_has_added_up_are_its_own(hvd: Any) -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=3)
    model = make_model(seed=0)
    model.compile(optimizer, loss="mse")
    assert said(hvd, lambda: fit(hvd, model)) == [[], []]


def a_joined_rank_holds_nobody_up(hvd: Any) -> None:
    """Rank 0 has no batches at first; the comparison waits until all train."""
    import ringreduce

    model = compiled(hvd, make_model(seed=hvd.rank()))
    if hvd.rank() == 1:
        fit(hvd, model, 1)
    ringreduce.join()
    texts = said(hvd, lambda: fit(hvd, model, 1))
    assert [len(some) for some in texts] == [1, 0]


CHECKS = [
    fit_warns_once_where_the_broadcast_was_forgotten,
    fit_says_nothing_where_variables_are_broadcast,
    local_variables_may_differ,
    optimizer_state_that_differs_is_named,
    the_knob_makes_it_an_error_or_mends_it,
    a_loop_is_compared_before_its_second_step,
    gradients_that_a_rank_has_added_up_are_its_own,
    a_joined_rank_holds_nobody_up,
]
