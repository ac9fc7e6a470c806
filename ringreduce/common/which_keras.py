"""Which Keras a process uses: Keras 3 (the package keras) or Keras 2 (tf_keras), as TensorFlow chooses tf.keras."""

from __future__ import annotations

import os


def uses_keras_2() -> bool:
    """Whether TF_USE_LEGACY_KERAS makes tf.keras the package tf_keras. TensorFlow reads it when it is imported."""
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def is_of_keras_2(value: object) -> bool:
    """Whether a value's class is one of tf_keras, or derived from one. Imports nothing."""
    return any(base.__module__.partition(".")[0] == "tf_keras" for base in type(value).__mro__)
