"""Why there is no file of ringreduce._core, the compiled half of this package, for this Python, and what to do."""

from __future__ import annotations

import sys
from pathlib import Path


def error(folder: Path) -> ImportError:
    """The error to raise. folder: that of this package."""
    built = ", ".join(sorted(path.name for path in folder.glob("_core.*.so")))
    install = f"{sys.executable} -m pip install"
    if (folder.parent / "csrc").is_dir():
        has = f"whose core is built for another Python ({built})" if built else "whose core is not built"
        why = (
            f"this is the source tree, {has}, and it hides an installed ringreduce. Run the program from another "
            "folder, or with `python -P` (PYTHONSAFEPATH=1; Python 3.11 and newer), which does not search the "
            f"program's own folder. If ringreduce is not installed yet: {install} {folder.parent}"
        )
    elif built:
        why = f"it is built for another Python ({built}). Install it for this one: {install} THE_SOURCE_TREE"
    else:
        why = f"the installation is incomplete. Repeat it: {install} --force-reinstall THE_SOURCE_TREE"
    version = ".".join(map(str, sys.version_info[:3]))
    return ImportError(
        f"no ringreduce._core for Python {version} ({sys.executable}) in {folder}: {why}", name="ringreduce._core"
    )
