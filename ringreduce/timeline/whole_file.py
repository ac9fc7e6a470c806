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
    handle, name = _part(path)
    try:
        with open(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # mkstemp lets nobody else read
            yield file
        os.replace(name, path)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Whether whole_file() can begin, said before there is anything to write. Raises InvalidArgumentError."""
    handle, name = _part(path)
    os.close(handle)
    Path(name).unlink(missing_ok=True)


def _part(path: Path) -> tuple[int, str]:
    """The descriptor and the name of a new file beside this one."""
    if path.exists() and not path.is_file():
        raise InvalidArgumentError(f"{path}: cannot be written: it is no regular file; name another one")
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"{path}: cannot be written: there is no folder {path.parent}; make it first")
    try:
        return tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
