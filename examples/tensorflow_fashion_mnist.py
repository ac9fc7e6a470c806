"""Trains LeNet or an MLP on Fashion-MNIST with a gradient tape, on one rank or many.

    ringrun -np 2 python examples/tensorflow_fashion_mnist.py --model lenet --epochs 10

The global batch is --batch-size on any number of ranks: each rank takes its share of every batch, of the last one too,
so that nothing is dropped or seen twice. A rank's loss is summed over its share and divided by the global batch, and
gradients are summed over the ranks: the step is that of one rank on the whole batch, also where shares differ.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import fashion_mnist
import numpy as np
import tensorflow as tf

import ringreduce.tensorflow as hvd

keras = tf.keras


def lenet(dtype: str) -> Any:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1), dtype=dtype),
            keras.layers.Conv2D(20, 3, activation="relu", dtype=dtype),
            keras.layers.AveragePooling2D(2, dtype=dtype),
            keras.layers.Conv2D(50, 5, activation="relu", dtype=dtype),
            keras.layers.AveragePooling2D(2, dtype=dtype),
            keras.layers.Flatten(dtype=dtype),
            keras.layers.Dense(128, activation="relu", dtype=dtype),
            keras.layers.Dense(10, dtype=dtype),
        ]
    )


def mlp(dtype: str, hidden: int = 4096) -> Any:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1), dtype=dtype),
            keras.layers.Flatten(dtype=dtype),
            keras.layers.Dense(hidden, activation="relu", dtype=dtype),
            keras.layers.Dense(hidden, activation="relu", dtype=dtype),
            keras.layers.Dense(10, dtype=dtype),
        ]
    )


MODELS = {"lenet": lenet, "mlp": mlp}


class Trainer:
    """A model, its optimizer, and a step on this rank's share of a batch, compiled to a graph."""

    def __init__(self, options: argparse.Namespace) -> None:
        keras.utils.set_random_seed(options.seed)
        self.dtype = options.dtype
        self.model = MODELS[options.model](options.dtype)
        self.optimizer = keras.optimizers.SGD(options.lr)
        self.optimizer.build(self.model.trainable_variables)
        hvd.broadcast_variables([*self.model.weights, *self.optimizer.variables], root_rank=0)

    @tf.function(reduce_retracing=True)
    def step(self, pixels: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """One step; count is the global batch. Returns this share's part of the loss."""
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.scores(pixels, training=True))
            loss = tf.reduce_sum(losses) / tf.cast(count, losses.dtype)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function(reduce_retracing=True)
    def right(self, pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """How many images the model gets right."""
        found = tf.argmax(self.scores(pixels, training=False), 1, output_type=labels.dtype)
        return tf.reduce_sum(tf.cast(found == labels, tf.int64))

    def scores(self, pixels: tf.Tensor, training: bool) -> Any:
        return self.model(tf.cast(pixels[..., tf.newaxis], self.dtype) / 255, training=training)


def share(count: int) -> slice:
    """This rank's part of count things: equal parts, the first count % size ranks have one more."""
    base, extra = divmod(count, hvd.size())
    start = hvd.rank() * base + min(hvd.rank(), extra)
    return slice(start, start + base + (hvd.rank() < extra))


def batches(count: int, options: argparse.Namespace, epoch: int) -> list[np.ndarray]:
    """All rows in an order that is the same on every rank, cut into global batches."""
    order = np.random.default_rng(options.seed + epoch).permutation(count)
    cuts = range(options.batch_size, count, options.batch_size)
    return np.split(order, cuts)[: options.steps]


def accuracy(trainer: Trainer, images: np.ndarray, labels: np.ndarray) -> float:
    """The part of all images that the model gets right; each rank looks at its share."""
    mine = share(len(images))
    right = tf.constant(0, tf.int64)
    for start in range(mine.start, mine.stop, 1000):
        part = slice(start, min(start + 1000, mine.stop))
        right += trainer.right(tf.constant(images[part]), tf.constant(labels[part]))
    return int(hvd.allreduce(right, op=hvd.Sum)) / len(images)


def train(trainer: Trainer, data: fashion_mnist.FashionMNIST, options: argparse.Namespace) -> list[dict[str, float]]:
    """Trains for --epochs, the learning rate falling to zero over the second half; returns a row for each epoch."""
    rows = []
    labels, test_labels = data.train_labels.astype(np.int32), data.test_labels.astype(np.int32)
    steps = max(1, options.epochs * len(batches(len(labels), options, 0)))
    done = 0
    for epoch in range(options.epochs):
        todo = batches(len(labels), options, epoch)
        loss, samples, start = 0.0, 0, time.perf_counter()
        for number, batch in enumerate(todo, 1):
            trainer.optimizer.learning_rate.assign(options.lr * min(1.0, 2 - 2 * done / steps))
            mine = batch[share(len(batch))]
            loss += trainer.step(
                tf.constant(data.train_images[mine]), tf.constant(labels[mine]), tf.constant(len(batch))
            )
            done += 1
            samples += len(batch)
            progress(f"epoch {epoch + 1}/{options.epochs}", number, len(todo))
        total = float(hvd.allreduce(loss, op=hvd.Sum))
        seconds = time.perf_counter() - start
        row = {
            "epoch": epoch + 1,
            "loss": total / len(todo),
            "test_accuracy": accuracy(trainer, data.test_images, test_labels),
            "seconds": seconds,
            "samples_per_s": samples / seconds,
        }
        rows.append(row)
        if hvd.rank() == 0:
            text = "epoch {epoch}: loss {loss:.3f}, test accuracy {test_accuracy:.3f}, {samples_per_s:.0f} samples/s"
            print(text.format(**row), flush=True)
    return rows


def progress(title: str, done: int, total: int) -> None:
    if hvd.rank() == 0 and sys.stderr.isatty():
        filled = 40 * done // total
        end = "\r\033[K" if done == total else ""
        print(
            f"\r{title} [{'=' * filled}{' ' * (40 - filled)}] {done}/{total} {end}", end="", file=sys.stderr, flush=True
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256, help="global, whatever the number of ranks (256)")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--steps", type=int, help="stop each epoch after so many batches")
    parser.add_argument("--json", metavar="FILE", help="write results there")
    return parser.parse_args()


def main() -> None:
    options = parse()
    hvd.init()
    data = fashion_mnist.load()
    trainer = Trainer(options)
    rows = train(trainer, data, options)
    result: dict[str, Any] = vars(options) | {
        "ranks": hvd.size(),
        "gradient_nbytes": sum(v.numpy().nbytes for v in trainer.model.trainable_variables),
        "epoch": rows,
    }
    if rows:
        result["test_accuracy"] = rows[-1]["test_accuracy"]
        result["samples_per_s"] = statistics.median(row["samples_per_s"] for row in rows)
    if options.json and hvd.rank() == 0:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
    hvd.shutdown()


if __name__ == "__main__":
    main()
