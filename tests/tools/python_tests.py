"""Where a Python test file is, by its name alone. A name is in one room of tests/python only; pytest wants that too."""

from __future__ import annotations

from pathlib import Path

ROOMS = Path(__file__).resolve().parents[1] / "python"


def path_of(name: str) -> Path:
    """The file of this name in any room; what follows "::" stays. Raises LookupError if there is not just one."""
    file, separator, test = name.partition("::")
    found = list(ROOMS.glob(f"*/{file}"))
    if len(found) != 1:
        raise LookupError(f"{file} is in {len(found)} rooms of {ROOMS}")
    return Path(f"{found[0]}{separator}{test}")
