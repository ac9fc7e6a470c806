"""What tests of the examples share: where these are, a small data set of the real format, and how one is run."""

import contextlib
import gzip
import io
import runpy
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from deadlines import HANG_S
from ranks import clean_environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import fashion_mnist  # noqa: E402, F401  # of the examples

RINGRUN = Path(sys.executable).with_name("ringrun")
TRAIN, TEST = 130, 41
"""Images in the small data set: the last batch of 32 has two, and shares differ."""


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_data(folder: Path) -> Path:
    """Ten kinds of images that differ in which rows are bright."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = rng.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 4] += 190
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return folder


def run(*command: str | Path, data: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    environ = {**clean_environment(), **({"RINGREDUCE_DATA": str(data)} if data else {}), **(env or {})}
    done = subprocess.run(
        list(map(str, command)),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def example(script: str, *options: str) -> str:
    """A rank runs an example, whose path is below examples/, and returns what it has printed."""
    path = EXAMPLES / script
    sys.argv = [script, *options]
    sys.path.insert(0, str(path.parent))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()
