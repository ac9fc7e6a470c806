"""Loads ringreduce/_tensorflow.so into TensorFlow and connects it with the core.

It is compiled against no TensorFlow: it finds TensorFlow's C API in the process, and the core by a table of functions
whose address it gets here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import ringreduce
from ringreduce import _core
from ringreduce.errors import UnavailableError

PATH = Path(ringreduce.__file__).with_name("_tensorflow.so")


def _load() -> Any:
    if not PATH.exists():
        raise UnavailableError(
            f"{PATH} is missing: install ringreduce again (pip install --force-reinstall ringreduce)"
        )
    module = tf.load_op_library(str(PATH))
    native = ctypes.CDLL(str(PATH))
    native.ringreduce_problem.restype = ctypes.c_char_p
    problem = native.ringreduce_problem().decode()
    if problem:
        raise UnavailableError(f"no operators for TensorFlow {tf.__version__}: {problem}")
    native.ringreduce_connect.argtypes = [ctypes.c_void_p]
    native.ringreduce_connect.restype = ctypes.c_bool
    if not native.ringreduce_connect(_core.framework_table()):
        raise UnavailableError(f"{PATH} is of another build than {_core.__file__}: build and install both again")
    return module


operators = _load()
"""The generated functions: operators.ringreduce_allreduce(...) and so on."""


def deferred(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The form of an operator that communicates which holds no thread of TensorFlow's while it waits."""
    found: Callable[..., Any] = getattr(operators, f"{operator.__name__}_deferred")
    return found
