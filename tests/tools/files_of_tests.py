"""Where a file of tests is, by its name alone: a name is in one room of tests/python, or of tests/cpp, only."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def path_of(name: str) -> Path:
    """The Python file of this name in any room; what follows "::" stays. Raises LookupError if there is not just one.

    pytest wants each name only once, too.
    """
    file, separator, test = name.partition("::")
    return Path(f"{only(TESTS / 'python', file)}{separator}{test}")


def cpp_path_of(name: str) -> Path:
    """The C++ file "<name>.cc" in any room. Raises LookupError if there is not just one."""
    return only(TESTS / "cpp", f"{name}.cc")


def only(rooms: Path, file: str) -> Path:
    """The file of this name in a folder of `rooms`."""
    found = list(rooms.glob(f"*/{file}"))
    if len(found) != 1:
        raise LookupError(f"{file} is in {len(found)} rooms of {rooms}")
    return found[0]
