"""Trains an MLP on Fashion-MNIST with JAX, on one rank or many.

    ringrun -np 2 python examples/jax_mlp.py --epochs 3

The whole step is one compiled program: the loss of this rank's share of the batch, its gradients, one all-reduce of all
of them, and the update. The global batch is --batch-size on any number of ranks and must be divisible by it. A rank's
loss is summed over its share and divided by the global batch, and gradients are summed over the ranks: the step is that
of one rank on the whole batch. With --every N, gradients of N batches are reduced at once.
"""

import argparse
import itertools
import json
from typing import Any, NamedTuple

import fashion_mnist
import jax
import jax.numpy as jnp
import numpy as np

import ringreduce.jax as hvd

Params = list[tuple[jax.Array, jax.Array]]


class Momentum(NamedTuple):
    """Gradient descent with momentum, as an Optax transformation has it; any of Optax's would do as well."""

    rate: float
    decay: float = 0.9

    def init(self, params: Params) -> Any:
        return jax.tree_util.tree_map(jnp.zeros_like, params)

    def update(self, grads: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        state = jax.tree_util.tree_map(lambda held, grad: self.decay * held + grad, state, grads)
        return jax.tree_util.tree_map(lambda held: -self.rate * held, state), state


def initial(key: jax.Array, sizes: list[int], dtype: Any) -> Params:
    params = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        key, draw = jax.random.split(key)
        weights = jax.random.normal(draw, (fan_in, fan_out), dtype) * jnp.asarray((2 / fan_in) ** 0.5, dtype)
        params.append((weights, jnp.zeros(fan_out, dtype)))
    return params


def scores(params: Params, pixels: jax.Array) -> jax.Array:
    layer = pixels.reshape(len(pixels), -1).astype(params[0][0].dtype) / 255
    for weights, bias in params[:-1]:
        layer = jax.nn.relu(layer @ weights + bias)
    weights, bias = params[-1]
    return layer @ weights + bias


def loss_of(params: Params, pixels: jax.Array, labels: jax.Array, batch_size: int) -> jax.Array:
    chances = jax.nn.log_softmax(scores(params, pixels))
    return -jnp.take_along_axis(chances, labels[:, None], axis=1).sum() / batch_size


def main() -> None:
    options = parse()
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if options.batch_size % size:
        raise SystemExit(f"--batch-size {options.batch_size} cannot be shared out evenly to {size} ranks")
    data = fashion_mnist.load()
    key = jax.random.fold_in(jax.random.key(options.seed), rank)
    params = initial(key, [28 * 28, *options.hidden, 10], jnp.dtype(options.dtype))
    params = hvd.broadcast_parameters(params, root_rank=0)  # each rank had drawn its own
    tx = hvd.distributed(Momentum(options.lr), every=options.every, op=hvd.Sum)
    state = tx.init(params)

    @jax.jit
    def step(params: Params, state: Any, pixels: jax.Array, labels: jax.Array) -> tuple[Params, Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(params, pixels, labels, options.batch_size)
        updates, state = tx.update(grads, state, params)
        return jax.tree_util.tree_map(jnp.add, params, updates), state, loss

    share = options.batch_size // size
    losses, right = [], None
    for epoch in range(options.epochs):
        order = np.random.default_rng(options.seed + epoch).permutation(len(data.train_images))
        batches = len(order) // options.batch_size
        part = jnp.zeros((), jnp.promote_types(options.dtype, jnp.float32))  # bfloat16 would round a sum of hundreds
        steps = min(batches, options.steps or batches)
        for number in range(steps):
            start = number * options.batch_size + rank * share
            mine = order[start : start + share]
            params, state, loss = step(params, state, data.train_images[mine], data.train_labels[mine].astype(np.int32))
            part += loss
        losses.append(float(hvd.allreduce(part, op=hvd.Sum)) / steps)
        right = accuracy(params, data.test_images, data.test_labels)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, test accuracy {right:.3f}", flush=True)
    if options.params and rank == 0:
        np.savez(options.params, *map(np.asarray, jax.tree_util.tree_leaves(params)))
    if options.json and rank == 0:
        with open(options.json, "w") as file:
            json.dump({"ranks": size, "losses": losses, "test_accuracy": right}, file)
    hvd.shutdown()


def accuracy(params: Params, images: np.ndarray, labels: np.ndarray) -> float:
    """The part of all images that the model gets right; each rank looks at its share."""
    mine = slice(hvd.rank(), None, hvd.size())
    right = jnp.sum(jax.jit(scores)(params, images[mine]).argmax(1) == labels[mine])
    return float(hvd.allreduce(right, op=hvd.Sum)) / len(images)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, nargs="*", default=[256, 128], help="sizes of the hidden layers")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="steps an epoch, 0 = all")
    parser.add_argument("--batch-size", type=int, default=256, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=1, help="batches whose gradients are reduced at once")
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file for the results; without an epoch, test_accuracy is null")
    parser.add_argument("--params", help="file for the parameters (.npz)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
