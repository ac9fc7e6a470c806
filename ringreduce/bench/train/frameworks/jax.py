"""JAX: a step is one jitted function of parameters, the optimizer's state and a batch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from ringreduce.bench.train.frameworks import weights
from ringreduce.bench.train.frameworks.framework import Framework, Learner
from ringreduce.bench.train.frameworks.samples import Samples
from ringreduce.bench.train.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringreduce.bench.train.modes.mode import Team
    from ringreduce.bench.train.spec import Spec

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
MOMENTUM = 0.9


class Transformation(NamedTuple):
    """Optax's pair of functions, written out here so that Optax need not be there."""

    init: Callable[..., Any]
    update: Callable[..., Any]


def scores(model: str, arrays: list[Any], images: Any) -> Any:
    """The model of weights.py."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    x = images
    shapes = weights.LAYERS[model]
    for index, shape in enumerate(shapes):
        kernel, bias = arrays[2 * index : 2 * index + 2]
        if len(shape) == 4:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            window = (1, 2, 2, 1)
            x = lax.reduce_window(jax.nn.relu(x + bias), 0.0, lax.add, window, window, "VALID") / 4
            continue
        x = x.reshape(len(x), -1) @ kernel + bias
        if index < len(shapes) - 1:
            x = jnp.maximum(x, 0)
    return x


def optimizer(name: str, lr: float) -> Transformation:
    """The optimizer of that name: update(gradients, state, parameters) -> (what to add, state)."""
    import jax
    import jax.numpy as jnp

    lr *= OPTIMIZERS[name]
    each = jax.tree_util.tree_map

    def zeros(parameters: Any) -> Any:
        return each(jnp.zeros_like, parameters)

    def sgd(gradients: Any, state: Any, _: Any = None) -> tuple[Any, Any]:
        return each(lambda g: -lr * g, gradients), state

    def momentum(gradients: Any, state: Any, _: Any = None) -> tuple[Any, Any]:
        state = each(lambda m, g: MOMENTUM * m + g, state, gradients)
        return each(lambda m: -lr * m, state), state

    def adam(gradients: Any, state: Any, _: Any = None) -> tuple[Any, Any]:
        step, mean, square = state
        step = step + 1
        mean = each(lambda m, g: BETA_1 * m + (1 - BETA_1) * g, mean, gradients)
        square = each(lambda v, g: BETA_2 * v + (1 - BETA_2) * g * g, square, gradients)
        scale = lr * jnp.sqrt(1 - BETA_2**step) / (1 - BETA_1**step)
        return each(lambda m, v: -scale * m / (jnp.sqrt(v) + EPSILON), mean, square), (step, mean, square)

    if name == "adam":
        return Transformation(lambda p: (jnp.zeros((), jnp.float32), zeros(p), zeros(p)), adam)
    return Transformation(zeros, momentum) if name == "momentum" else Transformation(lambda _: (), sgd)


class JaxLearner(Learner):
    """Gradients are summed by the team's package's distributed(), or not."""

    def __init__(self, spec: Spec, team: Team, threads: int) -> None:
        import jax
        import jax.numpy as jnp

        self.threads = threads
        self.team = team
        self.samples = Samples(spec)
        self._parameters = [jnp.asarray(array) for array in weights.make(spec.model, spec.seed)]
        self.nbytes = sum(array.nbytes for array in self._parameters)
        tx: Any = optimizer(spec.optimizer, spec.lr)
        hvd = team.api("jax")
        if hvd:
            tx = hvd.distributed(tx, op=hvd.Sum)
            self._parameters = hvd.broadcast_parameters(self._parameters, root_rank=0)
        self._state = tx.init(self._parameters)

        def loss_of(parameters: Any, images: Any, labels: Any) -> Any:
            logits = scores(spec.model, parameters, images)
            right = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
            return jnp.sum(jax.nn.logsumexp(logits, 1) - right) / spec.batch_size

        def step(parameters: Any, state: Any, images: Any, labels: Any) -> tuple[Any, Any, Any]:
            loss, gradients = jax.value_and_grad(loss_of)(parameters, images, labels)
            updates, state = tx.update(gradients, state, parameters)
            return jax.tree_util.tree_map(jnp.add, parameters, updates), state, loss

        self._step, self._loss = jax.jit(step, donate_argnums=(0, 1)), jax.jit(loss_of)

    def count(self, parts: int) -> int:
        """See Learner."""
        return self.samples.batch_size

    def step(self, number: int, parts: int, mine: range) -> float:
        """See Learner."""
        batch = self.samples.parts(number, parts, mine)
        self.team.before_step()
        self._parameters, self._state, loss = self._step(self._parameters, self._state, *batch)
        return float(loss)

    def loss(self, number: int, parts: int, mine: range) -> float:
        """See Learner."""
        return float(self._loss(self._parameters, *self.samples.parts(number, parts, mine)))


def cpu_only(threads: int) -> dict[str, str]:
    """Variables for XLA on as many CPUs.

    JAX has no call that sets its threads. XLA takes NPROC, or else the CPUs that the process may run on, for the size
    of its pool; one thread needs a flag besides, or matrix products hand their work to the pool all the same.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if threads == 1:
        flags += " --xla_cpu_multi_thread_eigen=false"
    return {"JAX_PLATFORMS": "cpu", "NPROC": str(threads), "XLA_FLAGS": flags.strip()}


class Jax(Framework):
    """On XLA's CPU backend."""

    name = "jax"
    title = "JAX"
    packages = ("jax", "jaxlib")
    install = "'ringreduce[jax]'"

    def environ(self, threads: int) -> dict[str, str]:
        """See Framework."""
        return cpu_only(threads)

    def learner(self, spec: Spec, team: Team, threads: int) -> Learner:
        """See Framework."""
        return JaxLearner(spec, team, threads)
