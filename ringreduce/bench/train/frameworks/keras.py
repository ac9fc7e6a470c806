"""Keras 3: train_on_batch() of a compiled model, on the backend that KERAS_BACKEND names (default tensorflow)."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from ringreduce.bench.train.frameworks import jax, layers, tensorflow
from ringreduce.bench.train.frameworks.framework import Framework, Learner
from ringreduce.bench.train.frameworks.samples import Samples

if TYPE_CHECKING:
    from ringreduce.bench.train.modes.mode import Team
    from ringreduce.bench.train.spec import Spec


def backend() -> str:
    """tensorflow | torch | jax"""
    return os.environ.get("KERAS_BACKEND") or "tensorflow"


class KerasLearner(Learner):
    """Gradients are summed by the team's package's DistributedOptimizer, by a strategy's optimizer, or not."""

    def __init__(self, spec: Spec, team: Team, threads: int) -> None:
        import keras

        class Loss(keras.losses.Loss):  # type: ignore[misc, unused-ignore]
            """Cross-entropy, summed over this process's samples and divided by those of the global batch."""

            def call(self, y_true: Any, y_pred: Any) -> Any:
                losses = keras.ops.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
                return losses / spec.batch_size

        self.threads = threads
        self.team = team
        self.samples = Samples(spec)
        self._loss = Loss(reduction="sum")
        with team.strategy.scope() if team.strategy else contextlib.nullcontext():
            self.model = layers.make(keras, spec.model, spec.seed)
            optimizer = layers.optimizer(keras, spec.optimizer, spec.lr)
            hvd = team.api("keras")
            if hvd:
                optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
            optimizer.build(self.model.trainable_variables)
            self.model.compile(optimizer, loss=self._loss)
        variables = self.model.trainable_variables
        self.nbytes = sum(keras.ops.convert_to_numpy(variable).nbytes for variable in variables)
        if hvd:
            hvd.broadcast_variables([*self.model.weights, *optimizer.variables], root_rank=0)
        if team.strategy:
            self._train_by(team.strategy)

    def count(self, parts: int) -> int:
        """See Learner."""
        return self.samples.batch_size

    def step(self, number: int, parts: int, mine: range) -> float:
        """See Learner."""
        batch = self.samples.parts(number, parts, mine)
        self.team.before_step()
        (loss,) = [self.model.train_on_batch(*batch)]
        return float(loss) / (self.team.strategy.num_replicas_in_sync if self.team.strategy else 1)

    def loss(self, number: int, parts: int, mine: range) -> float:
        """See Learner."""
        images, labels = self.samples.parts(number, parts, mine)
        return float(self._loss(labels, self.model(images)))

    def _train_by(self, strategy: Any) -> None:
        """The train function of a strategy of several workers, for train_on_batch().

        Keras's own ends with a mean of the workers' losses along an axis that these do not have, and fails (3.15). A
        loss comes out multiplied by the number of replicas, as for losses that are means.
        """
        import tensorflow as tf

        compiled = tf.function(lambda *batch: strategy.run(self.model.train_step, (batch,)))

        def train(iterator: Any) -> Any:
            images, labels, _ = next(iterator)
            return compiled(images, labels)

        self.model.train_function = train


class Keras(Framework):
    """On any of its backends; a strategy is TensorFlow's."""

    name = "keras"
    title = "Keras 3"
    vs = "single,single-all,mwms,mwms-ring,horovod"

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        """See Framework."""
        return ("keras", backend())

    @property
    def install(self) -> str:  # type: ignore[override]
        """See Framework."""
        return f"keras 'ringreduce[{backend()}]'"

    def environ(self, threads: int) -> dict[str, str]:
        """See Framework."""
        more = jax.cpu_only(threads) if backend() == "jax" else {}
        return {"KERAS_BACKEND": backend(), **more}

    def prepare(self, threads: int) -> None:
        """See Framework."""
        if backend() == "tensorflow":
            tensorflow.use(threads)
        elif backend() == "torch":
            import torch

            torch.set_num_threads(threads)

    def learner(self, spec: Spec, team: Team, threads: int) -> Learner:
        """See Framework."""
        return KerasLearner(spec, team, threads)
