"""Files that appear when they are whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ringreduce.errors import InvalidArgumentError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to under another name in the same folder; it gets its name when the block has ended well.

    What is no regular file, a pipe for instance, or lies in a folder that cannot be written is written at once.

    Raises InvalidArgumentError where it cannot be written.
    """
    if _has_no_part(path):
        try:
            with open(path, "wb") as file:
                yield file
        except OSError as error:
            raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror}") from error
        return
    path = path.resolve()  # a symbolic link stays one
    handle, name = _part(path)
    try:
        with open(handle, "wb") as file:
            yield file
        os.replace(name, path)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Whether whole_file() can begin, said before there is anything to write. Raises InvalidArgumentError."""
    if _has_no_part(path):
        if path.is_dir() or not os.access(path, os.W_OK):
            raise InvalidArgumentError(
                f"{path}: cannot be written: {'it is a folder' if path.is_dir() else 'no right'}"
            )
        return
    handle, name = _part(path.resolve())
    os.close(handle)
    Path(name).unlink(missing_ok=True)


def _has_no_part(path: Path) -> bool:
    if not path.exists():
        return False
    return not path.is_file() or (os.access(path, os.W_OK) and not os.access(path.resolve().parent, os.W_OK))


def _part(path: Path) -> tuple[int, str]:
    """The descriptor and the name of a new file beside this one."""
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"{path}: cannot be written: there is no folder {path.parent}; make it first")
    name = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}.part"))
    try:
        # Unlike tempfile's, with the rights that the umask leaves: that of a process cannot be read without setting it
        # for a moment, in which other threads make files.
        return os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666), name
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror}") from error
