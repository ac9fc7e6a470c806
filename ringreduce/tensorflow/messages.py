"""Messages of tensors between two ranks: send and recv, with gradients that travel the other way. Not in Horovod.

They go through NumPy's forms: eagerly at once, in a tf.function by a py_function, which takes the token of our
operators and so runs in the order of the program. XLA takes no py_function, nor does tf.saved_model. The gradient of a
message with tag t has the tag -1 - t, which no user's message has.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
import tensorflow as tf

from ringreduce.collectives import data_movement
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.native.running import is_ordered, operand, order_token
from ringreduce.tensorflow.variables import plain

MOST = (1 << 31) - 1
"""The largest tag."""


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
    return _sent(operand(plain(tensor)), process_set.position(int(dest), "send"), _checked(tag), process_set)


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
    return _received(operand(plain(tensor)), process_set.position(int(source), "recv"), _checked(tag), process_set)


def _sent(tensor: tf.Tensor, peer: int, tag: int, process_set: ProcessSet) -> tf.Tensor:
    def work(value: tf.Tensor) -> Any:
        data_movement.send(value.numpy(), process_set.ranks[peer], tag=tag, process_set=process_set)
        return tf.zeros([], value.dtype)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def message(value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        return _run(work, value, []), lambda _: _received(value, peer, -1 - tag, process_set)

    return message(tensor)


def _received(like: tf.Tensor, peer: int, tag: int, process_set: ProcessSet) -> tf.Tensor:
    def work(value: tf.Tensor) -> Any:
        buffer = np.empty(value.shape, value.dtype.as_numpy_dtype)
        data_movement.recv(buffer, process_set.ranks[peer], tag=tag, process_set=process_set)
        return tf.constant(buffer)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def message(value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        def gradient(grad: tf.Tensor) -> tf.Tensor:
            return tf.fill(tf.shape(grad), _sent(tf.convert_to_tensor(grad), peer, -1 - tag, process_set))

        return _run(work, value, value.shape), gradient

    return message(like)


def _run(work: Callable[[tf.Tensor], Any], value: tf.Tensor, shape: Any) -> tf.Tensor:
    """work(value), a tensor of the value's dtype."""
    if tf.executing_eagerly():
        return work(value)
    if not is_ordered():
        raise UnavailableError(
            "send and recv need the order of the program, which graphs of tf.compat.v1 do not have: call them eagerly "
            "or in a tf.function"
        )
    result = tf.py_function(lambda tensor, _: work(tensor), [value, order_token()], value.dtype)
    result.set_shape(shape)
    return result


def _checked(tag: int) -> int:
    try:
        if 0 <= index(tag) <= MOST:
            return index(tag)
    except TypeError:
        pass
    raise InvalidArgumentError(f"tag={tag!r}: a whole number from 0 to {MOST} is expected")
