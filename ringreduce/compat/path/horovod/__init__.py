"""ringreduce under the name horovod; see ringreduce.compat."""

from __future__ import annotations

from ringreduce import compat

compat.install()  # where this was found on PYTHONPATH, the submodules are to be found too

from horovod.runner import run  # noqa: E402

__version__ = "0.28.1"
"""The version of Horovod whose API this is, for scripts that compare it. ringreduce's own is ringreduce.__version__."""

__all__ = ["__version__", "run"]
