"""Messages of tensors between two ranks: send and recv, with gradients that travel the other way. Not in Horovod.

They go through NumPy's forms: eagerly at once, in a tf.function by a py_function, which takes the token of our
operators and so runs in the order of the program. XLA takes no py_function, nor does tf.saved_model. Which gradient is
whose: gradient_numbers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from ringreduce.collectives import data_movement
from ringreduce.common.gradient_numbers import checked_tag, gradient_tag, tag_of_pass
from ringreduce.errors import UnavailableError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.native.running import is_ordered, operand, order_token
from ringreduce.tensorflow.variables import plain


def send(tensor: Any, dest: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Sends a tensor to another rank, which calls recv(); differentiable.

    The gradient comes back from that rank, so both ranks have to ask for one:

        with tf.GradientTape() as tape:
            if hvd.rank() == 0:
                loss = hvd.send(first_half(images), dest=1)  # a token, which is zero
            else:
                hidden = tf.zeros([64, 512])
                tape.watch(hidden)  # the rank that receives says that it has a gradient
                loss = loss_of(labels, second_half(hvd.recv(hidden, source=0)))

    Rank 0 asks for the gradient of what first_half() depends on; rank 1 names `hidden` among its sources.

    Args:
        tensor: a tensor, variable or array of any shape.
        dest: global rank of the receiver.
        tag: the receiver's; from 0 to 2**31 - 1.
        process_set: a set that both ranks are in.

    Returns:
        A token, a scalar zero: a rank with a loss of its own adds the token to it.
    """
    return _sent(operand(plain(tensor)), process_set.position(dest, "send"), checked_tag(tag), process_set)


def recv(tensor: Any, source: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Receives what another rank sends; differentiable: the gradient is sent to that rank.

    Args:
        tensor: a tensor or variable of the message's shape and dtype. Its content does not matter, and its gradient is
            zero. The tape has to watch it where the sender wants a gradient; send() has an example.
        source: global rank of the sender.
        tag: the sender's; from 0 to 2**31 - 1.
        process_set: a set that both ranks are in.

    Returns:
        The message, a new tensor.
    """
    return _received(operand(plain(tensor)), process_set.position(source, "recv"), checked_tag(tag), process_set)


def _sent(tensor: tf.Tensor, peer: int, tag: Any, process_set: ProcessSet) -> tf.Tensor:
    def work(value: tf.Tensor, tag: int) -> Any:
        data_movement.send(value.numpy(), process_set.ranks[peer], tag=tag, process_set=process_set)
        return tf.zeros([], value.dtype), gradient_tag(process_set, "send", peer, tag)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def message(value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        token, of_gradient = _run(work, value, tag, [])
        passes = count()
        return token, lambda _: _received(value, peer, tag_of_pass(of_gradient, next(passes)), process_set)

    return message(tensor)


def _received(like: tf.Tensor, peer: int, tag: Any, process_set: ProcessSet) -> tf.Tensor:
    def work(value: tf.Tensor, tag: int) -> Any:
        buffer = np.empty(value.shape, value.dtype.as_numpy_dtype)
        data_movement.recv(buffer, process_set.ranks[peer], tag=tag, process_set=process_set)
        return tf.constant(buffer), gradient_tag(process_set, "recv", peer, tag)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def message(value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        result, of_gradient = _run(work, value, tag, value.shape)
        passes = count()

        def gradient(grad: tf.Tensor) -> tf.Tensor:
            of_pass = tag_of_pass(of_gradient, next(passes))
            return tf.fill(tf.shape(grad), _sent(tf.convert_to_tensor(grad), peer, of_pass, process_set))

        return result, gradient

    return message(like)


def _run(work: Callable[[tf.Tensor, int], Any], value: tf.Tensor, tag: Any, shape: Any) -> tuple[tf.Tensor, Any]:
    """work(value, tag): a tensor of the value's dtype, and the tag of the message's gradient, known when it runs."""
    if tf.executing_eagerly():
        done: tuple[tf.Tensor, int] = work(value, int(tag))
        return done
    if not is_ordered():
        raise UnavailableError(
            "send and recv need the order of the program, which graphs of tf.compat.v1 do not have: call them eagerly "
            "or in a tf.function"
        )
    inputs = [value, tf.convert_to_tensor(tag, tf.int64), order_token()]
    result, of_gradient = tf.py_function(lambda tensor, tag, _: work(tensor, int(tag)), inputs, [value.dtype, tf.int64])
    result.set_shape(shape)
    of_gradient.set_shape([])
    return result, of_gradient
