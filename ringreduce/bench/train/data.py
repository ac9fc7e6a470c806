"""Images of ten classes as bytes: Fashion-MNIST's training set where its files are, or synthetic ones of that shape.

Nothing is fetched: examples/fashion_mnist.py of the source tree does that. Looked for in the folder named by
RINGREDUCE_DATA, in fashion-mnist/ below it, and in the user's cache (~/.cache/ringreduce/fashion-mnist).
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringreduce.errors import InvalidArgumentError, UnavailableError

Bytes = NDArray[np.uint8]

FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
SIDE = 28
SYNTHETIC_COUNT = 8192
CLASSES = 10


def find() -> Path | None:
    """The folder with Fashion-MNIST's training set, or None."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [cache / "ringreduce" / "fashion-mnist"]
    given = os.environ.get("RINGREDUCE_DATA")
    if given:
        folders = [Path(given), Path(given, "fashion-mnist"), *folders]
    return next((folder for folder in folders if all((folder / name).is_file() for name in FILES)), None)


def choose(asked: str | None) -> str:
    """The data set to use. Raises UnavailableError when Fashion-MNIST is asked for and is not there."""
    if asked == "fashion-mnist" and find() is None:
        raise UnavailableError(
            f"ringreduce bench train --data fashion-mnist: {' and '.join(FILES)} were found neither in "
            "$RINGREDUCE_DATA nor in ~/.cache/ringreduce/fashion-mnist; examples/fashion_mnist.py fetches them, "
            "--data synthetic does without"
        )
    return asked or ("synthetic" if find() is None else "fashion-mnist")


def load(name: str, seed: int) -> tuple[Bytes, Bytes]:
    """Images (count, 28, 28) and labels (count,). Raises InvalidArgumentError for a damaged file."""
    if name == "synthetic":
        return synthetic(seed)
    choose(name)
    folder = find()
    assert folder is not None
    images, labels = (_read_idx(folder / file, ndim) for file, ndim in zip(FILES, (3, 1), strict=True))
    if images.shape != (len(labels), SIDE, SIDE) or labels.max(initial=0) >= CLASSES:
        raise InvalidArgumentError(f"{folder}: images {images.shape}, labels {labels.shape} are not Fashion-MNIST's")
    return images, labels


def synthetic(seed: int) -> tuple[Bytes, Bytes]:
    """Half noise, half one random pattern per class: learnable, and the same for everyone who gives the same seed."""
    random = np.random.default_rng(seed)
    patterns = random.integers(0, 256, (CLASSES, SIDE, SIDE), np.uint8)
    labels = random.integers(0, CLASSES, SYNTHETIC_COUNT).astype(np.uint8)
    noise = random.integers(0, 256, (SYNTHETIC_COUNT, SIDE, SIDE), np.uint8)
    return patterns[labels] // 2 + noise // 2, labels


def _read_idx(path: Path, ndim: int) -> NDArray[Any]:
    """The IDX format: bytes 0, 0, 8 (unsigned byte), ndim; ndim big-endian uint32 sizes; the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidArgumentError(f"{path} is damaged: {error}") from error
    start = 4 + 4 * ndim
    shape = tuple(int(size) for size in np.frombuffer(content[4:start].ljust(4 * ndim, b"\0"), ">u4"))
    if content[:4] != bytes((0, 0, 8, ndim)) or len(content) != start + math.prod(shape):
        raise InvalidArgumentError(f"{path} is not an IDX file of unsigned bytes in {ndim} dimensions, or is cut")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
