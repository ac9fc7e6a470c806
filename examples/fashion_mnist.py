"""Fashion-MNIST as tensors of bytes: finds the four files, fetches them once when they are missing, and parses them.

Looked for in this order: the folder named by RINGREDUCE_DATA; the user's cache; Debian's package dataset-fashion-mnist
(no root needed: it is fetched and unpacked, not installed); the data set's own site. Fetched files go to the cache, as
a whole or not at all, under a lock, so that any number of ranks may call this at once. Needs NumPy only.
"""

import fcntl
import gzip
import hashlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

PACKAGE = "dataset-fashion-mnist"
SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FILES = {  # name: (dimensions, MD5 of the file on SITE, as its README publishes it)
    "train-images-idx3-ubyte.gz": (3, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte.gz": (1, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte.gz": (3, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte.gz": (1, "bb300cfdad3c16e7a12a480ee83cd310"),
}


class FashionMNIST(NamedTuple):
    """Images are (count, 28, 28) and labels (count,), all uint8."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load() -> FashionMNIST:
    """The data set, fetched first if it has to be. Raises FileNotFoundError naming the four ways when all fail."""
    folder = locate()
    arrays = [_read_idx(folder / name, ndim) for name, (ndim, _) in FILES.items()]
    for images, labels in (arrays[:2], arrays[2:]):
        if images.shape[1:] != (28, 28) or len(images) != len(labels) or labels.max(initial=0) > 9:
            raise ValueError(f"{folder}: images {images.shape} and labels {labels.shape} are not Fashion-MNIST's")
    return FashionMNIST(*arrays)


def locate() -> Path:
    """The folder that has the four files."""
    given = os.environ.get("RINGREDUCE_DATA")
    if given:
        for folder in (Path(given), Path(given) / "fashion-mnist"):
            if _complete(folder):
                return folder
        print(f"RINGREDUCE_DATA={given} lacks Fashion-MNIST's files, looking elsewhere", file=sys.stderr)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringreduce"
    folder = cache / "fashion-mnist"
    if not _complete(folder):
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "fashion-mnist.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _complete(folder):
                _fetch(cache, folder)
    return folder


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def _fetch(cache: Path, folder: Path) -> None:
    causes = []
    ways: list[Callable[[Path, Path], None]] = [_from_debian, _from_site]
    for way in ways:
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            work, files = Path(temporary, "work"), Path(temporary, "files")
            work.mkdir()
            files.mkdir()
            try:
                way(work, files)
                for name, (ndim, _) in FILES.items():
                    _read_idx(files / name, ndim)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                causes.append(str(error))
                continue
            shutil.rmtree(folder, ignore_errors=True)
            files.rename(folder)
            return
    raise FileNotFoundError(
        "Fashion-MNIST was not found. Any one of these helps:\n"
        f"  1. set RINGREDUCE_DATA to a folder with {', '.join(FILES)}\n"
        f"  2. put these four files into {folder}\n"
        f"  3. make Debian's package {PACKAGE} available to apt-get download ({causes[0]})\n"
        f"  4. make {SITE} reachable ({causes[1]})"
    )


def _from_debian(work: Path, files: Path) -> None:
    """Uses apt's package lists when they know the package, else private lists that leave the machine as it was."""
    private = []
    for name, part in (("Dir::State", "state/lists/partial"), ("Dir::Cache", "cache/archives/partial")):
        (work / part).mkdir(parents=True)
        private += ["-o", f"{name}={work / part.split('/')[0]}"]
    private += ["-o", "Dir::State::status=/var/lib/dpkg/status", "-o", "APT::Sandbox::User="]
    try:
        _call(["apt-get", "-o", "APT::Sandbox::User=", "download", PACKAGE], work)
    except subprocess.SubprocessError:
        _call(["apt-get", *private, "update"], work)
        _call(["apt-get", *private, "download", PACKAGE], work)
    (package,) = work.glob("*.deb")
    _call(["dpkg-deb", "-x", package.name, "unpacked"], work)
    for name in FILES:
        (found,) = (work / "unpacked").rglob(name)
        shutil.move(found, files / name)


def _call(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        last = done.stdout.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise subprocess.SubprocessError(f"{command[0]}: {last[0]}")


def _from_site(_: Path, files: Path) -> None:
    for name, (_, md5) in FILES.items():
        with urllib.request.urlopen(SITE + name, timeout=30) as response:
            content = response.read()
        if hashlib.md5(content).hexdigest() != md5:
            raise ValueError(f"{SITE}{name}: the checksum differs from the published one")
        (files / name).write_bytes(content)


def _read_idx(path: Path, ndim: int) -> np.ndarray:
    """The IDX format: bytes 0, 0, 8 (unsigned byte), ndim; ndim big-endian uint32 sizes; the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    start = 4 + 4 * ndim
    if content[:4] != bytes((0, 0, 8, ndim)) or len(content) < start:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes in {ndim} dimensions")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", ndim, offset=4))
    if len(content) != start + math.prod(shape):
        raise ValueError(f"{path} has {len(content)} bytes where its header promises {start + math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


if __name__ == "__main__":
    print(locate())
