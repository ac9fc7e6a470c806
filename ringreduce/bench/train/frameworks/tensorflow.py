"""TensorFlow: a training loop of one's own, a step being one tf.function with a gradient tape."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ringreduce.bench.train.frameworks import layers
from ringreduce.bench.train.frameworks.framework import Framework, Learner
from ringreduce.bench.train.frameworks.samples import Samples

if TYPE_CHECKING:
    from ringreduce.bench.train.modes.mode import Team
    from ringreduce.bench.train.spec import Spec

INTER_OP_THREADS = 2
"""At least: a collective may occupy one while it waits for the other ranks."""


class TensorFlowLearner(Learner):
    """Gradients are summed by the team's package's DistributedGradientTape, by a strategy's optimizer, or not."""

    def __init__(self, spec: Spec, team: Team) -> None:
        import tensorflow as tf

        self.threads = tf.config.threading.get_intra_op_parallelism_threads()
        self.team = team
        self.samples = Samples(spec)
        hvd = team.api("tensorflow")
        with team.strategy.scope() if team.strategy else contextlib.nullcontext():
            model = layers.make(tf.keras, spec.model, spec.seed)
            optimizer = layers.optimizer(tf.keras, spec.optimizer, spec.lr)
            optimizer.build(model.trainable_variables)
        variables = model.trainable_variables
        self.nbytes = sum(variable.numpy().nbytes for variable in variables)
        if hvd:
            hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)

        def loss_of(images: Any, labels: Any) -> Any:
            scores = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            return tf.reduce_sum(losses) / spec.batch_size

        def step(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(images, labels)
            if hvd:
                tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        def everywhere(work: Any) -> Any:
            strategy = team.strategy
            return tf.function((lambda *batch: strategy.run(work, batch)) if strategy else work)

        self._step, self._loss = everywhere(step), everywhere(loss_of)

    def count(self, parts: int) -> int:
        """See Learner."""
        return self.samples.batch_size

    def step(self, number: int, parts: int, mine: range) -> float:
        """See Learner."""
        batch = self._batch(number, parts, mine)
        self.team.before_step()
        return float(self._step(*batch))

    def loss(self, number: int, parts: int, mine: range) -> float:
        """See Learner."""
        return float(self._loss(*self._batch(number, parts, mine)))

    def _batch(self, number: int, parts: int, mine: range) -> list[Any]:
        import tensorflow as tf

        return [tf.constant(array) for array in self.samples.parts(number, parts, mine)]


def use(threads: int) -> None:
    """As many intra-op threads, on CPUs only."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(INTER_OP_THREADS, threads))
    tf.config.set_visible_devices([], "GPU")


class TensorFlow(Framework):
    """Its Keras 3 has the layers and the optimizers."""

    name = "tensorflow"
    title = "TensorFlow"
    packages = ("tensorflow", "keras")
    install = "'ringreduce[tensorflow]'"
    vs = "single,single-all,mwms,mwms-ring,horovod"

    def environ(self, threads: int) -> dict[str, str]:
        """See Framework."""
        return {"KERAS_BACKEND": "tensorflow"}

    def prepare(self, threads: int) -> None:
        """See Framework."""
        use(threads)

    def learner(self, spec: Spec, team: Team, threads: int) -> Learner:
        """See Framework."""
        return TensorFlowLearner(spec, team)
