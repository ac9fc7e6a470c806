"""The Keras that this process uses, for what is the same code with either; the other one is not imported.

`keras` is the package keras or tf_keras; `training` has what differs between them in a model that trains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringreduce.common.which_keras import uses_keras_2

if TYPE_CHECKING or not uses_keras_2():
    import keras

    from ringreduce.keras import training
else:
    import tf_keras as keras

    from ringreduce.keras.legacy import training

__all__ = ["keras", "training"]
