"""ringreduce: ring all-reduce and friends for data-parallel training.

    import numpy as np
    import ringreduce

    with ringreduce.init() as world:
        total = ringreduce.allreduce(np.arange(4.0), op=ringreduce.Sum)

ringreduce.torch has the same for PyTorch, with Horovod's API.

The first public name that is used loads all of them, with NumPy and the core. The launcher needs neither, and starts
without them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # also what api.py has from names.py: mypy does not follow that far
    from ringreduce import api
    from ringreduce.api import *  # noqa: F403
    from ringreduce.common import names
    from ringreduce.common.names import *  # noqa: F403
    from ringreduce.launch.run import run as run

    __all__ = ["run"]
    __all__ += api.__all__
    __all__ += names.__all__

_FOLDER = Path(__file__).parent

if not any((_FOLDER / f"_core{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
    from ringreduce import no_core

    _FOLDER = no_core.installed_elsewhere(_FOLDER)  # or it raises
    globals()["__path__"] = [str(_FOLDER)]
    __file__ = str(_FOLDER / "__init__.py")


def __getattr__(name: str) -> Any:
    is_module = (_FOLDER / f"{name}.py").exists() or (_FOLDER / name / "__init__.py").exists()
    if is_module and name != "__main__":  # which would run the command line
        return import_module(f"ringreduce.{name}")
    if name == "run":
        return import_module("ringreduce.launch.run").run
    if not name.startswith("_") or name in ("__all__", "__version__"):
        api = import_module("ringreduce.api")
        for public in api.__all__:
            globals().setdefault(public, getattr(api, public))  # what somebody has put there stays
        globals()["__all__"] = [*api.__all__, "run"]
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
