"""What can be trained with. A new one is a file here and a row below."""

from __future__ import annotations

from ringreduce.bench.train.frameworks.framework import Framework
from ringreduce.bench.train.frameworks.jax import Jax
from ringreduce.bench.train.frameworks.keras import Keras
from ringreduce.bench.train.frameworks.tensorflow import TensorFlow
from ringreduce.bench.train.frameworks.torch import Torch

FRAMEWORKS: dict[str, Framework] = {each.name: each for each in (Torch(), TensorFlow(), Keras(), Jax())}
