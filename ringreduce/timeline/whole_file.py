"""Files that appear when they are whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ringreduce.errors import InvalidArgumentError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to under another name in the same folder; it gets its name when the block has ended well.

    Raises InvalidArgumentError where it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise InvalidArgumentError(f"{path}: cannot be written: it is no regular file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with open(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # mkstemp lets nobody else read
            yield file
        os.replace(name, path)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
