"""Trains a convolutional network on Fashion-MNIST with Keras's model.fit(), on one rank or many.

    KERAS_BACKEND=torch ringrun -np 2 python examples/keras_fashion_mnist.py --epochs 4

KERAS_BACKEND is tensorflow (Keras's default), torch or jax; nothing else differs. The global batch is --batch-size on
any number of ranks: each rank has its share of every batch, in the same order, so that the step is that of one rank on
the whole batch. The learning rate is warmed up over the first epoch, as for large batches; with one rank there is
nothing to warm up.
"""

import argparse
import json
from typing import Any

import fashion_mnist
import keras
import numpy as np

import ringreduce.keras as hvd


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256, help="global, whatever the number of ranks (256)")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="use only as many global batches")
    parser.add_argument("--warmup-epochs", type=int, default=1)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    parser.add_argument("--save", metavar="FILE", help="write the best model there (.keras)")
    parser.add_argument("--json", metavar="FILE", help="write results there")
    return parser.parse_args()


def make_model(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(6, 5, padding="same", activation="tanh"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(16, 5, activation="tanh"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(120, activation="tanh"),
            keras.layers.Dense(84, activation="tanh"),
            keras.layers.Dense(10),
        ]
    )


def images(pixels: np.ndarray) -> np.ndarray:
    return (pixels[..., None] / 255).astype("float32")


def my_share(array: np.ndarray, batch: int, order: np.ndarray) -> np.ndarray:
    """This rank's rows of every global batch, batch by batch; what does not fill a batch is left out."""
    rows = order[: len(order) // batch * batch].reshape(-1, hvd.size(), batch // hvd.size())
    return array[rows[:, hvd.rank()].reshape(-1)]


def main() -> None:
    options = parse()
    hvd.init()
    if options.batch_size % hvd.size():
        raise SystemExit(f"--batch-size {options.batch_size} is no multiple of {hvd.size()} ranks")
    data = fashion_mnist.load()
    order = np.random.default_rng(options.seed).permutation(len(data.train_images))
    order = order[: options.steps * options.batch_size] if options.steps else order
    x = images(my_share(data.train_images, options.batch_size, order))
    y = my_share(data.train_labels, options.batch_size, order).astype("int32")
    tests = slice(hvd.rank(), len(data.test_images) // hvd.size() * hvd.size(), hvd.size())

    model = make_model(options.seed + hvd.rank())  # each rank its own, for the broadcast to have something to do
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    optimizer = keras.optimizers.SGD(options.lr, momentum=0.9)
    model.compile(
        hvd.DistributedOptimizer(optimizer, compression=compression),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **({"jit_compile": False} if keras.backend.backend() == "tensorflow" else {}),  # a GPU's default is XLA
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    if options.warmup_epochs:
        verbose = int(hvd.rank() == 0)
        callbacks.append(hvd.callbacks.LearningRateWarmupCallback(options.lr, options.warmup_epochs, verbose=verbose))
    if options.save:
        callbacks.append(hvd.callbacks.BestModelCheckpoint(monitor="val_accuracy", filepath=options.save))
    history = model.fit(
        x,
        y,
        batch_size=options.batch_size // hvd.size(),
        epochs=options.epochs,
        shuffle=False,  # the shares are shuffled already, in one order for all ranks
        validation_data=(images(data.test_images[tests]), data.test_labels[tests].astype("int32")),
        callbacks=callbacks,
        verbose=0,
    ).history
    if hvd.rank() == 0:
        for epoch in range(options.epochs):
            print(
                f"epoch {epoch + 1}: loss {history['loss'][epoch]:.3f}, "
                f"test accuracy {history['val_accuracy'][epoch]:.3f}",
                flush=True,
            )
        if options.json:
            weights = [float(np.abs(weight).sum()) for weight in model.get_weights()]
            result = {"backend": keras.backend.backend(), "ranks": hvd.size(), "history": history, "weights": weights}
            with open(options.json, "w") as file:
                json.dump(result, file, indent=1)
    hvd.shutdown()


if __name__ == "__main__":
    main()
