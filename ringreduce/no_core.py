"""What to do where this package has no ringreduce._core, its compiled half, for this Python."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def installed_elsewhere(folder: Path) -> Path:
    """The folder of an installed ringreduce that this source tree hides, for a program that runs in the tree's root.

    Args:
        folder: of this package.

    Raises:
        ImportError: there is none; it says why this package has no core, and what to do.
    """
    for entry in sys.path:
        other = Path(entry or ".").resolve() / "ringreduce"
        if other != folder.resolve() and any((other / f"_core{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
            return other
    raise _error(folder)


def _error(folder: Path) -> ImportError:
    built = ", ".join(sorted(path.name for path in folder.glob("_core.*.so")))
    install = f"{sys.executable} -m pip install"
    if (folder.parent / "csrc").is_dir():
        has = f"whose core is built for another Python ({built})" if built else "whose core is not built"
        why = f"this is the source tree, {has}, and no other ringreduce is installed: {install} {folder.parent}"
    elif built:
        why = f"it is built for another Python ({built}). Install it for this one: {install} THE_SOURCE_TREE"
    else:
        why = f"the installation is incomplete. Repeat it: {install} --force-reinstall THE_SOURCE_TREE"
    version = ".".join(map(str, sys.version_info[:3]))
    return ImportError(
        f"no ringreduce._core for Python {version} ({sys.executable}) in {folder}: {why}", name="ringreduce._core"
    )
