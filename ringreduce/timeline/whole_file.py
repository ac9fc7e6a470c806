"""Files that appear when they are whole."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ringreduce.errors import InvalidArgumentError

_DESCRIPTORS = re.compile(r"(/proc/\d+)(?:/task/\d+)?/fd", re.ASCII)
"""A folder with a process's descriptors. os.path.realpath() gives it where a path has /proc/self or /dev/fd in it."""
_MOST_LINKS = 40
"""Linux follows so many."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to under another name in the same folder; it gets its name when the block has ended well.

    It has the rights of the file that it replaces: who has made a trace private finds it private.
    What is no regular file, a pipe for instance, or lies in a folder that cannot be written is written at once. So is a
    file behind a descriptor, /dev/stdout say, whose text goes on where it was.

    Raises InvalidArgumentError where it cannot be written.
    """
    if _has_no_part(path):
        try:
            with _opened_at_once(path) as file:
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
        if is_file_behind_descriptor(path):
            _opened_at_once(path).close()
        return
    handle, name = _part(path.resolve())
    os.close(handle)
    Path(name).unlink(missing_ok=True)


def _has_no_part(path: Path) -> bool:
    if not path.exists():
        return False
    if not path.is_file() or is_file_behind_descriptor(path):
        return True
    return os.access(path, os.W_OK) and not os.access(path.resolve().parent, os.W_OK)


def is_file_behind_descriptor(path: Path) -> bool:
    """Whether the path is a descriptor's, as /dev/stdout, /dev/fd/3 and links to such are, and that of a regular file.

    Who has redirected it goes on to write there, and may have text in the file, so it is not replaced.
    """
    return path.is_file() and _descriptor(path) is not None


def _descriptor(path: Path) -> tuple[str, int] | None:
    """The process's folder in /proc and the number, where the path leads to a descriptor: its own name is the file's.

    >>> _descriptor(Path("/proc/4711/fd/3"))
    ('/proc/4711', 3)
    """
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if (found := _DESCRIPTORS.fullmatch(folder)) and path.name.isdecimal():
            return found[1], int(path.name)
        if not path.is_symlink():
            return None
        path = Path(folder, os.readlink(path))
    return None


def _opened_at_once(path: Path) -> BinaryIO:
    found = _descriptor(path) if path.is_file() else None
    if found is None:
        return open(path, "wb")
    process, number = found
    if process != os.path.realpath("/proc/self"):
        return open(path, "ab")
    # The same open file, unlike what open() makes, has the same place in the file: nothing is written over.
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise InvalidArgumentError(f"{path}: cannot be written: it is open for reading alone")
    return open(os.dup(number), "wb")


def _part(path: Path) -> tuple[int, str]:
    """The descriptor and the name of a new file beside this one."""
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"{path}: cannot be written: there is no folder {path.parent}; make it first")
    name = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}.part"))
    try:
        former = _former(path)
        # Unlike tempfile's, with the rights that the umask leaves: that of a process cannot be read without setting it
        # for a moment, in which other threads make files. Who could open it now could read it later, so it is private
        # until it has the former one's rights.
        rights = 0o666 if former is None else 0o600
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, rights)
        if former is not None:
            try:
                _give_rights(handle, former)
            except OSError:
                os.close(handle)
                os.unlink(name)
                raise
        return handle, name
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror}") from error


def _former(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _give_rights(handle: int, former: os.stat_result) -> None:
    """Gives a new file the mode of a former one, and its owner and group as far as that is allowed."""
    mode = stat.S_IMODE(former.st_mode) & 0o777
    if not _has_owner(handle, former.st_uid, former.st_gid) and not _has_owner(handle, -1, former.st_gid):
        mode = (mode & 0o707) | (mode & 0o007) << 3  # another group than the one that was given the right
    os.fchmod(handle, mode)


def _has_owner(handle: int, owner: int, group: int) -> bool:
    """Makes them the owner (-1: leaves it) and the group; False where that is not allowed."""
    try:
        os.fchown(handle, owner, group)
    except OSError:  # a user namespace or a network's file system may say something else than EPERM
        return False
    return True
